package conform_test

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/reth"
)

// Cases from public fault reports and forum threads. Frames in hexadecimal are
// theirs with addresses of the documentation ranges; the others are built by the
// fields that they name.

func unhex(tb testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(tb, err)
	return b
}

// talk is a capture that is written packet by packet: host 1 is the requester,
// QP 0x18, host 2 the responder, QP 0x19, a packet each 10 us.
type talk struct {
	recs []rec
	now  time.Time
	id   uint16
	ttl  uint8
}

func newTalk() *talk { return &talk{now: time.Unix(1_700_000_000, 0), ttl: 64, id: 100} }

func (k *talk) frame(from byte, op bth.Opcode, p uint32) *frame.Frame {
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: frame.MAC{2, 5: 3 - from}, SrcMAC: frame.MAC{2, 5: from},
		Src: netip.AddrFrom4([4]byte{192, 0, 2, from}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 3 - from}),
		DF: true, HopLimit: k.ttl, SrcPort: 0xc001, TrafficClass: 2, ID: k.id}
	if k.id != 0 {
		k.id++
	}
	f.Packet.Opcode, f.Packet.PKey, f.Packet.PSN, f.Packet.DestQP = op, 0xffff, psn.PSN(p), 0x18
	if from == 1 {
		f.Packet.DestQP = 0x19
	}
	return f
}

func (k *talk) put(f *frame.Frame) *talk {
	b := f.AppendTo(nil)
	k.recs = append(k.recs, rec{k.now, b, len(b)})
	k.now = k.now.Add(10 * us)
	return k
}

func (k *talk) req(op bth.Opcode, p uint32, n int) *talk {
	f := k.frame(1, op, p)
	f.Packet.AckReq = true
	f.Packet.SetPayload(make([]byte, n))
	if op.Ext()&bth.HasRETH != 0 {
		f.Packet.RETH = reth.Header{VA: 0x1000, RKey: 7, DMALen: uint32(n)}
		if op == bth.RCReadRequest {
			f.Packet.SetPayload(nil)
		}
	}
	return k.put(f)
}

func (k *talk) resp(op bth.Opcode, p uint32, syn aeth.Syndrome, msn uint32, n int) *talk {
	f := k.frame(2, op, p)
	f.Packet.AETH = aeth.Header{Syndrome: syn, MSN: msn}
	f.Packet.SetPayload(make([]byte, n))
	return k.put(f)
}

func (k *talk) ack(p, msn uint32) *talk { return k.resp(bth.RCAcknowledge, p, 0x1f, msn, 0) }

// raw adds frames in hexadecimal.
func (k *talk) raw(tb testing.TB, frames ...string) *talk {
	for _, s := range frames {
		b := unhex(tb, s)
		k.recs = append(k.recs, rec{k.now, b, len(b)})
		k.now = k.now.Add(us)
	}
	return k
}

// A requester uses a PSN again that belongs to a READ's responses; the responder,
// which takes that for a duplicate, is right. Rule RQ-02.
func TestFieldReadPSNReused(t *testing.T) {
	read := func() *talk {
		return newTalk().req(bth.RCReadRequest, 1002, 600).resp(bth.RCReadResponseFirst, 1002, 0x1f, 1, 256).
			resp(bth.RCReadResponseMiddle, 1003, 0, 0, 256).resp(bth.RCReadResponseLast, 1004, 0x1f, 1, 88)
	}
	cases := map[string]*talk{
		"as reported": read().raw(t,
			"02000000000202000000000108004502002c000040004011b6bbc0000201c0000202c00112b7001800000400ffff00000019800003ec2bfa158e",
			"020000000001020000000002080045020030000040004011b6b7c0000202c0000201c00112b7001c00001100ffff00000018000003ec1f00000197766a6c"),
		"SEND at the middle": read().req(bth.RCSendOnly, 1003, 0).ack(1004, 1),
		"WRITE at the last":  read().req(bth.RCWriteOnly, 1004, 16).ack(1004, 1),
		"others behind, acknowledged": newTalk().req(bth.RCSendOnly, 1000, 0).ack(1000, 1).req(bth.RCSendOnly, 1001, 0).ack(1001, 2).
			req(bth.RCReadRequest, 1002, 2400).resp(bth.RCReadResponseFirst, 1002, 0x1f, 3, 1024).resp(bth.RCReadResponseMiddle, 1003, 0, 0, 1024).
			resp(bth.RCReadResponseLast, 1004, 0x1f, 3, 352).req(bth.RCSendOnly, 1003, 0).req(bth.RCSendOnly, 1004, 0).
			req(bth.RCSendOnly, 1005, 0).ack(1005, 4),
	}
	for name, k := range cases {
		if name == "others behind, acknowledged" {
			continue
		}
		_, all := watch(t, conform.Config{}, k.recs)
		got := breaches(all)
		require.Equal(t, map[conform.Check]int{conform.PSNReused: 1}, got, name)
		for _, f := range all {
			if f.Severity == conform.Breach {
				require.Equal(t, "192.0.2.1", f.Src.String(), name)
			}
		}
	}
	_, all := watch(t, conform.Config{}, cases["others behind, acknowledged"].recs)
	require.Equal(t, map[conform.Check]int{conform.PSNReused: 2}, breaches(all))
}

