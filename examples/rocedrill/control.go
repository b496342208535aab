package main

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp/script"
)

// control runs the statements that are not about packets.
func (r *run) control(name string, w *script.Words) error {
	switch name {
	case "dut":
		return r.connect(w)
	case "region":
		return r.region(w)
	case "window":
		return r.window(w)
	case "deregister":
		m, ok := r.regions[w.Next("the region")]
		if !ok {
			w.Fail("no such region")
		}
		if err := w.Done(); err != nil {
			return err
		}
		_, err := r.agentDo("dereg mr=%d", m.handle)
		return err
	case "recv":
		return r.recv(w)
	case "post":
		return r.post(w)
	case "done":
		return r.done(w)
	case "memory":
		return r.memory(w)
	case "state":
		return r.state(w)
	case "event":
		return r.event(w)
	case "modify":
		s, _ := w.Str("state")
		if err := w.Done(); err != nil {
			return err
		}
		_, err := r.agentDo("modify qp=%d state=%s", r.qp, strings.ToLower(s))
		return err
	case "multicast":
		a := w.Next("the address")
		if err := w.Done(); err != nil {
			return err
		}
		_, err := r.agentDo("mcast qp=%d gid=%s", r.qp, a)
		return err
	case "wait":
		d, err := time.ParseDuration(w.Next("a time"))
		if err == nil {
			err = w.Done()
		}
		if err != nil {
			return err
		}
		return r.silence(d)
	case "mutate":
		return r.mutate(w)
	case "falls":
		return r.falls(w)
	case "call":
		return r.dial(w)
	case "flow":
		return r.flow(w)
	}
	return fmt.Errorf("no statement %q", name)
}

// letters returns the rights of access= as the agent names them.
func letters(w *script.Words, def string) string {
	s, ok := w.Str("access")
	if !ok {
		return def
	}
	out := ""
	for name := range strings.SplitSeq(s, ",") {
		l, ok := map[string]string{"read": "r", "write": "w", "atomic": "a", "bind": "b", "flush": "f", "none": ""}[name]
		if !ok {
			w.Fail("%q is no right", name)
		}
		out += l
	}
	return out
}

// connect creates the queue pair of the device: dut TYPE FIELDS.
func (r *run) connect(w *script.Words) error {
	kind := w.Next("the type")
	services := map[string]bth.Service{"rc": bth.RC, "uc": bth.UC, "ud": bth.UD, "xrc_send": bth.XRC, "xrc_recv": bth.XRC}
	var ok bool
	if r.service, ok = services[kind]; !ok {
		return fmt.Errorf("no such type %q", kind)
	}
	rights := "rwa"
	if v := r.d.can["flush"]; v == "1" && kind == "rc" {
		rights += "f"
	}
	access, v6, srq := letters(w, rights), w.Flag("v6"), w.Flag("srq")
	mtu, rqPSN, sqPSN := w.Num("mtu", 16, 1024), w.Num("rq_psn", 24, 0), w.Num("sq_psn", 24, 0)
	timeout, retry, rnr, minRNR := w.Num("timeout", 5, 18), w.Num("retry_cnt", 3, 7), w.Num("rnr_retry", 3, 7), w.Num("min_rnr_timer", 5, 12)
	rd, destRd, qkey := w.Num("max_rd_atomic", 8, 16), w.Num("max_dest_rd_atomic", 8, 16), w.Num("qkey", 32, defaultQKey)
	if err := w.Done(); err != nil {
		return err
	}
	r.v6 = v6
	if r.s.by != "agent" {
		return r.callProgram()
	}
	more := ""
	if xrc := kind == "xrc_recv"; srq || xrc {
		cmd := "srq recvs=64"
		if xrc {
			cmd += " xrc=1"
		}
		a, err := r.agentDo("%s", cmd)
		if err != nil {
			return err
		}
		r.srq, r.srqNum = a.num("srq"), uint32(a.num("srqn"))
		more = fmt.Sprintf(" srq=%d", r.srq)
	}
	a, err := r.agentDo("qp type=%s access=%s qkey=%#x%s", kind, access, qkey, more)
	if err != nil {
		return err
	}
	r.qp, r.dutQPN = a.num("qp"), uint32(a.num("qpn"))
	to := r.d.our4
	if v6 {
		to = r.d.our6
	}
	_, err = r.agentDo("connect qp=%d dqpn=%d psn=%d rpsn=%d dgid=%v mtu=%d timeout=%d retry=%d rnr=%d min_rnr=%d rd_atomic=%d dest_rd_atomic=%d",
		r.qp, r.qpn, sqPSN, rqPSN, to, mtu, timeout, retry, rnr, minRNR, rd, destRd)
	r.last = r.d.link.now()
	return err
}

