package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
)

// qperf's tests of reliable connections with -cm1: the parameters are sent over TCP,
// little-endian, and RDMA-CM opens the connection, at a port that the server sends. The
// datagram tests exchange LIDs and no GIDs, so they work on InfiniBand only.

// qperfTests are the values of -qperf, each with its number in version 0.4.11.
var qperfTests = map[string]uint16{"rc_bw": 13, "rc_lat": 16, "rc_rdma_read_bw": 17, "rc_rdma_write_bw": 19}

var qperfNames = []string{"rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_write_bw"}

const (
	qperfPort    = 19765
	qperfMajor   = 0
	qperfMinor   = 4
	qperfRequest = 200 // bytes
	qperfNode    = 40
	qperfStat    = 256
	qperfBefore  = "synchronization before test"
	qperfAfter   = "synchronization after test"
)

// qperfRun is a run of a test.
type qperfRun struct {
	*cmTool
	ctx   context.Context
	tcp   net.Conn
	c     *roce.Conn
	mr    *roce.MR
	test  string
	size  int
	n     int // messages; 0: the test ends by time
	time  time.Duration
	done  int // messages
	bytes int
	to    roce.Remote
}

// encode returns a request: version, test, and 16 numbers, of which three matter here and
// the last says to use RDMA-CM; then two names.
func (q *qperfRun) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint16(nil, qperfMajor)
	b = le.AppendUint16(b, qperfMinor)
	b = le.AppendUint16(b, 11)
	b = le.AppendUint16(b, qperfTests[q.test])
	for i := range 16 {
		v := uint32(0)
		switch i {
		case 4:
			v = uint32(q.size)
		case 6:
			v = uint32(q.n)
		case 13:
			v = uint32(q.time / time.Second)
		case 14:
			v = 5 // seconds to wait for a message
		case 15:
			v = 1
		}
		b = le.AppendUint32(b, v)
	}
	return append(b, make([]byte, qperfRequest-len(b))...)
}

func (q *qperfRun) decode(b []byte) error {
	le := binary.LittleEndian
	number := func(i int) uint32 { return le.Uint32(b[8+4*i:]) }
	if le.Uint16(b) != qperfMajor || le.Uint16(b[2:]) != qperfMinor {
		return fmt.Errorf("-qperf: the client is of version %d.%d, this is of %d.%d", le.Uint16(b), le.Uint16(b[2:]), qperfMajor, qperfMinor)
	}
	i := slices.IndexFunc(qperfNames, func(n string) bool { return qperfTests[n] == le.Uint16(b[6:]) })
	switch {
	case i < 0:
		return fmt.Errorf("-qperf: the client asks for test %d; here are %v", le.Uint16(b[6:]), qperfNames)
	case number(15) == 0:
		return errors.New("-qperf: the client exchanges LIDs, which RoCE has not: start it with -cm1")
	case number(4) == 0 || number(4) > 1<<24 || number(13) > 3600:
		return fmt.Errorf("-qperf: the client asks for %d bytes and %d s", number(4), number(13))
	}
	q.test, q.size, q.n, q.time = qperfNames[i], int(number(4)), int(number(6)), time.Duration(number(13))*time.Second
	return nil
}

// qperf runs a client of qperf, or a server for one.
func (t *cmTool) qperf(ctx context.Context, address string) error {
	q := &qperfRun{cmTool: t, ctx: ctx, test: t.o.qperf, size: t.o.size, time: t.o.dur}
	if q.time == 0 {
		q.time = 2 * time.Second
	}
	if q.size == 0 {
		q.size = 65536
		if q.test == "rc_lat" {
			q.size = 1
		}
	}
	var err error
	if q.tcp, err = handshakeConn(address, t.port, t.o.wait, t.patience); err != nil {
		return err
	}
	defer q.tcp.Close()
	if err := q.open(); err != nil {
		return err
	}
	defer q.c.Close()
	t.conns = append(t.conns, q.c)
	fmt.Fprintf(t.out, "%s: connected: %v, QP %#06x\n", q.test, q.c.RemoteAddr().Addr(), q.c.QP())
	if err := q.prepare(); err != nil {
		return err
	}
	start := time.Now()
	if err := q.run(start.Add(q.time)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("after %d messages: %w", q.done, err)
	}
	d := time.Since(start)
	if err := q.results(); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%s: %d messages of %d bytes in %.2f seconds = %.2f MB/s\n", q.test, q.done, q.size, d.Seconds(), float64(q.bytes)/d.Seconds()/1e6)
	if q.server() {
		t.gone(goodbye, q.c)
	}
	return nil
}

func (q *qperfRun) server() bool { return q.cmTool.to == "" }