// The Linux driver acknowledges PSN 0xffffff from a field that it has not set.
// Rule RQ-22.
func TestFieldAckNeverSent(t *testing.T) {
	k := newTalk().req(bth.RCSendOnly, 1002, 0).ack(1002, 1).req(bth.RCSendOnly, 1003, 0).raw(t,
		"020000000001020000000002080045020030000040004011b6b7c0000202c0000201c00112b7001c00001100ffff0000001800ffffff1f00000197084cbb")
	_, all := watch(t, conform.Config{}, k.recs)
	require.Equal(t, map[conform.Check]int{conform.AckNeverSent: 1}, breaches(all))
	// The capture may begin between a request and its acknowledgement.
	k = newTalk().req(bth.RCSendOnly, 1003, 0).ack(1002, 1).ack(1003, 2)
	_, all = watch(t, conform.Config{}, k.recs)
	require.Empty(t, breaches(all))
	// It did not, where it is complete: nothing was sent before the first packet.
	k = newTalk().req(bth.RCSendOnly, 0, 0).ack(0xffffff, 0).ack(0, 1)
	_, all = watch(t, conform.Config{}, k.recs)
	require.Empty(t, breaches(all))
	_, all = watch(t, conform.Config{Complete: true}, k.recs)
	require.Equal(t, map[conform.Check]int{conform.AckNeverSent: 1}, breaches(all))

	// However far away that PSN is, and however little was acknowledged before.
	for n := uint32(1); n < 6; n++ {
		for _, to := range []uint32{0xffffff, 0x123456 + 1<<22, 0x123456 + 3<<22, 0x123456 + 1<<23} {
			k = newTalk()
			for i := range n {
				k.req(bth.RCSendOnly, 0x123456+i, 0).ack(0x123456+i, i+1)
			}
			k.req(bth.RCSendOnly, 0x123456+n, 0).ack(to&psn.Mask, n)
			_, all = watch(t, conform.Config{}, k.recs)
			require.Equal(t, map[conform.Check]int{conform.AckNeverSent: 1}, breaches(all), "%d, %#x", n, to)
			require.Equal(t, "192.0.2.2", all[0].Src.String())
		}
	}
	// Where there is another flow, it may be that one which is acknowledged.
	k = newTalk().req(bth.RCSendOnly, 1002, 0).ack(1002, 1).req(bth.RCSendOnly, 1003, 0)
	other := k.frame(1, bth.RCSendOnly, 5_000_000)
	other.Packet.DestQP, other.Packet.AckReq = 0x29, true
	_, all = watch(t, conform.Config{}, k.put(other).ack(5_000_000, 1).recs)
	require.Empty(t, breaches(all))
}

