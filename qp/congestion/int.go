package congestion

import (
	"encoding/binary"
	"math"
)

// MaxHops is how many records a packet can hold. A path through a three-tier network has
// five switches; switches beyond MaxHops are counted as Missed.
const MaxHops = 8

// Hop is the record that a switch adds to a packet when it starts to send it: the output's
// line rate, the time, the bytes that the output has sent and the bytes that wait.
//
//	bits  0- 2  code of the line rate
//	bits  3-26  time, ns, modulo 2^24
//	bits 27-46  bytes sent, in units of 128 B x m, modulo 2^20
//	bits 47-63  bytes waiting, in units of 80 B x m, at most 2^17 - 1
//
// m is the line rate divided by 25 Gb/s and rounded down, at least 1. Fields,
// widths and the codes 0 to 4 are those of the simulator that was published with
// HPCC (Li et al., SIGCOMM 2019), whose m is one constant for all links; the other
// codes, which it leaves unused, are ours. No standard has this record.
//
// The time wraps every 16.8 ms, the bytes every 134 MB x m, which takes at least 26.8 ms
// (at 40 Gb/s): two records of the same output that are less than 16.8 ms apart give its
// rate.
type Hop uint64

// hopRates are the line rates by code, in bits per second.
var hopRates = [8]uint64{25e9, 50e9, 100e9, 200e9, 400e9, 10e9, 40e9, 800e9}

const (
	hopTimeBits  = 24
	hopBytesBits = 20
	hopQueueBits = 17
	hopTimeAt    = 3
	hopBytesAt   = hopTimeAt + hopTimeBits
	hopQueueAt   = hopBytesAt + hopBytesBits
	hopByteUnit  = 128
	hopQueueUnit = 80
)

// HopRate returns the line rate that a record gives for an output of rate bits per
// second: the next above that there is a code for, or the greatest.
func HopRate(rate uint64) uint64 { return hopRates[hopCode(rate)] }

func hopCode(rate uint64) uint64 {
	best, code := uint64(math.MaxUint64), uint64(7)
	for i, r := range hopRates {
		if r >= rate && r < best {
			best, code = r, uint64(i)
		}
	}
	return code
}

func hopScale(rate uint64) uint64 { return max(1, rate/25e9) }

// NewHop returns the record of an output of rate bits per second (see [HopRate])
// that has sent bytes bytes in all, with queue bytes waiting, at the time now in
// nanoseconds.
func NewHop(rate uint64, now int64, bytes, queue uint64) Hop {
	code := hopCode(rate)
	m := hopScale(hopRates[code])
	return Hop(code | uint64(now)&(1<<hopTimeBits-1)<<hopTimeAt |
		bytes/(hopByteUnit*m)&(1<<hopBytesBits-1)<<hopBytesAt |
		min(queue/(hopQueueUnit*m), 1<<hopQueueBits-1)<<hopQueueAt)
}

// Rate returns the output's line rate in bits per second.
func (h Hop) Rate() uint64 { return hopRates[h&7] }

// Queue returns how many bytes were waiting, rounded down to the unit.
func (h Hop) Queue() uint64 { return uint64(h>>hopQueueAt) * hopQueueUnit * hopScale(h.Rate()) }

// Since returns the nanoseconds from an older record of the same output to h, and
// the bytes that were sent between.
func (h Hop) Since(old Hop) (ns int64, bytes uint64) {
	ns = int64((h>>hopTimeAt - old>>hopTimeAt) & (1<<hopTimeBits - 1))
	units := uint64(h>>hopBytesAt-old>>hopBytesAt) & (1<<hopBytesBits - 1)
	return ns, units * hopByteUnit * hopScale(h.Rate())
}

// INTMode says what the telemetry in a packet is for.
type INTMode uint8

// Modes of telemetry.
const (
	INTNone    INTMode = iota // the packet has none
	INTCollect                // switches add their records
	INTEcho                   // an acknowledgement carries records back
)

// INT is the telemetry of a packet. The zero value is none.
type INT struct {
	Mode   INTMode
	N      uint8 // records
	Missed uint8 // switches that found no room for their record
	Hops   [MaxHops]Hop
}

// Stamp adds a record to a packet that collects them.
func (t *INT) Stamp(h Hop) {
	switch {
	case t.Mode != INTCollect:
	case t.N == MaxHops:
		t.Missed = min(t.Missed, math.MaxUint8-1) + 1
	default:
		t.Hops[t.N] = h
		t.N++
	}
}

// Records returns the records, the first switch's first.
func (t *INT) Records() []Hop { return t.Hops[:t.N:t.N] }

// Size returns how many bytes the telemetry takes in a packet: 2, and 8 a record.
func (t *INT) Size() int {
	if t.Mode == INTNone {
		return 0
	}
	return 2 + 8*int(t.N)
}

// AppendTo appends the telemetry as bytes, of which there are Size: a byte with the mode in
// its two high bits and the number of records in the others, one with Missed, and the
// records, most significant byte first. Networks that carry bytes append it to the IP
// packet, where Ethernet has padding, so that receivers and dissectors that do not know it
// ignore it. Like the records it is in no standard.
func (t *INT) AppendTo(dst []byte) []byte {
	if t.Mode == INTNone {
		return dst
	}
	dst = append(dst, uint8(t.Mode)<<6|t.N, t.Missed)
	for _, h := range t.Records() {
		dst = binary.BigEndian.AppendUint64(dst, uint64(h))
	}
	return dst
}

// Decode reads what AppendTo wrote; b must end there. It reports false, and leaves t
// unchanged, where b is something else.
func (t *INT) Decode(b []byte) bool {
	if len(b) < 2 {
		return false
	}
	mode, n := INTMode(b[0]>>6), b[0]&0x3f
	if mode == INTNone || mode > INTEcho || n > MaxHops || len(b) != 2+8*int(n) {
		return false
	}
	t.Mode, t.N, t.Missed = mode, n, b[1]
	for i := range n {
		t.Hops[i] = Hop(binary.BigEndian.Uint64(b[2+8*int(i):]))
	}
	return true
}
