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
	MWBind     // regions: windows may be bound to it
	ZeroBased  // addresses count from 0 at the region's start
	LocalWrite // regions: receives and results may be placed there by key, see [LocalMemory]
)

// PD is a protection domain: a number that a QP and what it may reach share.
type PD uint32

// Memory is the memory that a peer may access. Its methods are called while packets are
// handled and built. They must not block, and must return no more bytes than asked for.
// [Regions] is one.
type Memory interface {
	// Remote returns the a.Len bytes at a.VA of the region or window that a.RKey
	// names, or false when it does not exist or is disabled, belongs to another
	// protection domain or QP, does not grant the right, or does not hold the
	// whole range. With a.Len = 0 the range is not looked at. The responder writes
	// to the slice before its call returns, or reads it until the caller has
	// encoded the packet that it built.
	Remote(a RemoteAccess) ([]byte, bool)
	// Invalidate invalidates a.RKey for a SEND with invalidate, or returns false where the
	// peer may not do that. Only PD, QPN and RKey of a are set.
	Invalidate(a RemoteAccess) bool
}

// RemoteAccess describes an access by a request of the peer: the argument of [Memory].
type RemoteAccess struct {
	PD    PD     // of the QP that received the request
	QPN   uint32 // of the QP that received the request
	RKey  uint32 // as the request names it
	VA    uint64 // first byte, a virtual address
	Len   uint32 // bytes
	Right Access // what the operation needs
}

// Binder is implemented by a Memory that has windows: OpBindMW and OpLocalInv call it.
// [Regions] is one.
type Binder interface {
	Bind(b Binding) (rkey uint32, err error)
	InvalidateLocal(rkey uint32) error
}

// IncRKey returns the key that a window has after OpBindMW (ibv_inc_rkey): its low byte is
// one higher, modulo 256.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// SGE names a piece of local memory by its key, as ibv_sge does.
type SGE struct {
	Addr uint64
	Len  uint32 // bytes
	LKey uint32
}

// LocalMemory is implemented by a Memory that resolves local keys: those of SGEs. [Regions]
// is one.
type LocalMemory interface {
	// Local returns the a.Len bytes at a.VA of the region that a.LKey names, or false when
	// it does not exist, belongs to another protection domain, does not hold the whole
	// range, or may not be written where a.Write is set. It is called for each packet, so
	// that the memory of a deregistered region is no longer used.
	Local(a LocalAccess) ([]byte, bool)
}

// LocalAccess describes an access by a work request: the argument of [LocalMemory].
type LocalAccess struct {
	PD    PD
	LKey  uint32
	VA    uint64
	Len   uint32
	Write bool
}

// Flusher is implemented by a Memory that has something to do on FLUSH. For any other
// Memory, FLUSH does nothing: its writes count as visible and persistent at once.
type Flusher interface {
	// Flush is called with the fields of a FLUSH request whose rights were
	// checked.
	Flush(rkey uint32, va uint64, n uint32, sel reth.Selectivity, placement reth.Placement)
}

// span is a message buffer: one slice, a list of slices one after the other, or a list
// of SGEs.
type span struct {
	one  []byte
	many [][]byte
	sges []SGE
	mem  LocalMemory // of the SGEs
	pd   PD
}

func (s *span) len() uint64 {
	n := uint64(len(s.one))
	if s.many != nil {
		n = 0
		for _, b := range s.many {
			n += uint64(len(b))
		}
	}
	if s.sges != nil {
		n = 0
		for i := range s.sges {
			n += uint64(s.sges[i].Len)
		}
	}
	return n
}

// local returns n bytes at off of an SGE, or false where the memory refuses them.
func (s *span) local(e *SGE, off, n uint64, write bool) ([]byte, bool) {
	if s.mem == nil || e.Addr+off < off {
		return nil, false
	}
	return s.mem.Local(LocalAccess{s.pd, e.LKey, e.Addr + off, uint32(n), write})
}

// slice returns n bytes at off: a part of the one slice that holds them, or a copy in
// buf. The caller has checked the bounds. It returns false where the memory refuses an
// SGE.
func (s *span) slice(off, n uint64, buf []byte) ([]byte, bool) {
	if s.sges == nil && s.many == nil {
		return s.one[off : off+n : off+n], true
	}
	out := buf[:0]
	for i := range max(len(s.many), len(s.sges)) {
		l := s.piece(i)
		if off >= l {
			off -= l
			continue
		}
		m := min(l-off, n-uint64(len(out)))
		b, ok := []byte(nil), true
		if s.sges == nil {
			b = s.many[i][off : off+m : off+m]
		} else {
			b, ok = s.local(&s.sges[i], off, m, false)
		}
		if !ok || m == n {
			return b, ok
		}
		out = append(out, b...)
		off = 0
		if uint64(len(out)) == n {
			break
		}
	}
	return out, true
}

func (s *span) piece(i int) uint64 {
	if s.sges == nil {
		return uint64(len(s.many[i]))
	}
	return uint64(s.sges[i].Len)
}

// put copies src to off. The caller has checked the bounds. It returns false where the
// memory refuses an SGE.
func (s *span) put(off uint64, src []byte) bool {
	if s.sges == nil && s.many == nil {
		place(s.one[off:], src)
		return true
	}
	for i := range max(len(s.many), len(s.sges)) {
		if len(src) == 0 {
			break
		}
		l := s.piece(i)
		if off >= l {
			off -= l
			continue
		}
		n := min(l-off, uint64(len(src)))
		if s.sges == nil {
			place(s.many[i][off:], src[:n])
		} else {
			b, ok := s.local(&s.sges[i], off, n, true)
			if !ok {
				return false
			}
			place(b, src[:n])
		}
		src = src[n:]
		off = 0
	}
	return true
}

// reaches reports whether the memory grants all SGEs for writing.
func (s *span) reaches() bool {
	for i := range s.sges {
		if e := &s.sges[i]; e.Len != 0 {
			if _, ok := s.local(e, 0, uint64(e.Len), true); !ok {
				return false
			}
		}
	}
	return true
}

// place copies src to dst, unless both are the same memory, as in simulations whose peers
// share it. It copies in pieces: for more than 2 KiB Go uses an instruction (REP MOVSQ) on
// processors without AVX and ERMS that emulated ones execute word by word, and slowly. What it
// leaves where the two overlap in part is undefined, as where a card copies.
func place(dst, src []byte) {
	if len(src) == 0 || &dst[0] == &src[0] {
		return
	}
	const piece = 2048
	for ; len(src) > piece; dst, src = dst[piece:], src[piece:] {
		copy(dst, src[:piece])
	}
	copy(dst, src)
}
