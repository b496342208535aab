package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
)

// parsePeer reads QPN:PSN:GID[:RKEY:ADDRESS], numbers in hexadecimal. A GID with colons is
// written in brackets.
func parsePeer(s string) (*peer, error) {
	bad := fmt.Errorf("-peer %q is not QPN:PSN:GID[:RKEY:ADDRESS]; an IPv6 address is in brackets", s)
	v, rest, err := hexFields(s, 2)
	if err != nil {
		return nil, bad
	}
	gid := rest
	if strings.HasPrefix(rest, "[") {
		gid, rest, _ = strings.Cut(rest[1:], "]")
		rest = strings.TrimPrefix(rest, ":")
	} else {
		gid, rest, _ = strings.Cut(rest, ":")
	}
	a, err := wire.Lookup("-peer", gid, false)
	if err != nil {
		return nil, errors.Join(bad, err)
	}
	p := &peer{qpn: uint32(v[0]), psn: uint32(v[1]), gid: a.As16(), reads: rdAtomic}
	if rest != "" {
		key, va, _ := strings.Cut(rest, ":")
		k, err1 := strconv.ParseUint(key, 16, 32)
		x, err2 := strconv.ParseUint(va, 16, 64)
		if err1 != nil || err2 != nil {
			return nil, bad
		}
		p.rkey, p.va = uint32(k), x
	}
	return p, nil
}

// serve creates a queue pair with the numbers given on the command line.
func (e *endpoint) serve(o *options, stdin io.Reader, stdout io.Writer) error {
	if o.size == 0 {
		o.size = 4096
	}
	p, err := e.newPair(o.kind)
	if err != nil {
		return err
	}
	if err := p.prepare(); err != nil {
		return err
	}
	mem := make([]byte, max(1<<20, o.size))
	bufs := make([][]byte, 64)
	var rkey uint32
	e.do(func(time.Time) {
		rkey, err = e.regs.Register(qp.Region{Data: mem, Addr: regionVA, Access: allRights})
		for i := range bufs {
			bufs[i] = make([]byte, max(1<<16, o.size+qp.GRHSize))
			err = errors.Join(err, p.qp.PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]}))
		}
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "local %x:%06x:[%v]:%08x:%x\n", p.qp.Num(), e.psn&0xffffff, e.gids[e.gid], rkey, uint64(regionVA))
	if o.peer == "-" {
		line, err := bufio.NewReader(stdin).ReadString('\n')
		if err != nil && line == "" {
			return fmt.Errorf("-peer -: no line on standard input: %w", err)
		}
		o.peer = strings.TrimPrefix(strings.TrimSpace(line), "local ")
	}
	to, err := parsePeer(o.peer)
	if err != nil {
		return err
	}
	if err := p.connect(to, o.mtu); err != nil {
		return err
	}
	if o.op != "" {
		return p.ask(o, to, stdout)
	}

	stop := make(chan struct{})
	go func() {
		interrupted(o.dur)
		close(stop)
		e.wake()
	}()
	for {
		over := false
		e.wait(time.Second, func(now time.Time) bool {
			var wc qp.Completion
			for p.recv.Poll(&wc) {
				if err = failure(&wc); err != nil {
					return true
				}
				fmt.Fprintf(stdout, "%v %d bytes", wc.Op, wc.ByteLen)
				if wc.HasImm {
					fmt.Fprintf(stdout, " imm %#x", wc.Imm)
				}
				if wc.Op == qp.OpRecv {
					fmt.Fprintf(stdout, " %.40q", bufs[wc.ID][:wc.ByteLen])
				}
				fmt.Fprintln(stdout)
				err = p.qp.PostRecv(&qp.RecvWR{ID: wc.ID, Local: bufs[wc.ID]})
			}
			select {
			case <-stop:
				over = true
			default:
			}
			return over || err != nil
		})
		if over || err != nil {
			return err
		}
	}
}

// ask performs an operation n times.
func (p *pair) ask(o *options, to *peer, stdout io.Writer) error {
	op, ok := map[string]qp.Op{"send": qp.OpSend, "write": qp.OpWrite, "read": qp.OpRead,
		"fadd": qp.OpFetchAdd, "cswap": qp.OpCmpSwap}[o.op]
	if !ok {
		return fmt.Errorf("no operation %q: send, write, read, fadd or cswap", o.op)
	}
	if op == qp.OpFetchAdd || op == qp.OpCmpSwap {
		o.size = 8
	}
	data := make([]byte, o.size)
	for i := range data {
		data[i] = 'a' + byte(i%26)
	}
	start := time.Now()
	for i := range o.n {
		wr := qp.SendWR{ID: uint64(i), Op: op, Local: data, RemoteAddr: to.va, RKey: to.rkey, CompareAdd: 1}
		if op == qp.OpCmpSwap {
			wr.CompareAdd, wr.Swap = uint64(i), uint64(i)+1
		}
		var err error
		p.do(func(now time.Time) { err = p.post(now, wr) })
		if err != nil {
			return err
		}
		var wc qp.Completion
		if !p.wait(p.patience, func(time.Time) bool { return p.send.Poll(&wc) }) {
			return p.stuck()
		}
		if err := failure(&wc); err != nil {
			return err
		}
	}
	d := time.Since(start)
	fmt.Fprintf(stdout, "%d times %v of %d bytes in %.3f seconds", o.n, op, o.size, d.Seconds())
	switch op {
	case qp.OpRead:
		fmt.Fprintf(stdout, ", last %.40q", data)
	case qp.OpFetchAdd, qp.OpCmpSwap:
		fmt.Fprintf(stdout, ", was %#x", binary.LittleEndian.Uint64(data))
	}
	fmt.Fprintln(stdout)
	return nil
}
