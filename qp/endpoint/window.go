package endpoint

import (
	"fmt"

	"github.com/roce-go/roce/qp"
)

// Window is a memory window (type 2B): a part of a region that one peer may reach, by
// a key of its own, until either side takes the key away. The peer does so by a SEND
// with invalidate (Message.InvRKey tells). Programs that lend memory for one request,
// as storage protocols do, have a window for each request that may be outstanding, and
// bind it anew each time.
type Window struct {
	e   *Endpoint
	key uint32
}

// AllocWindow makes a window that is not bound.
func (e *Endpoint) AllocWindow() (*Window, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, err := e.regs.AllocWindow(e.pd)
	if err != nil {
		return nil, fmt.Errorf("endpoint: window: %w", err)
	}
	return &Window{e: e, key: key}, nil
}

// Bind lets the peer of c reach n bytes, 1 or more, of a region from an offset on, as
// far as access says, and returns what the peer must know: the key is another one each
// time. The region needs qp.MWBind, and no other right. A window that is bound is taken
// from whom it was bound to before.
func (w *Window) Bind(c *Conn, m *MR, offset, n uint32, access qp.Access) (Remote, error) {
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

// Invalidate takes the key away; that the peer has done so already is no error.
// Requests that name it are refused from now on.
func (w *Window) Invalidate() {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	_ = w.e.regs.InvalidateLocal(w.key)
}

// Close takes the window away.
func (w *Window) Close() error {
	w.e.mu.Lock()
	defer w.e.mu.Unlock()
	return w.e.regs.Deregister(w.key)
}