// Of the first READ of a capture the beginning may be missing, but it ends where its length
// says. Rule RS-15.
func TestFieldReadEnd(t *testing.T) {
	read := func(n int) *talk { return newTalk().req(bth.RCReadRequest, 1000, n) }
	for name, k := range map[string]*talk{
		"Last too early":        read(600).resp(bth.RCReadResponseFirst, 1000, 0x1f, 1, 256).resp(bth.RCReadResponseLast, 1001, 0x1f, 1, 88),
		"First of what is Only": read(100).resp(bth.RCReadResponseFirst, 1000, 0x1f, 1, 256),
		"Middle at the end": read(600).resp(bth.RCReadResponseFirst, 1000, 0x1f, 1, 256).
			resp(bth.RCReadResponseMiddle, 1001, 0, 0, 256).resp(bth.RCReadResponseMiddle, 1002, 0, 0, 256),
	} {
		_, all := watch(t, conform.Config{}, k.recs)
		require.Equal(t, map[conform.Check]int{conform.ReadOpcode: 1}, breaches(all), name)
	}
	for name, k := range map[string]*talk{
		"as the Linux driver resumes": read(600).resp(bth.RCReadResponseMiddle, 1000, 0, 0, 256).
			resp(bth.RCReadResponseMiddle, 1001, 0, 0, 256).resp(bth.RCReadResponseLast, 1002, 0x1f, 1, 88),
		"the last packet again": read(88).resp(bth.RCReadResponseLast, 1000, 0x1f, 1, 88),
	} {
		_, all := watch(t, conform.Config{}, k.recs)
		require.Empty(t, breaches(all), name)
	}
}

// A report from the field is often a capture of few packets, which begins with them. Where
// no other flow is between two hosts, a response that fits a request exactly is to that
// request, and what contradicts it afterwards is wrong.
func TestFieldFewPackets(t *testing.T) {
	acked := func(n uint32, msn func(i uint32) uint32) *talk {
		k := newTalk()
		for i := range n {
			k.req(bth.RCSendOnly, 1000+i, 4).ack(1000+i, msn(i))
		}
		return k
	}
	refused := func(syn aeth.Syndrome) *talk {
		k := newTalk().req(bth.RCWriteOnly, 1000, 4).resp(bth.RCAcknowledge, 1000, syn, 0, 0)
		for i := range uint32(3) {
			k.now = k.now.Add(time.Millisecond)
			k.req(bth.RCWriteOnly, 1001+i, 4).ack(1001+i, i+1)
		}
		return k
	}
	atomic := newTalk().req(bth.RCFetchAdd, 1000, 0)
	for name, c := range map[string]struct {
		k    *talk
		want conform.Check
	}{
		"MSN stands still":                {acked(2, func(uint32) uint32 { return 5 }), conform.MSNWrong},
		"MSN rises by 2":                  {acked(2, func(i uint32) uint32 { return 2 * i }), conform.MSNWrong},
		"MSN falls":                       {acked(3, func(i uint32) uint32 { return 9 - i }), conform.MSNWrong},
		"responses after invalid request": {refused(0x61), conform.DeadAnswers},
		"responses after access error":    {refused(0x62), conform.DeadAnswers},
		"atomic acknowledgement of a READ": {newTalk().req(bth.RCReadRequest, 1000, 8).
			resp(bth.RCAtomicAcknowledge, 1000, 0x1f, 1, 0), conform.AtomicOutside},
		"READ response to an atomic": {atomic.resp(bth.RCReadResponseOnly, 1000, 0x1f, 1, 8), conform.ReadOutside},
	} {
		_, all := watch(t, conform.Config{}, c.k.recs)
		require.NotZero(t, breaches(all)[c.want], name)
		require.Len(t, breaches(all), 1, name)
		for _, f := range all {
			if f.Severity == conform.Breach {
				require.Equal(t, "192.0.2.2", f.Src.String(), name)
			}
		}
	}
}

