package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/roce-go/roce/qp"
)

// tool is a run of ibv_*_pingpong or perftest.
type tool struct {
	*endpoint
	tcp    net.Conn
	server bool
	n      int
	size   int
	mtu    int
	out    io.Writer
}

// patience is how long a tool waits for anything to happen.
const patience = 30 * time.Second

var errStuck = errors.New("nothing comes from the peer")

// regionVA is where the region begins for the peer.
const regionVA = 0x7000_0000_0000

func (t *tool) local(p *pair) *peer {
	return &peer{qpn: p.qp.Num(), psn: p.psn & 0xffffff, gid: t.gids[t.gid].As16()}
}

// sameFamily chooses the local address by the peer's.
func (t *tool) sameFamily(to *peer) error {
	h, err := t.address(to.gid)
	t.gid = int(h.SGIDIndex)
	return err
}

// pingpong is ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong: a message goes
// there when one has come here, n times.
func (t *tool) pingpong(kind string) error {
	p, err := t.newPair(kind)
	if err != nil {
		return err
	}
	grh := 0
	if t.size == 0 {
		t.size = 4096
		if kind == "ud" {
			t.size = 1024
		}
	}
	if kind == "ud" {
		grh = qp.GRHSize
		t.mtu = 4096 // what the port takes, not what the peer says
	}
	if err := p.prepare(); err != nil {
		return err
	}
	bufs := make([][]byte, min(t.n, recvDepth))
	t.do(func(time.Time) {
		for i := range bufs {
			bufs[i] = make([]byte, grh+t.size)
			err = errors.Join(err, p.qp.PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]}))
		}
	})
	if err != nil {
		return err
	}

	var to *peer
	if t.server {
		msg := make([]byte, len(pingpongLine(&peer{})))
		if _, err := io.ReadFull(t.tcp, msg); err != nil {
			return whole(err)
		}
		if to, err = parsePingpong(msg); err != nil {
			return err
		}
		if err := t.sameFamily(to); err != nil {
			return err
		}
		if err := p.connect(to, t.mtu); err != nil {
			return err
		}
		if _, err := t.tcp.Write(pingpongLine(t.local(p))); err != nil {
			return err
		}
		if _, err := io.ReadFull(t.tcp, make([]byte, len("done\x00"))); err != nil {
			return whole(err)
		}
	} else {
		got, err := exchange(t.tcp, false, pingpongLine(t.local(p)))
		if err != nil {
			return err
		}
		if to, err = parsePingpong(got); err != nil {
			return err
		}
		if err := p.connect(to, t.mtu); err != nil {
			return err
		}
		if _, err := io.WriteString(t.tcp, "done\x00"); err != nil {
			return err
		}
	}
	fmt.Fprintf(t.out, "local %s, remote QPN %#06x PSN %#06x\n", describe(t.local(p)), to.qpn, to.psn)

	start := time.Now()
	sent, received := 0, 0
	waitSend, waitRecv := false, true
	msg := make([]byte, t.size)
	post := func(now time.Time) {
		err = errors.Join(err, p.post(now, qp.SendWR{Op: qp.OpSend, Local: msg}))
		waitSend, waitRecv = true, true
	}
	if !t.server {
		t.do(post)
	}
	for sent < t.n || received < t.n {
		before := sent + received
		ok := t.wait(patience, func(now time.Time) bool {
			var wc qp.Completion
			for p.send.Poll(&wc) {
				sent, waitSend = sent+1, false
				err = errors.Join(err, failure(&wc))
			}
			for p.recv.Poll(&wc) {
				received, waitRecv = received+1, false
				if err = errors.Join(err, failure(&wc)); err != nil {
					if wc.Status == qp.LocalLengthErr {
						err = fmt.Errorf("%w: the peer's messages are longer than %d bytes: start both with the same size", err, t.size)
					}
					return true // the rest is flushed
				}
				if int(wc.ByteLen) != grh+t.size {
					err = fmt.Errorf("received %d bytes, not %d: start both with the same size", int(wc.ByteLen)-grh, t.size)
					return true
				}
				err = errors.Join(err, p.qp.PostRecv(&qp.RecvWR{ID: wc.ID, Local: bufs[wc.ID]}))
			}
			if err == nil && sent < t.n && !waitSend && !waitRecv {
				post(now)
			}
			return err != nil || sent+received != before
		})
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w, after %d messages sent and %d received", t.stuck(), sent, received)
		}
	}
	d := time.Since(start)
	fmt.Fprintf(t.out, "%d bytes in %.2f seconds = %.2f Mbit/s\n%d iterations in %.2f seconds = %.2f us each\n",
		2*t.n*t.size, d.Seconds(), float64(2*t.n*t.size)*8/d.Seconds()/1e6, t.n, d.Seconds(), float64(d.Microseconds())/float64(t.n))
	// An acknowledgement that the peer waits for may be lost.
	t.linger()
	return nil
}

