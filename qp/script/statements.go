package script

import (
	"errors"
	"fmt"
	"strings"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// act runs a statement that does something.
func (r *runner) act(name string, a *Words) error {
	switch name {
	case "qp":
		return r.makeQP(a)
	case "srq":
		return r.makeSRQ(a)
	case "region":
		return r.makeRegion(a)
	case "window":
		return r.makeWindow(a)
	case "deregister":
		err := r.regions.Deregister(r.keys[a.Next("the region")])
		return errors.Join(a.Done(), err)
	case "post":
		return r.post(a)
	case "recv":
		return r.recv(a)
	case "modify":
		return r.modify(a)
	case "fail":
		s := a.status(a.Next("the status"))
		r.qp.FailSend(s)
	case "<":
		verdict := qp.Accepted.String()
		for i, w := range a.words {
			if w == "=>" {
				verdict = strings.Join(a.words[i+1:], " ")
				a.words = a.words[:i]
				break
			}
		}
		return r.deliver(a, verdict)
	case "hold":
		r.held = true
	case "release":
		r.held = false
	default:
		return fmt.Errorf("no statement %q", name)
	}
	return a.Done()
}

var types = map[string]qp.Type{"rc": qp.RC, "uc": qp.UC, "ud": qp.UD, "xrc_send": qp.XRCSend, "xrc_recv": qp.XRCRecv}

var services = map[qp.Type]bth.Service{qp.RC: bth.RC, qp.UC: bth.UC, qp.UD: bth.UD, qp.XRCSend: bth.XRC, qp.XRCRecv: bth.XRC}

const defaultQKey = 0x11111111

func (r *runner) makeQP(a *Words) error {
	if r.qp != nil {
		return errors.New("there is one already")
	}
	t, ok := types[a.Next("the type")]
	if !ok {
		return errors.New("no such type of QP")
	}
	cfg := qp.Config{
		Type: t, QPN: uint32(a.Num("qpn", 24, 1)), PD: 1, Memory: r.regions,
		MaxSendWR: a.Int("max_send", 128), MaxRecvWR: a.Int("max_recv", 128), MaxInline: a.Int("max_inline", 64),
		MaxRdAtomic: 16, MaxDestRdAtomic: 16,
		AckEvery: a.Int("ack_every", 64), Window: a.Int("window", 8192),
		SignalAll: a.Flag("signal_all"), NoCredits: a.Flag("no_credits"),
		NotMigrated: a.Flag("not_migrated"), LinuxRetryForever: a.Flag("retry_forever"), LinuxAckBeforeRead: a.Flag("ack_before_read"),
		Selective: qp.Selective{Packets: a.Int("selective", 0), Reorder: a.Int("reorder", 0), Few: a.Int("few", 0),
			RTOLow: a.duration("rto_low"), RTOHigh: a.duration("rto_high")},
	}
	if t == qp.XRCRecv {
		cfg.XRCSRQs = r
	}
	if s, ok := a.Str("srq"); ok {
		if cfg.SRQ = r.srqs[uint32(a.number(s, "srq", 24))]; cfg.SRQ == nil {
			a.Fail("no such SRQ")
		}
	}
	state := qp.RTS
	if s, ok := a.Str("state"); ok {
		if state, ok = lookup[qp.State](s); !ok || state > qp.SQD {
			a.Fail("no QP begins in %q", s)
		}
	}
	r.typ, r.service = t, services[t]
	attr := &r.attr
	*attr = qp.Attr{
		PKey: uint16(a.Num("pkey", 16, 0xffff)), QKey: uint32(a.Num("qkey", 32, defaultQKey)), Access: a.access(allAccess),
		PathMTU: a.Int("mtu", 1024), DestQPN: uint32(a.Num("dest_qpn", 24, 2)),
		RQPSN: psn.PSN(a.Num("rq_psn", 24, 0)), MaxDestRdAtomic: a.Int("max_dest_rd_atomic", 16),
		MinRNRTimer: aeth.RNRTimer(a.Num("min_rnr_timer", 8, 12)),
		SQPSN:       psn.PSN(a.Num("sq_psn", 24, 0)), Timeout: uint8(a.Num("timeout", 8, 14)),
		RetryCnt: uint8(a.Num("retry_cnt", 8, 7)), RNRRetry: uint8(a.Num("rnr_retry", 8, 7)),
		MaxRdAtomic: a.Int("max_rd_atomic", 16),
	}
	if err := a.Done(); err != nil {
		return err
	}
	var err error
	if r.qp, err = qp.New(cfg); err != nil {
		return err
	}
	for s := qp.Init; s <= state; s++ {
		attr.State = s
		if err := r.qp.Modify(r.at(), attr, stepMask(t, s)); err != nil {
			return err
		}
	}
	return nil
}

// stepMask is what a QP of type t needs on its way into s.
func stepMask(t qp.Type, s qp.State) qp.AttrMask {
	m := qp.AttrState
	receives, sends := t == qp.RC || t == qp.XRCRecv, t == qp.RC || t == qp.XRCSend
	add := func(ok bool, bits qp.AttrMask) {
		if ok {
			m |= bits
		}
	}
	switch s {
	case qp.Init:
		add(true, qp.AttrPKey)
		add(t == qp.UD, qp.AttrQKey)
		add(t != qp.UD, qp.AttrAccess)
	case qp.RTR:
		add(true, qp.AttrPathMTU)
		add(t != qp.UD, qp.AttrAH|qp.AttrDestQPN|qp.AttrRQPSN)
		add(receives, qp.AttrMaxDestRdAtomic|qp.AttrMinRNRTimer)
	case qp.RTS:
		add(true, qp.AttrSQPSN)
		add(sends, qp.AttrTimeout|qp.AttrRetryCnt|qp.AttrRNRRetry|qp.AttrMaxRdAtomic)
		add(t == qp.XRCRecv, qp.AttrTimeout)
	}
	return m
}

func (r *runner) makeSRQ(a *Words) error {
	num := uint32(a.number(a.Next("the number"), "srq", 24))
	q, err := qp.NewSRQ(num, a.Int("size", 128))
	if err != nil {
		return err
	}
	r.srqs[num] = q
	return a.Done()
}

func (r *runner) makeRegion(a *Words) error {
	name := a.Next("the name")
	m := qp.Region{PD: qp.PD(a.Num("pd", 32, 1)), Addr: a.Num("addr", 64, 0), Access: a.access(allAccess)}
	if s, ok := a.Str("len"); ok {
		m.Data = make([]byte, a.number(s, "len", 24))
	} else {
		m.Data = a.Data()
	}
	if err := a.Done(); err != nil {
		return err
	}
	key, err := r.regions.Register(m)
	if m.Access&qp.ZeroBased != 0 {
		m.Addr = 0
	}
	r.keys[name], r.memory[name] = key, m
	return err
}

func (r *runner) makeWindow(a *Words) error {
	name := a.Next("the name")
	region, _ := a.Str("region")
	key, err := r.regions.AllocWindow(qp.PD(a.Num("pd", 32, 1)))
	if err != nil {
		return err
	}
	key, err = r.regions.Bind(qp.Binding{Window: key, Region: r.keys[region], VA: a.Num("addr", 64, 0),
		Len: uint32(a.Num("len", 32, 0)), Access: a.access(allAccess &^ qp.MWBind), QPN: uint32(a.Num("qpn", 24, 1))})
	r.keys[name] = key
	return errors.Join(a.Done(), err)
}

// wantErr compares an error with error=TEXT of the statement.
func wantErr(err error, text string, given bool) error {
	spaces := func(s string) string { return strings.ReplaceAll(s, "_", " ") }
	switch {
	case !given:
		return err
	case err == nil:
		return errors.New("no error")
	}
	for e := err; e != nil; e = errors.Unwrap(e) { // its words, or those of its kind
		if strings.Contains(spaces(e.Error()), spaces(text)) {
			return nil
		}
	}
	return fmt.Errorf("got error %q", err)
}

func pieces(b []byte, n int) [][]byte {
	list := [][]byte{}
	for n > 0 && len(b) > n {
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return append(list, b)
}

func (r *runner) post(a *Words) error {
	op, ok := lookup[qp.Op](a.Next("the operation"))
	if !ok {
		return errors.New("no such operation")
	}
	key := func(name string) uint32 {
		s, ok := a.Str(name)
		if !ok {
			return 0
		}
		if k, ok := r.keys[s]; ok {
			return k
		}
		return uint32(a.number(s, name, 32))
	}
	wr := qp.SendWR{
		ID: a.Num("id", 64, 0), Op: op,
		RemoteAddr: a.Num("va", 64, 0), RKey: key("rkey"), Imm: uint32(a.Num("imm", 32, 0)),
		CompareAdd: a.Num("add", 64, a.Num("compare", 64, 0)), Swap: a.Num("swap", 64, 0),
		FlushRegion: a.Flag("region"), FlushPersistence: a.Flag("persist"),
		RemoteQPN: uint32(a.Num("qpn", 24, 2)), RemoteQKey: uint32(a.Num("qkey", 32, defaultQKey)),
		SRQ: uint32(a.Num("srq", 24, 0)),
	}
	if !a.Flag("unsignaled") {
		wr.Flags |= qp.Signaled
	}
	for name, bit := range map[string]qp.Flags{"fence": qp.Fence, "solicited": qp.Solicited, "inline": qp.Inline} {
		if a.Flag(name) {
			wr.Flags |= bit
		}
	}
	if r.typ == qp.UD {
		wr.AH = qp.NewAddressHandle(qp.AHAttr{})
	}
	switch op {
	case qp.OpFlush:
		wr.Length = uint32(a.Num("len", 32, 0))
	case qp.OpRead:
		wr.Local = make([]byte, a.Num("len", 24, 0))
	case qp.OpCmpSwap, qp.OpFetchAdd:
		wr.Local = make([]byte, a.Num("len", 24, 8))
	default:
		wr.Local = a.Data()
	}
	whole := wr.Local
	if n := a.Int("gather", 0); n > 0 {
		wr.Gather, wr.Local = pieces(whole, n), nil
	}
	text, given := a.Str("error")
	if err := a.Done(); err != nil {
		return err
	}
	err := r.qp.PostSend(r.at(), &wr)
	if err == nil {
		r.sent[wr.ID] = whole
	}
	return wantErr(err, text, given)
}

func (r *runner) recv(a *Words) error {
	b := make([]byte, a.Num("len", 24, 0))
	wr := qp.RecvWR{ID: a.Num("id", 64, 0), Local: b}
	if n := a.Int("scatter", 0); n > 0 {
		wr.Scatter, wr.Local = pieces(b, n), nil
	}
	post := r.qp.PostRecv
	if s, ok := a.Str("srq"); ok {
		q := r.srqs[uint32(a.number(s, "srq", 24))]
		if q == nil {
			return errors.New("no such SRQ")
		}
		post = q.PostRecv
	}
	text, given := a.Str("error")
	if err := a.Done(); err != nil {
		return err
	}
	err := post(&wr)
	if err == nil {
		r.received[wr.ID] = b
	}
	return wantErr(err, text, given)
}

func (r *runner) modify(a *Words) error {
	attr, mask := qp.Attr{}, qp.AttrMask(0)
	if s, ok := a.Str("state"); ok {
		v, ok := lookup[qp.State](s)
		if !ok {
			a.Fail("no state %q", s)
		}
		attr.State, mask = v, qp.AttrState
	}
	num := func(name string, bit qp.AttrMask, set func(uint64)) {
		if s, ok := a.Str(name); ok {
			set(a.number(s, name, 32))
			mask |= bit
		}
	}
	num("pkey", qp.AttrPKey, func(v uint64) { attr.PKey = uint16(v) })
	num("qkey", qp.AttrQKey, func(v uint64) { attr.QKey = uint32(v) })
	num("path_mtu", qp.AttrPathMTU, func(v uint64) { attr.PathMTU = int(v) })
	num("dest_qp_num", qp.AttrDestQPN, func(v uint64) { attr.DestQPN = uint32(v) })
	num("ah", qp.AttrAH, func(uint64) {})
	num("rq_psn", qp.AttrRQPSN, func(v uint64) { attr.RQPSN = psn.PSN(v) })
	num("sq_psn", qp.AttrSQPSN, func(v uint64) { attr.SQPSN = psn.PSN(v) })
	num("max_dest_rd_atomic", qp.AttrMaxDestRdAtomic, func(v uint64) { attr.MaxDestRdAtomic = int(v) })
	num("max_rd_atomic", qp.AttrMaxRdAtomic, func(v uint64) { attr.MaxRdAtomic = int(v) })
	num("min_rnr_timer", qp.AttrMinRNRTimer, func(v uint64) { attr.MinRNRTimer = aeth.RNRTimer(v) })
	num("timeout", qp.AttrTimeout, func(v uint64) { attr.Timeout = uint8(v) })
	num("retry_cnt", qp.AttrRetryCnt, func(v uint64) { attr.RetryCnt = uint8(v) })
	num("rnr_retry", qp.AttrRNRRetry, func(v uint64) { attr.RNRRetry = uint8(v) })
	for _, w := range a.words {
		if strings.HasPrefix(w, "access=") {
			mask |= qp.AttrAccess
		}
	}
	attr.Access = a.access(0)
	text, given := a.Str("error")
	if err := a.Done(); err != nil {
		return err
	}
	return wantErr(r.qp.Modify(r.at(), &attr, mask), text, given)
}
