package qp

import (
	"errors"
	"math/rand/v2"
)

var (
	// ErrNoKeys means that a table of regions has no free slot.
	ErrNoKeys = errors.New("qp: no free memory key")
	// ErrNoRegion means that no region or window has the key.
	ErrNoRegion = errors.New("qp: no region or window with this key")
	// ErrBind means that a window cannot be bound there: the region was deregistered or
	// lacks MWBind, or the range is empty or not within the region.
	ErrBind = errors.New("qp: window cannot be bound to this range")

	errBindBound  error = detailed{ErrBind, "qp: the type 2 window is bound already: invalidate it first"}
	errBindAccess error = detailed{ErrBind, "qp: Access of a Binding has MWBind, which a window cannot grant"}
	errBindKey    error = detailed{ErrBind, "qp: NewRKey differs from the window's key above the low byte, or keys are seeded"}
	errBindRegion error = detailed{ErrBind, "qp: Region of a Binding is the key of a window"}
	errBindPD     error = detailed{ErrBind, "qp: window and region are of two protection domains"}
	errBindRight  error = detailed{ErrBind, "qp: the region was registered without MWBind"}
	errBindEmpty  error = detailed{ErrBind, "qp: Len of a Binding is 0"}
	errBindRange  error = detailed{ErrBind, "qp: VA and Len of a Binding are not within the region"}
)

// Region describes a registered piece of memory.
type Region struct {
	PD     PD
	Data   []byte
	Addr   uint64 // virtual address of Data[0] for the peer; ignored with ZeroBased
	Access Access
}

// wraps reports whether r goes beyond the last address, which its last byte may have.
func (r *Region) wraps() bool {
	n := uint64(len(r.Data))
	return n != 0 && r.Addr+(n-1) < r.Addr && r.Access&ZeroBased == 0
}

type regionSlot struct {
	data   []byte
	addr   uint64
	parent uint32 // windows: the key of the region
	age    uint32 // windows: turn of the region
	turn   uint32 // how often the slot was used
	qpn    uint32
	pd     PD
	next   int32 // free list
	key    uint8 // changes with each use of the slot
	access Access
	kind   slotKind
	type1  bool // a window of its protection domain
}

type slotKind uint8

const (
	slotFree slotKind = iota
	slotRegion
	slotWindowFree // allocated, not bound
	slotWindow
)

// Regions is a table of memory regions and windows. Looking a key up
// takes constant time. It is a [Memory].
//
// A key is a slot number, 24 bits, and in the low byte a part that changes each
// time the slot is used. Slots are used again in the order in which they were
// freed, so that a key repeats after 256 times as many registrations as there are
// free slots.
//
// A Regions is not safe for concurrent use.
type Regions struct {
	slots []regionSlot // grows up to most
	most  int
	fresh int32 // the first that was never used
	first int32 // of the free list of those that were, -1 when empty
	last  int32
	used  int

	cipher keyCipher
}

// NewRegions returns a table for at most n regions and windows, 1 .. 2^24-1.
func NewRegions(n int) (*Regions, error) {
	if n < 1 || n >= 1<<24 {
		return nil, ErrConfig
	}
	return &Regions{most: n, first: -1, last: -1}, nil
}

// Seed makes keys unpredictable, even to a peer that knows other keys of the table. It must
// be called before the first registration; later it does nothing and returns false. Windows
// must then be bound with [Regions.Bind], which returns the new key: it differs from
// IncRKey, so a caller that posts OpBindMW cannot know it. A key cannot be chosen: a Bind
// with NewRKey fails with ErrBind.
func (t *Regions) Seed(seed [32]byte) bool {
	if t.fresh != 0 {
		return false
	}
	t.cipher.init(seed)
	return true
}

// Len returns the number of regions and windows.
func (t *Regions) Len() int { return t.used }

func (t *Regions) alloc() (*regionSlot, uint32, error) {
	i := t.first
	switch {
	case int(t.fresh) < t.most: // those that were never used come first
		if i = t.fresh; int(i) == len(t.slots) {
			t.slots = append(t.slots, make([]regionSlot, min(t.most, max(8, 2*len(t.slots)))-len(t.slots))...)
		}
		t.fresh++
	case i < 0:
		return nil, 0, ErrNoKeys
	default:
		if t.first = t.slots[i].next; t.first < 0 {
			t.last = -1
		}
	}
	s := &t.slots[i]
	s.key++
	s.turn++
	t.used++
	// Slot numbers count from 1, so that no key is below 256.
	return s, t.cipher.seal(uint32(i+1)<<8 | uint32(s.key)), nil
}