// A snapshot length that keeps XRCETH of a Last, and not all headers of its First, in
// which XRCETH is too. Rule XR-2.
func TestFieldXRCSnap(t *testing.T) {
	write := func(last uint32) []rec {
		k := newTalk()
		f := k.frame(1, bth.XRC.Opcode(bth.WriteFirst), 1000)
		f.Packet.XRCETH.SRQ, f.Packet.RETH = 5, reth.Header{VA: 0x1000, RKey: 7, DMALen: 1500}
		f.Packet.SetPayload(make([]byte, 1024))
		k.put(f)
		f = k.frame(1, bth.XRC.Opcode(bth.WriteLast), 1001)
		f.Packet.XRCETH.SRQ, f.Packet.AckReq = last, true
		f.Packet.SetPayload(make([]byte, 476))
		return k.put(f).recs
	}
	for n := 54; n < 90; n++ {
		_, all := watch(t, conform.Config{}, snap(write(5), n))
		require.Empty(t, breaches(all), n)
	}
	_, all := watch(t, conform.Config{}, write(6))
	require.Equal(t, map[conform.Check]int{conform.XRCOtherSRQ: 1}, breaches(all))
}

// A receive is consumed by the first packet of a SEND: that is the one to refuse.
// Rule RS-09.
func TestFieldRNRInside(t *testing.T) {
	for _, c := range []struct {
		psn  uint32
		want int
	}{{1000, 0}, {1001, 1}, {1002, 1}} {
		k := newTalk().req(bth.RCSendFirst, 1000, 1024).req(bth.RCSendMiddle, 1001, 1024).req(bth.RCSendLast, 1002, 4).
			resp(bth.RCAcknowledge, c.psn, 0x2c, 0, 0)
		_, all := watch(t, conform.Config{}, k.recs)
		require.Equal(t, c.want, breaches(all)[conform.RNROfWrite], "PSN %d", c.psn)
		require.Len(t, breaches(all), c.want)
	}
}

// A responder that has no response to a READ, however often it is asked, and
// acknowledges what follows. Rule RS-14.
func TestFieldReadUnanswered(t *testing.T) {
	k := newTalk().req(bth.RCReadRequest, 1000, 8)
	for i := range uint32(7) {
		for j := range uint32(5) {
			k.req(bth.RCSendOnly, 1001+5*i+j, 4).ack(1001+5*i+j, 2+5*i+j)
		}
		k.now = k.now.Add(70 * time.Millisecond)
		k.req(bth.RCReadRequest, 1000, 8)
	}
	_, all := watch(t, conform.Config{}, k.recs)
	require.NotZero(t, breaches(all)[conform.ReadUnanswered])
	require.Len(t, breaches(all), 1)
}

// A switch has cut the frame, and the capture knows nothing of it.
func TestFieldCutBySwitch(t *testing.T) {
	k := newTalk().raw(t, "02000000000202000000000108004502043c000040004011b2abc0000201c0000202c00112b7042800000600ffff0000001200000064000000000000100000000077000010000000000000000000000000000000000000000000000000000000")
	w, all := watch(t, conform.Config{}, k.recs)
	require.Equal(t, []string{"note length-sliced 1"}, table(all))
	total := w.Total()
	require.EqualValues(t, 1, total.ICRCUnchecked)
}

// Copies: a CNP, and requests whose sender sets no IPv4 identification.
func TestFieldCopies(t *testing.T) {
	const c = "02000000000102000000000208004502003c000740004011b6a4c0000202c0000201c00112b7002800008100ffff000000180000000000000000000000000000000000000000218ee862"
	_, all := watch(t, conform.Config{}, newTalk().raw(t, c, c).recs)
	require.Empty(t, breaches(all)[conform.CNPTooOften])
	require.Contains(t, table(all), "event duplicate-cnp 2")

	k := newTalk().raw(t,
		"02000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b7003800000a00ffff00000019000003e80000000000001000000000070000001000000000000000000000000000000000c8ddaf26",
		"02000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b7003800000a00ffff00000019000003e900000000000010000000000700000010000000000000000000000000000000003b4d5d10",
		"02000000000202000000000108004502004c000040003f11b79bc0000201c0000202c00112b7003800000a00ffff00000019000003e80000000000001000000000070000001000000000000000000000000000000000c8ddaf26",
		"02000000000202000000000108004502004c000040003f11b79bc0000201c0000202c00112b7003800000a00ffff00000019000003e900000000000010000000000700000010000000000000000000000000000000003b4d5d10")
	w, all := watch(t, conform.Config{}, k.recs)
	require.Equal(t, []string{"event duplicate-request 3 4"}, table(all))
	total := w.Total()
	require.Zero(t, total.Retransmitted)
	require.EqualValues(t, 2, total.DataFrames)
	require.EqualValues(t, 2, total.MessagesTx)
}

