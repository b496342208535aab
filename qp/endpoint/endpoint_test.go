package endpoint_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// goroutines checks at the end of a test that none is left.
func goroutines(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				b := make([]byte, 1<<16)
				t.Fatalf("goroutines left:\n%s", b[:runtime.Stack(b, true)])
			}
		}
	})
}

func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// host returns an address of the loopback that no other run of the tests has.
func host(n byte) string {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 64 | byte(pid>>8)&63, byte(pid), n}).String()
}

// two opens the ends of a wire: in memory, or two addresses of the loopback.
func two(t testing.TB, wire string, cfg endpoint.Config) (a, b *endpoint.Endpoint) {
	goroutines(t)
	var wa, wb endpoint.Wire
	switch wire {
	case "udp":
		wa, wb = endpoint.UDP(host(1)), endpoint.UDP(host(2))
	default:
		wa, wb = endpoint.Pair()
	}
	var err error
	a, err = cfg.Open(wa)
	if err != nil && wire == "udp" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	b, err = cfg.Open(wb)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return a, b
}

func addr(e *endpoint.Endpoint) string {
	return netip.AddrPortFrom(e.Addrs()[0], 7174).String()
}

// joined dials from a to b.
func joined(t testing.TB, a, b *endpoint.Endpoint, cfg *endpoint.ConnConfig) (x, y *endpoint.Conn) {
	ctx := limit(t)
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{ConnConfig: deref(cfg)})
	require.NoError(t, err)
	x, err = a.Dial(ctx, addr(b), cfg)
	require.NoError(t, err)
	y, err = l.Accept(ctx)
	require.NoError(t, err)
	return x, y
}

