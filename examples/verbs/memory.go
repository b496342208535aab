package main

/*
#include "front.h"
*/
import "C"

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp"
)

// memory is the table of regions, with two additions for the memory of a C program: it is
// touched before it is used, so that unmapped memory is refused like a wrong key; and windows
// that peers may write need a region that may be written.
type memory struct {
	*qp.Regions
	access  map[uint32]uint32  // of each region: enum ibv_access_flags
	windows map[uint32]*window // by handle
	bound   map[uint32]int     // number of windows bound to each region

	faults *handlers
}

// handlers tells whether memory faults are still delivered to Go. A program that has its own
// handler, for example after Python's faulthandler.enable, would treat the engine's faults as
// its own: then memory is not touched, and the kernel is asked whether it is mapped.
type handlers struct {
	own     [2]uintptr // Go's
	looked  time.Time
	foreign bool // the program has installed other handlers
}

func faultHandlers() (h [2]uintptr) {
	for i, sig := range [...]syscall.Signal{syscall.SIGSEGV, syscall.SIGBUS} {
		var old [8]uintptr // struct sigaction: the handler first
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&old)), 8, 0, 0)
		h[i] = old[0]
	}
	return h
}

// watch checks the handlers, at most once in a millisecond.
func (h *handlers) watch(now time.Time) {
	if now.Sub(h.looked) >= time.Millisecond {
		h.looked, h.foreign = now, faultHandlers() != h.own
	}
}

// populates reports whether the kernel has MADV_POPULATE_READ: Linux 5.14 and later.
var populates = populate(make([]byte, 1), false) == 0

// populate lets the kernel touch memory.
func populate(b []byte, write bool) syscall.Errno {
	const read = 22 // MADV_POPULATE_READ, and one more for WRITE
	how := uintptr(read)
	if write {
		how++
	}
	at := uintptr(unsafe.Pointer(&b[0]))
	rest := at & uintptr(os.Getpagesize()-1)
	_, _, err := syscall.Syscall(syscall.SYS_MADVISE, at-rest, uintptr(len(b))+rest, how)
	return err
}

// mapped reports whether all pages of b are mapped, for writing if write is set.
func (m *memory) mapped(b []byte, write bool) bool {
	if len(b) == 0 {
		return true
	}
	if m.faults.foreign && populates {
		return populate(b, write) == 0
	}
	return touch(b, write)
}

// window is a memory window.
type window struct {
	key    uint32 // the current key
	pd     qp.PD
	region uint32 // the region that it is bound to, or 0
}

// pairMemory is the memory of a queue pair. It binds only windows of its protection domain,
// and invalidates only windows that are bound to it.
type pairMemory struct {
	*memory
	pd  qp.PD
	qpn uint32
}

// Bind implements qp.Binder.
func (m *pairMemory) Bind(b qp.Binding) (uint32, error) {
	w := m.windows[b.Window&^0xff] // the same for all keys of a window
	if w == nil || w.pd != m.pd || b.Access&(qp.RemoteWrite|qp.RemoteAtomic) != 0 && m.access[b.Region]&C.IBV_ACCESS_LOCAL_WRITE == 0 {
		return 0, qp.ErrBind
	}
	b.Window = w.key
	k, err := m.Regions.Bind(b)
	if err == nil {
		if w.key = k; b.Len == 0 {
			b.Region = 0
		}
		m.attach(w, b.Region)
	}
	return k, err
}

// InvalidateLocal implements qp.Binder.
func (m *pairMemory) InvalidateLocal(rkey uint32) error {
	if !m.Invalidate(qp.RemoteAccess{PD: m.pd, QPN: m.qpn, RKey: rkey}) {
		return qp.ErrNoRegion
	}
	return nil
}

// page is the smallest page size.
const page = 4096

// Remote implements qp.Memory.
func (m *memory) Remote(a qp.RemoteAccess) ([]byte, bool) {
	b, ok := m.Regions.Remote(a)
	return b, ok && m.mapped(b, a.Right&(qp.RemoteWrite|qp.RemoteAtomic) != 0)
}

