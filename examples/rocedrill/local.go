package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// local is this module's own port as the device, with an agent and programs, all in virtual
// time.
type local struct {
	*memory
	pds  [2]qp.PD
	qps  map[int]*localQP
	mrs  map[int]*localMR
	mws  map[int]uint32
	srqs map[int]*softnic.SRQ
	last int // the last handle assigned

	attr func(a *qp.Attr) // tests change the attributes of a queue pair

	cq    *softnic.CQ // of the programs
	conns map[uint32]*program
}

type localQP struct {
	*softnic.QP
	cq      *softnic.CQ
	access  qp.Access
	results map[uint64]func() // by work request ID: called when the request is complete
}

type localMR struct {
	buf  []byte
	addr uint64
	rkey uint32
}

// newLocal returns the port and its link.
func newLocal() (*local, error) {
	d := &local{memory: &memory{t: time.Unix(1e9, 0)}, cq: softnic.NewCQ(), conns: map[uint32]*program{}}
	regs, err := qp.NewRegions(256)
	if err != nil {
		return nil, err
	}
	d.dut, err = softnic.New(softnic.Config{MAC: dutMAC, GIDs: []softnic.GID{{Addr: dutIP4}, {Addr: dutIP6}},
		Regions: regs, CM: &cm.Config{MaxCalls: 64}, Control: cnp.Controller(cnp.Paper()), LineRate: lineRate})
	if err != nil {
		return nil, err
	}
	d.dut.AddNeighbor(ourIP4, ourMAC)
	d.dut.AddNeighbor(ourIP6, ourMAC)
	d.pds = [2]qp.PD{d.dut.AllocPD(), d.dut.AllocPD()}
	d.forget()
	d.serve = d.program
	for port := range programs {
		if err := d.dut.Listen(cm.IPServiceID(cm.ProtocolTCP, port), 0); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *local) forget() {
	d.qps, d.mrs, d.mws, d.srqs = map[int]*localQP{}, map[int]*localMR{}, map[int]uint32{}, map[int]*softnic.SRQ{}
}

// command holds the words of a command.
type command map[string]string

func (c command) num(key string, def uint64) uint64 {
	n, err := strconv.ParseUint(c[key], 0, 64)
	if err != nil {
		return def
	}
	return n
}

func (d *local) do(format string, v ...any) (reply, error) {
	cmd := fmt.Sprintf(format, v...)
	name, rest, _ := strings.Cut(cmd, " ")
	c := command{}
	for w := range strings.FieldsSeq(rest) {
		k, v, _ := strings.Cut(w, "=")
		c[k] = v
	}
	text, err := d.command(name, c)
	d.pump()
	if err != nil {
		return reply{}, &errAgent{cmd, err.Error()}
	}
	return parseReply(cmd, "ok "+text)
}

var localOps = map[string]qp.Op{"send": qp.OpSend, "send_imm": qp.OpSendImm, "send_inv": qp.OpSendInv, "write": qp.OpWrite,
	"write_imm": qp.OpWriteImm, "read": qp.OpRead, "cswap": qp.OpCmpSwap, "fadd": qp.OpFetchAdd,
	"flush": qp.OpFlush, "atomic_write": qp.OpAtomicWrite}

func rights(s string) (a qp.Access) {
	for _, r := range s {
		switch r {
		case 'r':
			a |= qp.RemoteRead
		case 'w':
			a |= qp.RemoteWrite
		case 'a':
			a |= qp.RemoteAtomic
		case 'b':
			a |= qp.MWBind
		case 'f':
			a |= qp.FlushGlobal
		}
	}
	return a
}

func (d *local) handle() int { d.last++; return d.last }

var errNoObject = errors.New("no such object")

// span returns part of a region.
func (d *local) span(c command) ([]byte, error) {
	m := d.mrs[int(c.num("mr", 0))]
	if m == nil {
		if c["mr"] == "" && c.num("len", 0) == 0 {
			return nil, nil
		}
		return nil, errNoObject
	}
	off := c.num("off", 0)
	if off > uint64(len(m.buf)) || c.num("len", 0) > uint64(len(m.buf))-off {
		return nil, errors.New("outside the region")
	}
	return m.buf[off:][:c.num("len", uint64(len(m.buf))-off)], nil
}

func (d *local) command(name string, c command) (string, error) {
	q := d.qps[int(c.num("qp", 0))]
	switch name {
	case "info":
		return "device=softnic flush=1 atomic_write=1 mw=1 mcast=1 xrc=1 kernel=none", nil
	case "reset":
		for _, q := range d.qps {
			q.Destroy()
		}
		for _, m := range d.mrs {
			_ = d.dut.Regions().Deregister(m.rkey)
		}
		d.forget()
		return "", nil
	case "mr":
		h := d.handle()
		m := &localMR{buf: make([]byte, c.num("size", 4096)), addr: 0x7f00_0000_0000 + uint64(h)<<24}
		var err error
		m.rkey, err = d.dut.Regions().Register(qp.Region{PD: d.pds[c.num("pd", 0)&1], Addr: m.addr, Data: m.buf, Access: rights(c["access"])})
		d.mrs[h] = m
		return fmt.Sprintf("mr=%d addr=%#x rkey=%#x", h, m.addr, m.rkey), err
	case "dereg":
		if m := d.mrs[int(c.num("mr", 0))]; m != nil {
			return "", d.dut.Regions().Deregister(m.rkey)
		}
		return "", errNoObject
	case "poke", "peek":
		b, err := d.span(c)
		if err == nil && name == "poke" {
			_, err = hex.Decode(b, []byte(c["hex"]))
		}
		return "hex=" + hex.EncodeToString(b), err
	case "mw":
		m := d.mrs[int(c.num("mr", 0))]
		if q == nil || m == nil {
			return "", errNoObject
		}
		key, err := d.dut.Regions().AllocWindow(d.pds[0])
		if err == nil {
			key, err = d.dut.Regions().Bind(qp.Binding{Window: key, Region: m.rkey, VA: m.addr + c.num("off", 0), Len: uint32(c.num("len", 0)),
				Access: rights(c["access"]), QPN: q.Num()})
		}
		h := d.handle()
		d.mws[h] = key
		return fmt.Sprintf("mw=%d rkey=%#x addr=%#x", h, key, m.addr+c.num("off", 0)), err
	case "srq":
		s, err := d.dut.CreateSRQ(int(c.num("recvs", 16)), uint32(c.num("xrc", 0)))
		if err != nil {
			return "", err
		}
		h := d.handle()
		d.srqs[h] = s
		return fmt.Sprintf("srq=%d srqn=%d", h, s.Num()), nil
	case "qp":
		return d.createQP(c)
	case "recv":
		b, err := d.span(c)
		if err != nil {
			return "", err
		}
		wr := &qp.RecvWR{ID: c.num("id", 0), Local: b}
		if s := d.srqs[int(c.num("srq", 0))]; s != nil {
			return "", s.PostRecv(wr)
		}
		if q == nil {
			return "", errNoObject
		}
		return "", q.PostRecv(wr)
	case "events":
		var text strings.Builder
		var e softnic.Event
		for d.dut.NextEvent(&e) {
			fmt.Fprintf(&text, " | name=%v qpn=%d", e.Event, e.QP.Num())
		}
		return text.String(), nil
	case "log":
		return "lines=0", nil
	}
	if q == nil {
		return "", errNoObject
	}
	switch name {
	case "destroy":
		q.Destroy()
		delete(d.qps, int(c.num("qp", 0)))
		return "", nil
	case "connect":
		return "", d.connect(q, c)
	case "modify":
		states := map[string]qp.State{"err": qp.Error, "sqd": qp.SQD, "rts": qp.RTS, "reset": qp.Reset}
		return "", q.Modify(d.t, &qp.Attr{State: states[c["state"]]}, qp.AttrState)
	case "query":
		names := map[qp.State]string{qp.Error: "err", qp.RTS: "rts", qp.SQD: "sqd", qp.SQE: "sqe", qp.Reset: "reset", qp.Init: "init", qp.RTR: "rtr"}
		return "state=" + names[q.State()], nil
	case "mcast":
		a, err := netip.ParseAddr(c["gid"])
		if err != nil {
			return "", err
		}
		return "", q.AttachMulticast(a)
	case "post":
		return "", d.post(q, c)
	case "poll":
		return d.poll(q, c)
	}
	return "", errors.New("no such command")
}

func (d *local) createQP(c command) (string, error) {
	q := &localQP{cq: softnic.NewCQ(), access: rights(c["access"]), results: map[uint64]func(){}}
	types := map[string]qp.Type{"rc": qp.RC, "uc": qp.UC, "ud": qp.UD, "xrc_send": qp.XRCSend, "xrc_recv": qp.XRCRecv}
	cfg := softnic.QPConfig{Config: qp.Config{Type: types[c["type"]], PD: d.pds[0], MaxSendWR: 128, MaxRecvWR: 512,
		MaxRdAtomic: 16, MaxDestRdAtomic: 16}, SendCQ: q.cq, RecvCQ: q.cq}
	switch cfg.Type {
	case qp.XRCSend:
		cfg.MaxRecvWR = 0
	case qp.XRCRecv:
		cfg.XRCD, cfg.MaxSendWR = 1, 0
	default:
		cfg.SRQ = d.srqs[int(c.num("srq", 0))]
	}
	var err error
	q.QP, err = d.dut.CreateQP(cfg)
	if err != nil {
		return "", err
	}
	a, mask := &qp.Attr{State: qp.Init, PKey: 0xffff, Access: q.access}, qp.AttrState|qp.AttrPKey
	if q.Type() == qp.UD {
		a.QKey, mask = uint32(c.num("qkey", 0x11111111)), mask|qp.AttrQKey
	} else {
		mask |= qp.AttrAccess
	}
	h := d.handle()
	d.qps[h] = q
	return fmt.Sprintf("qp=%d qpn=%d", h, q.Num()), q.Modify(d.t, a, mask)
}

// addressOf returns an address vector.
func addressOf(s string, c command) (qp.AHAttr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return qp.AHAttr{}, err
	}
	ah := qp.AHAttr{GID: a.As16(), TrafficClass: uint8(c.num("tclass", 0))}
	if a.Is6() {
		ah.SGIDIndex = 1
	}
	return ah, nil
}

