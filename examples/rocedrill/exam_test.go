package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/rules"
)

// examineLocal runs the exam against this module's port, as a mutation changes what it
// receives and sends.
func examineLocal(tb testing.TB, only string, w io.Writer, mutate func(l *local)) *card {
	tb.Helper()
	groups, err := loadExam()
	require.NoError(tb, err)
	var all []*result
	// A port of its own for each script: what a mutation remembers is of one story.
	rec, err := newRecorder(w)
	require.NoError(tb, err)
	c := &card{title: "own port"}
	bases := map[string]*result{}
	var examine func(s *drill) *result
	examine = func(s *drill) *result {
		for _, b := range s.on {
			if bases[b.id] == nil {
				examine(b)
			}
		}
		d, err := (&options{mutations: mutations(), seed: 1, cm: programFlag{}}).open()
		require.NoError(tb, err)
		d.rec, d.bases = rec, bases
		if mutate != nil {
			mutate(d.link.(*local))
		}
		return d.examine(s)
	}
	for _, g := range groups {
		for _, s := range g.scripts {
			if !s.chosen(only) || mutate != nil && strings.Contains(s.id, "slow-a-sender") { // a second of CPU
				continue
			}
			all = append(all, examine(s))
		}
	}
	c.results = all
	require.NoError(tb, rec.flush())
	return c
}

// mutations is how much of the robustness group is run, in percent.
func mutations() int {
	if testing.Short() {
		return 10
	}
	return 100
}

// TestExam: this module's port follows every rule that the exam asks for.
func TestExam(t *testing.T) {
	var rec bytes.Buffer
	c := examineLocal(t, "", &rec, nil)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), fmt.Sprintf("an exam of %d of them", len(c.results)))
	require.Contains(t, string(page), fmt.Sprintf("against %d ports with one rule broken each", len(mutants)))
	for _, r := range c.results {
		if r.verdict != follows {
			t.Errorf("%s %v: line %d: %s: %s", r.s.id, r.verdict, r.line, r.stmt, r.why)
		}
	}
	require.Greater(t, rec.Len(), 10000)
}

// TestExamCitesRules: each script names rules that there are.
func TestExamCitesRules(t *testing.T) {
	groups, err := loadExam()
	require.NoError(t, err)
	for _, g := range groups {
		require.NotEmpty(t, g.title, g.name)
		for _, s := range g.scripts {
			for _, id := range s.rules {
				_, ok := rules.Find(id)
				require.True(t, ok, "%s cites %s", s.id, id)
			}
		}
	}
}

type ff = *frame.Frame

// mutant is a port with one rule broken, and the group that is to fail for it.
type mutant struct {
	name  string
	group string
	make  func(m *memory)
	attr  func(a *qp.Attr)
}

func change(only func(ff) bool, edit func(ff)) func(*memory) {
	return func(m *memory) {
		m.fromDUT = func(f ff) []ff {
			if only(f) {
				edit(f)
			}
			return []ff{f}
		}
	}
}

func clone(f ff) ff {
	g := *f
	g.Packet.Payload = slices.Clone(f.Packet.Payload)
	return &g
}

func isOp(ops ...bth.Opcode) func(ff) bool {
	return func(f ff) bool { return slices.Contains(ops, f.Packet.Opcode) }
}

func always(f ff) bool { return f.Packet.DestQP != 1 }

func isRequest(f ff) bool { return f.Packet.Opcode.Class() == bth.Request && f.Packet.DestQP != 1 }

func isResponse(f ff) bool { return f.Packet.Opcode.Class() == bth.Response }

func hasAETH(f ff) bool { return f.Packet.Opcode.Ext()&bth.HasAETH != 0 }

func isKind(k aeth.Kind) func(ff) bool {
	return func(f ff) bool {
		return f.Packet.Opcode == bth.RCAcknowledge && f.Packet.AETH.Syndrome.Kind() == k
	}
}

func isSeqNak(f ff) bool {
	return isKind(aeth.Nak)(f) && f.Packet.AETH.Syndrome.Nak() == aeth.NakPSNSequenceError
}

func msns(as func(f ff, n uint32) uint32) func(*memory) {
	return change(hasAETH, func(f ff) { f.Packet.AETH.MSN = as(f, f.Packet.AETH.MSN) & psn.Mask })
}

// receives changes what the port receives.
func receives(edit func(f ff) []ff) func(*memory) { return func(m *memory) { m.toDUT = edit } }