// linger answers what still comes, for a moment.
func (t *tool) linger() {
	t.wait(200*time.Millisecond, func(time.Time) bool { return false })
}

func failure(wc *qp.Completion) error {
	if wc.Status == qp.Success {
		return nil
	}
	return fmt.Errorf("%v: %v", wc.Op, wc.Status)
}

func describe(p *peer) string {
	return fmt.Sprintf("QPN %#06x PSN %#06x GID %v", p.qpn, p.psn, netip.AddrFrom16(p.gid).Unmap())
}

// perftest is ib_send_bw, ib_write_bw, ib_read_bw or ib_atomic_bw. A server does
// what its client asks for, however much that is.
func (t *tool) perftest(verb, kind string) error {
	op, ok := map[string]qp.Op{"send": qp.OpSend, "write": qp.OpWrite, "read": qp.OpRead, "atomic": qp.OpFetchAdd}[verb]
	if !ok {
		return fmt.Errorf("no test %q: send, write, read or atomic", verb)
	}
	p, err := t.newPair(kind)
	if err != nil {
		return err
	}
	if t.size == 0 {
		t.size = 65536
	}
	if op == qp.OpFetchAdd {
		t.size = 8
	}
	if t.mtu, err = perftestOpening(t.tcp, t.server, t.mtu); err != nil {
		return err
	}
	if kind == "ud" {
		t.size = min(t.size, t.mtu)
	}
	if err := p.prepare(); err != nil {
		return err
	}
	mem := make([]byte, max(8<<20, 2*t.size))
	into := mem[:len(mem)/2] // all receives: nobody looks at what comes
	local := t.local(p)
	local.reads = rdAtomic
	local.va = regionVA
	t.do(func(time.Time) {
		local.rkey, err = t.regs.Register(qp.Region{Data: mem, Addr: regionVA, Access: allRights})
	})
	if err != nil {
		return err
	}

	var to *peer
	// Four times: to connect, when connected, to print, when receives are posted.
	for round := range 4 {
		if round == 3 && op == qp.OpSend && t.server {
			t.do(func(time.Time) {
				for range recvDepth {
					err = errors.Join(err, p.qp.PostRecv(&qp.RecvWR{Local: into}))
				}
			})
			if err != nil {
				return err
			}
		}
		got, err := exchange(t.tcp, t.server, perftestLine(local))
		if err != nil {
			return err
		}
		if round != 0 {
			continue
		}
		if to, err = parsePerftest(got); err != nil {
			return err
		}
		if err := p.connect(to, t.mtu); err != nil {
			return err
		}
	}
	fmt.Fprintf(t.out, "local %s, remote QPN %#06x PSN %#06x, path MTU %d\n", describe(local), to.qpn, to.psn, t.mtu)

	start := time.Now()
	done := 0
	if t.server {
		done, err = t.perftestServe(p, op, local, into)
	} else {
		done = t.n
		err = t.perftestAsk(p, op, to, mem)
		if err == nil {
			err = t.perftestClose(op, local, t.n)
		}
	}
	if err != nil {
		return err
	}
	d := time.Since(start)
	if done != 0 && (!t.server || op == qp.OpSend) {
		fmt.Fprintf(t.out, "%d messages of %d bytes in %.2f seconds = %.2f MB/s\n", done, t.size, d.Seconds(), float64(done*t.size)/d.Seconds()/1e6)
	}
	c := p.qp.Counters()
	fmt.Fprintf(t.out, "packets received %d, sent %d, sent again %d\n", c.RxPackets, c.TxPackets, c.Retransmitted)
	return nil
}