func (d *local) connect(q *localQP, c command) error {
	ah, err := addressOf(c["dgid"], c)
	if err != nil {
		return err
	}
	a := &qp.Attr{PKey: 0xffff, QKey: q.Attr().QKey, Access: q.access, PathMTU: int(c.num("mtu", 1024)), DestQPN: uint32(c.num("dqpn", 0)), AH: ah,
		RQPSN: psn.PSN(c.num("rpsn", 0)), SQPSN: psn.PSN(c.num("psn", 0)), Timeout: uint8(c.num("timeout", 14)),
		RetryCnt: uint8(c.num("retry", 7)), RNRRetry: uint8(c.num("rnr", 7)), MinRNRTimer: aeth.RNRTimer(c.num("min_rnr", 12)),
		MaxRdAtomic: int(c.num("rd_atomic", 16)), MaxDestRdAtomic: int(c.num("dest_rd_atomic", 16))}
	if d.attr != nil {
		d.attr(a)
	}
	return q.Connect(d.t, a)
}

func (d *local) post(q *localQP, c command) error {
	b, err := d.span(c)
	if err != nil {
		return err
	}
	op, ok := localOps[c["op"]]
	if !ok {
		return errors.New("no such operation")
	}
	wr := qp.SendWR{ID: c.num("id", 0), Op: op, Flags: qp.Signaled, Local: b, RemoteAddr: c.num("raddr", 0), RKey: uint32(c.num("rkey", c.num("inv", 0))),
		Imm: uint32(c.num("imm", 0)), CompareAdd: c.num("cmp", c.num("add", 0)), Swap: c.num("swap", 0)}
	if c["fence"] == "1" {
		wr.Flags |= qp.Fence
	}
	if c["solicited"] == "1" {
		wr.Flags |= qp.Solicited
	}
	wr.SRQ = uint32(c.num("srqn", 0))
	if op == qp.OpFlush {
		wr.Length, wr.Local = uint32(c.num("flush_len", 0)), nil
	}
	if q.Type() == qp.UD {
		ah, err := addressOf(c["dgid"], c)
		if err != nil {
			return err
		}
		if wr.AH, err = d.dut.CreateAH(ah); err != nil {
			return err
		}
		wr.RemoteQPN, wr.RemoteQKey = uint32(c.num("dqpn", 0)), uint32(c.num("qkey", 0x11111111))
	}
	return q.PostSend(d.t, &wr)
}

