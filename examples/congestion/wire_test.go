package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// Transfers under congestion with bytes. What arrives is right,
// the switch's marks are in the IP headers and leave ICRC and header checksum
// right, CNPs are on the wire, and the receiver's counters are what its capture
// shows.
func TestCongestionOnTheWire(t *testing.T) {
	p := cnp.Paper()
	p.MinTimeBetweenCnps = 10
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 11},
		Switch:  simnet.SwitchConfig{Lossless: lossless, XOFF: 50_000, ECN: &cnp.CongestionParams{Kmin: 20_000, Kmax: 100_000, Pmax: 100_000}},
		Host:    simnet.HostConfig{Control: cnp.Controller(p)},
	}.Star(5)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "receiver.pcap")
	file, err := os.Create(name)
	require.NoError(t, err)
	out := bufio.NewWriter(file)
	receiver := f.Hosts()[0]
	receiver.Capture(out)
	var sender bytes.Buffer
	f.Hosts()[1].Capture(&sender)

	const size = 3_000_001
	memory := make([][]byte, 5)
	data := make([][]byte, 5)
	for i := 1; i < 5; i++ {
		h := f.Hosts()[i]
		qa, _, err := f.ConnectQPs(h, receiver, simnet.ConnConfig{DSCP: dscp})
		require.NoError(t, err)
		data[i], memory[i] = make([]byte, size), make([]byte, size)
		for k := range data[i] {
			data[i][k] = byte(k*i ^ k>>11)
		}
		va, key, err := receiver.Register(memory[i], qp.RemoteWrite)
		require.NoError(t, err)
		require.NoError(t, qa.PostSend(f.Now(), &qp.SendWR{Op: qp.OpWrite, Flags: qp.Signaled, Local: data[i], RemoteAddr: va, RKey: key}))
	}
	_, err = f.RunUntilIdle(time.Minute)
	require.NoError(t, err)
	var cnps, handled uint64
	for i := 1; i < 5; i++ {
		var wc qp.Completion
		require.True(t, f.Hosts()[i].CQ.Poll(&wc))
		require.Equal(t, qp.Success, wc.Status)
		require.True(t, bytes.Equal(data[i], memory[i]))
		handled += f.Hosts()[i].Port.Counters().RpCnpHandled
	}
	require.NoError(t, receiver.CaptureErr())
	require.NoError(t, out.Flush())
	require.NoError(t, file.Close())

	in, err := capture.Open(name, nil)
	require.NoError(t, err)
	defer in.Close()
	var rec capture.Record
	var fr frame.Frame
	var pause pfc.Frame
	var marked, received uint64
	for {
		if err := in.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		if pause.Decode(rec.Data) == nil {
			continue
		}
		require.NoError(t, fr.Decode(rec.Link, rec.Data))
		require.Equal(t, frame.ICRCGood, fr.CheckICRC())
		require.Zero(t, headerSum(fr.NetPacket[:20]), "IPv4 header checksum")
		switch {
		case fr.Packet.Opcode == bth.CNP:
			require.Equal(t, receiver.Port.MAC(), fr.SrcMAC)
			require.True(t, fr.Packet.BECN)
			require.EqualValues(t, p.CnpDscp, fr.DSCP())
			cnps++
		case fr.DstMAC == receiver.Port.MAC():
			received++
			if fr.ECN() == frame.CE {
				marked++
			}
		}
	}
	c := receiver.Port.Counters()
	require.NotZero(t, marked)
	require.NotZero(t, cnps)
	require.Equal(t, c.NpEcnMarkedRocePackets, marked)
	require.Equal(t, f.Bottleneck.Counters().Marked, marked)
	require.Equal(t, c.NpCnpSent, cnps)
	require.Equal(t, handled, cnps)
	require.Equal(t, c.RxRoCE, received)

	// The pauses are on the wire of a sender.
	pauses := uint64(0)
	in, err = capture.Open("-", &sender)
	require.NoError(t, err)
	for in.Next(&rec) == nil {
		if pause.Decode(rec.Data) == nil {
			require.Equal(t, pfc.PFC, pause.Opcode)
			require.EqualValues(t, lossless, pause.Enable)
			pauses++
		}
	}
	l := f.Hosts()[1].Link().BA().Counters()
	require.NotZero(t, pauses)
	require.Equal(t, l.PauseSent+l.ResumeSent, pauses)

	if testing.Short() {
		return
	}
	// And rocedump counts the same.
	dump, err := exec.Command("go", "run", "../rocedump", "-summary", "-json", name).Output()
	require.NoError(t, err)
	var sum struct {
		RoCE    uint64 `json:"roce"`
		CE      uint64 `json:"ce"`
		ICRC    struct{ Good, Bad uint64 }
		Opcodes []struct{ Opcode, Packets uint64 }
	}
	require.NoError(t, json.Unmarshal(dump, &sum), string(dump))
	require.Equal(t, marked, sum.CE)
	require.Equal(t, sum.RoCE, sum.ICRC.Good)
	require.Equal(t, c.RxRoCE+c.TxFrames, sum.RoCE)
	for _, o := range sum.Opcodes {
		if o.Opcode == uint64(bth.CNP) {
			require.Equal(t, cnps, o.Packets)
		}
	}
}

func headerSum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