func deref(c *endpoint.ConnConfig) endpoint.ConnConfig {
	if c == nil {
		return endpoint.ConnConfig{}
	}
	return *c
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Everything a connection does, on both wires.
func TestConn(t *testing.T) {
	for _, wire := range []string{"memory", "udp"} {
		t.Run(wire, func(t *testing.T) {
			a, b := two(t, wire, endpoint.Config{})
			ctx := limit(t)
			var trace bytes.Buffer
			require.NoError(t, a.Capture(&trace))
			x, y := joined(t, a, b, &endpoint.ConnConfig{PrivateData: []byte("hi")})
			require.Equal(t, "hi", string(x.PrivateData()[:2]))
			require.Equal(t, "hi", string(y.PrivateData()[:2]))
			require.Len(t, y.PrivateData(), 56)
			require.Equal(t, b.Addrs()[0], x.RemoteAddr().Addr())
			require.Equal(t, a.Addrs()[0], y.RemoteAddr().Addr())

			msg := random(60000, 1)
			require.NoError(t, x.Send(ctx, msg))
			buf := make([]byte, 1<<16)
			n, err := y.Recv(ctx, buf)
			require.NoError(t, err)
			require.Equal(t, msg, buf[:n])
			require.NoError(t, y.SendImm(ctx, []byte("back"), 77))
			m, err := x.RecvMessage(ctx, buf)
			require.NoError(t, err)
			require.Equal(t, "back", string(buf[:m.N]))
			require.Equal(t, uint32(77), m.Imm)
			require.NoError(t, y.Send(ctx, []byte("too long")))
			n, err = x.Recv(ctx, buf[:3])
			require.ErrorIs(t, err, io.ErrShortBuffer)
			require.Equal(t, 3, n)

			mr, err := b.Register(make([]byte, 1<<20), qp.RemoteRead|qp.RemoteWrite|qp.RemoteAtomic)
			require.NoError(t, err)
			data := random(1<<20, 2)
			require.NoError(t, x.WriteRemote(ctx, mr.Remote(), data))
			back := make([]byte, 1<<20)
			require.NoError(t, x.ReadRemote(ctx, back, mr.Remote()))
			require.Equal(t, data, back)
			require.NoError(t, x.WriteRemoteImm(ctx, mr.Remote(), make([]byte, 16), 5))
			m, err = y.RecvMessage(ctx, nil)
			require.NoError(t, err)
			require.Equal(t, []uint32{16, 5}, []uint32{uint32(m.N), m.Imm})
			old, err := x.FetchAdd(ctx, mr.Remote().At(8), 42)
			require.NoError(t, err)
			require.Zero(t, old)
			old, err = x.CompareSwap(ctx, mr.Remote().At(8), 42, 7)
			require.NoError(t, err)
			require.Equal(t, uint64(42), old)

			// A pipeline, done in order.
			var order []int
			var wg sync.WaitGroup
			wg.Add(50)
			for i := range 50 {
				require.NoError(t, x.Post(qp.SendWR{Op: qp.OpWrite, Local: data[:4096], RemoteAddr: mr.Addr(), RKey: mr.RKey()}, func(wc qp.Completion) {
					order = append(order, i)
					wg.Done()
				}))
			}
			wg.Wait()
			for i, k := range order {
				require.Equal(t, i, k)
			}

			require.NoError(t, y.Send(ctx, []byte("last words")))
			require.NoError(t, y.Close())
			n, err = x.Recv(ctx, buf)
			require.NoError(t, err)
			require.Equal(t, "last words", string(buf[:n]))
			_, err = x.Recv(ctx, buf)
			require.Equal(t, io.EOF, err)
			require.ErrorIs(t, x.Send(ctx, msg), io.EOF)
			require.ErrorIs(t, x.Send(ctx, msg), endpoint.ErrDisconnected)
			_, err = y.Recv(ctx, buf)
			require.ErrorIs(t, err, net.ErrClosed)

			require.NoError(t, a.Capture(nil))
			r, err := capture.NewReader(&trace)
			require.NoError(t, err)
			frames := 0
			for rec := new(capture.Record); r.Next(rec) == nil; {
				frames++
			}
			require.Greater(t, frames, 500)

			mt := a.Metrics()
			require.Equal(t, uint64(1), mt.Endpoint.Established)
			var text strings.Builder
			require.NoError(t, mt.WriteOpenMetrics(&text))
			require.Contains(t, text.String(), "roce_endpoint_established_total 1\n")
			require.Contains(t, text.String(), "\nroce_port_rx_icrc_encapsulated_total 0\n")
			require.True(t, strings.HasSuffix(text.String(), "# EOF\n"))
			require.NoError(t, mr.Close())
			require.Error(t, mr.Close())
		})
	}
}

// A window is a part of a region, for one peer, until a SEND with invalidate.
func TestWindow(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	ctx := limit(t)
	cfg := &endpoint.ConnConfig{Window: 4}
	x, y := joined(t, a, b, cfg)
	mr, err := b.Register(random(8192, 3), qp.MWBind)
	require.NoError(t, err)
	w, err := b.AllocWindow()
	require.NoError(t, err)
	_, err = w.Bind(y, mr, 4096, 4097, qp.RemoteRead)
	require.Error(t, err)
	_, err = w.Bind(y, mr, 4096, 0, qp.RemoteRead)
	require.Error(t, err)
	keys := map[uint32]bool{}
	for range 3 {
		r, err := w.Bind(y, mr, 100, 4000, qp.RemoteRead)
		require.NoError(t, err)
		require.Equal(t, r.RKey, w.RKey())
		require.False(t, keys[r.RKey])
		keys[r.RKey] = true
		got := make([]byte, 4000)
		require.NoError(t, x.ReadRemote(ctx, got, r))
		require.Equal(t, mr.Bytes()[100:4100], got)
		require.NoError(t, x.SendInvalidate(ctx, []byte("done"), r.RKey))
		m, err := y.RecvMessage(ctx, got)
		require.NoError(t, err)
		require.True(t, m.HasInv)
		require.Equal(t, r.RKey, m.InvRKey)
		require.Equal(t, "done", string(got[:m.N]))
	}
	// Bound again while bound: the first key is invalid. So is one that was invalidated.
	first, err := w.Bind(y, mr, 0, 8192, qp.RemoteRead)
	require.NoError(t, err)
	second, err := w.Bind(y, mr, 0, 8192, qp.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, x.ReadRemote(ctx, make([]byte, 8192), second))
	w.Invalidate()
	w.Invalidate()
	require.NoError(t, w.Close())
	require.Error(t, w.Close())
	for _, r := range []endpoint.Remote{first, second} {
		x, err := a.Dial(ctx, addr(b), nil)
		require.NoError(t, err)
		require.ErrorIs(t, x.ReadRemote(ctx, make([]byte, 1), r), syscall.EACCES)
	}
}

// Refusals, silence, and calls given up: bounded, with errors that errors.Is knows.
func TestDialErrors(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	ctx := limit(t)
	_, err := a.Dial(ctx, addr(b), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "no listener")
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{Decide: func(r *endpoint.Request) error {
		switch r.PrivateData[0] {
		case 'n':
			return errors.New("no")
		case 'r':
			return &endpoint.RejectedError{Reason: cm.ReasonNoResources, PrivateData: []byte("full")}
		}
		r.Config.PrivateData = []byte("yes")
		return nil
	}})
	require.NoError(t, err)
	_, err = b.Listen(ctx, ":7174", nil)
	require.ErrorIs(t, err, cm.ErrInUse)
	var rej *endpoint.RejectedError
	_, err = a.Dial(ctx, addr(b), &endpoint.ConnConfig{PrivateData: []byte("n")})
	require.ErrorAs(t, err, &rej)
	require.Equal(t, cm.ReasonConsumer, rej.Reason)
	_, err = a.Dial(ctx, addr(b), &endpoint.ConnConfig{PrivateData: []byte("r")})
	require.ErrorAs(t, err, &rej)
	require.Equal(t, cm.ReasonNoResources, rej.Reason)
	require.Equal(t, "full", string(rej.PrivateData[:4]))
	c, err := a.Dial(ctx, addr(b), nil)
	require.NoError(t, err)
	require.Equal(t, "yes", string(c.PrivateData()[:3]))
	require.NoError(t, l.Close())
	_, err = a.Dial(ctx, addr(b), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, net.ErrClosed)

	// No host has that address: the caller's deadline counts.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = a.Dial(short, "192.0.2.99:7174", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, s := range []string{"192.0.2.2", "192.0.2.2:x", ":", "192.0.2.2:70000"} {
		_, err = a.Dial(ctx, s, nil)
		require.Error(t, err, s)
	}
	require.NoError(t, a.Close())
	_, err = a.Dial(ctx, addr(b), nil)
	require.ErrorIs(t, err, net.ErrClosed)
}

