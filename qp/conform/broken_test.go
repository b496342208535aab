package conform_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/softnic"
)

// broken is a port that breaks one rule, all the time. Host 0 is the requester,
// host 1 the responder.
type broken struct {
	name string
	end  int
	want conform.Check
	make func(w *wire)
	loss float64 // of the network behind the tap, both ways
	late bool    // receives come late
	set  func(i int, c *softnic.QPConfig, a *qp.Attr)
}

func one(f ff) []ff { return []ff{f} }

// change breaks packets that a host sends.
func change(end int, only func(ff) bool, edit func(ff)) func(*wire) {
	return func(w *wire) {
		w.out[end] = func(f ff) []ff {
			if only(f) {
				edit(f)
			}
			return one(f)
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

func hasAETH(f ff) bool { return f.Packet.Opcode.Ext()&bth.HasAETH != 0 }

func isKind(k aeth.Kind) func(ff) bool {
	return func(f ff) bool {
		return f.Packet.Opcode == bth.RCAcknowledge && f.Packet.AETH.Syndrome.Kind() == k
	}
}

func isSeqNak(f ff) bool {
	return isKind(aeth.Nak)(f) && f.Packet.AETH.Syndrome.Nak() == aeth.NakPSNSequenceError
}

// msns breaks the message numbers of a responder.
func msns(as func(f ff, n uint32) uint32) func(*wire) {
	return change(1, hasAETH, func(f ff) { f.Packet.AETH.MSN = as(f, f.Packet.AETH.MSN) & psn.Mask })
}

func always(ff) bool { return true }

func isRequest(f ff) bool { return f.Packet.Opcode.Class() == bth.Request }

var brokenPorts = []broken{
	// The requester.
	{name: "SE in each READ request", end: 0, want: conform.SolicitedMisplaced, make: change(0, isOp(bth.RCReadRequest), func(f ff) { f.Packet.SE = true })},
	{name: "pad not zero", end: 0, want: conform.PadNotZero, make: change(0, func(f ff) bool { return f.Packet.PadCnt != 0 }, func(f ff) { f.Packet.Pad[0] = 1 })},
	{name: "short Middle", end: 0, want: conform.SizeNotMTU, make: change(0, isOp(bth.RCSendMiddle), func(f ff) { payload(f, 512) })},
	{name: "DMA length one too long", end: 0, want: conform.DMALengthOnly, make: change(0, isOp(bth.RCWriteOnly), func(f ff) { f.Packet.RETH.DMALen++ })},
	{name: "First holds all of the DMA length", end: 0, want: conform.DMALengthFirst, make: change(0, isOp(bth.RCWriteFirst), func(f ff) { f.Packet.RETH.DMALen = wireMTU })},
	{name: "retransmissions with other data", end: 0, want: conform.ResendDiffers, loss: 0.03, make: func(w *wire) {
		seen := map[psn.PSN]bool{}
		w.out[0] = func(f ff) []ff {
			if p := &f.Packet; seen[p.PSN] && len(p.Payload) > 0 {
				p.Payload[0] ^= 1
			}
			seen[f.Packet.PSN] = true
			return one(f)
		}
	}},
	{name: "PSN of a READ used again", end: 0, want: conform.PSNReused, make: func(w *wire) {
		shift := 0
		w.out[0] = func(f ff) []ff {
			f.Packet.PSN = f.Packet.PSN.Add(-shift)
			if f.Packet.Opcode == bth.RCReadRequest && f.Packet.RETH.DMALen > wireMTU && shift == 0 {
				shift = 1
			}
			return one(f)
		}
	}},
	{name: "NAKs ignored", end: 0, want: conform.NakIgnored, loss: 0.05, make: func(w *wire) {
		w.in[0] = func(f ff) []ff {
			if isSeqNak(f) {
				return nil
			}
			return one(f)
		}
	}},
	{name: "goes back two packets more than the NAK asks", end: 0, want: conform.GoBackTooFar, loss: 0.08, make: func(w *wire) {
		sent := map[psn.PSN]ff{}
		var nak *psn.PSN
		w.in[0] = func(f ff) []ff {
			if isSeqNak(f) {
				p := f.Packet.PSN
				nak = &p
			}
			return one(f)
		}
		w.out[0] = func(f ff) []ff {
			out := one(f)
			p := f.Packet.PSN
			if nak != nil && *nak == p {
				nak = nil
				a, b := sent[p.Add(-2)], sent[p.Add(-1)]
				if a != nil && b != nil && a.Packet.Opcode != bth.RCReadRequest && b.Packet.Opcode != bth.RCReadRequest {
					out = []ff{clone(a), clone(b), f}
				}
			}
			sent[p] = clone(f)
			return out
		}
	}},
	{name: "begins behind what the NAK asks for", end: 0, want: conform.GoBackBeyond, loss: 0.03, make: func(w *wire) {
		var nak *psn.PSN
		w.in[0] = func(f ff) []ff {
			if isSeqNak(f) {
				p := f.Packet.PSN
				nak = &p
			}
			return one(f)
		}
		w.out[0] = func(f ff) []ff {
			if nak != nil && *nak == f.Packet.PSN {
				nak = nil
				return nil
			}
			return one(f)
		}
	}},
	{name: "RNR NAKs not waited for", end: 0, want: conform.RNRTooEarly, late: true, make: func(w *wire) {
		w.in[0] = func(f ff) []ff {
			if isKind(aeth.RNR)(f) {
				f.Packet.AETH.Syndrome = aeth.RNRSyndrome(1)
			}
			return one(f)
		}
	}},
	{name: "half of the RNR time", end: 0, want: conform.RNRTooEarly, late: true, make: func(w *wire) {
		w.in[0] = func(f ff) []ff {
			if isKind(aeth.RNR)(f) {
				f.Packet.AETH.Syndrome = aeth.RNRSyndrome(10)
			}
			return one(f)
		}
	}},
	{name: "credits ignored", end: 0, want: conform.CreditsOverrun, late: true, make: func(w *wire) {
		w.in[0] = func(f ff) []ff {
			if hasAETH(f) && f.Packet.AETH.Syndrome.Kind() == aeth.Ack {
				f.Packet.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
			}
			return one(f)
		}
	}},
	{name: "READ resumed at the old address", end: 0, want: conform.ResumeDiffers, make: func(w *wire) {
		w.loss[0] = 0.1
		w.out[0] = func(f ff) []ff {
			if f.Packet.Opcode == bth.RCReadRequest && f.Packet.RETH.VA > w.va {
				f.Packet.RETH.VA = w.va
			}
			return one(f)
		}
	}},
	{name: "READ of more than 2 GiB", end: 0, want: conform.SizeAboveLimit, make: change(0, isOp(bth.RCReadRequest), func(f ff) { f.Packet.RETH.DMALen = 1<<31 + 4 })},
	{name: "WRITE beyond 2^64", end: 0, want: conform.AddressWraps, make: change(0, isOp(bth.RCWriteOnly), func(f ff) { f.Packet.RETH.VA = 1<<64 - 8 })},
	{name: "misaligned atomics", end: 0, want: conform.AtomicMisaligned, make: change(0, isOp(bth.RCFetchAdd), func(f ff) { f.Packet.AtomicETH.VA |= 4 })},
	{name: "another partition in SENDs", end: 0, want: conform.PKeyMismatch, make: change(0, isOp(bth.RCSendOnly), func(f ff) { f.Packet.PKey = 0x8001 })},
	{name: "transport version 1 in WRITEs", end: 0, want: conform.VersionNotZero, make: change(0, isOp(bth.RCWriteOnly), func(f ff) { f.Packet.TVer = 1 })},
	{name: "Only inside a message", end: 0, want: conform.OrderInMessage, make: change(0, isOp(bth.RCSendMiddle), func(f ff) { f.Packet.Opcode = bth.RCSendOnly })},
	{name: "Middle outside a message", end: 0, want: conform.OrderOutside, make: change(0, isOp(bth.RCSendFirst), func(f ff) { f.Packet.Opcode = bth.RCSendMiddle })},
	{name: "DF clear", end: 0, want: conform.IPv4NoDF, make: change(0, always, func(f ff) { f.DF = false })},
	{name: "UDP checksum wrong", end: 0, want: conform.UDPChecksum, make: change(0, always, func(f ff) { f.UDPChecksum = 0x1234 })},
	{name: "requests with BECN, to QP 0", end: 0, want: conform.DestQPZero, make: change(0, isOp(bth.RCSendOnly), func(f ff) { f.Packet.DestQP = 0 })},
	{name: "empty Last", end: 0, want: conform.SizeEmptyLast, make: change(0, isOp(bth.RCSendLast), func(f ff) { payload(f, 0) })},

	// The responder.
	{name: "MSN constant", end: 1, want: conform.MSNWrong, make: msns(func(ff, uint32) uint32 { return 7 })},
	{name: "MSN goes up by 2", end: 1, want: conform.MSNWrong, make: msns(func(_ ff, n uint32) uint32 { return 2 * n })},
	{name: "MSN goes up by 5", end: 1, want: conform.MSNWrong, make: msns(func(_ ff, n uint32) uint32 { return 5 * n })},
	{name: "MSN random", end: 1, want: conform.MSNWrong, make: func(w *wire) {
		msns(func(ff, uint32) uint32 { return w.rng.Uint32() })(w)
	}},
	{name: "MSN goes down", end: 1, want: conform.MSNWrong, make: msns(func(_ ff, n uint32) uint32 { return -n })},
	{name: "MSN of NAKs is one more", end: 1, want: conform.MSNWrong, loss: 0.05, make: msns(func(f ff, n uint32) uint32 {
		if isSeqNak(f) {
			return n + 1
		}
		return n
	})},
	{name: "MSN counts packets", end: 1, want: conform.MSNWrong, make: msns(func(f ff, n uint32) uint32 { return uint32(f.Packet.PSN) })},
	{name: "MSN does not count READs", end: 1, want: conform.MSNWrong, make: func(w *wire) {
		reads := map[psn.PSN]bool{}
		w.in[1] = func(f ff) []ff {
			if f.Packet.Opcode == bth.RCReadRequest {
				reads[f.Packet.PSN] = true
			}
			return one(f)
		}
		w.out[1] = func(f ff) []ff {
			if hasAETH(f) {
				n := uint32(0)
				for p := range reads {
					if p.Diff(f.Packet.PSN) <= 0 {
						n++
					}
				}
				f.Packet.AETH.MSN -= n
			}
			return one(f)
		}
	}},
	{name: "NAK twice", end: 1, want: conform.NakRepeated, loss: 0.05, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if isSeqNak(f) {
				return []ff{f, clone(f)}
			}
			return one(f)
		}
	}},
	{name: "NAK for each packet behind a gap", end: 1, want: conform.NakRepeated, loss: 0.05, make: func(w *wire) {
		var last ff
		w.out[1] = func(f ff) []ff {
			if isSeqNak(f) {
				last = clone(f)
			}
			return one(f)
		}
		w.in[1] = func(f ff) []ff {
			if last != nil && isRequest(f) {
				if f.Packet.PSN == last.Packet.PSN {
					last = nil
				} else if f.Packet.PSN.Diff(last.Packet.PSN) > 0 {
					w.emit(1, clone(last).AppendTo(nil))
				}
			}
			return one(f)
		}
	}},
	{name: "NAK of what was acknowledged", end: 1, want: conform.NakAcknowledged, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if !isKind(aeth.Ack)(f) || f.Packet.AETH.MSN%8 != 1 {
				return one(f)
			}
			g := clone(f)
			g.Packet.AETH.Syndrome = aeth.NakSyndrome(0)
			return []ff{f, g}
		}
	}},
	{name: "RNR NAK of what was acknowledged", end: 1, want: conform.RNRAnswered, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if !isKind(aeth.Ack)(f) || f.Packet.AETH.MSN%8 != 1 {
				return one(f)
			}
			g := clone(f)
			g.Packet.AETH.Syndrome = aeth.RNRSyndrome(3)
			return []ff{f, g}
		}
	}},
	{name: "RNR NAK of WRITEs", end: 1, want: conform.RNROfWrite, make: func(w *wire) {
		refused := map[psn.PSN]bool{}
		w.in[1] = func(f ff) []ff {
			p := f.Packet.PSN
			if f.Packet.Opcode != bth.RCWriteOnly || refused[p] {
				return one(f)
			}
			refused[p] = true
			g := reply(f)
			g.Packet.AETH = aeth.Header{Syndrome: aeth.RNRSyndrome(5), MSN: msnBefore(w, p)}
			w.emit(1, g.AppendTo(nil))
			return nil
		}
		countMSN(w)
	}},
	{name: "acknowledges what is far ahead", end: 1, want: conform.AckNeverSent, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if !isKind(aeth.Ack)(f) {
				return one(f)
			}
			g := clone(f)
			g.Packet.PSN = g.Packet.PSN.Add(1 << 22)
			return []ff{f, g}
		}
	}},
	{name: "acknowledges what is not initialised", end: 1, want: conform.AckNeverSent, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if !isKind(aeth.Ack)(f) {
				return one(f)
			}
			g := clone(f)
			g.Packet.PSN = psn.Mask
			return []ff{f, g}
		}
	}},
	{name: "READs acknowledged plainly", end: 1, want: conform.AckOfRead, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			switch f.Packet.Opcode {
			case bth.RCReadResponseOnly, bth.RCAtomicAcknowledge:
				f.Packet.Opcode = bth.RCAcknowledge
				f.Packet.SetPayload(nil)
			}
			return one(f)
		}
	}},
	{name: "READ response of a wrong opcode", end: 1, want: conform.ReadOpcode, make: change(1, isOp(bth.RCReadResponseLast), func(f ff) { f.Packet.Opcode = bth.RCReadResponseOnly })},
	{name: "short READ responses", end: 1, want: conform.ReadSize, make: change(1, isOp(bth.RCReadResponseOnly), func(f ff) { payload(f, 60) })},
	{name: "one READ response too many", end: 1, want: conform.ReadTooMany, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if f.Packet.Opcode != bth.RCReadResponseLast {
				return one(f)
			}
			g := clone(f)
			g.Packet.PSN = g.Packet.PSN.Add(1)
			return []ff{f, g}
		}
	}},
	{name: "READs get no response", end: 1, want: conform.ReadUnanswered, make: func(w *wire) {
		w.out[1] = func(f ff) []ff {
			if f.Packet.Opcode.ReadResponse() {
				return nil
			}
			return one(f)
		}
	}},
	{name: "atomics executed twice", end: 1, want: conform.AtomicTwice, loss: 0.05, make: func(w *wire) {
		seen := map[psn.PSN]uint64{}
		w.out[1] = func(f ff) []ff {
			if f.Packet.Opcode == bth.RCAtomicAcknowledge {
				f.Packet.AtomicAckETH.Orig += seen[f.Packet.PSN]
				seen[f.Packet.PSN]++
			}
			return one(f)
		}
	}},
	{name: "AckReq in responses", end: 1, want: conform.AckReqInResponse, make: change(1, always, func(f ff) { f.Packet.AckReq = true })},
	{name: "SE in acknowledgements", end: 1, want: conform.SolicitedMisplaced, make: change(1, isOp(bth.RCAcknowledge), func(f ff) { f.Packet.SE = true })},
	{name: "reserved syndromes", end: 1, want: conform.SyndromeReserved, make: change(1, isKind(aeth.Ack), func(f ff) { f.Packet.AETH.Syndrome |= 0x80 })},
	{name: "NAK code 7", end: 1, want: conform.SyndromeReserved, loss: 0.05, make: change(1, isSeqNak, func(f ff) { f.Packet.AETH.Syndrome = 0x67 })},
	{name: "another partition in responses", end: 1, want: conform.PKeyMismatch, make: change(1, isOp(bth.RCAtomicAcknowledge), func(f ff) { f.Packet.PKey = 0x1234 })},
	{name: "acknowledges duplicates with their PSN", end: 1, want: conform.AckBehind, loss: 0.05, make: func(w *wire) {
		var dup *psn.PSN
		var high psn.PSN
		w.in[1] = func(f ff) []ff {
			if isRequest(f) {
				p := f.Packet.PSN
				if dup = nil; high != 0 && p.Diff(high) < -2 {
					dup = &p
				}
			}
			return one(f)
		}
		w.out[1] = func(f ff) []ff {
			if isKind(aeth.Ack)(f) {
				if dup != nil {
					f.Packet.PSN = *dup
				} else {
					high = f.Packet.PSN
				}
			}
			return one(f)
		}
	}},
	{name: "CNPs with data", end: 1, want: conform.CNPPayload, make: cnps(func(f ff) { f.Packet.Payload[0] = 1 }, 1)},
	{name: "CNPs with PSNs", end: 1, want: conform.CNPFields, make: cnps(func(f ff) { f.Packet.PSN = 9 }, 1)},
	{name: "CNPs without BECN", end: 1, want: conform.CNPWithoutBECN, make: cnps(func(f ff) { f.Packet.BECN = false }, 1)},
	{name: "responses after a fatal NAK", end: 1, want: conform.DeadAnswers, make: func(w *wire) {
		n := 0
		w.out[1] = func(f ff) []ff {
			if isKind(aeth.Ack)(f) {
				if n++; n == 5 {
					f.Packet.AETH.Syndrome = aeth.NakSyndrome(aeth.NakRemoteAccessError)
					g := clone(f)
					g.Packet.AETH.Syndrome = 0x1f
					f.Packet.AETH.MSN--
					return []ff{f, g}
				}
			}
			return one(f)
		}
	}},
	{name: "READ responses behind later acknowledgements", end: 1, want: conform.ResponseLate, make: func(w *wire) {
		var held ff
		w.out[1] = func(f ff) []ff {
			switch {
			case f.Packet.Opcode == bth.RCAtomicAcknowledge:
				held = clone(f)
				return nil
			case held != nil && hasAETH(f):
				g := held
				held = nil
				return []ff{f, g}
			}
			return one(f)
		}
	}},
	{name: "accepts what it has refused", end: 1, want: conform.NakThenAcked, make: func(w *wire) {
		n := 0
		w.out[1] = func(f ff) []ff {
			if isKind(aeth.Ack)(f) {
				if n++; n%5 == 0 {
					g := clone(f)
					g.Packet.AETH.Syndrome = aeth.NakSyndrome(0)
					g.Packet.AETH.MSN--
					return []ff{g, f}
				}
			}
			return one(f)
		}
		w.in[0] = func(f ff) []ff {
			if isSeqNak(f) {
				return nil
			}
			return one(f)
		}
	}},
	{name: "NAKs without a gap", end: 1, want: conform.NakNothingLost, make: func(w *wire) {
		n := 0
		w.out[1] = func(f ff) []ff {
			if isKind(aeth.Ack)(f) {
				if n++; n%5 == 0 {
					f.Packet.AETH.Syndrome = aeth.NakSyndrome(0)
					f.Packet.AETH.MSN--
				}
			}
			return one(f)
		}
	}, set: func(_ int, c *softnic.QPConfig, _ *qp.Attr) { c.AckEvery = 64 }},
}