func (t *Regions) free(s *regionSlot, rkey uint32) {
	i := int32(t.cipher.open(rkey)>>8) - 1
	*s = regionSlot{key: s.key, turn: s.turn, next: -1}
	if t.last < 0 {
		t.first = i
	} else {
		t.slots[t.last].next = i
	}
	t.last = i
	t.used--
}

func (t *Regions) lookup(rkey uint32) *regionSlot {
	rkey = t.cipher.open(rkey)
	i := rkey>>8 - 1 // of 0 it is far beyond any slot
	if int64(i) >= int64(len(t.slots)) {
		return nil
	}
	s := &t.slots[i]
	if s.kind == slotFree || s.key != uint8(rkey) {
		return nil
	}
	return s
}

// Register adds a region and returns its key, which is local and remote key at
// once. The table keeps r.Data.
func (t *Regions) Register(r Region) (rkey uint32, err error) {
	if r.wraps() {
		return 0, ErrRange
	}
	s, rkey, err := t.alloc()
	if err != nil {
		return 0, err
	}
	s.set(&r)
	return rkey, nil
}

// Reregister replaces the region rkey by r, under the same key (ibv_rereg_mr). Windows that
// were bound to it become invalid. On an error nothing has changed.
func (t *Regions) Reregister(rkey uint32, r Region) error {
	s := t.lookup(rkey)
	switch {
	case s == nil || s.kind != slotRegion:
		return ErrNoRegion
	case r.wraps():
		return ErrRange
	}
	s.turn++
	s.set(&r)
	return nil
}

// set makes s the region r.
func (s *regionSlot) set(r *Region) {
	s.kind, s.data, s.addr, s.pd, s.access = slotRegion, r.Data, r.Addr, r.PD, r.Access
	if r.Access&ZeroBased != 0 {
		s.addr = 0
	}
}

// Deregister removes a region or a window. Windows that are still bound to the region
// become invalid with it.
func (t *Regions) Deregister(rkey uint32) error {
	s := t.lookup(rkey)
	if s == nil {
		return ErrNoRegion
	}
	t.free(s, rkey)
	return nil
}

// AllocWindow adds a type 2 window that is not yet bound and returns its key.
func (t *Regions) AllocWindow(pd PD) (rkey uint32, err error) {
	s, rkey, err := t.alloc()
	if err != nil {
		return 0, err
	}
	s.kind, s.pd = slotWindowFree, pd
	return rkey, nil
}

// AllocWindow1 adds a type 1 window and returns its key. All QPs of its protection domain
// may use it; it may be bound again at any time, and a bind of no bytes unbinds it; neither
// peers nor LOCAL_INV invalidate it.
func (t *Regions) AllocWindow1(pd PD) (rkey uint32, err error) {
	if rkey, err = t.AllocWindow(pd); err == nil {
		t.lookup(rkey).type1 = true
	}
	return rkey, err
}

// Binding says to what a window is bound, and for whom.
type Binding struct {
	Window uint32 // key of the window
	Region uint32 // key of the region
	VA     uint64 // first byte, an address of the region
	Len    uint32 // bytes
	Access Access // what the window grants
	QPN    uint32 // the only QP that may use it (type 2B)
	// NewRKey is the window's new key, which differs from Window in the low byte at
	// most. 0 means IncRKey(Window), and is all that is allowed after Regions.Seed.
	NewRKey uint32
}

// Bind binds a window and returns its new key; the old one is no longer valid. A type 2
// window that is bound must be invalidated first. The region must have MWBind. The rights
// of the window are its own: they may exceed the remote rights of the region. An empty
// range is an error, except for a type 1 window, which it unbinds.
func (t *Regions) Bind(b Binding) (rkey uint32, err error) {
	w, r := t.lookup(b.Window), t.lookup(b.Region)
	if w == nil || w.kind < slotWindowFree {
		return 0, ErrNoRegion
	}
	switch {
	case b.Access&MWBind != 0:
		return 0, errBindAccess
	case w.kind == slotWindow && !w.type1:
		return 0, errBindBound
	case b.NewRKey != 0 && (t.cipher.on || b.NewRKey>>8 != b.Window>>8):
		return 0, errBindKey
	}
	if w.type1 && b.Len == 0 {
		*w = regionSlot{kind: slotWindowFree, pd: w.pd, key: w.key, turn: w.turn, type1: true}
	} else {
		if r == nil {
			return 0, ErrNoRegion
		}
		n := uint64(b.Len)
		off, ok := r.offset(b.VA, n)
		switch {
		case r.kind != slotRegion:
			return 0, errBindRegion
		case w.pd != r.pd:
			return 0, errBindPD
		case r.access&MWBind == 0:
			return 0, errBindRight
		case n == 0:
			return 0, errBindEmpty
		case !ok:
			return 0, errBindRange
		}
		w.kind, w.parent, w.age, w.qpn, w.access = slotWindow, b.Region, r.turn, b.QPN, b.Access
		w.data, w.addr = r.data[off:off+n:off+n], b.VA
		if b.Access&ZeroBased != 0 {
			w.addr = 0
		}
	}
	w.key++
	if b.NewRKey != 0 {
		w.key = uint8(b.NewRKey)
	}
	return t.cipher.seal(t.cipher.open(b.Window)&^0xff | uint32(w.key)), nil
}

