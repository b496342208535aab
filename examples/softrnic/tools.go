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
	qps    int
	out    io.Writer
}

var errStuck = errors.New("nothing is received from the peer")

// regionVA is the virtual address of the region for the peer.
const regionVA = 0x7000_0000_0000

func (t *tool) local(p *pair) *peer {
	return &peer{qpn: p.qp.Num(), psn: p.psn & 0xffffff, gid: t.gids[t.gid].As16()}
}

// sameFamily chooses a local address of the same family as the peer's.
func (t *tool) sameFamily(to *peer) error {
	h, err := t.address(to.gid)
	t.gid = int(h.SGIDIndex)
	return err
}

// pingpong is ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong: each end sends a message
// after it has received one, n times.
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
		t.mtu = 4096 // the port's MTU, not the one that the peer sent
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
		ok := t.wait(t.patience, func(now time.Time) bool {
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
					return true // the rest was flushed
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
	// An acknowledgement that the peer waits for may have been lost.
	t.linger()
	return nil
}

// linger acknowledges retransmitted packets for a while.
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