// perftestAsk does the messages of a client.
func (t *tool) perftestAsk(p *pair, op qp.Op, to *peer, mem []byte) error {
	posted, done := 0, 0
	var err error
	for done < t.n && err == nil {
		before := done
		ok := t.wait(patience, func(now time.Time) bool {
			var wc qp.Completion
			for p.send.Poll(&wc) {
				done++
				err = errors.Join(err, failure(&wc))
			}
			for err == nil && posted < t.n && posted-done < sendDepth {
				wr := qp.SendWR{Op: op, Local: mem[:t.size], RemoteAddr: to.va, RKey: to.rkey, CompareAdd: 1}
				if err = p.post(now, wr); err == nil {
					posted++
				}
			}
			return err != nil || done != before
		})
		if err == nil && !ok {
			err = fmt.Errorf("%w, after %d messages", t.stuck(), done)
		}
	}
	return err
}

// perftestServe takes messages until the client says that it is done. It gives up
// when nothing comes any more, neither packets nor that.
func (t *tool) perftestServe(p *pair, op qp.Op, local *peer, into []byte) (received int, err error) {
	over := make(chan error, 1)
	go func() {
		over <- t.perftestClose(op, local, 0)
		t.wake()
	}()
	packets, quiet := uint64(0), time.Now()
	for err == nil {
		var closed error
		done := false
		t.wait(time.Second, func(now time.Time) bool {
			var wc qp.Completion
			for p.recv.Poll(&wc) {
				if err = errors.Join(err, failure(&wc)); err == nil {
					received, t.size = received+1, int(wc.ByteLen)
					err = p.qp.PostRecv(&qp.RecvWR{Local: into})
				}
			}
			if n := p.qp.Counters().RxPackets; n != packets {
				packets, quiet = n, now
			}
			select {
			case closed = <-over:
				done = true
			default:
			}
			return done || err != nil
		})
		switch {
		case done:
			return received, errors.Join(err, closed)
		case err == nil && t.err != nil:
			err = t.err
		case err == nil && time.Since(quiet) > patience:
			err = fmt.Errorf("no packet for %v, and no end of the test over TCP; %d messages came", patience, received)
		}
	}
	t.tcp.Close() // ends what waits for the client
	<-over
	return received, err
}

// perftestClose exchanges results, where the test has them, and takes leave.
func (t *tool) perftestClose(op qp.Op, local *peer, n int) error {
	tcp := t.tcp
	if l, ok := tcp.(limited); ok && t.server {
		_ = l.SetDeadline(time.Time{})
		tcp = l.Conn // the test may take its time; perftestServe sees to it that it ends
	}
	if op != qp.OpSend {
		// Size and iterations as whole numbers; peak, average and rate, which the
		// peer prints only when it is asked to report both directions, as doubles.
		for _, v := range []uint64{uint64(t.size), uint64(n), 0, 0, 0} {
			b := make([]byte, 8)
			for i := range b {
				b[7-i] = byte(v >> (8 * i))
			}
			if _, err := exchange(tcp, t.server, b); err != nil {
				return err
			}
		}
	}
	if _, err := exchange(tcp, t.server, perftestLine(local)); err != nil {
		return err
	}
	if _, err := io.WriteString(tcp, "done\x00"); err != nil {
		return err
	}
	_, err := io.ReadFull(tcp, make([]byte, len("done\x00")))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}
