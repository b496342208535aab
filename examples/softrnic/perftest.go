package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// perfTest is a test of perftest.
type perfTest struct {
	op  qp.Op
	lat bool // one message at a time, timed
}

var perfTests = map[string]perfTest{
	"send": {op: qp.OpSend}, "write": {op: qp.OpWrite}, "read": {op: qp.OpRead}, "atomic": {op: qp.OpFetchAdd},
	"send_lat": {qp.OpSend, true}, "write_lat": {qp.OpWrite, true}, "read_lat": {qp.OpRead, true}, "atomic_lat": {qp.OpFetchAdd, true},
}

// perfTestNames are the values of -perftest.
var perfTestNames = []string{"send", "write", "read", "atomic", "send_lat", "write_lat", "read_lat", "atomic_lat"}

// perfRun is a run of a test, on one queue pair or several.
type perfRun struct {
	*tool
	perfTest
	kind       string
	pairs      []*pair
	to         []*peer
	local      []*peer
	send, recv *softnic.CQ
	at         map[uint32]int // queue pairs by number
	into, from []byte         // region that the peer accesses, and data to send
}

// perftest runs ib_send_bw, ib_write_lat and so on. A server performs as many messages as its
// client requests.
func (t *tool) perftest(test, kind string) error {
	r := &perfRun{tool: t, perfTest: perfTests[test], kind: kind, send: softnic.NewCQ(), recv: softnic.NewCQ(), at: map[uint32]int{}}
	if t.size == 0 {
		t.size = 65536
		if r.lat {
			t.size = 2
		}
	}
	if r.op == qp.OpFetchAdd {
		t.size = 8
	}
	var err error
	if t.mtu, err = perftestOpening(t.tcp, t.server, t.mtu); err != nil {
		return err
	}
	if kind == "ud" {
		t.size = min(t.size, t.mtu)
	}
	if err := r.open(); err != nil {
		return err
	}
	if err := r.connect(); err != nil {
		return err
	}
	for i, l := range r.local {
		fmt.Fprintf(t.out, "local %s, remote QPN %#06x PSN %#06x, path MTU %d\n", describe(l), r.to[i].qpn, r.to[i].psn, t.mtu)
	}

	start := time.Now()
	done := 0
	switch {
	case r.lat && (r.op == qp.OpSend || r.op == qp.OpWrite):
		err = r.pingpong()
	case t.server:
		done, err = r.serve()
	case r.lat:
		err = r.onebyone()
	default:
		done, err = t.n*len(r.pairs), r.stream()
	}
	if err == nil && !(t.server && !r.both()) {
		err = r.leave(t.n)
	}
	if err != nil {
		return err
	}
	if d := time.Since(start); done != 0 && (!t.server || r.op == qp.OpSend) {
		fmt.Fprintf(t.out, "%d messages of %d bytes in %.2f seconds = %.2f MB/s\n", done, t.size, d.Seconds(), float64(done*t.size)/d.Seconds()/1e6)
	}
	var c qp.Counters
	for _, p := range r.pairs {
		c = add(c, p.qp.Counters())
	}
	fmt.Fprintf(t.out, "packets received %d, sent %d, sent again %d\n", c.RxPackets, c.TxPackets, c.Retransmitted)
	return nil
}

// both reports whether both ends know without a message when the test is over.
func (r *perfRun) both() bool { return r.lat && (r.op == qp.OpSend || r.op == qp.OpWrite) }

// open creates the queue pairs and registers memory.
func (r *perfRun) open() error {
	half := max(4<<20, r.size+qp.GRHSize)
	mem := make([]byte, 2*half)
	r.into, r.from = mem[:half], mem[half:]
	var rkey uint32
	var err error
	r.do(func(time.Time) {
		rkey, err = r.regs.Register(qp.Region{Data: mem, Addr: regionVA, Access: allRights})
	})
	if err != nil {
		return err
	}
	for i := range r.qps {
		p, err := r.newPairOn(r.kind, r.send, r.recv)
		if err == nil {
			err = p.prepare()
		}
		if err != nil {
			return err
		}
		l := r.tool.local(p)
		l.reads, l.rkey, l.va = rdAtomic, rkey, regionVA
		r.pairs, r.local = append(r.pairs, p), append(r.local, l)
		r.at[l.qpn] = i
	}
	return nil
}