// Memory without the right, and a message that is too long: the connection ends with
// an error that says so, at both ends.
func TestOpErrors(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	ctx := limit(t)
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{ConnConfig: endpoint.ConnConfig{RecvSize: 1000}})
	require.NoError(t, err)
	dial := func() (x, y *endpoint.Conn) {
		x, err := a.Dial(ctx, addr(b), nil)
		require.NoError(t, err)
		y, err = l.Accept(ctx)
		require.NoError(t, err)
		return x, y
	}
	mr, err := b.Register(make([]byte, 100), qp.RemoteRead)
	require.NoError(t, err)
	for _, f := range []func(x *endpoint.Conn) error{
		func(x *endpoint.Conn) error { return x.WriteRemote(ctx, mr.Remote(), make([]byte, 10)) },
		func(x *endpoint.Conn) error { return x.ReadRemote(ctx, make([]byte, 101), mr.Remote()) },
		func(x *endpoint.Conn) error {
			return x.ReadRemote(ctx, make([]byte, 1), endpoint.Remote{Addr: mr.Addr(), RKey: mr.RKey() ^ 1})
		},
	} {
		x, y := dial()
		err := f(x)
		require.ErrorIs(t, err, syscall.EACCES)
		var op *endpoint.OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, qp.RemoteAccessErr, op.Status)
		<-x.Done()
		<-y.Done()
	}
	x, y := dial()
	require.ErrorContains(t, x.Send(ctx, make([]byte, 1001)), "longer than its receive")
	_, err = y.Recv(ctx, nil)
	require.ErrorIs(t, err, io.ErrShortBuffer)
	require.NoError(t, x.Close())
	require.NoError(t, x.Close())
}

// A Recv and a Send that the peer does not match end with their context; the memory of the
// Send is the caller's then, and so the connection is over.
func TestContext(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	x, y := joined(t, a, b, &endpoint.ConnConfig{RecvDepth: 1})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := x.Recv(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, x.Err())
	require.NoError(t, x.Send(limit(t), []byte("fits")))
	ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, x.Send(ctx, []byte("no receive")), context.DeadlineExceeded)
	require.ErrorIs(t, x.Err(), context.DeadlineExceeded)
	buf := make([]byte, 10)
	n, err := y.Recv(limit(t), buf)
	require.NoError(t, err)
	require.Equal(t, "fits", string(buf[:n]))
	// That receive is free again now: what was on its way when the Send ended may fill it.
	if n, err = y.Recv(limit(t), buf); err == nil {
		require.Equal(t, "no receive", string(buf[:n]))
		_, err = y.Recv(limit(t), buf)
	}
	require.Equal(t, io.EOF, err)
}

// Streams.
func TestStream(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	x, y := joined(t, a, b, &endpoint.ConnConfig{RecvSize: 1000, RecvDepth: 4})
	data := random(1<<20, 3)
	go func() {
		s := x.Stream(limit(t))
		_, _ = s.Write(data)
		_ = s.Close()
	}()
	got, err := io.ReadAll(y.Stream(limit(t)))
	require.NoError(t, err)
	require.Equal(t, data, got)
}

// Peers outside the allowed prefixes, and more connections than one may have.
func TestLimits(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, MaxConnsPeer: 2})
	ctx := limit(t)
	_, err := b.Listen(ctx, ":7174", nil)
	require.NoError(t, err)
	_, err = a.Dial(ctx, netip.AddrPortFrom(b.Addrs()[1], 7174).String(), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var c *endpoint.Conn
	for range 2 {
		c, err = a.Dial(ctx, addr(b), nil)
		require.NoError(t, err)
	}
	var rej *endpoint.RejectedError
	_, err = a.Dial(ctx, addr(b), nil)
	require.ErrorAs(t, err, &rej)
	require.Equal(t, cm.ReasonNoResources, rej.Reason)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool {
		_, err = a.Dial(ctx, addr(b), nil)
		return err == nil
	}, 10*time.Second, 50*time.Millisecond, "the place of one that is over is free after timewait")
}