var mutants = []mutant{
	// Of every packet.
	{name: "P_Key of another partition in responses", group: "headers", make: change(isResponse, func(f ff) { f.Packet.PKey = 0x9234 })},
	{name: "pad not zero", group: "headers", make: change(func(f ff) bool { return f.Packet.PadCnt != 0 }, func(f ff) { f.Packet.Pad[0] = 1 })},
	{name: "DF clear", group: "headers", make: change(always, func(f ff) { f.DF = false })},
	{name: "UDP checksum wrong", group: "headers", make: change(always, func(f ff) { f.UDPChecksum = 0x1234 })},
	{name: "AckReq in responses", group: "headers", make: change(isResponse, func(f ff) { f.Packet.AckReq = true })},
	{name: "SE in acknowledgements", group: "headers", make: change(isOp(bth.RCAcknowledge), func(f ff) { f.Packet.SE = true })},
	{name: "SE in each READ request", group: "headers", make: change(isOp(bth.RCReadRequest), func(f ff) { f.Packet.SE = true })},
	{name: "a reserved bit of the BTH", group: "headers", make: change(always, func(f ff) { f.Packet.Resv7 = 1 })},
	{name: "P_Keys not looked at", group: "headers", make: receives(func(f ff) []ff { f.Packet.PKey = 0xffff; return []ff{f} })},

	// The responder.
	{name: "MSN constant", group: "ack", make: msns(func(ff, uint32) uint32 { return 7 })},
	{name: "MSN goes up by 2", group: "ack", make: msns(func(_ ff, n uint32) uint32 { return 2 * n })},
	{name: "MSN goes down", group: "ack", make: msns(func(_ ff, n uint32) uint32 { return -n })},
	{name: "MSN of NAKs is one more", group: "ack", make: msns(func(f ff, n uint32) uint32 {
		if isSeqNak(f) {
			return n + 1
		}
		return n
	})},
	{name: "MSN counts packets", group: "ack", make: msns(func(f ff, n uint32) uint32 { return uint32(f.Packet.PSN) + 1 })},
	{name: "NAK twice", group: "ack", make: func(m *memory) {
		m.fromDUT = func(f ff) []ff {
			if isSeqNak(f) {
				return []ff{f, clone(f)}
			}
			return []ff{f}
		}
	}},
	{name: "NAK for each packet behind a gap", group: "ack", make: func(m *memory) {
		var nak ff
		m.fromDUT = func(f ff) []ff {
			if isSeqNak(f) {
				nak = clone(f)
			}
			return []ff{f}
		}
		m.toDUT = func(f ff) []ff {
			if nak != nil && isRequest(f) {
				switch d := f.Packet.PSN.Diff(nak.Packet.PSN); {
				case d == 0:
					nak = nil
				case d > 0:
					m.in = append(m.in, clone(nak).AppendTo(nil))
				}
			}
			return []ff{f}
		}
	}},
	{name: "acknowledges duplicates with their PSN", group: "ack", make: func(m *memory) {
		high, dup := psn.PSN(0), psn.PSN(0)
		any, old := false, false
		m.toDUT = func(f ff) []ff {
			if isRequest(f) {
				p := f.Packet.PSN
				if old = any && p.Diff(high) < 0; old {
					dup = p
				} else {
					high, any = p, true
				}
			}
			return []ff{f}
		}
		m.fromDUT = func(f ff) []ff {
			if isKind(aeth.Ack)(f) && old {
				f.Packet.PSN = dup
			}
			return []ff{f}
		}
	}},
	{name: "RNR NAK with the timer of another code", group: "rnr", make: change(isKind(aeth.RNR), func(f ff) { f.Packet.AETH.Syndrome = aeth.RNRSyndrome(3) })},
	{name: "a sequence NAK behind each RNR NAK", group: "rnr", make: func(m *memory) {
		m.fromDUT = func(f ff) []ff {
			if isKind(aeth.RNR)(f) {
				g := clone(f)
				g.Packet.AETH.Syndrome = aeth.NakSyndrome(aeth.NakPSNSequenceError)
				return []ff{f, g}
			}
			return []ff{f}
		}
	}},
	{name: "READ response Last with the opcode of Only", group: "read", make: change(isOp(bth.RCReadResponseLast), func(f ff) { f.Packet.Opcode = bth.RCReadResponseOnly })},
	{name: "one READ response too many", group: "read", make: func(m *memory) {
		m.fromDUT = func(f ff) []ff {
			if f.Packet.Opcode != bth.RCReadResponseLast {
				return []ff{f}
			}
			g := clone(f)
			g.Packet.PSN = g.Packet.PSN.Add(1)
			return []ff{f, g}
		}
	}},
	{name: "READ data at the wrong offset", group: "read", make: change(isOp(bth.RCReadResponseMiddle, bth.RCReadResponseLast), func(f ff) {
		if len(f.Packet.Payload) > 0 {
			f.Packet.Payload[0] ^= 1
		}
	})},
	{name: "atomics executed twice", group: "atomic", make: func(m *memory) {
		seen := map[psn.PSN]uint64{}
		m.fromDUT = func(f ff) []ff {
			if f.Packet.Opcode == bth.RCAtomicAcknowledge {
				f.Packet.AtomicAckETH.Orig += seen[f.Packet.PSN] * 5
				seen[f.Packet.PSN]++
			}
			return []ff{f}
		}
	}},
	{name: "misaligned atomics served", group: "atomic", make: receives(func(f ff) []ff {
		if f.Packet.Opcode.Ext()&bth.HasAtomicETH != 0 {
			f.Packet.AtomicETH.VA &^= 7
		}
		return []ff{f}
	})},
	{name: "a SEND longer than the receive is an operational error", group: "send", make: func(m *memory) {
		n, long := 0, false
		m.toDUT = func(f ff) []ff {
			op := f.Packet.Opcode.Operation()
			if op == bth.SendOnly || op == bth.SendFirst {
				n = 0
			}
			n += len(f.Packet.Payload)
			long = op == bth.SendOnly && n == 101 || op == bth.SendLast && n == 1600
			return []ff{f}
		}
		m.fromDUT = func(f ff) []ff {
			if long && isKind(aeth.Nak)(f) && f.Packet.AETH.Syndrome.Nak() == aeth.NakInvalidRequest {
				f.Packet.AETH.Syndrome = aeth.NakSyndrome(aeth.NakRemoteOperationalError)
			}
			return []ff{f}
		}
	}},
	{name: "access errors are invalid requests", group: "errors", make: change(isKind(aeth.Nak), func(f ff) {
		if f.Packet.AETH.Syndrome.Nak() == aeth.NakRemoteAccessError {
			f.Packet.AETH.Syndrome = aeth.NakSyndrome(aeth.NakInvalidRequest)
		}
	})},
}