// QP and address disagree. Rule UD-4.
func TestFieldMulticast(t *testing.T) {
	k := newTalk().raw(t, "01005e01010102000000000108004502004400004000401188a3c0000201ef010101c00112b7003000006400ffff00000011000000050000123400000022000000000000000000000000000000008bcb81b9")
	_, all := watch(t, conform.Config{}, k.recs)
	require.Equal(t, map[conform.Check]int{conform.MulticastQP: 1}, breaches(all))

	// RoCE v1, and the services that have no multicast.
	for _, c := range []struct {
		op   bth.Opcode
		dst  string
		qp   uint32
		want map[conform.Check]int
	}{
		{bth.UDSendOnly, "ff0e::1", 0x11, map[conform.Check]int{conform.MulticastQP: 1}},
		{bth.UDSendOnly, "ff0e::1", 0xffffff, map[conform.Check]int{}},
		{bth.UDSendOnly, "fe80::1", 0xffffff, map[conform.Check]int{conform.MulticastAddress: 1}},
		{bth.RCSendOnly, "fe80::1", 0xffffff, map[conform.Check]int{conform.DestQPManagement: 1}},
		{bth.UCSendOnly, "fe80::1", 0xffffff, map[conform.Check]int{conform.DestQPManagement: 1}},
	} {
		k := newTalk()
		f := k.frame(1, c.op, 5)
		f.Net, f.Src, f.Dst, f.Packet.DestQP = frame.GRH, netip.MustParseAddr("fe80::2"), netip.MustParseAddr(c.dst), c.qp
		f.Packet.DETH.QKey = 0x1234
		_, all := watch(t, conform.Config{}, k.put(f).recs)
		require.Equal(t, c.want, breaches(all), "%v to %s", c.op, c.dst)
	}
}

// Pause frames, by their sender.
func TestFieldPauses(t *testing.T) {
	zeros := make([]byte, 60-26)
	b := append(unhex(t, "0180c2000001020000000001880801010008000000000000ffff"), zeros...)
	on := append([]byte(nil), b...)
	on[24], on[25] = 0, 0
	recs := []rec{{time.Unix(1, 0), b, 60}, {time.Unix(1, 5000), on, 60}}
	w, all := watch(t, conform.Config{}, recs)
	require.Empty(t, all)
	require.EqualValues(t, 1, w.Pauses(3).Frames)
	n := 0
	w.PausesBy(func(mac frame.MAC, prio int, _ conform.Pauses) bool {
		n++
		require.Equal(t, frame.MAC{2, 5: 1}, mac)
		require.Equal(t, 3, prio)
		return true
	})
	require.Equal(t, 1, n)

	// Of more than 16 senders the rest have a place of their own.
	recs = nil
	for i := range 20 {
		f := append([]byte(nil), b...)
		f[11] = byte(i + 1)
		recs = append(recs, rec{time.Unix(1, int64(i)), f, 60})
	}
	w, _ = watch(t, conform.Config{}, recs)
	by := map[frame.MAC]uint64{}
	w.PausesBy(func(mac frame.MAC, _ int, p conform.Pauses) bool { by[mac] += p.Frames; return true })
	require.Len(t, by, 17)
	require.EqualValues(t, 1, by[frame.MAC{2, 5: 1}])
	require.EqualValues(t, 4, by[frame.MAC{}])
}