// offset returns where va lies in s, when all n bytes there do. No sum here can
// overflow.
func (s *regionSlot) offset(va, n uint64) (uint64, bool) {
	if va < s.addr {
		return 0, false
	}
	off := va - s.addr
	if l := uint64(len(s.data)); n > l || off > l-n {
		return 0, false
	}
	return off, true
}

// Remote implements [Memory].
func (t *Regions) Remote(a RemoteAccess) ([]byte, bool) {
	s := t.lookup(a.RKey)
	if s == nil || s.pd != a.PD || s.access&a.Right != a.Right {
		return nil, false
	}
	switch s.kind {
	case slotRegion:
	case slotWindow:
		// The slot may have been reused under the same 8-bit key; turn counts
		// every reuse.
		if r := t.lookup(s.parent); s.qpn != a.QPN && !s.type1 || r == nil || r.turn != s.age {
			return nil, false
		}
	default:
		return nil, false
	}
	if a.Len == 0 {
		return nil, true
	}
	off, ok := s.offset(a.VA, uint64(a.Len))
	if !ok {
		return nil, false
	}
	end := off + uint64(a.Len)
	return s.data[off:end:end], true
}

// Local implements [LocalMemory].
func (t *Regions) Local(a LocalAccess) ([]byte, bool) {
	s := t.lookup(a.LKey)
	if s == nil || s.kind != slotRegion || s.pd != a.PD || a.Write && s.access&LocalWrite == 0 {
		return nil, false
	}
	off, ok := s.offset(a.VA, uint64(a.Len))
	if !ok {
		return nil, false
	}
	end := off + uint64(a.Len)
	return s.data[off:end:end], true
}

// Invalidate implements [Memory]: a peer may invalidate a window that is bound
// to this QP, and nothing else. The window stays allocated, to be bound again.
func (t *Regions) Invalidate(a RemoteAccess) bool {
	s := t.lookup(a.RKey)
	if s == nil || s.kind != slotWindow || s.type1 || s.pd != a.PD || s.qpn != a.QPN {
		return false
	}
	*s = regionSlot{kind: slotWindowFree, pd: s.pd, key: s.key, turn: s.turn}
	return true
}

// InvalidateLocal is Invalidate by the owner: the window rkey, whatever its QP.
func (t *Regions) InvalidateLocal(rkey uint32) error {
	s := t.lookup(rkey)
	if s == nil || s.kind != slotWindow || s.type1 {
		return ErrNoRegion
	}
	t.Invalidate(RemoteAccess{PD: s.pd, QPN: s.qpn, RKey: rkey})
	return nil
}

// keyCipher hides the slot and the turn that a memory key consists of. It is a permutation
// of the 32-bit numbers, a Feistel network whose round functions come from a seed. The zero
// value leaves keys as they are.
type keyCipher struct {
	rounds [6]struct{ mul, add uint64 }
	on     bool
}

func (c *keyCipher) init(seed [32]byte) {
	rng := rand.NewChaCha8(seed)
	for i := range c.rounds {
		c.rounds[i].mul, c.rounds[i].add = rng.Uint64()|1, rng.Uint64()
	}
	c.on = true
}

// round is round i of the network: a function of 16 bits.
func (c *keyCipher) round(i int, half uint32) uint32 {
	x := (uint64(half) + c.rounds[i].add) * c.rounds[i].mul
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	return uint32(x>>40) & 0xffff
}

func (c *keyCipher) seal(k uint32) uint32 {
	if !c.on {
		return k
	}
	l, r := k>>16, k&0xffff
	for i := range c.rounds {
		l, r = r, l^c.round(i, r)
	}
	return l<<16 | r
}

func (c *keyCipher) open(k uint32) uint32 {
	if !c.on {
		return k
	}
	l, r := k>>16, k&0xffff
	for i := len(c.rounds) - 1; i >= 0; i-- {
		l, r = r^c.round(i, l), l
	}
	return l<<16 | r
}