func init() {
	drop := func(only func(ff) bool) func(f ff) []ff {
		return func(f ff) []ff {
			if only(f) {
				return nil
			}
			return []ff{f}
		}
	}
	mutants = append(mutants, []mutant{
		// The requester.
		{name: "sequence NAKs ignored", group: "ack", make: receives(drop(isSeqNak))},
		{name: "acknowledgements of what was never sent", group: "ack", make: func(m *memory) {
			var high psn.PSN
			m.fromDUT = func(f ff) []ff {
				if isRequest(f) {
					high = f.Packet.PSN
				}
				return []ff{f}
			}
			m.toDUT = func(f ff) []ff {
				if isKind(aeth.Ack)(f) && f.Packet.PSN.Diff(high) > 0 {
					f.Packet.PSN = high
				}
				return []ff{f}
			}
		}},
		{name: "reserved syndromes are acknowledgements", group: "ack", make: receives(func(f ff) []ff {
			if hasAETH(f) && (f.Packet.AETH.Syndrome == 0x40 || f.Packet.AETH.Syndrome == 0x9f) {
				f.Packet.AETH.Syndrome = 0x1f
			}
			return []ff{f}
		})},
		{name: "a Middle that is short", group: "send", make: change(isOp(bth.RCSendMiddle), func(f ff) { f.Packet.SetPayload(f.Packet.Payload[:512]) })},
		{name: "First with the path MTU as DMA length", group: "write", make: change(isOp(bth.RCWriteFirst), func(f ff) { f.Packet.RETH.DMALen = 1024 })},
		{name: "retransmissions with other data", group: "timers", make: func(m *memory) {
			seen := map[psn.PSN]bool{}
			m.fromDUT = func(f ff) []ff {
				if p := &f.Packet; isRequest(f) {
					if seen[p.PSN] && len(p.Payload) > 0 {
						f = clone(f)
						f.Packet.Payload[0] ^= 1
					}
					seen[p.PSN] = true
				}
				return []ff{f}
			}
		}},
		{name: "goes back further than the NAK asks", group: "ack", make: func(m *memory) {
			sent := map[psn.PSN]ff{}
			asked := false
			m.toDUT = func(f ff) []ff {
				asked = asked || isSeqNak(f)
				return []ff{f}
			}
			m.fromDUT = func(f ff) []ff {
				out := []ff{f}
				if before := sent[f.Packet.PSN.Add(-1)]; asked && before != nil && isRequest(f) {
					out = []ff{clone(before), f}
				}
				asked = asked && !isRequest(f)
				sent[f.Packet.PSN] = clone(f)
				return out
			}
		}},
		{name: "misaligned atomics sent", group: "atomic", make: change(isOp(bth.RCFetchAdd, bth.RCCmpSwap), func(f ff) { f.Packet.AtomicETH.VA |= 4 })},
		{name: "MSN goes up by 5", group: "ack", make: msns(func(_ ff, n uint32) uint32 { return 5 * n })},
		{name: "MSN without order", group: "ack", make: msns(func(_ ff, n uint32) uint32 { return n * 0x9e3779b1 })},
		{name: "READ responses that are short", group: "read", make: change(isOp(bth.RCReadResponseOnly), func(f ff) {
			if n := len(f.Packet.Payload); n > 4 {
				f.Packet.SetPayload(f.Packet.Payload[:n-4])
			}
		})},
		{name: "half of the RNR time", group: "rnr", make: receives(func(f ff) []ff {
			if isKind(aeth.RNR)(f) {
				f.Packet.AETH.Syndrome = aeth.RNRSyndrome(f.Packet.AETH.Syndrome.RNRTimer() - 2)
			}
			return []ff{f}
		})},
		{name: "RNR NAKs without end", group: "rnr", attr: func(a *qp.Attr) { a.RNRRetry = 7 }},
		{name: "DMA length one too long", group: "write", make: change(isOp(bth.RCWriteOnly, bth.RCWriteFirst), func(f ff) { f.Packet.RETH.DMALen++ })},
		{name: "a READ resumed at its first address", group: "read", make: change(isOp(bth.RCReadRequest), func(f ff) { f.Packet.RETH.VA &^= 0xfff })},
		{name: "the timer at half its time", group: "timers", attr: func(a *qp.Attr) {
			if a.Timeout > 1 {
				a.Timeout--
			}
		}},
		{name: "no timer", group: "timers", attr: func(a *qp.Attr) { a.Timeout = 0 }},
		{name: "one retry more", group: "timers", attr: func(a *qp.Attr) { a.RetryCnt = min(a.RetryCnt+1, 7) }},
		{name: "more READs than max_rd_atomic", group: "read", attr: func(a *qp.Attr) { a.MaxRdAtomic = 16 }},
		{name: "all sends over UC ask for acknowledgements", group: "uc", make: change(func(f ff) bool { return f.Packet.Opcode.Service() == bth.UC }, func(f ff) { f.Packet.AckReq = true })},

		// Other services.
		{name: "UC acknowledges", group: "uc", make: func(m *memory) {
			m.toDUT = func(f ff) []ff {
				if q := m.dut.QP(f.Packet.DestQP); q != nil && q.Type() == qp.UC && f.Packet.AckReq {
					g := clone(f)
					g.SrcMAC, g.DstMAC, g.Src, g.Dst = f.DstMAC, f.SrcMAC, f.Dst, f.Src
					g.Packet.Opcode, g.Packet.AckReq = bth.RCAcknowledge, false
					g.Packet.DestQP = firstQPN + 1
					g.Packet.SetPayload(nil)
					m.in = append(m.in, g.AppendTo(nil))
				}
				return []ff{f}
			}
		}},
		{name: "Q_Keys not looked at", group: "ud", make: receives(func(f ff) []ff {
			if f.Packet.DestQP != 1 {
				f.Packet.DETH.QKey = defaultQKey
			}
			return []ff{f}
		})},
		{name: "DREQs ignored", group: "cm", make: receives(drop(func(f ff) bool {
			m, err := decodeMAD(f.Packet.Payload)
			return f.Packet.DestQP == 1 && err == nil && m.Header.AttributeID == cm.AttrDREQ
		}))},

		// Congestion.
		{name: "CNPs with data", group: "congestion", make: change(isOp(bth.CNP), func(f ff) { f.Packet.Payload[0] = 1 })},
		{name: "a CNP for each marked packet", group: "congestion", make: func(m *memory) {
			var last ff
			m.fromDUT = func(f ff) []ff {
				if f.Packet.Opcode == bth.CNP {
					last = clone(f)
				}
				return []ff{f}
			}
			m.toDUT = func(f ff) []ff {
				if f.TrafficClass&3 == 3 && last != nil {
					m.in = append(m.in, clone(last).AppendTo(nil))
				}
				return []ff{f}
			}
		}},
	}...)
}