// untold are those that are not reported yet on every seed.
var untold = map[string]bool{}

// reply builds an acknowledgement of f by its receiver.
func reply(f ff) ff {
	g := &frame.Frame{Link: frame.Ethernet, Net: f.Net, DstMAC: f.SrcMAC, SrcMAC: f.DstMAC, Src: f.Dst, Dst: f.Src, DF: true, HopLimit: f.HopLimit, SrcPort: f.SrcPort}
	g.Packet.Opcode, g.Packet.PKey, g.Packet.PSN = bth.RCAcknowledge, 0xffff, f.Packet.PSN
	g.Packet.DestQP = f.Packet.DestQP // both ends have the same number here
	g.Packet.M = true
	return g
}

var lastMSN = map[*wire]uint32{}

func countMSN(w *wire) {
	w.out[1] = func(f ff) []ff {
		if hasAETH(f) {
			lastMSN[w] = f.Packet.AETH.MSN
		}
		return one(f)
	}
}

func msnBefore(w *wire, _ psn.PSN) uint32 { return lastMSN[w] }

// cnps sends n CNPs with each fourth response.
func cnps(edit func(ff), n int) func(*wire) {
	return func(w *wire) {
		w.out[1] = func(f ff) []ff {
			out := one(f)
			if isKind(aeth.Ack)(f) && f.Packet.AETH.MSN%4 == 0 {
				for range n {
					g := clone(f)
					cnp(edit)(g)
					out = append(out, g)
				}
			}
			return out
		}
	}
}