// poll waits for completions, while virtual time passes.
func (d *local) poll(q *localQP, c command) (string, error) {
	var text strings.Builder
	var wc qp.Completion
	end := d.t.Add(time.Duration(c.num("ms", 0)) * time.Millisecond)
	for {
		d.pump()
		for q.cq.Poll(&wc) {
			fmt.Fprintf(&text, " | id=%d status=%s", wc.ID, strings.ToUpper(statusNames[wc.Status]))
			if wc.Status != qp.Success {
				continue
			}
			fmt.Fprintf(&text, " op=%v len=%d src_qp=%d solicited=%v", wc.Op, wc.ByteLen, wc.SrcQP, wc.Solicited)
			if wc.HasImm {
				fmt.Fprintf(&text, " imm=%#x", wc.Imm)
			}
			if wc.HasInv {
				fmt.Fprintf(&text, " inv=%#x", wc.InvRKey)
			}
		}
		if text.Len() != 0 || !d.t.Before(end) {
			return text.String(), nil
		}
		d.step(end)
	}
}

var statusNames = map[qp.Status]string{qp.Success: "success", qp.LocalLengthErr: "loc_len_err", qp.LocalQPOpErr: "loc_qp_op_err",
	qp.LocalProtErr: "loc_prot_err", qp.LocalAccessErr: "loc_access_err", qp.WRFlushErr: "wr_flush_err", qp.BadRespErr: "bad_resp_err",
	qp.RemoteInvalidReqErr: "rem_inv_req_err", qp.RemoteAccessErr: "rem_access_err", qp.RemoteOpErr: "rem_op_err",
	qp.RetryExcErr: "retry_exc_err", qp.RNRRetryExcErr: "rnr_retry_exc_err"}