// Ports that break so much of every exchange that the scripts of other groups cannot be played.
// What those build on shows which of their statements the port does wrong.
func init() {
	twice := func(only func(ff) bool, second func(ff)) func(*memory) {
		return func(m *memory) {
			m.fromDUT = func(f ff) []ff {
				if !only(f) {
					return []ff{f}
				}
				g := clone(f)
				second(g)
				return []ff{f, g}
			}
		}
	}
	mutants = append(mutants, []mutant{
		{name: "credits ignored", group: "rnr", make: receives(func(f ff) []ff {
			if hasAETH(f) && f.Packet.AETH.Syndrome.Kind() == aeth.Ack {
				f.Packet.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
			}
			return []ff{f}
		})},
		{name: "READ of more than 2 GiB", group: "read", make: change(isOp(bth.RCReadRequest), func(f ff) { f.Packet.RETH.DMALen = 1<<31 + 4 })},
		{name: "WRITE beyond 2^64", group: "write", make: change(isOp(bth.RCWriteOnly), func(f ff) { f.Packet.RETH.VA = 1<<64 - 8 })},
		{name: "another partition in SENDs", group: "headers", make: change(isOp(bth.RCSendOnly), func(f ff) { f.Packet.PKey = 0x8001 })},
		{name: "another partition in atomic acknowledgements", group: "headers", make: change(isOp(bth.RCAtomicAcknowledge), func(f ff) { f.Packet.PKey = 0x1234 })},
		{name: "transport version 1 in WRITEs", group: "headers", make: change(isOp(bth.RCWriteOnly), func(f ff) { f.Packet.TVer = 1 })},
		{name: "transport version 1 in READ requests", group: "headers", make: change(isOp(bth.RCReadRequest), func(f ff) { f.Packet.TVer = 1 })},
		{name: "requests to QP 0", group: "headers", make: change(isOp(bth.RCSendOnly), func(f ff) { f.Packet.DestQP = 0 })},
		{name: "another source port for each packet", group: "headers", make: func(m *memory) {
			n := uint16(0)
			m.fromDUT = func(f ff) []ff {
				n++
				f.SrcPort = 0xc000 | n&0x3fff
				return []ff{f}
			}
		}},
		{name: "a fixed source port outside of the range", group: "headers", make: change(always, func(f ff) { f.SrcPort = 4791 })},
		{name: "Middle outside a message", group: "send", make: change(isOp(bth.RCSendFirst), func(f ff) { f.Packet.Opcode = bth.RCSendMiddle })},
		{name: "Only inside a message", group: "send", make: change(isOp(bth.RCSendMiddle), func(f ff) { f.Packet.Opcode = bth.RCSendOnly })},
		{name: "empty Last", group: "send", make: change(isOp(bth.RCSendLast), func(f ff) { f.Packet.SetPayload(nil) })},
		{name: "begins behind what the NAK asks for", group: "ack", make: func(m *memory) {
			var nak *psn.PSN
			m.toDUT = func(f ff) []ff {
				if isSeqNak(f) {
					p := f.Packet.PSN
					nak = &p
				}
				return []ff{f}
			}
			m.fromDUT = func(f ff) []ff {
				if nak != nil && *nak == f.Packet.PSN && isRequest(f) {
					nak = nil
					return nil
				}
				return []ff{f}
			}
		}},
		{name: "RNR NAKs not waited for", group: "rnr", make: receives(func(f ff) []ff {
			if isKind(aeth.RNR)(f) {
				f.Packet.AETH.Syndrome = aeth.RNRSyndrome(1)
			}
			return []ff{f}
		})},
		{name: "MSN does not count READs", group: "ack", make: func(m *memory) {
			reads := map[psn.PSN]bool{}
			m.toDUT = func(f ff) []ff {
				if f.Packet.Opcode == bth.RCReadRequest {
					reads[f.Packet.PSN] = true
				}
				return []ff{f}
			}
			msns(func(f ff, n uint32) uint32 {
				for p := range reads {
					if p.Diff(f.Packet.PSN) <= 0 {
						n--
					}
				}
				return n
			})(m)
		}},
		{name: "NAK of what was acknowledged", group: "ack", make: twice(isKind(aeth.Ack), func(f ff) { f.Packet.AETH.Syndrome = aeth.NakSyndrome(0) })},
		{name: "RNR NAK of what was acknowledged", group: "ack", make: twice(isKind(aeth.Ack), func(f ff) { f.Packet.AETH.Syndrome = aeth.RNRSyndrome(3) })},
		{name: "acknowledges what is far ahead, too", group: "ack", make: twice(isKind(aeth.Ack), func(f ff) { f.Packet.PSN = f.Packet.PSN.Add(1 << 22) })},
		{name: "acknowledges what is not initialised", group: "ack", make: twice(isKind(aeth.Ack), func(f ff) { f.Packet.PSN = psn.Mask })},
		{name: "accepts what it has refused", group: "ack", make: func(m *memory) {
			m.fromDUT = func(f ff) []ff {
				if !isKind(aeth.Ack)(f) {
					return []ff{f}
				}
				g := clone(f)
				g.Packet.AETH.Syndrome = aeth.NakSyndrome(0)
				return []ff{g, f}
			}
		}},
		{name: "atomic acknowledgements behind later responses", group: "atomic", make: func(m *memory) {
			var held ff
			m.fromDUT = func(f ff) []ff {
				switch {
				case f.Packet.Opcode == bth.RCAtomicAcknowledge:
					held = clone(f)
					return nil
				case held != nil && hasAETH(f):
					g := held
					held = nil
					return []ff{f, g}
				}
				return []ff{f}
			}
		}},
		{name: "CNPs with PSNs", group: "congestion", make: change(isOp(bth.CNP), func(f ff) { f.Packet.PSN = 9 })},
		{name: "CNPs without BECN", group: "congestion", make: change(isOp(bth.CNP), func(f ff) { f.Packet.BECN = false })},
		{name: "XRC requests that name another queue", group: "xrc", make: change(func(f ff) bool { return f.Packet.Opcode.Ext()&bth.HasXRCETH != 0 }, func(f ff) { f.Packet.XRCETH.SRQ++ })},
		{name: "IPv6 calls refused", group: "cm", make: receives(func(f ff) []ff {
			if f.Net == frame.IPv6 && f.Packet.DestQP == 1 {
				return nil
			}
			return []ff{f}
		})},
		{name: "the PSN of a READ's last response is used again", group: "psn", make: func(m *memory) {
			shift, last := 0, psn.PSN(0)
			m.fromDUT = func(f ff) []ff {
				if !isRequest(f) || shift != 0 && f.Packet.PSN.Diff(last) <= 0 {
					return []ff{f}
				}
				sent := f.Packet.PSN
				f.Packet.PSN = sent.Add(-shift)
				if n := f.Packet.RETH.DMALen; f.Packet.Opcode == bth.RCReadRequest && n > 1024 {
					shift, last = 1, sent.Add(int((n-1)/1024))
				}
				return []ff{f}
			}
			m.toDUT = func(f ff) []ff {
				if isResponse(f) && shift != 0 && !f.Packet.Opcode.ReadResponse() {
					f.Packet.PSN = f.Packet.PSN.Add(shift)
				}
				return []ff{f}
			}
		}},
		{name: "reserved syndromes sent", group: "headers", make: change(isKind(aeth.Ack), func(f ff) { f.Packet.AETH.Syndrome |= 0x80 })},
		{name: "NAK code 7 sent", group: "ack", make: change(isSeqNak, func(f ff) { f.Packet.AETH.Syndrome = 0x67 })},
		{name: "acknowledges what is far ahead", group: "ack", make: change(isKind(aeth.Ack), func(f ff) { f.Packet.PSN = f.Packet.PSN.Add(1 << 20) })},
		{name: "READs acknowledged plainly", group: "read", make: change(isOp(bth.RCReadResponseOnly), func(f ff) {
			f.Packet.Opcode = bth.RCAcknowledge
			f.Packet.SetPayload(nil)
		})},
		{name: "READs get no response", group: "read", make: func(m *memory) {
			m.fromDUT = func(f ff) []ff {
				if f.Packet.Opcode.ReadResponse() {
					return nil
				}
				return []ff{f}
			}
		}},
		{name: "NAKs without a gap", group: "ack", make: change(isKind(aeth.Ack), func(f ff) { f.Packet.AETH.Syndrome = aeth.NakSyndrome(0) })},
		{name: "acknowledgements after a fatal NAK", group: "errors", make: func(m *memory) {
			m.fromDUT = func(f ff) []ff {
				if isKind(aeth.Nak)(f) && !isSeqNak(f) {
					g := clone(f)
					g.Packet.AETH.Syndrome = 0x1f
					return []ff{f, g}
				}
				return []ff{f}
			}
		}},
		{name: "WRITEs refused for lack of a receive", group: "rnr", make: func(m *memory) {
			writes := map[psn.PSN]bool{}
			m.toDUT = func(f ff) []ff {
				writes[f.Packet.PSN] = f.Packet.Opcode == bth.RCWriteOnly
				return []ff{f}
			}
			m.fromDUT = func(f ff) []ff {
				if isKind(aeth.Ack)(f) && writes[f.Packet.PSN] {
					f.Packet.AETH.Syndrome = aeth.RNRSyndrome(12)
				}
				return []ff{f}
			}
		}},
	}...)
}

