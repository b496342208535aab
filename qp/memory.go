package qp

import "github.com/roce-go/roce/reth"

// Access is a set of rights, as enum ibv_access_flags has them.
type Access uint8

// Rights. A QP has them too: an operation needs the region's and the QP's.
const (
	RemoteWrite Access = 1 << iota
	RemoteRead
	RemoteAtomic
	FlushGlobal
	FlushPersistent
	MWBind    // regions: windows may be bound to it
	ZeroBased // addresses count from 0 at the region's start
)

// PD is a protection domain: a number that a QP and what it may reach share.
type PD uint32

// Memory is what a peer may reach. Its methods are called while packets are
// handled and made, must not block, and must not keep or return more than they
// are asked for. [Regions] is one.
type Memory interface {
	// Remote returns the a.Len bytes at a.VA of the region or window that a.RKey
	// names, or false when it does not exist or is disabled, belongs to another
	// protection domain or QP, does not grant the right, or does not hold the
	// whole range. With a.Len = 0 the range is not looked at. The responder writes
	// to the slice before its call returns, or reads it until the caller has
	// encoded the packet that it built.
	Remote(a RemoteAccess) ([]byte, bool)
	// Invalidate takes a.RKey away, as a SEND with invalidate asks, or returns
	// false where it may not be. Only PD, QPN and RKey of a are set.
	Invalidate(a RemoteAccess) bool
}

// RemoteAccess is what a request of a peer asks of a [Memory].
type RemoteAccess struct {
	PD    PD     // of the QP that received the request
	QPN   uint32 // of the QP that received the request
	RKey  uint32 // as the request names it
	VA    uint64 // first byte, a virtual address
	Len   uint32 // bytes
	Right Access // what the operation needs
}

// Binder is implemented by a Memory that has windows: what OpBindMW and OpLocalInv
// ask of it. [Regions] is one.
type Binder interface {
	Bind(b Binding) (rkey uint32, err error)
	InvalidateLocal(rkey uint32) error
}

// IncRKey returns the key that a window has after OpBindMW (ibv_inc_rkey): its low
// byte is one higher.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// Flusher is implemented by a Memory that has something to do on FLUSH. Others
// are taken for memory whose writes are visible and persistent at once.
type Flusher interface {
	// Flush is called with the fields of a FLUSH request whose rights were
	// checked.
	Flush(rkey uint32, va uint64, n uint32, sel reth.Selectivity, placement reth.Placement)
}

// span is a message buffer: one slice, or a list of slices one after the other.
type span struct {
	one  []byte
	many [][]byte
}

func (s span) len() uint64 {
	if s.many == nil {
		return uint64(len(s.one))
	}
	n := uint64(0)
	for _, b := range s.many {
		n += uint64(len(b))
	}
	return n
}

// slice returns n bytes at off: a part of the one slice that holds them, or a
// copy in buf. The caller has checked the bounds.
func (s span) slice(off, n uint64, buf []byte) []byte {
	if s.many == nil {
		return s.one[off : off+n : off+n]
	}
	out := buf[:0]
	for _, b := range s.many {
		l := uint64(len(b))
		if off >= l {
			off -= l
			continue
		}
		m := min(l-off, n-uint64(len(out)))
		if m == n {
			return b[off : off+n : off+n]
		}
		out = append(out, b[off:off+m]...)
		off = 0
		if uint64(len(out)) == n {
			break
		}
	}
	return out
}

// put copies src to off. The caller has checked the bounds.
func (s span) put(off uint64, src []byte) {
	if s.many == nil {
		place(s.one[off:], src)
		return
	}
	for _, b := range s.many {
		l := uint64(len(b))
		if off >= l {
			off -= l
			continue
		}
		n := copy(b[off:], src)
		src = src[n:]
		off = 0
		if len(src) == 0 {
			return
		}
	}
}

// place copies src to dst, unless that is where it is: simulations whose peers share
// memory do not touch it.
func place(dst, src []byte) {
	if len(src) != 0 && &dst[0] != &src[0] {
		copy(dst, src)
	}
}