// Datagram services.
func TestResolveDatagram(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	ctx := limit(t)
	_, err := a.ResolveDatagram(ctx, addr(b), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	stop, err := b.ServeDatagrams(7174, func(r *endpoint.DatagramRequest) endpoint.DatagramReply {
		return endpoint.DatagramReply{QPN: 0x55, QKey: 0x1234567, PrivateData: r.PrivateData[:4]}
	})
	require.NoError(t, err)
	defer stop()
	s, err := a.ResolveDatagram(ctx, addr(b), []byte("ping"))
	require.NoError(t, err)
	require.Equal(t, []uint32{0x55, 0x1234567}, []uint32{s.QPN, s.QKey})
	require.Equal(t, "ping", string(s.PrivateData[:4]))
}

// A peer that gives up before a connection is established takes no place in the backlog for
// longer.
func TestBacklogFreed(t *testing.T) {
	goroutines(t)
	var deaf atomic.Bool
	wa, wb := endpoint.Pair()
	a, err := endpoint.Config{Filter: func(sent bool, b []byte) [][]byte {
		if !sent && deaf.Load() {
			return nil
		}
		return [][]byte{b}
	}}.Open(wa)
	require.NoError(t, err)
	defer a.Close()
	b, err := endpoint.Open(wb)
	require.NoError(t, err)
	defer b.Close()
	ctx := limit(t)
	cfg := &endpoint.ListenConfig{Backlog: 1}
	l, err := b.Listen(ctx, ":7175", cfg)
	require.NoError(t, err)
	to := netip.AddrPortFrom(b.Addrs()[0], 7175).String()
	x, err := a.Dial(ctx, to, nil) // so that addresses are known
	require.NoError(t, err)
	defer x.Close()
	_, err = l.Accept(ctx)
	require.NoError(t, err)
	deaf.Store(true)
	for range 3 {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		_, err = a.Dial(short, to, nil)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Eventually(t, func() bool { return b.Metrics().Conns == 1 }, 10*time.Second, time.Millisecond)
	}
	require.Zero(t, b.Metrics().Endpoint.Refused)
	deaf.Store(false)
	_, err = a.Dial(ctx, to, nil)
	require.NoError(t, err)
}

// Both ends know which of several addresses a connection has.
func TestLocalAddrs(t *testing.T) {
	goroutines(t)
	wa, wb := endpoint.Pair()
	a, err := endpoint.Open(wa)
	require.NoError(t, err)
	defer a.Close()
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("fe80::2"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("2001:db8::2")}
	b, err := endpoint.Config{GIDs: addrs}.Open(wb)
	require.NoError(t, err)
	defer b.Close()
	ctx := limit(t)
	var asked netip.Addr
	l, err := b.Listen(ctx, ":7175", &endpoint.ListenConfig{Decide: func(r *endpoint.Request) error { asked = r.Local; return nil }})
	require.NoError(t, err)
	la, err := a.Listen(ctx, ":7175", nil)
	require.NoError(t, err)
	for _, to := range []netip.Addr{addrs[0], addrs[2], addrs[3]} {
		_, err := a.Dial(ctx, netip.AddrPortFrom(to, 7175).String(), nil)
		require.NoError(t, err)
		y, err := l.Accept(ctx)
		require.NoError(t, err)
		require.Equal(t, []netip.Addr{to, to}, []netip.Addr{asked, y.LocalAddr()})
	}
	x, err := b.Dial(ctx, "[2001:db8::1]:7175", nil)
	require.NoError(t, err)
	require.Equal(t, addrs[3], x.LocalAddr())
	y, err := la.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, addrs[3], y.RemoteAddr().Addr())
}