// TestMutants: a port with one rule broken is failed by the group that asks for the rule, and by
// no other. What builds on a statement that the port does wrong is not reached, and says so.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the exam once for each mutant")
	}
	// The group programs asks what others ask, by another way; robustness is long and
	// about all rules.
	ask := []string{}
	for _, g := range groupOrder {
		if g != "programs" && g != "robustness" {
			ask = append(ask, g)
		}
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := examineLocal(t, strings.Join(ask, ","), nil, func(l *local) {
				if m.make != nil {
					m.make(l.memory)
				}
				l.attr = m.attr
			})
			failed := map[string][]string{}
			for _, r := range c.results {
				switch {
				case r.verdict == notReached && strings.HasPrefix(r.why, "it builds on "+m.group+"/"):
				case r.verdict != follows:
					failed[r.s.group.name] = append(failed[r.s.group.name], fmt.Sprintf("%s line %d: %s: %s", r.s.id, r.line, r.stmt, r.why))
				}
			}
			require.NotEmpty(t, failed[m.group], "not found")
			for g, list := range failed {
				if g != m.group {
					t.Errorf("group %s fails too:\n%s", g, strings.Join(list, "\n"))
				}
			}
		})
	}
}

// TestGoldenCards: the cards of the kernel's driver have a verdict for every script, and the
// exam found by itself what examples/softrnic/INTEROP.md says of the driver.
func TestGoldenCards(t *testing.T) {
	groups, err := loadExam()
	require.NoError(t, err)
	files, err := filepath.Glob("cards/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		card := verdictsOf(string(b))
		n := 0
		for _, g := range groups {
			for _, s := range g.scripts {
				require.Contains(t, card, s.id, "%s: run the test with -tags interop -update", file)
				n++
			}
		}
		require.Len(t, card, n, file)
		require.Equal(t, "deviates", card["send/a-receive-that-is-too-short"], file) // NAK remote operational error
		require.Equal(t, "deviates", card["rnr/no-credit-one-packet"], file)
		require.Equal(t, "not applicable", card["xrc/an-initiator-s-send"], file)
		switch { // what harms the host is named
		case strings.Contains(file, "6.1.txt"):
			require.Regexp(t, `a-write-of-no-bytes-that-carries-some\s+deviates: the device's host lives: .*RIP: rxe_mr_copy`, string(b))
			require.Regexp(t, `forged-packets\s+deviates: the device's host lives: it died of a packet with .*RIP: rxe_mr_copy`, string(b))
		default:
			require.Regexp(t, `(?m)^#   the kernel's log: WARNING: at .*rxe_completer`, string(b))
		}
		if strings.Contains(file, "6.12") { // FLUSH came with 6.2
			require.Equal(t, "deviates", card["read/a-duplicate-read-of-no-bytes-with-an-address"]) // not repeated
			require.Equal(t, "deviates", card["errors/a-flush"])
			require.Equal(t, "deviates", card["errors/a-requester-s-flush"])
			require.Equal(t, "deviates", card["timers/a-flush-is-sent-again-as-it-was"])
		}
	}
}