// programs are the programs that accept connections, by RDMA-CM's port.
var programs = map[uint16]string{7174: "rping", 7471: "rdma_server"}

// program is a connection to one of the programs. Each has one receive of 16 bytes posted.
type program struct {
	name string
	q    *softnic.QP
	msg  []byte // buffer of the receive
	data []byte // data that rping has READ
	step int
}

// program runs the programs: connections, then completions.
func (d *local) program(now time.Time) {
	var e cm.Event
	for {
		call, ok := d.dut.NextCMEvent(now, &e)
		if !ok {
			break
		}
		switch p, _ := call.User.(*program); {
		case e.Kind == cm.EventRequest:
			q, err := d.dut.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC, PD: d.pds[0], MaxSendWR: 4, MaxRecvWR: 2,
				MaxRdAtomic: 1, MaxDestRdAtomic: 1}, SendCQ: d.cq, RecvCQ: d.cq})
			if err != nil {
				continue
			}
			p = &program{name: programs[e.Service.Port()], q: q, msg: make([]byte, 16)}
			access := qp.RemoteRead | qp.RemoteWrite
			_ = q.Modify(now, &qp.Attr{State: qp.Init, PKey: 0xffff, Access: access}, qp.AttrState|qp.AttrPKey|qp.AttrAccess)
			_ = q.PostRecv(&qp.RecvWR{Local: p.msg})
			call.User, d.conns[q.Num()] = p, p
			_ = d.dut.Accept(now, call, q, softnic.ConnAttr{Access: access, MaxRdAtomic: 1, MaxDestRdAtomic: 1, RNRRetry: 7})
		case e.Kind == cm.EventDisconnected && call.QP != nil:
			_ = d.dut.Disconnect(now, call, nil)
		case e.Last && p != nil:
			delete(d.conns, p.q.Num())
			p.q.Destroy()
		}
	}
	var wc qp.Completion
	for d.cq.Poll(&wc) {
		if p := d.conns[wc.QPN]; p != nil && wc.Status == qp.Success {
			p.next(now, &wc)
		}
	}
}

// next handles a completion: rping READs the client's text at the address in the first
// message, sends a message, WRITEs the text to the address in the second message, and sends a
// message; rdma_server sends a message back.
func (p *program) next(now time.Time, wc *qp.Completion) {
	post := func(wr qp.SendWR) {
		wr.Flags = qp.Signaled
		_ = p.q.PostSend(now, &wr)
	}
	addr, key, n := binary.BigEndian.Uint64(p.msg), binary.BigEndian.Uint32(p.msg[8:]), binary.BigEndian.Uint32(p.msg[12:])
	switch {
	case p.name == "rdma_server":
		if wc.Op == qp.OpRecv {
			post(qp.SendWR{Op: qp.OpSend, Local: make([]byte, 16)})
		}
	case wc.Op == qp.OpRecv && p.step == 0 && n <= 1<<16:
		p.data, p.step = make([]byte, n), 1
		post(qp.SendWR{Op: qp.OpRead, Local: p.data, RemoteAddr: addr, RKey: key})
		_ = p.q.PostRecv(&qp.RecvWR{Local: p.msg})
	case wc.Op == qp.OpRead:
		post(qp.SendWR{Op: qp.OpSend, Local: make([]byte, 16)})
	case wc.Op == qp.OpRecv && p.step == 1:
		p.step = 0
		text := p.data[:min(bytes.IndexByte(p.data, 0)+1, len(p.data))] // the text is a C string
		post(qp.SendWR{Op: qp.OpWrite, Local: text, RemoteAddr: addr, RKey: key})
		_ = p.q.PostRecv(&qp.RecvWR{Local: p.msg})
	case wc.Op == qp.OpWrite:
		post(qp.SendWR{Op: qp.OpSend, Local: make([]byte, 16)})
	}
}
