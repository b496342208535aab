package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// simulate has the machines of package qp exchange all operations over a link
// with faults, and returns the captures of both ends.
func simulate(t *testing.T, seed uint64, kind qp.Type, mtu, size int, faults simnet.Faults) (a, b []byte) {
	n := simnet.New(simnet.Config{Seed: seed})
	ha, err := n.AddHost(simnet.HostConfig{Name: "a"})
	require.NoError(t, err)
	hb, err := n.AddHost(simnet.HostConfig{Name: "b"})
	require.NoError(t, err)
	l, err := n.Connect(ha, hb, simnet.LinkConfig{Rate: 100e9, Delay: 2 * time.Microsecond})
	require.NoError(t, err)
	qa, qb, err := n.ConnectQPs(ha, hb, simnet.ConnConfig{Type: kind, MTU: mtu, RetryForever: true, RdAtomic: 4})
	require.NoError(t, err)
	l.AB().SetFaults(faults)
	l.BA().SetFaults(faults)
	var ca, cb bytes.Buffer
	ha.Capture(&ca)
	hb.Capture(&cb)
	mem, counter := make([]byte, size), make([]byte, 8)
	va, key, err := hb.Register(mem, qp.RemoteWrite|qp.RemoteRead)
	require.NoError(t, err)
	cva, ckey, err := hb.Register(counter, qp.RemoteAtomic)
	require.NoError(t, err)
	msg := bytes.Repeat([]byte("roce"), size/4+1)[:size]
	ops := []qp.SendWR{
		{Op: qp.OpSend, Local: msg},
		{Op: qp.OpWrite, Local: msg, RemoteAddr: va, RKey: key},
		{Op: qp.OpWriteImm, Local: msg, RemoteAddr: va, RKey: key, Imm: 7},
	}
	if kind == qp.RC {
		ops = append(ops,
			qp.SendWR{Op: qp.OpRead, Local: make([]byte, size), RemoteAddr: va, RKey: key},
			qp.SendWR{Op: qp.OpFetchAdd, Local: make([]byte, 8), RemoteAddr: cva, RKey: ckey, CompareAdd: 5},
			qp.SendWR{Op: qp.OpCmpSwap, Local: make([]byte, 8), RemoteAddr: cva, RKey: ckey, CompareAdd: 5, Swap: 77})
	}
	for round := range 4 {
		for range 2 {
			// Some receives come late, so that there are RNR NAKs.
			if round != 2 {
				require.NoError(t, qb.PostRecv(&qp.RecvWR{Local: make([]byte, size)}))
			}
		}
		for i := range ops {
			wr := ops[i]
			wr.Flags = qp.Signaled
			require.NoError(t, qa.PostSend(n.Now(), &wr))
		}
		if round == 2 {
			_, err = n.RunUntilIdle(3 * time.Millisecond)
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, qb.PostRecv(&qp.RecvWR{Local: make([]byte, size)}))
			}
		}
		idle, err := n.RunUntilIdle(time.Minute)
		require.NoError(t, err)
		require.True(t, idle)
	}
	return ca.Bytes(), cb.Bytes()
}

// thin takes 2 % of the records out of a capture.
func thin(data []byte, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 3))
	out := slices.Clone(data[:24])
	for b := data[24:]; len(b) > 0; {
		n := 16 + int(binary.LittleEndian.Uint32(b[8:]))
		if rng.IntN(50) != 0 {
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return out
}

// TestMachines holds the watcher's reading of the rules against that of package
// qp: whatever the link does to its packets, and whatever the capture loses
// besides, what they send breaks none. The two share no code but the codecs.
func TestMachines(t *testing.T) {
	links := map[string]simnet.Faults{
		"clean":     {},
		"loss":      {Loss: 0.03},
		"duplicate": {Duplicate: 0.05},
		"reorder":   {Reorder: 0.03},
		"corrupt":   {Corrupt: 0.03},
		"all":       {Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Corrupt: 0.02, Jitter: 300},
	}
	// The last ones are those at which false breaches were found once.
	seeds := []uint64{0, 1, 2, 3, 4, 5, 50, 108, 109, 136, 225, 266, 485}
	if testing.Short() {
		seeds = seeds[:2]
	}
	names := make([]string, 0, len(links))
	for name := range links {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, kind := range []qp.Type{qp.RC, qp.UC} {
			for _, seed := range seeds {
				for _, size := range []int{100, 1025, 9000} {
					mtu := []int{256, 1024, 4096}[seed%3]
					a, b := simulate(t, seed, kind, mtu, size, links[name])
					for end, data := range [][]byte{a, b, thin(a, seed), thin(b, seed)} {
						for _, args := range [][]string{{"-json", "-"}, {"-json", "-complete", "-"}} {
							if len(args) == 3 && (name != "clean" || end > 1) {
								continue // faults lose packets before they are captured
							}
							var out, errs bytes.Buffer
							run(args, bytes.NewReader(data), &out, &errs)
							require.Empty(t, errs.String())
							for _, m := range lines(t, out.String()) {
								if m["severity"] != "breach" || m["rule"] == "ICRC" && links[name].Corrupt > 0 {
									continue
								}
								t.Errorf("%s %v seed %d size %d mtu %d end %d %v: frame %v %v %v: %v", name, kind, seed, size, mtu, end, args[1:], m["frame"], m["rule"], m["check"], m["text"])
							}
						}
					}
				}
			}
		}
	}
}
