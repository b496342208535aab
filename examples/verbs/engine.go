// Engine is the part of the verbs library that is written in Go: a port (package softnic),
// run by one thread over a UDP socket. See README.md.
//
// The C front, in front/, loads it when a program first opens the device. It passes work
// through rings in C memory, and commands (front/front.h).
package main

/*
#cgo CFLAGS: -Ifront
#include "front.h"
*/
import "C"

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

func main() {}

// roceEngineRun runs the engine on the calling thread, for good.
//
//export roceEngineRun
func roceEngineRun(sh *C.struct_rv_shared) {
	debug.SetPanicOnFault(true)
	e := &engine{sh: sh, log: openLog(), fd: -1, handlers: handlers{own: faultHandlers()}}
	for {
		e.run()
	}
}

// engine is the state of the one thread. It exists once; its port exists from the first
// RV_OPEN to the last RV_CLOSE.
type engine struct {
	sh   *C.struct_rv_shared
	log  *slog.Logger
	wire wire
	fd   int
	addr netip.Addr
	port *softnic.Port
	mem  *memory
	cq   *softnic.CQ

	qps   map[uint32]*pair
	srqs  map[uint32]*shared
	ahs   map[uint32]*qp.AddressHandle
	lastH uint32
	armed map[*shared]struct{}
	bells [C.RV_BELLS]drain
	cms   calls

	handlers handlers

	faults *faults
	tap    *tap
	due    time.Time
	idle   int
}

// drain reads posted work requests from a ring.
type drain interface {
	drain(e *engine, now time.Time)
}

// run is the loop. It returns after a panic: the port is lost then, the program gets an
// event, and the loop is started again.
func (e *engine) run() {
	defer func() {
		if r := recover(); r != nil {
			e.log.Error("the engine failed", "err", r, "stack", string(debug.Stack()))
			e.fatal()
		}
	}()
	for {
		now := time.Now()
		busy := e.command(now)
		if e.port != nil {
			e.handlers.watch(now)
			busy = e.posts(now) || busy
			busy = e.receive(now) || busy
			if !e.due.IsZero() && !now.Before(e.due) {
				e.port.Tick(now)
				busy = true
			}
			news := busy
			if !e.port.Idle() {
				busy = e.send(now) || busy
				news = true // packets that the port sends to itself are not on the wire
			}
			if news {
				e.complete(now)
				e.events(now)
			}
			e.due, _ = e.port.Deadline()
		}
		if busy {
			e.idle = 0
			continue
		}
		if e.idle++; e.idle < spins {
			continue
		}
		e.sleep()
	}
}

// spins is how often the loop polls without work before it sleeps: a wakeup costs more.
const spins = 3

// word returns a field of C memory that both sides modify.
func word(p *C.uint32_t) *uint32   { return (*uint32)(unsafe.Pointer(p)) }
func word64(p *C.uint64_t) *uint64 { return (*uint64)(unsafe.Pointer(p)) }

// posts reads the work requests that programs have posted.
func (e *engine) posts(now time.Time) bool {
	if atomic.LoadUint32(word(&e.sh.rung)) == 0 {
		return false
	}
	atomic.StoreUint32(word(&e.sh.rung), 0)
	for i := range e.sh.bells {
		p := word64(&e.sh.bells[i])
		if atomic.LoadUint64(p) == 0 {
			continue
		}
		for w := atomic.SwapUint64(p, 0); w != 0; w &= w - 1 {
			if d := e.bells[64*i+bits.TrailingZeros64(w)]; d != nil {
				d.drain(e, now)
			}
		}
	}
	return true
}

// ackAfter is how many packets are received, of many that have arrived, before packets are
// sent: on a slow machine the peer's acknowledgement timeout would be over before the last.
const ackAfter = 16

// receive passes the packets that have arrived to the port.
func (e *engine) receive(now time.Time) bool {
	n := e.wire.Receive()
	for i := range n {
		if i%ackAfter == ackAfter-1 && !e.port.Idle() {
			e.send(now)
		}
		pkt := e.wire.Packet(i)
		if e.faults != nil {
			e.faults.arrived(e, now, pkt)
			continue
		}
		e.deliver(now, pkt)
	}
	if e.faults != nil {
		n += e.faults.late(e, now)
	}
	return n != 0
}

// deliver passes a packet to the port.
func (e *engine) deliver(now time.Time, pkt []byte) { e.wire.deliver(e, now, pkt) }

// send sends a batch of the port's packets.
func (e *engine) send(now time.Time) bool {
	var sent func([]byte)
	if e.tap != nil {
		sent = e.tap.sent
		e.tap.now = now
	}
	n, err := e.wire.Send(now, e.port, sent)
	if err != nil {
		e.log.Warn("send", "err", err)
	}
	return n != 0
}

// sleep waits for a command, posts, packets, or the port's deadline.
func (e *engine) sleep() {
	if e.tap != nil {
		e.tap.flush(e.log)
	}
	atomic.StoreUint32(word(&e.sh.asleep), 1)
	if atomic.LoadUint32(word(&e.sh.state)) != 1 && atomic.LoadUint32(word(&e.sh.state)) != 3 && atomic.LoadUint32(word(&e.sh.rung)) == 0 {
		fds := [2]struct {
			fd      int32
			events  int16
			revents int16
		}{{int32(e.sh.kick), 1, 0}, {int32(e.fd), 1, 0}}
		var ts *syscall.Timespec
		if due := e.due; !due.IsZero() || e.faults != nil && !e.faults.due.IsZero() {
			if due.IsZero() || e.faults != nil && !e.faults.due.IsZero() && e.faults.due.Before(due) {
				due = e.faults.due
			}
			t := syscall.NsecToTimespec(max(int64(time.Until(due)), 0))
			ts = &t
		}
		syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), 2, uintptr(unsafe.Pointer(ts)), 0, 0, 0)
		if fds[0].revents != 0 {
			var b [8]byte
			syscall.Read(int(e.sh.kick), b[:])
		}
	}
	atomic.StoreUint32(word(&e.sh.asleep), 0)
	e.idle = 0
}