// Local implements qp.LocalMemory.
func (m *memory) Local(a qp.LocalAccess) ([]byte, bool) {
	b, ok := m.Regions.Local(a)
	return b, ok && m.mapped(b, a.Write)
}

// attach records that a window is bound to a region, or with 0 to none.
func (m *memory) attach(w *window, region uint32) {
	if m.bound[w.region]--; m.bound[w.region] <= 0 {
		delete(m.bound, w.region)
	}
	if w.region = region; region != 0 {
		m.bound[region]++
	}
}

// Invalidate implements qp.Memory.
func (m *memory) Invalidate(a qp.RemoteAccess) bool {
	ok := m.Regions.Invalidate(a)
	if w := m.windows[a.RKey&^0xff]; ok && w != nil {
		m.attach(w, 0)
	}
	return ok
}

var seen byte

// touch reports whether all pages of b are mapped, for writing if write is set. It changes
// nothing.
func touch(b []byte, write bool) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	for i := 0; ; i += page {
		i = min(i, len(b)-1)
		if write {
			atomic.OrUint32((*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(&b[i]))&^3)), 0)
		} else {
			seen = b[i]
		}
		if i == len(b)-1 {
			return true
		}
	}
}

// rights translates enum ibv_access_flags.
func rights(v C.uint32_t) (a qp.Access) {
	for _, r := range [...]struct {
		bit C.uint32_t
		a   qp.Access
	}{{C.IBV_ACCESS_LOCAL_WRITE, qp.LocalWrite}, {C.IBV_ACCESS_REMOTE_WRITE, qp.RemoteWrite}, {C.IBV_ACCESS_REMOTE_READ, qp.RemoteRead},
		{C.IBV_ACCESS_REMOTE_ATOMIC, qp.RemoteAtomic}, {C.IBV_ACCESS_MW_BIND, qp.MWBind}, {C.IBV_ACCESS_ZERO_BASED, qp.ZeroBased}} {
		if v&r.bit != 0 {
			a |= r.a
		}
	}
	return a
}

// register executes RV_REG_MR: it registers a region, or with a mask reregisters an existing
// one.
func (e *engine) register(c *C.struct_rv_cmd) C.int {
	r := qp.Region{PD: qp.PD(c.pd), Data: unsafe.Slice((*byte)(c.obj), int(c.len)), Addr: uint64(c.addr), Access: rights(c.access)}
	key, err := uint32(c.key), error(nil)
	if c.mask != 0 {
		err = e.mem.Reregister(key, r)
	} else {
		key, err = e.mem.Register(r)
	}
	switch {
	case is(err, qp.ErrNoKeys):
		return C.ENOMEM
	case err != nil:
		return C.EINVAL
	}
	e.mem.access[key] = uint32(c.access)
	c.key = C.uint32_t(key)
	return 0
}

// deregister executes RV_DEREG_MR, which fails while a window is bound to the region.
func (e *engine) deregister(key C.uint32_t) C.int {
	if e.mem.bound[uint32(key)] != 0 {
		return C.EBUSY
	}
	if e.mem.Deregister(uint32(key)) != nil {
		return C.EINVAL
	}
	delete(e.mem.access, uint32(key))
	return 0
}

// window executes RV_ALLOC_MW and RV_DEALLOC_MW.
func (e *engine) window(c *C.struct_rv_cmd) C.int {
	h := uint32(c.key) &^ 0xff
	if c.op == C.RV_DEALLOC_MW {
		w := e.mem.windows[h]
		if w == nil || e.mem.Deregister(w.key) != nil {
			return C.EINVAL
		}
		e.mem.attach(w, 0)
		delete(e.mem.windows, h)
		return 0
	}
	alloc := e.mem.AllocWindow
	if c.mask == C.IBV_MW_TYPE_1 {
		alloc = e.mem.AllocWindow1
	}
	key, err := alloc(qp.PD(c.pd))
	if err != nil {
		return C.ENOMEM
	}
	e.mem.windows[key&^0xff] = &window{key: key, pd: qp.PD(c.pd)}
	c.key = C.uint32_t(key)
	return 0
}