// A caller that gives up while it waits for room, and one whose request is refused when there
// is some, leave their turn to the next.
func TestRoomPassesOn(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	x, y := joined(t, a, b, &endpoint.ConnConfig{SendDepth: 1, RecvDepth: 1})
	ctx := limit(t)
	for _, how := range []string{"gives up", "is refused"} {
		require.NoError(t, x.Send(ctx, []byte("fills the receive")))
		waits := func(ctx context.Context, op qp.Op) chan error {
			done := make(chan error, 1)
			go func() {
				if op == qp.OpSend {
					done <- x.Send(ctx, []byte("hello"))
				} else {
					_, err := x.FetchAdd(ctx, endpoint.Remote{Addr: 1}, 1) // not aligned
					done <- err
				}
			}()
			time.Sleep(50 * time.Millisecond) // it is in the queue, or behind
			return done
		}
		first := waits(ctx, qp.OpSend) // waits for a receive
		short, cancel := context.WithCancel(ctx)
		op := qp.OpSend
		if how == "is refused" {
			op = qp.OpFetchAdd
		}
		second := waits(short, op)
		third := waits(ctx, qp.OpSend)
		if how == "gives up" {
			cancel()
			require.ErrorIs(t, <-second, context.Canceled)
		}
		for range 3 {
			_, err := y.Recv(ctx, make([]byte, 100))
			require.NoError(t, err)
		}
		require.NoError(t, <-first)
		if how == "is refused" {
			require.Error(t, <-second)
		}
		require.NoError(t, <-third)
		cancel()
	}
}

// 1,000 connections and 64 transfers at once, verified.
func TestManyConnections(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	a, b := two(t, "memory", endpoint.Config{MaxHalfOpen: 1000, MaxHalfOpenPeer: 1000})
	ctx := limit(t)
	cfg := endpoint.ConnConfig{RecvDepth: 2, RecvSize: 4096, SendDepth: 8}
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{ConnConfig: cfg, Backlog: n})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // echo
		defer wg.Done()
		for range n {
			c, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				buf := make([]byte, 4096)
				for {
					k, err := c.Recv(ctx, buf)
					if err != nil {
						if err != io.EOF {
							t.Error(err)
						}
						return
					}
					if err := c.Send(ctx, buf[:k]); err != nil {
						t.Error(err)
						return
					}
				}
			}()
		}
	}()
	gate := make(chan struct{}, 64)
	for i := range n {
		wg.Add(1)
		gate <- struct{}{}
		go func() {
			defer wg.Done()
			defer func() { <-gate }()
			c, err := a.Dial(ctx, addr(b), &cfg)
			if err != nil {
				t.Error(err)
				return
			}
			data, got := random(3000, uint64(i)), make([]byte, 4096)
			for range 3 {
				if err := c.Send(ctx, data); err != nil {
					t.Error(err)
					return
				}
				k, err := c.Recv(ctx, got)
				if err != nil || !bytes.Equal(got[:k], data) {
					t.Errorf("connection %d: %d bytes, %v", i, k, err)
					return
				}
			}
			if i%2 == 0 { // the others stand to the end
				_ = c.Close()
			}
		}()
	}
	for range cap(gate) {
		gate <- struct{}{}
	}
	require.Equal(t, uint64(n), a.Metrics().Endpoint.Established)
	require.NoError(t, a.Close())
	wg.Wait()
}

// Misuse gets an error that says what to do.
func TestOpenErrors(t *testing.T) {
	for want, w := range map[string]endpoint.Wire{
		"the wire is nil":        nil,
		"is no IP address":       endpoint.UDP("eth0"),
		"not an address that":    endpoint.UDP("0.0.0.0"),
		"multicast":              endpoint.UDP("239.1.1.1"),
		"needs its zone":         endpoint.UDP("fe80::1"),
		"not an address of this": endpoint.UDP("192.0.2.200"),
	} {
		_, err := endpoint.Open(w)
		require.ErrorContains(t, err, want)
	}
	w, _ := endpoint.Pair()
	_, err := endpoint.Config{PathMTU: 1000}.Open(w)
	require.ErrorContains(t, err, "want 256, 512")
}