// Tunnels are decoded. Without that there is nothing to judge, which is reported.
func TestFieldTunnels(t *testing.T) {
	for name, s := range map[string]string{
		"erspan I":  "02000000000202000000000108004500007200004000402fe5f2c6336401c6336402000088be02000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b7003800000a00ffff000000128000006400000000000010000000007700000010000102030405060708090a0b0c0d0e0fb0a45b6f",
		"erspan II": "02000000000202000000000108004500007e00004000402fe5e6c6336401c6336402100088be00000000100000010000000002000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b7003800000a00ffff000000128000006400000000000010000000007700000010000102030405060708090a0b0c0d0e0fb0a45b6f",
		"vxlan":     "02000000000202000000000108004500007e000040004011e604c6336401c6336402c35012b5006a0000080000000013880002000000000202000000000108004502004c000040004011b69bc0000201c0000202c00112b7003800000a00ffff000000128000006400000000000010000000007700000010000102030405060708090a0b0c0d0e0fb0a45b6f",
	} {
		w, all := watch(t, conform.Config{}, newTalk().raw(t, s).recs)
		require.Empty(t, all, name)
		require.EqualValues(t, 1, w.RoCEFrames(), name)
	}
	// UDP 4789 in something that is not to be read.
	w, _ := watch(t, conform.Config{}, newTalk().raw(t, "02000000000202000000000108004500002c00004000403266a3c6336401c63364020000000000000000000000000000000000000000").recs)
	seen := 0
	for p, n := range w.Others {
		require.EqualValues(t, 1, n)
		require.NotEmpty(t, p.String())
		seen++
	}
	require.Equal(t, 1, seen)
}

// Marks of congestion without a CNP are a note: a mirror port may not have
// the CNPs. Rule CA17-44.
func TestFieldMarks(t *testing.T) {
	k := newTalk()
	for i := range uint32(200) {
		f := k.frame(1, bth.RCWriteOnly, 1000+i)
		f.TrafficClass |= 3
		f.Packet.AckReq = true
		f.Packet.RETH = reth.Header{VA: 0x1000, RKey: 7, DMALen: 8}
		f.Packet.SetPayload(make([]byte, 8))
		k.put(f).ack(1000+i, i+1)
	}
	_, all := watch(t, conform.Config{}, k.recs)
	require.Equal(t, []string{"note ecn-unanswered 0"}, table(all))
	_, all = watch(t, conform.Config{Complete: true}, k.recs)
	require.Equal(t, []string{"breach ecn-unanswered 0"}, table(all))
	require.Equal(t, "192.0.2.2", all[0].Src.String(), "who received the marks")
}

// A sender whose kernel cuts datagrams into packets (UDP_SEGMENT, as Linux 6 does it)
// numbers those of each from 0: a retransmission has the identifications of what it
// repeats, and is not a copy of it.
// Rule RS-03.
func TestFieldSegmented(t *testing.T) {
	k := newTalk()
	message := func(p uint32) {
		for i, op := range []bth.Opcode{bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendMiddle, bth.RCSendLast} {
			f := k.frame(1, op, p+uint32(i))
			f.ID = uint16(i)
			f.Packet.AckReq = op == bth.RCSendLast
			f.Packet.SetPayload(make([]byte, 1024))
			k.put(f)
		}
	}
	for i := range uint32(8) {
		message(100 + 4*i)
		k.ack(103+4*i, 1+i)
	}
	message(132)
	k.resp(bth.RCAcknowledge, 132, 0x60, 8, 0) // NAK, PSN sequence error
	message(132)
	k.ack(135, 9)
	_, all := watch(t, conform.Config{}, k.recs)
	require.Empty(t, breaches(all))
	for _, f := range all {
		require.NotEqual(t, conform.DuplicateRequest, f.Check, "frame %d", f.Frame)
	}
}

// A message beyond the credits is told by an acknowledgement that was surely sent later.
// One captured right behind it may have been sent before others which allowed the message.
// Rule RQ-15.
func TestFieldCreditsAndClocks(t *testing.T) {
	for later, want := range map[time.Duration]map[conform.Check]int{10 * us: {}, 200 * us: {conform.CreditsOverrun: 1}} {
		none := aeth.AckSyndrome(0)
		k := newTalk().req(bth.RCSendOnly, 1000, 64).resp(bth.RCAcknowledge, 1000, none, 1, 0)
		k.now = k.now.Add(20 * ms)
		k.req(bth.RCSendOnly, 1001, 64).req(bth.RCSendOnly, 1002, 64).req(bth.RCSendOnly, 1003, 64)
		k.now = k.now.Add(later - 10*us)
		k.resp(bth.RCAcknowledge, 1001, none, 2, 0)
		w, all := watch(t, conform.Config{}, k.recs)
		require.Equal(t, want, breaches(all), later)
		left := map[conform.Rule]bool{}
		w.NotJudged(func(r conform.Rule, _ conform.Reason, _ uint64) bool { left[r] = true; return true })
		require.Equal(t, len(want) == 0, left[conform.RuleRQ15], later)
	}
}