// verdictsOf reads the verdicts of a card.
func verdictsOf(card string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(card) {
		name, rest, _ := strings.Cut(line, " ")
		if name == "#" || name == "" {
			continue
		}
		v, _, _ := strings.Cut(strings.TrimSpace(rest), ":")
		m[name] = v
	}
	return m
}

// TestWire: in real time the device's address is found by ARP, and RoCE frames are the
// script's, not the endpoint's.
func TestWire(t *testing.T) {
	a, b := endpoint.Pair()
	l, err := openWire(a, []netip.Addr{ourIP4, ourIP6}, ourMAC)
	require.NoError(t, err)
	defer l.close()
	far, err := endpoint.Config{GIDs: []netip.Addr{dutIP4}, MAC: dutMAC}.Open(b)
	require.NoError(t, err)
	defer far.Close()
	mac, err := resolve(l, ourMAC, ourIP4, dutIP4)
	require.NoError(t, err)
	require.Equal(t, dutMAC, mac)

	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: ourMAC, SrcMAC: dutMAC, Src: dutIP4, Dst: ourIP4, DF: true, HopLimit: 64}
	f.Packet.Opcode, f.Packet.DestQP = bth.RCAcknowledge, firstQPN
	require.NoError(t, far.Inject(f.AppendTo(nil)))
	got, _, ok := l.await(l.now().Add(5 * time.Second))
	require.True(t, ok)
	require.True(t, isRoCE(got))
	require.Zero(t, l.ep.Metrics().Port.RxRoCE, "the endpoint saw a packet of the script's")
}