// Misuse: an error that names it, at once, and the endpoint continues to work.
func TestMisuse(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	ctx := limit(t)
	l, err := b.Listen(ctx, ":7174", nil)
	require.NoError(t, err)
	none := context.Context(nil)
	dial := func(cfg endpoint.ConnConfig) func() error {
		return func() error { _, err := a.Dial(ctx, addr(b), &cfg); return err }
	}
	open := func(cfg endpoint.Config) func() error {
		return func() error { w, _ := endpoint.Pair(); _, err := cfg.Open(w); return err }
	}
	listen := func(e *endpoint.Endpoint, ctx context.Context, address string, backlog int) func() error {
		return func() error {
			_, err := e.Listen(ctx, address, &endpoint.ListenConfig{Backlog: backlog})
			return err
		}
	}
	x, y := func() (*endpoint.Conn, *endpoint.Conn) {
		x, err := a.Dial(ctx, addr(b), nil)
		require.NoError(t, err)
		y, err := l.Accept(ctx)
		require.NoError(t, err)
		return x, y
	}()
	var zero endpoint.Endpoint
	var noConn *endpoint.Conn
	mr, err := b.Register(make([]byte, 10), qp.MWBind)
	require.NoError(t, err)
	for _, c := range []struct {
		want string
		do   func() error
	}{
		{"SendDepth is -1, want 1", dial(endpoint.ConnConfig{SendDepth: -1})},
		{"RecvDepth is 1073741824", dial(endpoint.ConnConfig{RecvDepth: 1 << 30})},
		{"RecvSize is -1", dial(endpoint.ConnConfig{RecvSize: -1})},
		{"RecvDepth times RecvSize", dial(endpoint.ConnConfig{RecvDepth: 1 << 20, RecvSize: 1 << 30})},
		{"MaxRdAtomic is 256", dial(endpoint.ConnConfig{MaxRdAtomic: 256})},
		{"MaxDestRdAtomic is -1", dial(endpoint.ConnConfig{MaxDestRdAtomic: -1})},
		{"RetryCnt is 8", dial(endpoint.ConnConfig{RetryCnt: 8})},
		{"RNRRetry is 200", dial(endpoint.ConnConfig{RNRRetry: 200})},
		{"PathMTU is 77", dial(endpoint.ConnConfig{PathMTU: 77})},
		{"Window is -1", dial(endpoint.ConnConfig{Window: -1})},
		{"PrivateData is 57 bytes, want at most 56", dial(endpoint.ConnConfig{PrivateData: make([]byte, 57)})},
		{"0.0.0.0 cannot be called", func() error { _, err := a.Dial(ctx, "0.0.0.0:1", nil); return err }},
		{"224.0.0.1 cannot be called", func() error { _, err := a.Dial(ctx, "224.0.0.1:7174", nil); return err }},
		{"MaxQPs is -1", open(endpoint.Config{MaxQPs: -1})},
		{"MaxRegions is 16777216", open(endpoint.Config{MaxRegions: 1 << 24})},
		{"MaxHalfOpen is -1", open(endpoint.Config{MaxHalfOpen: -1})},
		{"MaxConnsPeer is -1", open(endpoint.Config{MaxConnsPeer: -1})},
		{"Rate is -1", open(endpoint.Config{Rate: -1})},
		{"Backlog is -1", listen(a, ctx, ":99", -1)},
		{"Backlog is", listen(a, ctx, ":99", 1<<30)},
		{"is not :PORT", listen(a, ctx, "99", 0)},
		{"no address of this endpoint", listen(a, ctx, "192.0.2.99:99", 0)},
		{"the context is nil", listen(a, none, ":99", 0)},
		{"the context is nil", func() error { _, err := a.Dial(none, addr(b), nil); return err }},
		{"the context is nil", func() error { _, err := l.Accept(none); return err }},
		{"the context is nil", func() error { _, err := a.ResolveDatagram(none, addr(b), nil); return err }},
		{"the context is nil", func() error { _, err := x.Recv(none, nil); return err }},
		{"the context is nil", func() error { return x.Send(none, nil) }},
		{"the context is nil", func() error { return a.Wait(none, nil) }},
		{"function that replies is nil", func() error { _, err := a.ServeDatagrams(5, nil); return err }},
		{"of one endpoint", func() error {
			w, err := a.AllocWindow()
			require.NoError(t, err)
			_, err = w.Bind(nil, nil, 0, 1, 0)
			return err
		}},
		{"of one endpoint", func() error {
			w, err := a.AllocWindow()
			require.NoError(t, err)
			_, err = w.Bind(x, mr, 0, 1, 0)
			return err
		}},
		{"operation not available", func() error { return x.Post(qp.SendWR{Op: 200}, nil) }},
		{"shorter than the 8 bytes", func() error { return x.Post(qp.SendWR{Op: qp.OpFetchAdd, Local: make([]byte, 3)}, nil) }},
		{"not a multiple of 8", func() error { _, err := x.FetchAdd(ctx, endpoint.Remote{Addr: 3}, 1); return err }},
		{"closed", func() error { return noConn.Send(ctx, nil) }},
		{"closed", func() error { _, err := noConn.Recv(ctx, nil); return err }},
		{"closed", func() error { return noConn.Close() }},
		{"closed", func() error { return new(endpoint.Conn).Post(qp.SendWR{}, nil) }},
		{"closed", func() error { return new(endpoint.Conn).Err() }},
		{"closed", listen(&zero, ctx, ":99", 0)},
		{"closed", func() error { _, err := zero.Dial(ctx, addr(b), nil); return err }},
		{"closed", func() error { _, err := zero.Register(nil, 0); return err }},
	} {
		err := c.do()
		require.ErrorContains(t, err, c.want)
	}
	require.NoError(t, zero.Close())
	require.Zero(t, zero.Metrics())
	require.NoError(t, x.Send(ctx, []byte("goes on")))
	_, err = y.Recv(ctx, make([]byte, 10))
	require.NoError(t, err)

	// Port 0 is any that is free.
	var ports [2]uint16
	for i := range ports {
		l, err := b.Listen(ctx, ":0", nil)
		require.NoError(t, err)
		ports[i] = l.Port()
		_, err = a.Dial(ctx, netip.AddrPortFrom(b.Addrs()[0], l.Port()).String(), nil)
		require.NoError(t, err)
	}
	require.NotEqual(t, ports[0], ports[1])

	// What waits when the endpoint is closed ends, and nothing begins afterwards; a callback
	// may close it.
	ended := make(chan error, 1)
	go func() {
		_, err := a.ResolveDatagram(ctx, "192.0.2.77:5", nil)
		ended <- err
	}()
	require.Eventually(t, func() bool { return a.Metrics().Calls > 3 }, 10*time.Second, time.Millisecond)
	done := make(chan error, 1)
	require.NoError(t, x.Post(qp.SendWR{Op: qp.OpSend}, func(qp.Completion) { done <- a.Close() }))
	require.NoError(t, <-done)
	require.ErrorIs(t, <-ended, net.ErrClosed)
	for _, do := range []func() error{
		func() error { _, err := a.Register(make([]byte, 8), 0); return err },
		func() error { _, err := a.AllocWindow(); return err },
		func() error { _, err := a.ResolveDatagram(ctx, addr(b), nil); return err },
		func() error {
			_, err := a.ServeDatagrams(6, func(*endpoint.DatagramRequest) (r endpoint.DatagramReply) { return })
			return err
		},
		func() error { return a.Wait(ctx, func(time.Time, *softnic.Port) bool { return false }) },
		func() error { return a.Inject(nil) },
		listen(a, ctx, ":99", 0),
	} {
		require.ErrorIs(t, do(), net.ErrClosed)
	}
	require.NoError(t, a.Close())
}