func (r *run) region(w *script.Words) error {
	name := w.Next("the name")
	access, pd, data := letters(w, "rwa"), w.Num("pd", 1, 0), make([]byte, w.Num("len", 20, 0))
	if b := w.Data(); b != nil {
		data = b
	}
	if err := w.Done(); err != nil {
		return err
	}
	a, err := r.agentDo("mr size=%d access=%s pd=%d", max(len(data), 8), access, pd)
	if err != nil {
		return err
	}
	m := liveRegion{a.num("mr"), a.num("addr"), uint64(len(data)), uint32(a.num("rkey"))}
	r.regions[name], r.keys[name] = m, m.rkey
	return r.poke(m.handle, 0, data)
}

func (r *run) window(w *script.Words) error {
	name := w.Next("the name")
	region, _ := w.Str("region")
	off, n, access := w.Num("off", 32, 0), w.Num("len", 32, 0), letters(w, "rw")
	m, ok := r.regions[region]
	if !ok {
		w.Fail("no such region")
	}
	if err := w.Done(); err != nil {
		return err
	}
	a, err := r.agentDo("mw qp=%d mr=%d off=%d len=%d access=%s", r.qp, m.handle, off, n, access)
	if err != nil {
		return err
	}
	win := liveRegion{a.num("mw"), m.addr + off, n, uint32(a.num("rkey"))}
	r.regions[name], r.keys[name] = win, win.rkey
	return nil
}

func (r *run) recv(w *script.Words) error {
	id, n, count := w.Num("id", 32, 1), w.Num("len", 24, 0), w.Num("n", 16, 1)
	if err := w.Done(); err != nil {
		return err
	}
	for i := range count {
		off, err := r.space(n)
		if err != nil {
			return err
		}
		to := fmt.Sprintf("qp=%d", r.qp)
		if r.srq != 0 {
			to = fmt.Sprintf("srq=%d", r.srq)
		}
		if _, err := r.agentDo("recv %s mr=%d off=%d len=%d id=%d", to, r.scratch, off, n, id+i); err != nil {
			return err
		}
		r.bufs[fmt.Sprint("recv ", id+i)] = [2]uint64{off, n}
	}
	return nil
}

var agentOps = map[string]string{"SEND": "send", "SEND_WITH_IMM": "send_imm", "SEND_WITH_INV": "send_inv", "RDMA_WRITE": "write",
	"RDMA_WRITE_WITH_IMM": "write_imm", "RDMA_READ": "read", "ATOMIC_CMP_AND_SWP": "cswap", "ATOMIC_FETCH_AND_ADD": "fadd",
	"FLUSH": "flush", "ATOMIC_WRITE": "atomic_write"}

// post posts a send work request on the device: post OP FIELDS.
func (r *run) post(w *script.Words) error {
	name := w.Next("the operation")
	op, ok := agentOps[name]
	if !ok {
		return fmt.Errorf("no operation %q", name)
	}
	id, count := w.Num("id", 32, 1), w.Num("n", 16, 1)
	var data []byte
	switch op {
	case "read":
		data = make([]byte, w.Num("len", 24, 0))
	case "cswap", "fadd":
		data = make([]byte, 8)
	default:
		data = w.Data()
	}
	line := "op=" + op
	for _, f := range [][2]string{{"va", "raddr"}, {"rkey", "rkey"}, {"imm", "imm"}, {"inv_rkey", "inv"}, {"compare", "cmp"}, {"swap", "swap"}, {"add", "add"}} {
		if s, ok := w.Str(f[0]); ok {
			line += " " + f[1] + "=" + s
		}
	}
	for _, f := range []string{"fence", "solicited"} {
		if w.Flag(f) {
			line += " " + f + "=1"
		}
	}
	if r.service == bth.UD {
		to := r.d.our4
		if r.v6 {
			to = r.d.our6
		}
		line += fmt.Sprintf(" dgid=%v dqpn=%d qkey=%#x", to, w.Num("qpn", 24, uint64(r.qpn)), w.Num("qkey", 32, defaultQKey))
	}
	if r.service == bth.XRC {
		line += fmt.Sprintf(" srqn=%d", w.Num("srq", 24, 1))
	}
	flush := w.Num("flush", 24, 0)
	if err := w.Done(); err != nil {
		return err
	}
	off, err := r.space(uint64(len(data)))
	if err != nil {
		return err
	}
	if len(data) != 0 && op != "read" {
		if err := r.poke(r.scratch, off, data); err != nil {
			return err
		}
	}
	r.last = r.d.link.now()
	for i := range count {
		if _, err := r.agentDo("post qp=%d mr=%d off=%d len=%d id=%d flush_len=%d %s", r.qp, r.scratch, off, len(data), id+i, flush, line); err != nil {
			return err
		}
		r.bufs[fmt.Sprint("post ", id+i)] = [2]uint64{off, uint64(len(data))}
	}
	return nil
}

// poll fetches completions.
func (r *run) poll(wait time.Duration) error {
	a, err := r.agentDo("poll qp=%d ms=%d", r.qp, wait.Milliseconds())
	r.completions = append(r.completions, a.groups...)
	return err
}

