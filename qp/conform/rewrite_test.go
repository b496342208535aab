package conform_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

// tape is a capture that a test rewrites. Frame numbers begin at 1, as the
// dissector shows them.
type tape struct {
	t    testing.TB
	recs []rec
}

func open(t testing.TB, name string) *tape { return &tape{t, slices.Clone(load(t, name))} }

// edit changes the fields of frame n by f and builds it again: lengths, checksum
// and ICRC are right afterwards.
func (tp *tape) edit(n int, f func(*frame.Frame)) *tape {
	tp.t.Helper()
	r := &tp.recs[n-1]
	var fr frame.Frame
	require.NoError(tp.t, fr.Decode(frame.Ethernet, r.data))
	f(&fr)
	r.data = fr.AppendTo(nil)
	r.wire = len(r.data)
	return tp
}

// all edits every RoCE frame for which f returns true.
func (tp *tape) all(f func(n int, fr *frame.Frame) bool) *tape {
	for i := range tp.recs {
		r := &tp.recs[i]
		var fr frame.Frame
		if fr.Decode(frame.Ethernet, r.data) != nil || !f(i+1, &fr) {
			continue
		}
		r.data = fr.AppendTo(nil)
		r.wire = len(r.data)
	}
	return tp
}

// raw changes the bytes of frame n from the Ethernet header on; the ICRC is computed
// right afterwards when fix is set.
func (tp *tape) raw(n int, fix bool, f func(b []byte)) *tape {
	r := &tp.recs[n-1]
	r.data = slices.Clone(r.data)
	f(r.data)
	if fix {
		b := r.data[:14+int(binary.BigEndian.Uint16(r.data[16:]))]
		r.data = append(crc.Append(b[:len(b)-4], 14), r.data[len(b):]...)
	}
	return tp
}

// drop removes the frames numbered.
func (tp *tape) drop(ns ...int) *tape {
	out := tp.recs[:0:0]
	for i, r := range tp.recs {
		if !slices.Contains(ns, i+1) {
			out = append(out, r)
		}
	}
	tp.recs = out
	return tp
}

// again puts a copy of frame n after frame at, by d later than that; the copy
// has an IP identification of its own, so that it is no copy by the network.
func (tp *tape) again(n, at int, d time.Duration) *tape {
	r := tp.recs[n-1]
	r.ts = tp.recs[at-1].ts.Add(d)
	tp.recs = slices.Insert(slices.Clone(tp.recs), at, r)
	return tp.edit(at+1, func(f *frame.Frame) { f.ID ^= 0x8000 })
}

// move puts frame n after frame at, by d later than that.
func (tp *tape) move(n, at int, d time.Duration) *tape {
	r := tp.recs[n-1]
	r.ts = tp.recs[at-1].ts.Add(d)
	tp.recs = slices.Insert(slices.Clone(tp.recs), at, r)
	if n > at {
		n++
	}
	return tp.drop(n)
}

// delay moves frame n and all after it by d.
func (tp *tape) delay(n int, d time.Duration) *tape {
	tp.recs = slices.Clone(tp.recs)
	for i := n - 1; i < len(tp.recs); i++ {
		tp.recs[i].ts = tp.recs[i].ts.Add(d)
	}
	return tp
}

// insert puts a new frame after frame at: a copy changed by f.
func (tp *tape) insert(at int, d time.Duration, f func(*frame.Frame)) *tape {
	return tp.again(at, at, d).edit(at+1, f)
}

// payload gives a packet n bytes of payload.
func payload(f *frame.Frame, n int) { f.Packet.SetPayload(make([]byte, n)) }

// asGRH turns a frame into RoCE v1.
func asGRH(f *frame.Frame) {
	f.Net = frame.GRH
	f.Src, f.Dst = v6(f.Src), v6(f.Dst)
}

// fix repairs the ICRC of an untagged Ethernet frame over IPv4.
func fix(b []byte) {
	end := 14 + int(binary.BigEndian.Uint16(b[16:]))
	copy(b[end-4:end], crc.AppendValue(nil, crc.Sum(b[14:end-4])))
}

// then appends a capture to another, as if it began gap after the other's end.
func then(recs, next []rec, gap time.Duration) []rec {
	at := time.Unix(1_700_000_000, 0)
	if len(recs) > 0 {
		at = recs[len(recs)-1].ts
	}
	d := at.Add(gap).Sub(next[0].ts)
	for _, r := range next {
		r.ts = r.ts.Add(d)
		recs = append(recs, r)
	}
	return recs
}

// fixIP repairs the checksum of the IPv4 header and the ICRC.
func fixIP(b []byte) {
	b[24], b[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum))
	fix(b)
}