// Path MTUs that do not fit: an error at once here, a refusal that says so there.
func TestPathMTU(t *testing.T) {
	goroutines(t)
	wa, wb := endpoint.Pair()
	a, err := endpoint.Open(wa)
	require.NoError(t, err)
	defer a.Close()
	require.Equal(t, 4096, a.PathMTU())
	b, err := endpoint.Config{PathMTU: 512}.Open(wb)
	require.NoError(t, err)
	defer b.Close()
	ctx := limit(t)
	_, err = b.Listen(ctx, ":7174", nil)
	require.NoError(t, err)
	var rej *endpoint.RejectedError
	_, err = a.Dial(ctx, addr(b), nil)
	require.ErrorAs(t, err, &rej)
	require.Equal(t, cm.ReasonInvalidPathMTU, rej.Reason)
	_, err = a.Dial(ctx, addr(b), &endpoint.ConnConfig{PathMTU: 512})
	require.NoError(t, err)
	_, err = b.Dial(ctx, addr(a), &endpoint.ConnConfig{PathMTU: 4096})
	require.ErrorContains(t, err, "PathMTU is 4096")
}

// faulty returns a filter that loses, duplicates and swaps 1 % of the frames each.
func faulty(seed uint64) func(bool, []byte) [][]byte {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(1, seed))
	var held []byte
	return func(_ bool, b []byte) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		switch rng.IntN(100) {
		case 0:
			return nil
		case 1:
			return [][]byte{b, b}
		case 2:
			if held == nil {
				held = bytes.Clone(b)
				return nil
			}
		}
		if h := held; h != nil {
			held = nil
			return [][]byte{b, h}
		}
		return [][]byte{b}
	}
}