func showCompletion(c map[string]string) string {
	var keys []string
	for k := range c {
		if k == "status" || k == "op" || k == "id" || k == "len" && c["status"] == "SUCCESS" {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var words []string
	for _, k := range keys {
		words = append(words, k+"="+c[k])
	}
	return strings.Join(words, " ")
}

// opKind returns the operation as completions name it: without immediate data and
// invalidation.
func opKind(op string) string {
	if op == "RECV_RDMA_WITH_IMM" {
		return op
	}
	return strings.TrimSuffix(strings.TrimSuffix(op, "_WITH_IMM"), "_WITH_INV")
}

// done expects the next completion: done OP FIELDS.
func (r *run) done(w *script.Words) error {
	op, want := w.Next("the operation"), "success"
	if s, ok := w.Str("status"); ok {
		want = s
	}
	id := w.Num("id", 32, 1)
	// More than one status may be right for a failure.
	statuses := strings.Split(strings.ToUpper(want), ",")
	imm, hasImm := w.Str("imm")
	n, hasLen := w.Str("len")
	data := w.Data()
	if err := w.Done(); err != nil {
		return err
	}
	if len(r.completions) == 0 {
		if err := r.poll(r.d.patience); err != nil {
			return err
		}
	}
	if len(r.completions) == 0 {
		return deviated("there was no completion")
	}
	c := r.completions[0]
	r.completions = r.completions[1:]
	bad := func() error { return deviated("got completion %s", showCompletion(c)) }
	if c["id"] != fmt.Sprint(id) || !slices.Contains(statuses, c["status"]) {
		return bad()
	}
	if c["status"] != "SUCCESS" {
		return nil
	}
	if opKind(c["op"]) != opKind(op) || hasLen && c["len"] != n {
		return bad()
	}
	if hasImm != (c["imm"] != "") && strings.HasPrefix(op, "RECV") {
		return deviated("immediate data in the completion: %v", c["imm"] != "")
	}
	if hasImm {
		var a, b uint64
		_, _ = fmt.Sscan(imm, &a)
		if _, _ = fmt.Sscan(c["imm"], &b); a != b {
			return deviated("immediate data are %#x", b)
		}
	}
	if data == nil {
		return nil
	}
	at, ok := r.bufs[fmt.Sprint("post ", id)]
	if strings.HasPrefix(op, "RECV") {
		at, ok = r.bufs[fmt.Sprint("recv ", id)]
		if r.service == bth.UD {
			at[0] += 40 // the GRH area
		}
	}
	if !ok {
		return fmt.Errorf("no memory of id %d is known", id)
	}
	return r.compare(r.scratch, at[0], data)
}

// compare compares memory of the device with data.
func (r *run) compare(mr, off uint64, want []byte) error {
	got, err := r.peek(mr, off, len(want))
	if err != nil || bytes.Equal(got, want) {
		return err
	}
	i := 0
	for got[i] == want[i] {
		i++
	}
	return deviated("byte %d is 0x%02x, want 0x%02x", i, got[i], want[i])
}

// memory NAME[+OFF] DATA: compares the content of a region.
func (r *run) memory(w *script.Words) error {
	name, off, _ := strings.Cut(w.Next("the region"), "+")
	m, ok := r.regions[name]
	var n uint64
	if off != "" {
		_, _ = fmt.Sscan(off, &n)
	}
	data := w.Data()
	if err := w.Done(); err != nil {
		return err
	}
	if !ok || data == nil {
		return fmt.Errorf("memory REGION[+OFFSET] DATA")
	}
	return r.compare(m.handle, n, data)
}

// state waits for a state of the queue pair.
func (r *run) state(w *script.Words) error {
	want := strings.ToLower(w.Next("the state"))
	if err := w.Done(); err != nil {
		return err
	}
	for range 20 {
		a, err := r.agentDo("query qp=%d", r.qp)
		if err != nil {
			return err
		}
		got := a.words["state"]
		if got == want {
			return nil
		}
		if want == "rts" || !r.d.link.real() {
			return deviated("the state is %s", strings.ToUpper(got))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return deviated("the state stays")
}

// flow requires that all packets of the device to our queue pair had the same UDP source
// port, one of the dynamic range.
func (r *run) flow(w *script.Words) error {
	if err := w.Done(); err != nil {
		return err
	}
	if len(r.ports) == 0 {
		return deviated("no packet was received")
	}
	for _, p := range r.ports {
		if p < 0xc000 {
			return deviated("UDP source port %d", p)
		}
		if p != r.ports[0] {
			return deviated("more than one UDP source port")
		}
	}
	return nil
}

// event waits for an asynchronous event: event NAME.
func (r *run) event(w *script.Words) error {
	want := w.Next("the event")
	if err := w.Done(); err != nil {
		return err
	}
	var got []string
	for range 10 {
		a, err := r.agentDo("events")
		if err != nil {
			return err
		}
		for _, e := range a.groups {
			if e["name"] == want {
				return nil
			}
			got = append(got, e["name"])
		}
		if !r.d.link.real() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got == nil {
		return deviated("there was no event")
	}
	return deviated("got event %s", strings.Join(got, ", "))
}