// breakPort lets a broken port work for a while and returns the capture.
func breakPort(tb testing.TB, b *broken, seed uint64) []rec {
	w := newWire(tb, seed, b.set)
	w.ids = seed%2 == 0
	w.loss = [2]float64{b.loss, b.loss}
	b.make(w)
	for range 40 {
		w.work(b.late)
		w.run(20 * time.Millisecond)
	}
	w.run(400 * time.Millisecond)
	delete(lastMSN, w)
	return w.tape
}

// TestBrokenPorts: a port that breaks a rule all the time is reported by rule and end,
// and the other end is not accused, in networks with and without loss; nor with
// 1 % of the capture missing.
func TestBrokenPorts(t *testing.T) {
	require.GreaterOrEqual(t, len(brokenPorts), 40)
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for i := range brokenPorts {
		b := &brokenPorts[i]
		t.Run(b.name, func(t *testing.T) {
			if untold[b.name] {
				t.Skip("not reported yet")
			}
			for seed := range seeds {
				tape := breakPort(t, b, seed)
				var shown []uint64 // the frames that show what happens only once
				for _, missing := range []bool{false, true} {
					if missing && testing.Short() && i%4 != 0 {
						continue
					}
					recs := tape
					if missing {
						rng := rand.New(rand.NewPCG(seed, 5))
						recs = nil
						for i, r := range tape {
							if rng.IntN(100) != 0 || slices.Contains(shown, uint64(i+1)) {
								recs = append(recs, r)
							}
						}
					}
					w, all := watch(t, conform.Config{}, recs)
					told, slandered := 0, 0
					for _, f := range all {
						if f.Severity != conform.Breach {
							continue
						}
						switch {
						case f.Src != hostAddr(b.end):
							if slandered++; slandered < 4 {
								t.Errorf("seed %d missing %v: accused %v: frame %d %s %s: %s", seed, missing, f.Src, f.Frame, f.Rule(), f.Check, f.String())
							}
						case f.Rule() == b.want.Rule():
							told++
							if !missing && told <= 3 {
								shown = append(shown, f.Frame, f.Earlier)
							}
						}
					}
					if told > 3 {
						shown = nil
					}
					if told == 0 {
						listed, unjudged := "", false
						w.NotJudged(func(r conform.Rule, why conform.Reason, n uint64) bool {
							unjudged = unjudged || r == b.want.Rule()
							listed += fmt.Sprintf(" %v (%v) %d;", r, why, n)
							return true
						})
						if missing && unjudged {
							continue
						}
						line := fmt.Sprint(table(all))
						t.Errorf("seed %d missing %v: %v not reported; not judged:%s\n%s", seed, missing, b.want, listed, line[:min(len(line), 200)])
					}
				}
			}
		})
	}
}