// open exchanges the request and opens the connection.
func (q *qperfRun) open() error {
	if !q.server() {
		if _, err := q.tcp.Write(q.encode()); err != nil {
			return err
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(q.tcp, b); err != nil {
			return whole(err)
		}
		cfg := q.connConfig()
		a, _, _ := net.SplitHostPort(q.cmTool.to)
		var err error
		q.c, err = q.dialSoon(q.ctx, net.JoinHostPort(a, fmt.Sprint(binary.LittleEndian.Uint32(b))), &cfg)
		return err
	}
	b := make([]byte, qperfRequest)
	if _, err := io.ReadFull(q.tcp, b); err != nil {
		return whole(err)
	}
	if err := q.decode(b); err != nil {
		return err
	}
	l, err := q.ep.Listen(q.ctx, fmt.Sprintf(":%d", q.port), &roce.ListenConfig{ConnConfig: q.connConfig()})
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := q.tcp.Write(binary.LittleEndian.AppendUint32(nil, uint32(q.port))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.ctx, q.patience)
	defer cancel()
	q.c, err = l.Accept(ctx)
	return err
}

func (q *qperfRun) connConfig() roce.ConnConfig {
	cfg := q.config()
	cfg.RecvSize = q.size
	return cfg
}

// prepare exchanges the address and key of the memory, and starts together with the peer.
func (q *qperfRun) prepare() error {
	var err error
	if q.mr, err = q.ep.Register(make([]byte, q.size), qp.RemoteRead|qp.RemoteWrite); err != nil {
		return err
	}
	le := binary.LittleEndian
	b := make([]byte, qperfNode)
	le.PutUint64(b, q.mr.Addr())
	le.PutUint32(b[24:], q.mr.RKey())
	for _, msg := range [][]byte{b, []byte(qperfBefore)} {
		if _, err := q.tcp.Write(msg); err != nil {
			return err
		}
		got := make([]byte, len(msg))
		if _, err := io.ReadFull(q.tcp, got); err != nil {
			return whole(err)
		}
		if len(got) == qperfNode {
			q.to = roce.Remote{Addr: le.Uint64(got), RKey: le.Uint32(got[24:]), Len: uint32(q.size)}
		}
	}
	return nil
}

// run sends or receives messages until the number is reached, or the time is over.
func (q *qperfRun) run(end time.Time) error {
	ctx := q.ctx
	if q.n == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	b := make([]byte, q.size)
	recv := func() error { _, err := q.c.Recv(ctx, b); return err }
	send := func() error { return q.c.Send(q.ctx, b) } // a Send in progress is not cancelled at the end of the test
	step := func() error {
		switch {
		case q.test == "rc_rdma_read_bw":
			return q.c.ReadRemote(q.ctx, b, q.to)
		case q.test == "rc_rdma_write_bw":
			return q.c.WriteRemote(q.ctx, q.to, b)
		case q.test == "rc_bw" && q.server():
			return recv()
		case q.test == "rc_bw":
			return send()
		case q.server():
			if err := recv(); err != nil {
				return err
			}
			return send()
		default:
			if err := send(); err != nil {
				return err
			}
			return recv()
		}
	}
	if q.server() && q.test != "rc_bw" && q.test != "rc_lat" {
		time.Sleep(time.Until(end))
		n := q.c.Counters()
		q.done = int(n.RxReadRequests + n.RxWriteRequests)
		q.bytes = q.done * q.size
		return nil
	}
	for q.n == 0 && time.Now().Before(end) || q.done < q.n {
		if err := step(); err != nil {
			return err
		}
		q.done++
		q.bytes += q.size
	}
	return nil
}

// results exchanges the results: processors, ticks per second, times in ticks, and four times
// bytes, messages and errors: sent, received, and both at the other end.
func (q *qperfRun) results() error {
	le := binary.LittleEndian
	if !q.server() {
		if _, err := io.ReadFull(q.tcp, make([]byte, qperfStat)); err != nil {
			return whole(err)
		}
		_, err := io.WriteString(q.tcp, qperfAfter)
		return err
	}
	b := le.AppendUint32(nil, 1)
	b = le.AppendUint32(b, 100)
	b = append(b, make([]byte, 4+9*8)...)
	b = le.AppendUint64(b, uint64(q.time.Seconds()*100)) // the measured time at the end
	b = append(b, make([]byte, 8*8+24)...)
	b = le.AppendUint64(b, uint64(q.bytes))
	b = le.AppendUint64(b, uint64(q.done))
	b = append(b, make([]byte, qperfStat-len(b))...)
	if _, err := q.tcp.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(q.tcp, make([]byte, len(qperfAfter)))
	return whole(err)
}