// A stray copy, as a network or a mirror port may make one, excuses no other packet of a
// connection: the breaches of many are reported. Rules RQ-22, RQ-28.
func TestFieldStrayCopy(t *testing.T) {
	stray := func(recs []rec, at int) []rec {
		c := routed(recs[at])
		c.ts = c.ts.Add(us)
		return slices.Insert(slices.Clone(recs), at+1, c)
	}
	hasty := newTalk() // waits 40 us in place of 1 ms
	for i := range uint32(200) {
		hasty.req(bth.RCSendOnly, 1000+i, 100).resp(bth.RCAcknowledge, 1000+i, 0x2e, i, 0).
			req(bth.RCSendOnly, 1000+i, 100).ack(1000+i, 1+i)
	}
	early := newTalk() // acknowledges what comes 310 us later
	for i := range uint32(200) {
		if i < 20 {
			early.req(bth.RCSendOnly, 1000+i, 100).ack(1000+i, 1+i)
			continue
		}
		early.ack(1000+i, 1+i)
		early.now = early.now.Add(300 * us)
		early.req(bth.RCSendOnly, 1000+i, 100)
	}
	for c, k := range map[conform.Check]*talk{conform.RNRTooEarly: hasty, conform.AckNeverSent: early} {
		_, all := watch(t, conform.Config{}, k.recs)
		require.Greater(t, breaches(all)[c], 150, c)
		for _, at := range []int{2, 20} {
			_, all = watch(t, conform.Config{}, stray(k.recs, at))
			require.Greater(t, breaches(all)[c], 100, "%v, copy of packet %d", c, at)
		}
	}
}

// A request that takes a PSN of a READ's responses is no breach where the capture has no ICRC
// of the READ, whose length may be damaged; where many do, it is. Rule RQ-02.
func TestFieldReadPSNReusedCut(t *testing.T) {
	reuse := func(n uint32) []rec {
		k := newTalk()
		for p := uint32(1000); p < 1000+3*60; p += 3 {
			k.req(bth.RCReadRequest, p, 3*1024).resp(bth.RCReadResponseFirst, p, 0x1f, 1, 1024).
				resp(bth.RCReadResponseMiddle, p+1, 0, 0, 1024).resp(bth.RCReadResponseLast, p+2, 0x1f, 1, 1024)
			if n > 0 {
				n--
				k.req(bth.RCSendOnly, p+1, 100).ack(p+1, 1)
			}
		}
		return snap(k.recs, 70) // without the ICRC of a READ request
	}
	w, all := watch(t, conform.Config{}, reuse(1))
	require.Zero(t, breaches(all)[conform.PSNReused])
	n := uint64(0)
	w.NotJudged(func(r conform.Rule, _ conform.Reason, k uint64) bool {
		if r == conform.RuleRQ02 {
			n += k
		}
		return true
	})
	require.Positive(t, n)
	_, all = watch(t, conform.Config{}, reuse(60))
	require.Greater(t, breaches(all)[conform.PSNReused], 40)
}

// What is seen again of a flow that was closed to make room is no copy of the flow that has its
// number now.
func TestFieldClosedFlow(t *testing.T) {
	k := newTalk()
	for _, qp := range []uint32{1, 2, 3, 4, 5, 1} {
		f := k.frame(1, bth.RCSendOnly, 1000)
		f.ID, f.Packet.DestQP = 7, qp
		f.Packet.SetPayload(make([]byte, 100))
		k.put(f)
	}
	w, err := conform.New(conform.Config{MaxFlows: 4})
	require.NoError(t, err)
	for _, r := range k.recs {
		w.HandleFrame(r.ts, frame.Ethernet, r.data, r.wire)
	}
	require.EqualValues(t, 2, w.Evicted())
	for f := range w.Flows {
		require.Zero(t, f.Duplicates, "QP %d", f.QP)
	}
}