// TestAgentDies: an agent that goes away in the middle leaves scripts that were not reached,
// with the reason, and is asked again for the next.
func TestAgentDies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	served := make(chan struct{}, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served <- struct{}{}
			b := make([]byte, 1000)
			_, _ = c.Read(b)
			_, _ = io.WriteString(c, "ok device=x kernel=1\n")
			_, _ = c.Read(b)
			c.Close()
		}
	}()
	a, err := dialAgent(l.Addr().String())
	require.NoError(t, err)
	_, err = a.do("info")
	require.NoError(t, err)
	own, err := newLocal()
	require.NoError(t, err)
	d := &device{link: own, agent: a, can: map[string]string{}, bases: map[string]*result{}, our4: ourIP4, ip4: dutIP4, mac: dutMAC}
	d.rec, _ = newRecorder(nil)
	groups, err := loadExam()
	require.NoError(t, err)
	for range 2 {
		res := d.repeat(groups[0].scripts[0])
		require.Equal(t, notReached, res.verdict)
		require.Contains(t, res.why, "ended")
	}
	require.Len(t, served, 2) // asked again
}

// fakeAgent listens, and does with each connection what the test sets; n counts them.
func fakeAgent(t *testing.T, serve func(n int, c net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(n, c)
			}()
		}
	}()
	return l.Addr().String()
}

