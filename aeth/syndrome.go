package aeth

import (
	"strconv"
	"time"
)

// Syndrome is the first byte of an AETH: bit 7 reserved, bits 6..5 the kind,
// bits 4..0 a value whose meaning depends on the kind.
type Syndrome uint8

// Kind is what a syndrome says.
type Kind uint8

// Kinds of syndrome.
const (
	Ack      Kind = iota // positive acknowledgement; the value is a credit code
	RNR                  // receiver not ready; the value is a timer code
	Reserved             // bit 7 set, or bits 6..5 = 10
	Nak                  // negative acknowledgement; the value is a NakCode
)

// String returns "ack", "rnr", "nak" or "reserved", and any other value as a
// number.
func (k Kind) String() string {
	switch k {
	case Ack:
		return "ack"
	case RNR:
		return "rnr"
	case Nak:
		return "nak"
	case Reserved:
		return "reserved"
	}
	return strconv.Itoa(int(k))
}

// NakCode is the value of a syndrome of kind Nak. Codes above 4 are reserved.
type NakCode uint8

// NAK codes, InfiniBand Architecture Volume 1, clause 9.7.5.2.8.
const (
	NakPSNSequenceError NakCode = iota
	NakInvalidRequest
	NakRemoteAccessError
	NakRemoteOperationalError
	NakInvalidRDRequest
)

// String returns the name of c, or its number where it is reserved.
func (c NakCode) String() string {
	switch c {
	case NakPSNSequenceError:
		return "PSN sequence error"
	case NakInvalidRequest:
		return "invalid request"
	case NakRemoteAccessError:
		return "remote access error"
	case NakRemoteOperationalError:
		return "remote operational error"
	case NakInvalidRDRequest:
		return "invalid RD request"
	}
	return strconv.Itoa(int(c))
}

// AckSyndrome returns the syndrome of an acknowledgement with the credit code
// c, of which five bits count.
func AckSyndrome(c CreditCode) Syndrome { return Syndrome(c & 0x1f) }

// RNRSyndrome returns the syndrome of an RNR NAK with the timer code c, of which
// five bits count.
func RNRSyndrome(c RNRTimer) Syndrome { return Syndrome(0x20 | c&0x1f) }

// NakSyndrome returns the syndrome of a NAK with the code c, of which five bits
// count.
func NakSyndrome(c NakCode) Syndrome { return Syndrome(0x60 | c&0x1f) }

// Kind returns what s says.
func (s Syndrome) Kind() Kind {
	if s&0x80 != 0 {
		return Reserved
	}
	return Kind(s >> 5)
}

// Value returns bits 4..0.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1f) }

// Credit returns the credit code; it has a meaning for kind Ack only.
func (s Syndrome) Credit() CreditCode { return CreditCode(s & 0x1f) }

// RNRTimer returns the timer code; it has a meaning for kind RNR only.
func (s Syndrome) RNRTimer() RNRTimer { return RNRTimer(s & 0x1f) }

// Nak returns the NAK code; it has a meaning for kind Nak only.
func (s Syndrome) Nak() NakCode { return NakCode(s & 0x1f) }

// String returns kind and value, for example "ack credits 16" or "nak PSN
// sequence error".
func (s Syndrome) String() string {
	switch s.Kind() {
	case Ack:
		if n, ok := s.Credit().Count(); ok {
			return "ack credits " + strconv.Itoa(n)
		}
		return "ack"
	case RNR:
		return "rnr " + s.RNRTimer().Duration().String()
	case Nak:
		return "nak " + s.Nak().String()
	}
	return "reserved 0x" + strconv.FormatUint(uint64(s), 16)
}

// CreditCode is the five-bit code of end-to-end credits in an acknowledgement:
// how many receives the responder has posted and not yet consumed.
//
// InfiniBand Architecture Volume 1, clause 9.7.7.2.5.2.
type CreditCode uint8

// NoCredits is the code that says the responder does no end-to-end flow control.
const NoCredits CreditCode = 31

var credits = [31]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
	768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// Count returns the number of credits that c stands for, and false for
// NoCredits. Five bits of c count.
func (c CreditCode) Count() (int, bool) {
	if c &= 0x1f; int(c) < len(credits) {
		return int(credits[c]), true
	}
	return 0, false
}

// CreditsFor returns the code of the largest value not above n. Below 0 counts
// as 0; it never returns NoCredits.
func CreditsFor(n int) CreditCode {
	// A binary search takes five steps: every acknowledgement that is sent needs one.
	lo, hi := 0, len(credits)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if int(credits[mid]) <= n {
			lo = mid
		} else {
			hi = mid
		}
	}
	return CreditCode(lo)
}

// RNRTimer is the five-bit code of the time that a requester waits after an RNR
// NAK. Code 0 is the longest time, 655.36 ms.
//
// InfiniBand Architecture Volume 1, clause 9.7.5.2.8, and ibv_modify_qp's
// min_rnr_timer.
type RNRTimer uint8

var rnrTimes = [32]time.Duration{ // in units of 10 us
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
	768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
	49152,
}

// Duration returns the time that c stands for: 10 us .. 655.36 ms. Five bits of
// c count.
func (c RNRTimer) Duration() time.Duration { return rnrTimes[c&0x1f] * 10 * time.Microsecond }

// RNRTimerFor returns the code of the shortest time not below d; for d above
// 655.36 ms that of 655.36 ms.
func RNRTimerFor(d time.Duration) RNRTimer {
	for c := RNRTimer(1); c < 32; c++ {
		if c.Duration() >= d {
			return c
		}
	}
	return 0
}