// TestSoundPorts: the same networks with ports that break nothing.
func TestSoundPorts(t *testing.T) {
	for _, b := range []broken{{name: "clean"}, {name: "loss", loss: 0.05}, {name: "late", late: true}, {name: "loss and late", loss: 0.03, late: true}} {
		b.make = func(*wire) {}
		seeds := uint64(4)
		if testing.Short() {
			seeds = 1
		}
		for seed := range seeds {
			_, all := watch(t, conform.Config{}, breakPort(t, &b, seed))
			require.Empty(t, breaches(all), "%s seed %d: %v", b.name, seed, table(all))
		}
	}
}

// TestCutPorts: of packets that the capture has without their ICRC, one may be damaged, and
// accuses nobody; what a port does in each of them is reported.
func TestCutPorts(t *testing.T) {
	i := slices.IndexFunc(brokenPorts, func(b broken) bool { return b.name == "transport version 1 in WRITEs" })
	cut := snap(breakPort(t, &brokenPorts[i], 0), 80)
	require.Greater(t, breaches(second(watch(t, conform.Config{}, cut)))[conform.VersionNotZero], 2)

	sound := broken{make: func(*wire) {}}
	recs := snap(breakPort(t, &sound, 0), 80)
	n := 0
	for i := range recs {
		if len(recs[i].data) == 80 && n < 2 {
			recs[i].data = slices.Clone(recs[i].data)
			recs[i].data[43] |= 1 // TVer
			n++
		}
	}
	w, all := watch(t, conform.Config{}, recs)
	require.Empty(t, breaches(all))
	left := uint64(0)
	w.NotJudged(func(r conform.Rule, why conform.Reason, k uint64) bool {
		if r == conform.VersionNotZero.Rule() && why == conform.ReasonSnaplen {
			left += k
		}
		return true
	})
	require.Equal(t, uint64(2), left)

	// What is reported once a flow is reported there, too.
	recs = snap(rebuilt(breakPort(t, &sound, 0), func(_ int, f *frame.Frame) { f.DF = false }), 80)
	_, all = watch(t, conform.Config{}, recs)
	require.Equal(t, map[conform.Check]int{conform.IPv4NoDF: 2}, breaches(all))
}