// A wire that loses, duplicates and swaps: all arrives once, in order.
func TestFaults(t *testing.T) {
	filter := faulty(1)
	n := 200
	if testing.Short() {
		n = 30
	}
	a, b := two(t, "memory", endpoint.Config{Filter: filter, CM: cm.Config{PacketLifetime: 10, AckDelay: 10}})
	x, y := joined(t, a, b, nil)
	ctx := limit(t)
	done := make(chan error, 1)
	go func() {
		for i := range n {
			if err := x.Send(ctx, random(20000, uint64(i))); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	buf := make([]byte, 65536)
	for i := range n {
		k, err := y.Recv(ctx, buf)
		require.NoError(t, err)
		require.Equal(t, random(20000, uint64(i)), buf[:k])
	}
	require.NoError(t, <-done)
}

// A peer that ends a connection before it has the RTU sends a REJ: for the side that dialled
// that is the end of the connection, and no refusal.
func TestEndBeforeRTU(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{Filter: func(_ bool, b []byte) [][]byte {
		var f frame.Frame
		var m cm.Message
		if f.Decode(frame.Ethernet, b) == nil && f.Packet.DestQP == 1 && m.Decode(f.Packet.Payload) == nil && m.Header.AttributeID == cm.AttrRTU {
			return nil
		}
		return [][]byte{b}
	}})
	_, err := b.Listen(limit(t), ":7174", nil)
	require.NoError(t, err)
	x, err := a.Dial(limit(t), addr(b), nil)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	_, err = x.Recv(limit(t), make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, a.Metrics().Endpoint.Rejected)
}

var long = flag.Duration("long", 0, "TestSoak: go on for this long")

// TestSoak has 64 connections at once that come and go over a bad link, each with SENDs,
// WRITEs and READs of random sizes whose data are compared; at the end nothing is left.
// Last run of ten minutes (-long 10m): see README.md.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds")
	}
	times := uint8(13)
	if *long != 0 {
		times = 16 // half a second, eight times: it may run beside much else
	}
	a, b := two(t, "memory", endpoint.Config{Filter: faulty(7), CM: cm.Config{PacketLifetime: times, AckDelay: times}})
	span := max(*long, 2*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), span+2*time.Minute)
	defer cancel()
	end := time.Now().Add(span)
	cfg := endpoint.ConnConfig{RecvDepth: 4, RecvSize: 32 << 10, SendDepth: 8}
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{ConnConfig: cfg, Backlog: 128})
	require.NoError(t, err)
	var wg, served sync.WaitGroup
	served.Add(1)
	go func() { // echo
		defer served.Done()
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			served.Add(1)
			go func() {
				defer served.Done()
				buf := make([]byte, 32<<10)
				for {
					k, err := c.Recv(ctx, buf)
					if err == nil {
						err = c.Send(ctx, buf[:k])
					}
					if err != nil {
						// A client that has its echo may leave before we have its acknowledgement. One
						// that waits for the echo reports an error.
						c.Close()
						return
					}
				}
			}()
		}
	}()
	var rounds, bytesMoved atomic.Int64
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(9, uint64(i)))
			mr, err := b.Register(make([]byte, 64<<10), qp.RemoteRead|qp.RemoteWrite)
			if err != nil {
				t.Error(err)
				return
			}
			defer mr.Close()
			for time.Now().Before(end) && !t.Failed() {
				c, err := a.Dial(ctx, addr(b), &cfg)
				if err != nil {
					t.Error(err)
					return
				}
				for range 1 + rng.IntN(20) {
					data := random(1+rng.IntN(32<<10), rng.Uint64())
					got := make([]byte, 32<<10)
					err := c.Send(ctx, data)
					k := 0
					if err == nil {
						k, err = c.Recv(ctx, got)
					}
					if err != nil || !bytes.Equal(data, got[:k]) {
						t.Errorf("echo of %d bytes: %d, %v", len(data), k, err)
						return
					}
					err = c.WriteRemote(ctx, mr.Remote(), data)
					got = got[:len(data)]
					clear(got)
					if err == nil {
						err = c.ReadRemote(ctx, got, mr.Remote())
					}
					if err != nil || !bytes.Equal(data, got) {
						t.Errorf("%d bytes written and read: %v", len(data), err)
						return
					}
					rounds.Add(1)
					bytesMoved.Add(int64(4 * len(data)))
				}
				c.Close()
			}
		}()
	}
	wg.Wait()
	l.Close()
	require.Eventually(t, func() bool { return a.Metrics().Conns == 0 && b.Metrics().Conns == 0 }, time.Minute, 10*time.Millisecond)
	cancel()
	served.Wait()
	require.Zero(t, b.Metrics().Regions)
	require.Zero(t, a.Metrics().Outstanding)
	t.Logf("%v: %d connections, %d rounds, %d MB, %d packets refused for their ICRC", span, a.Metrics().Endpoint.Established, rounds.Load(), bytesMoved.Load()>>20,
		b.Metrics().Port.RxICRCEncapsulated)
}

// A connection of an endpoint with itself: requests complete without anything that the
// wire brings, and not from within Post, whose caller may hold a lock that done takes.
func TestToItself(t *testing.T) {
	a, _ := two(t, "memory", endpoint.Config{})
	x, _ := joined(t, a, a, nil)
	mr, err := a.Register(make([]byte, 100), qp.RemoteWrite)
	require.NoError(t, err)
	var mu sync.Mutex
	for i := range 100 {
		data, done := random(100, uint64(i)), make(chan qp.Status, 1)
		mu.Lock()
		err := x.Post(qp.SendWR{Op: qp.OpWrite, Local: data, RemoteAddr: mr.Addr(), RKey: mr.RKey()}, func(wc qp.Completion) {
			mu.Lock()
			defer mu.Unlock()
			done <- wc.Status
		})
		mu.Unlock()
		require.NoError(t, err)
		select {
		case st := <-done:
			require.Equal(t, qp.Success, st)
			require.Equal(t, data, mr.Bytes())
		case <-time.After(10 * time.Second):
			t.Fatal("the request does not complete")
		}
	}
}