// connect exchanges lines with the peer as the test does, and connects.
func (r *perfRun) connect() error {
	if r.lat && r.op != qp.OpSend {
		if err := r.line(); err != nil {
			return err
		}
	}
	for i := range r.pairs {
		got, err := exchange(r.tcp, r.server, perftestLine(r.local[i]))
		if err != nil {
			return err
		}
		to, err := parsePerftest(got)
		if err != nil {
			return err
		}
		r.to = append(r.to, to)
	}
	for i, p := range r.pairs {
		if err := p.connect(r.to[i], r.mtu); err != nil {
			return err
		}
	}
	if r.op == qp.OpSend {
		if err := r.line(); err != nil {
			return err
		}
	}
	for i := range r.pairs { // for the output
		if _, err := exchange(r.tcp, r.server, perftestLine(r.local[i])); err != nil {
			return err
		}
	}
	if r.op == qp.OpSend && (r.server || r.lat) {
		var err error
		r.do(func(time.Time) {
			for _, p := range r.pairs {
				for range recvDepth {
					err = errors.Join(err, p.qp.PostRecv(&qp.RecvWR{Local: r.into})) // the received data is not used
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return r.line()
}

// line exchanges the line of the first queue pair, when both ends are ready.
func (r *perfRun) line() error {
	_, err := exchange(r.tcp, r.server, perftestLine(r.local[0]))
	return err
}

func (r *perfRun) post(now time.Time, i int) error {
	to := r.to[i]
	return r.pairs[i].post(now, qp.SendWR{Op: r.op, Local: r.from[:r.size], RemoteAddr: to.va, RKey: to.rkey, CompareAdd: 1})
}

// stream performs n operations on each queue pair.
func (r *perfRun) stream() error {
	left, open := make([]int, len(r.pairs)), make([]int, len(r.pairs))
	for i := range left {
		left[i] = r.n
	}
	var err error
	for done, all := 0, r.n*len(r.pairs); done < all; {
		before := done
		ok := r.wait(r.patience, func(now time.Time) bool {
			var wc qp.Completion
			for r.send.Poll(&wc) && err == nil {
				done++
				open[r.at[wc.QPN]]--
				err = failure(&wc)
			}
			for i := range left {
				for err == nil && left[i] > 0 && open[i] < sendDepth {
					err = r.post(now, i)
					left[i], open[i] = left[i]-1, open[i]+1
				}
			}
			return err != nil || done != before
		})
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w, after %d messages", r.stuck(), done)
		}
	}
	return nil
}

// onebyone performs n operations, each after the completion of the one before, and prints their
// times.
func (r *perfRun) onebyone() error {
	took := make([]time.Duration, 0, r.n)
	for range r.n {
		var err error
		start := time.Now()
		r.do(func(now time.Time) { err = r.post(now, 0) })
		if err != nil {
			return err
		}
		var wc qp.Completion
		if !r.wait(r.patience, func(time.Time) bool { return r.send.Poll(&wc) }) {
			return fmt.Errorf("%w, after %d messages", r.stuck(), len(took))
		}
		if err := failure(&wc); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	r.printTimes(took, 1)
	return nil
}

// pingpong is send_lat and write_lat: each end sends a message after it has received one, n
// times. With SEND the client starts, with WRITE the server; a WRITE has arrived when its
// last byte has the expected number.
func (r *perfRun) pingpong() error {
	first := r.server == (r.op == qp.OpWrite)
	took := make([]time.Duration, 0, r.n)
	sent, posted, came := 0, 0, 0
	last := time.Now()
	var err error
	for sent < r.n || came < r.n {
		before := sent + came
		ok := r.wait(r.patience, func(now time.Time) bool {
			var wc qp.Completion
			for err == nil && r.send.Poll(&wc) {
				sent++
				err = failure(&wc)
			}
			for err == nil && r.recv.Poll(&wc) {
				came++
				if err = failure(&wc); err == nil {
					err = r.pairs[0].qp.PostRecv(&qp.RecvWR{Local: r.into})
				}
			}
			if r.op == qp.OpWrite && came < r.n && r.into[r.size-1] == byte(came+1) {
				came++
			}
			may := came
			if first {
				may++
			}
			if err == nil && posted < min(may, r.n) && sent == posted {
				if posted++; posted > 1 {
					took = append(took, now.Sub(last))
				}
				last = now
				r.from[r.size-1] = byte(posted)
				err = r.post(now, 0)
			}
			return err != nil || sent+came != before
		})
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w, after %d messages sent and %d received", r.stuck(), sent, came)
		}
	}
	r.printTimes(took, 2)
	r.linger() // an acknowledgement that the peer waits for may have been lost
	return nil
}

// printTimes prints times, each of so many messages, like perftest.
func (r *perfRun) printTimes(took []time.Duration, messages int) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	sum := time.Duration(0)
	for _, d := range took {
		sum += d
	}
	us := func(d time.Duration) float64 { return float64(d) / float64(messages) / 1e3 }
	n := len(took)
	fmt.Fprintf(r.out, "%d messages of %d bytes, microseconds each: least %.2f, median %.2f, mean %.2f, 99 %% %.2f, most %.2f\n",
		r.n, r.size, us(took[0]), us(took[n/2]), us(sum)/float64(n), us(took[n*99/100]), us(took[n-1]))
}

// serve receives messages until the client reports the end of the test. It gives up when
// neither packets nor that report arrive any more.
func (r *perfRun) serve() (received int, err error) {
	over := make(chan error, 1)
	go func() {
		over <- r.leave(0)
		r.wake()
	}()
	packets, quiet := uint64(0), time.Now()
	for err == nil {
		var closed error
		done := false
		r.wait(time.Second, func(now time.Time) bool {
			var wc qp.Completion
			for err == nil && r.recv.Poll(&wc) {
				if err = failure(&wc); err == nil {
					received, r.size = received+1, int(wc.ByteLen)
					err = r.pairs[r.at[wc.QPN]].qp.PostRecv(&qp.RecvWR{Local: r.into})
				}
			}
			n := uint64(0)
			for _, p := range r.pairs {
				n += p.qp.Counters().RxPackets
			}
			if n != packets {
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
		case err == nil && r.err != nil:
			err = r.err
		case err == nil && time.Since(quiet) > r.patience:
			err = fmt.Errorf("no packet for %v (-patience), and no end of the test over TCP; %d messages were received", r.patience, received)
		}
	}
	r.tcp.Close() // ends the read that waits for the client
	<-over
	return received, err
}

// leave exchanges results, if the test has them, and ends the handshake connection.
func (r *perfRun) leave(n int) error {
	if r.lat && r.op == qp.OpWrite {
		return nil
	}
	tcp := r.tcp
	if l, ok := tcp.(limited); ok && r.server && !r.both() {
		_ = l.SetDeadline(time.Time{})
		tcp = l.Conn // the test may take long; serve ensures that it ends
	}
	line := perftestLine(r.local[0])
	if r.op != qp.OpSend && !r.lat {
		if _, err := exchange(tcp, r.server, line); err != nil {
			return err
		}
		// Size and iterations as integers; peak, average and rate, which the peer prints only
		// when it reports both directions, as doubles.
		for _, v := range []uint64{uint64(r.size), uint64(n), 0, 0, 0} {
			b := make([]byte, 8)
			for i := range b {
				b[7-i] = byte(v >> (8 * i))
			}
			if _, err := exchange(tcp, r.server, b); err != nil {
				return err
			}
		}
	}
	if _, err := exchange(tcp, r.server, line); err != nil {
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

// checkPerftest rejects combinations of options that the tests do not have.
func checkPerftest(o *options) error {
	test, lat := o.perftest, strings.HasSuffix(o.perftest, "_lat")
	switch op := perfTests[test].op; {
	case test == "":
	case o.kind == "uc" && (op == qp.OpRead || op == qp.OpFetchAdd), o.kind == "ud" && op != qp.OpSend:
		return fmt.Errorf("-perftest %s -c %s: %s has no such operation", test, o.kind, strings.ToUpper(o.kind))
	case lat && o.qps != 1:
		return fmt.Errorf("-perftest %s -q %d: latency is measured on one queue pair", test, o.qps)
	}
	return nil
}