// open opens the port.
func (e *engine) open(want string) (err error) {
	if e.port != nil {
		return nil
	}
	if e.wire, e.addr, err = openWire(os.Getenv("ROCE_SEGMENT"), cmp.Or(os.Getenv("ROCE_ADDR"), want)); err != nil {
		return err
	}
	if err := e.start(); err != nil {
		e.close()
		return err
	}
	return nil
}

func (e *engine) start() error {
	raw, err := e.wire.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { e.fd = int(fd) }); err != nil {
		return err
	}
	regions, err := qp.NewRegions(C.RV_MAX_MR)
	if err != nil {
		return err
	}
	seed := new([32]byte)
	crand.Read(seed[:])
	// Keys are not sealed: the low byte of a window's key is the program's (ibv_inc_rkey).
	e.mem = &memory{Regions: regions, access: map[uint32]uint32{}, windows: map[uint32]*window{}, bound: map[uint32]int{}, faults: &e.handlers}
	cfg := softnic.Config{MAC: macOf(e.addr), GIDs: []softnic.GID{{Addr: e.addr.WithZone("")}}, MaxQPs: C.RV_MAX_QP, Regions: regions,
		PeerMAC: e.wire.PeerMAC(), Seed: seed, CM: &cm.Config{}}
	if e.log.Enabled(context.Background(), slog.LevelDebug) {
		cfg.Trace = func(t softnic.Trace) { e.log.Debug("port", "trace", t) }
		cfg.TraceQP = func(t qp.Trace) { e.log.Debug("qp", "trace", t) }
	}
	if e.faults, err = newFaults(os.Getenv("ROCE_FAULTS")); err != nil {
		return err
	}
	e.sh.linger = 0
	if e.faults != nil {
		e.sh.linger = 400
		// A lost message of a connection is retransmitted after 0.7 s, not after 4.8 s.
		cfg.CM.ResponseTimeout, cfg.CM.PacketLifetime = 17, 14
	}
	if e.port, err = softnic.New(cfg); err != nil {
		return err
	}
	e.cq = softnic.NewCQ()
	e.qps, e.srqs, e.ahs = map[uint32]*pair{}, map[uint32]*shared{}, map[uint32]*qp.AddressHandle{}
	e.armed = map[*shared]struct{}{}
	e.bells = [C.RV_BELLS]drain{}
	e.cms = newCalls()
	if e.tap, err = newTap(os.Getenv("ROCE_PCAP")); err != nil {
		return err
	}
	gid := e.addr.As16()
	for i, b := range gid {
		e.sh.gid[i] = C.uint8_t(b)
	}
	e.sh.mtu = C.uint32_t(e.wire.PathMTU())
	e.log.Info("open", "addr", e.addr, "path_mtu", e.wire.PathMTU())
	return nil
}

// close closes the port and frees its resources.
func (e *engine) close() {
	if e.tap != nil {
		e.tap.close(e.log)
	}
	if e.wire != nil {
		e.wire.Close()
	}
	if e.port != nil {
		e.log.Info("close", "addr", e.addr, "counters", fmt.Sprintf("%+v", e.port.Counters()))
	}
	e.wire, e.port, e.tap, e.faults, e.fd, e.due = nil, nil, nil, nil, -1, time.Time{}
	e.qps, e.srqs, e.bells = nil, nil, [C.RV_BELLS]drain{}
}

// fatal reports to the program that the port is lost (IBV_EVENT_DEVICE_FATAL).
func (e *engine) fatal() {
	told := map[C.int]bool{}
	for _, p := range e.qps {
		p.setState(qp.Error)
		if !told[p.c.async] {
			told[p.c.async] = true
			writeEvent(p.c.async, C.IBV_EVENT_DEVICE_FATAL, 0)
		}
	}
	e.close()
}

// writeEvent writes an event for the program to read.
func writeEvent(fd C.int, typ uint32, handle C.uint64_t) {
	v := uint64(typ)<<56 | uint64(handle)
	syscall.Write(int(fd), unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8))
}

// openLog opens what ROCE_LOG names: a file, or "stderr"; with "debug:" before it, every
// packet that was not simply accepted is logged.
func openLog() *slog.Logger {
	name := os.Getenv("ROCE_LOG")
	if name == "" {
		return slog.New(slog.DiscardHandler)
	}
	opt := &slog.HandlerOptions{}
	if rest, ok := cutPrefix(name, "debug:"); ok {
		opt.Level, name = slog.LevelDebug, rest
	}
	w := os.Stderr
	if name != "stderr" {
		f, err := os.OpenFile(expand(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		if err != nil {
			fmt.Fprintf(os.Stderr, "roce-verbs: ROCE_LOG: %v\n", err)
			return slog.New(slog.DiscardHandler)
		}
		w = f
	}
	return slog.New(slog.NewTextHandler(w, opt)).With("pid", os.Getpid())
}