// TestWrongAgents: what is no agent, or none that responds, is an error in words, in bounded
// time and memory.
func TestWrongAgents(t *testing.T) {
	old := infoTime
	infoTime = 300 * time.Millisecond
	defer func() { infoTime = old }()
	for want, serve := range map[string]func(int, net.Conn){
		"does something else listen": func(_ int, c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") },
		"names no device":            func(_ int, c net.Conn) { _, _ = io.WriteString(c, "ok a=b | c\n") },
		"without the end of a line": func(_ int, c net.Conn) {
			for b := make([]byte, 1<<16); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		},
		"no reply to": func(_ int, c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"in 300ms": func(_ int, c net.Conn) { // slowly
			for range 100 {
				if _, err := io.WriteString(c, "o"); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		},
		"EOF": func(int, net.Conn) {},
	} {
		a, err := dialAgent(fakeAgent(t, func(n int, c net.Conn) {
			_, _ = c.Read(make([]byte, 1000)) // or closing would reset the connection
			serve(n, c)
		}))
		require.NoError(t, err)
		_, err = a.info()
		require.ErrorContains(t, err, want)
		a.close()
	}
}

// liveDevice is a device on a wire in real time whose host responds to ARP, with an agent.
func liveDevice(t *testing.T, agent string) (*device, *endpoint.Endpoint) {
	a, b := endpoint.Pair()
	l, err := openWire(a, []netip.Addr{ourIP4}, ourMAC)
	require.NoError(t, err)
	far, err := endpoint.Config{GIDs: []netip.Addr{dutIP4}, MAC: dutMAC}.Open(b)
	require.NoError(t, err)
	d := &device{link: l, can: map[string]string{"boot": "1"}, bases: map[string]*result{}, our4: ourIP4, ip4: dutIP4, mac: dutMAC,
		patience: 200 * time.Millisecond, quiet: 10 * time.Millisecond}
	d.rec, _ = newRecorder(nil)
	r, err := dialAgent(agent)
	require.NoError(t, err)
	r.reboot = time.Second
	d.agent = r
	t.Cleanup(func() { d.close(); far.Close() })
	return d, far
}

// TestHostDies: when the agent does not respond, the device is blamed if its host started anew, and only
// then.
func TestHostDies(t *testing.T) {
	console := filepath.Join(t.TempDir(), "console")
	require.NoError(t, os.WriteFile(console, []byte("[ 1.0] boots\n"), 0o666))
	for _, boots := range []string{"12", "11"} { // boot IDs of the first connection and the next
		addr := fakeAgent(t, func(n int, c net.Conn) {
			b := make([]byte, 1000)
			for range 1 + n*100 {
				if _, err := c.Read(b); err != nil {
					return
				}
				_, _ = fmt.Fprintf(c, "ok device=x boot=%c qp=1 qpn=17 mr=1 addr=1 rkey=1 lines=0\n", boots[min(n, 1)])
			}
		})
		d, _ := liveDevice(t, addr)
		d.console = &consoleFile{console, 0}
		g, err := parseGroup("g", "g", "== s\n# .\nrule RS-14\ndut rc\n< SEND_ONLY 0\n> ACK 0\n")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(console, []byte("[ 1.0] boots\n[ 9.1] BUG: kernel NULL pointer dereference, address: 0000000000000104\r\n[ 9.2] RIP: 0010:rxe_mr_copy+0x49/0x1a0 [rdma_rxe]\r\n"), 0o666))
		res := d.examine(g.scripts[0])
		if boots == "11" {
			require.Equal(t, notReached, res.verdict, res.why)
			require.Contains(t, res.why, "its host had not restarted")
			continue
		}
		require.Equal(t, deviates, res.verdict, res.why)
		require.True(t, res.died)
		require.Equal(t, livingHost, res.stmt)
		require.Contains(t, res.why, "it started anew")
		require.Contains(t, res.why, "RIP: rxe_mr_copy+0x49/0x1a0 [rdma_rxe]")
		require.NotContains(t, res.why, "0000000104")
		require.Equal(t, follows, d.examine(&drill{id: "x", by: "agent", lines: []statement{{1, "dut rc"}}}).verdict, "the exam goes on")
	}
}

// TestFlood: a device that sends without end does not keep a script from its end.
func TestFlood(t *testing.T) {
	addr := fakeAgent(t, func(_ int, c net.Conn) {
		for b := make([]byte, 1000); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
			_, _ = io.WriteString(c, "ok device=x boot=1 qp=1 qpn=17\n")
		}
	})
	d, far := liveDevice(t, addr)
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: ourMAC, SrcMAC: dutMAC, Src: dutIP4, Dst: ourIP4, DF: true, HopLimit: 64}
	f.Packet.Opcode, f.Packet.DestQP = bth.RCAcknowledge, firstQPN+1
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for b := f.AppendTo(nil); ; {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				for range 10 {
					_ = far.Inject(b)
				}
			}
		}
	}()
	defer func() { close(stop); <-done }()
	g, err := parseGroup("g", "g", "== s\n# .\nrule RS-14\ndut rc\nallow any\nwait 100ms\n> NAK 0\n")
	require.NoError(t, err)
	start := time.Now()
	res := d.once(g.scripts[0])
	require.Equal(t, deviates, res.verdict)
	require.Less(t, time.Since(start), 30*time.Second)
	w := d.link.(*wire)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.LessOrEqual(t, w.size, maxWaiting+1<<16)
}

// TestCommand: the flags, and what they print.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run0(context.Background(), args, &out, &errs)
		return code, out.String(), errs.String()
	}
	code, out, errs := run("-only", "psn", "-junit", filepath.Join(dir, "j.xml"), "-html", filepath.Join(dir, "c.html"), "-pcap", filepath.Join(dir, "c.pcapng"), "-card", filepath.Join(dir, "card.txt"))
	require.Zero(t, code, errs)
	require.Contains(t, out, "psn")
	for _, f := range []string{"j.xml", "c.html", "c.pcapng", "card.txt"} {
		info, err := os.Stat(filepath.Join(dir, f))
		require.NoError(t, err)
		require.Greater(t, info.Size(), int64(500), f)
	}
	code, out, _ = run("-list")
	require.Zero(t, code)
	require.Contains(t, out, "headers/a-bad-icrc-is-ignored")
	code, out, _ = run("-explain", "psn/a-gap-is-refused")
	require.Zero(t, code)
	require.Contains(t, out, "NAK")
	code, out, _ = run("-json", "-only", "RS-08")
	require.Zero(t, code)
	require.Contains(t, out, `"verdict": "follows"`)
	code, _, errs = run("-only", "nothing-like-it")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "-list")
	code, _, errs = run("-agent", "127.0.0.1:1")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "-segment")
	code, _, errs = run("-cm", "frobnicate=1.2.3.4")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "rping")
	code, _, _ = run("-h")
	require.Zero(t, code)
}
