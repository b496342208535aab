package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/roce-go/roce/qp"
)

// Remote names memory of a peer. A program sends it to another, in a message or in private
// data, so that this may write or read there.
type Remote struct {
	Addr uint64
	RKey uint32
	Len  uint32
}

// RemoteSize is the length in bytes of an encoded Remote.
const RemoteSize = 16

// AppendBinary appends r to b: address, key and length, big-endian.
func (r Remote) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint32(b, r.Len), nil
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (r Remote) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary reads what AppendBinary wrote.
func (r *Remote) UnmarshalBinary(b []byte) error {
	if len(b) < RemoteSize {
		return fmt.Errorf("endpoint: a Remote is %d bytes, not %d", RemoteSize, len(b))
	}
	*r = Remote{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	return nil
}

// At returns the part of r from an offset.
func (r Remote) At(offset uint32) Remote {
	return Remote{r.Addr + uint64(offset), r.RKey, r.Len - min(offset, r.Len)}
}

// MR is a memory region: memory that peers may access while it is registered.
type MR struct {
	e    *Endpoint
	key  uint32
	addr uint64
	buf  []byte
}

// Register lets peers access b with the rights in access: qp.RemoteRead, qp.RemoteWrite,
// qp.RemoteAtomic. Any peer with a connection to the endpoint that knows the key may use
// it.
func (e *Endpoint) Register(b []byte, access qp.Access) (*MR, error) {
	if uint64(len(b)) > 1<<32-1 {
		return nil, fmt.Errorf("endpoint: register: %d bytes, at most %d fit a region", len(b), uint32(1<<32-1))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.loop.running {
		return nil, net.ErrClosed
	}
	m := &MR{e: e, buf: b, addr: e.newAddr(len(b))}
	var err error
	m.key, err = e.regs.Register(qp.Region{PD: e.pd, Data: b, Addr: m.addr, Access: access})
	if err != nil {
		return nil, fmt.Errorf("endpoint: register: %w", err)
	}
	return m, nil
}

// newAddr returns a virtual address for a region, on pages of its own. It reveals nothing
// of where the memory is.
func (e *Endpoint) newAddr(n int) uint64 {
	hi, lo := uint64(e.port.NewPSN()), uint64(e.port.NewPSN())
	return 1<<46 | (hi<<24|lo)&(1<<46-1)&^0xfff
}

// Addr returns the region's virtual address, which a peer must know.
func (m *MR) Addr() uint64 { return m.addr }

// RKey returns the region's key.
func (m *MR) RKey() uint32 { return m.key }

// Bytes returns the memory.
func (m *MR) Bytes() []byte { return m.buf }

// Remote returns address, key and length, for a message to the peer.
func (m *MR) Remote() Remote { return Remote{m.addr, m.key, uint32(len(m.buf))} }

// Close deregisters the region: requests with its key are refused from now on, and nothing
// accesses the memory after Close returns.
func (m *MR) Close() error {
	m.e.mu.Lock()
	defer m.e.mu.Unlock()
	return m.e.regs.Deregister(m.key)
}

// Window is a memory window (type 2B): a part of a region that one peer may access, by a
// key of its own, until either side invalidates the key. The peer does so by a SEND with
// invalidate (see Message.InvRKey). Programs that grant access for the time of one request,
// as storage protocols do, have a window for each request that may be outstanding, and bind
// it again each time.
type Window struct {
	e   *Endpoint
	key uint32
}

// AllocWindow allocates a window that is not bound.
func (e *Endpoint) AllocWindow() (*Window, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.loop.running {
		return nil, net.ErrClosed
	}
	key, err := e.regs.AllocWindow(e.pd)
	if err != nil {
		return nil, fmt.Errorf("endpoint: window: %w", err)
	}
	return &Window{e: e, key: key}, nil
}

// Bind lets the peer of c access n bytes, 1 or more, of a region from an offset on with the
// rights in access, and returns what the peer must know; the key differs each time. The
// region needs qp.MWBind, and no other right. A window that is bound is invalidated first.
func (w *Window) Bind(c *Conn, m *MR, offset, n uint32, access qp.Access) (Remote, error) {
	if c == nil || m == nil || c.e != w.e || m.e != w.e {
		return Remote{}, errors.New("endpoint: bind: connection, region and window must be of one endpoint")
	}
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	_ = w.e.regs.InvalidateLocal(w.key)
	at := m.addr + uint64(offset)
	key, err := w.e.regs.Bind(qp.Binding{Window: w.key, Region: m.key, VA: at, Len: n, Access: access, QPN: c.q.Num()})
	if err != nil {
		return Remote{}, fmt.Errorf("endpoint: bind: %w", err)
	}
	w.key = key
	return Remote{at, key, n}, nil
}

// RKey returns the key of the last Bind.
func (w *Window) RKey() uint32 { return w.key }

// Invalidate invalidates the key; it has no effect where the peer has done so already.
// Requests with the key are refused from now on.
func (w *Window) Invalidate() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	_ = w.e.regs.InvalidateLocal(w.key)
}

// Close deallocates the window.
func (w *Window) Close() error {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	return w.e.regs.Deregister(w.key)
}
