package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/qp/script"
)

// rate D [cnp=GAP] receives what the device sends during D, acknowledges it, and keeps the
// rate; falls F requires that the last rate is below F times the one before, rises F that it
// is above.
func (r *run) rate(d, cnp time.Duration) (bytes int, err error) {
	end, next := r.last.Add(d), r.last
	for {
		until := end
		if cnp != 0 && next.Before(end) {
			until = next
		}
		p, ok := r.next(until)
		if !ok {
			if !until.Before(end) {
				r.last = end
				return bytes, nil
			}
			r.last = until
			if err := r.deliver(script.SplitWords("CNP becn"), 1, false); err != nil {
				return 0, err
			}
			next = next.Add(cnp)
			continue
		}
		bytes += len(p.Packet.Payload)
		if p.Packet.AckReq {
			if err := r.deliver(script.SplitWords(fmt.Sprintf("ACK %d", p.Packet.PSN)), 1, false); err != nil {
				return 0, err
			}
		}
	}
}

// falls D cnp=GAP to=PERCENT: during D with a CNP each GAP, at most PERCENT of the bytes
// arrive that arrived in the D before; recovers=PERCENT: and during the D after that at least
// that percentage.
func (r *run) falls(w *script.Words) error {
	d, err := time.ParseDuration(w.Next("a time"))
	if err != nil {
		return err
	}
	gapText, _ := w.Str("cnp")
	gap, err := time.ParseDuration(gapText)
	if err != nil {
		return err
	}
	to, recovers := w.Int("to", 100), w.Int("recovers", 0)
	pause, _ := w.Str("after")
	if err := w.Done(); err != nil {
		return err
	}
	before, err := r.rate(d, 0)
	if err != nil {
		return err
	}
	during, err := r.rate(d, gap)
	if err != nil {
		return err
	}
	if before == 0 {
		return deviated("nothing was sent")
	}
	if during*100 > before*to {
		return deviated("CNPs left %d %% of the rate", during*100/before)
	}
	if recovers == 0 {
		return nil
	}
	rest, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	if _, err := r.rate(rest, 0); err != nil {
		return err
	}
	after, err := r.rate(d, 0)
	if err == nil && after*100 < before*recovers {
		return deviated("after %v without CNPs %d %% of the rate are back", rest, after*100/before)
	}
	return err
}

// victim is the queue pair to which mutated packets with a good ICRC are sent.
type victim struct {
	r      *run
	qp     uint64
	qpn    uint32 // the device's QP number
	ours   uint32
	epsn   uint32
	region liveRegion
	ended  map[string]int
}

func (v *victim) make() error {
	r := v.r
	if v.qp != 0 {
		if _, err := r.agentDo("destroy qp=%d", v.qp); err != nil {
			return err
		}
	}
	a, err := r.agentDo("qp type=rc access=rwa")
	if err != nil {
		return err
	}
	v.qp, v.qpn, v.epsn = a.num("qp"), uint32(a.num("qpn")), 0
	r.d.qpns++
	v.ours = firstQPN + r.d.qpns
	r.also = v.ours
	if _, err := r.agentDo("connect qp=%d dqpn=%d psn=0 rpsn=0 dgid=%v mtu=1024 timeout=0 rd_atomic=4 dest_rd_atomic=4", v.qp, v.ours, r.d.our4); err != nil {
		return err
	}
	for i := range 8 {
		if _, err := r.agentDo("recv qp=%d mr=%d off=%d len=1024 id=%d", v.qp, r.scratch, 16384+i*1024, i); err != nil {
			return err
		}
	}
	return nil
}

// frame returns request i before the mutation: the request that the device expects next.
func (v *victim) frame(i int) []byte {
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: v.r.d.mac, SrcMAC: ourMAC, Src: v.r.d.our4, Dst: v.r.d.ip4,
		DF: true, HopLimit: 64, SrcPort: 0xc000 | uint16(v.ours&0x3fff)}
	p := &f.Packet
	p.M, p.PKey, p.DestQP, p.AckReq = true, 0xffff, v.qpn, true
	p.PSN = p.PSN.Add(int(v.epsn))
	p.Opcode = []bth.Opcode{bth.RCWriteOnly, bth.RCReadRequest, bth.RCSendOnly, bth.RCFetchAdd, bth.RCWriteFirst, bth.RCWriteOnlyImm, bth.RCCmpSwap, bth.RCAcknowledge}[i%8]
	p.RETH.VA, p.RETH.RKey, p.AtomicETH.VA, p.AtomicETH.RKey = v.region.addr, v.region.rkey, v.region.addr+8, v.region.rkey
	n := []int{64, 0, 40, 0, 1024, 3, 0, 0}[i%8]
	p.SetPayload(script.Pattern('v', uint64(i), uint64(i+n)))
	p.RETH.DMALen = []uint32{64, 2000, 0, 0, 3000, 3, 0, 0}[i%8]
	return f.AppendTo(nil)
}

// hear updates the state from a packet that the device sends to the victim's peer.
func (v *victim) hear(p *packet) (dead string) {
	if p.Packet.Opcode.Ext()&bth.HasAETH == 0 {
		return ""
	}
	s := p.Packet.AETH.Syndrome
	switch s.Kind() {
	case aeth.Ack:
		v.epsn = uint32(p.Packet.PSN.Add(1))
	case aeth.Nak:
		if s.Nak() == aeth.NakPSNSequenceError {
			v.epsn = uint32(p.Packet.PSN)
			return ""
		}
		return fmt.Sprintf("NAK %v", s.Nak())
	}
	return ""
}

// barrage sends mutated packets while data flow on the script's own connection.
type barrage struct {
	r       *run
	m       *mutator.Mutator
	own     bool // the packets go to the script's own connection: their ICRC is bad
	v       *victim
	target  liveRegion
	model   []byte // expected content of target
	psn     uint32 // PSN of the next WRITE
	buf     []byte
	rep     mutator.Report
	since   []int            // packets since the last WRITE that was acknowledged
	lethal  []mutator.Change // changes in packets that crashed the device's host
	deaths  []string         // one text for each crash
	skipped int              // packets not sent because of a lethal change
	alarms  int
}

// maxDeaths is the number of crashes of the device's host after which a barrage ends.
const maxDeaths = 3

// mutate N [icrc=bad]: N mutated packets, while data flows on the script's own connection, to
// a region that must be named w. With a bad ICRC they are sent to that connection itself,
// otherwise to another queue pair. If a packet ends that queue pair, it is counted; if it
// crashes the device's host, the change is found, named, and not sent again.
func (r *run) mutate(w *script.Words) error {
	n := int(w.Num("n", 31, 1000))
	icrc, _ := w.Str("icrc")
	if err := w.Done(); err != nil {
		return err
	}
	n = n * r.d.mutations / 100
	cfg := mutator.Config{Seed: r.d.seed, MaxFrame: 3000, Kinds: mutator.FieldKinds}
	b := &barrage{r: r, own: icrc == "bad", v: &victim{r: r, ended: map[string]int{}}, buf: make([]byte, 0, 10000)}
	if b.own {
		cfg.ICRC = mutator.ICRCBad
		cfg.Kinds = mutator.FieldKinds.AndNot(mutator.EscapeKinds)
	}
	var err error
	if b.m, err = mutator.New(cfg); err != nil {
		return err
	}
	if err := b.begin(); err != nil {
		return err
	}
	for i := range n {
		err := b.fire(i)
		if errors.Is(err, errGone) {
			err = b.died()
		}
		if err != nil {
			return err
		}
	}
	return b.end(n)
}

// begin creates what the barrage needs on the device, from the script's regions.
func (b *barrage) begin() error {
	r := b.r
	var ok, ok2 bool
	b.target, ok = r.regions["w"]
	_, ok2 = r.regions["guard"]
	if !ok || !ok2 {
		return fmt.Errorf("mutate needs the regions w and guard")
	}
	b.model, b.psn, b.since = make([]byte, b.target.len), 0, b.since[:0]
	if _, err := r.space(32768); err != nil {
		return err
	}
	b.v.qp, b.v.region = 0, r.regions["v"]
	if b.own {
		b.v.qpn, b.v.ours, b.v.region = r.dutQPN, r.qpn, b.target
		return nil
	}
	return b.v.make()
}

// fire sends packet i, and one of the script's own WRITEs after every twentieth packet.
func (b *barrage) fire(i int) error {
	r := b.r
	if err := b.send(i); err != nil {
		return err
	}
	if i%4 == 3 {
		if err := r.listen(b.v); err != nil {
			return fmt.Errorf("%w, after %s", err, b.rep.String())
		}
	}
	if i%20 != 19 {
		return nil
	}
	if err := b.witness(); err != nil {
		return err
	}
	if said, _ := r.kernelLog(); said != "" {
		b.alarms++
		r.kernel = append(r.kernel, said)
		if b.alarms == 1 {
			var names []string
			for _, k := range b.since {
				b.make(k)
				names = append(names, b.rep.String())
			}
			r.notes = append(r.notes, "the kernel's log has this after one of these packets: "+strings.Join(names, " | "))
		}
	}
	b.since = b.since[:0]
	return nil
}

// make returns packet i, and records its changes in rep.
func (b *barrage) make(i int) []byte {
	if b.own {
		b.v.epsn = b.psn
	}
	f := b.v.frame(i)
	return b.m.Mutate(uint64(i), frame.Ethernet, f, len(f), b.buf, &b.rep)
}

// send sends packet i, unless it has a lethal change.
func (b *barrage) send(i int) error {
	f := b.make(i)
	if b.own && !b.rep.RoCE {
		return nil
	}
	for _, c := range b.rep.Changes() {
		for _, l := range b.lethal {
			if c.Kind == l.Kind && c.New == l.New {
				b.skipped++
				return nil
			}
		}
	}
	b.r.stmt = "mutated: " + b.rep.String()
	b.since = append(b.since, i)
	return b.r.transmit(f)
}

// died finds the packet that crashed the device's host: when the host is up again, the
// packets since the last sign of life are sent one by one, until it crashes again. Then the
// barrage goes on.
func (b *barrage) died() error {
	r, suspects := b.r, slices.Clone(b.since)
	how, err := r.d.obituary()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d packets together, no single one of them", len(suspects))
	if len(suspects) == 1 {
		what = "a packet that did not do it again"
	}
	if len(suspects) == 0 {
		what = "the script's own WRITEs"
	}
	if err := b.again(); err != nil {
		return err
	}
	for _, i := range suspects {
		err := b.send(i)
		if err == nil {
			err = r.listen(b.v)
		}
		if err == nil {
			_, err = r.d.agent.do("info")
		}
		if errors.Is(err, errGone) {
			b.make(i)
			b.lethal = append(b.lethal, b.rep.Changes()...)
			_, what, _ = strings.Cut(b.rep.String(), ": ")
			what = fmt.Sprintf("a packet with %s (number %d)", what, i)
			if how, err = r.d.obituary(); err == nil {
				err = b.again()
			}
			if err != nil {
				return err
			}
			break
		}
		if err != nil {
			return err
		}
	}
	b.deaths = append(b.deaths, what+": "+how)
	if len(b.deaths) == maxDeaths {
		return b.verdict()
	}
	return nil
}

// again repeats the script up to the barrage, on a device that was restarted.
func (b *barrage) again() error {
	r := b.r
	line, stmt := r.line, r.stmt
	r.qp, r.scratch, r.free, r.srq = 0, 0, 0, 0
	r.regions, r.keys = map[string]liveRegion{}, map[string]uint32{}
	for _, st := range r.s.lines {
		if st.line == line {
			break
		}
		r.line, r.stmt = st.line, st.text
		if err := r.statement(st.text); err != nil {
			return err
		}
	}
	r.line, r.stmt = line, stmt
	return b.begin()
}

// verdict returns the deviation that the crashes and the kernel's log show.
func (b *barrage) verdict() error {
	switch {
	case len(b.deaths) != 0:
		b.r.stmt = livingHost
		return deviated("it died of %s", strings.Join(b.deaths, "; then of "))
	case b.alarms != 0:
		b.r.stmt = quietKernel
		return deviated("%s", strings.Join(slices.Compact(slices.Sorted(slices.Values(b.r.kernel))), "; "))
	}
	return nil
}

// end verifies memory, adds a summary, and returns the verdict.
func (b *barrage) end(n int) error {
	r := b.r
	if err := r.compare(b.target.handle, 0, b.model); err != nil {
		return err
	}
	guard := r.regions["guard"]
	if err := r.compare(guard.handle, 0, make([]byte, guard.len)); err != nil {
		return deviated("the region that no packet named: %v", err)
	}
	var ends []string
	for _, k := range slices.Sorted(maps.Keys(b.v.ended)) {
		ends = append(ends, fmt.Sprintf("%d x %s", b.v.ended[k], k))
	}
	note := fmt.Sprintf("%d mutated packets, %d WRITEs beside them, all right", n-b.skipped, n/20)
	if b.skipped != 0 {
		note += fmt.Sprintf("; %d more were left out, since they have the fields at which the device's host crashed", b.skipped)
	}
	if len(ends) != 0 {
		note += "; what ended the other queue pair: " + strings.Join(ends, ", ")
	}
	r.notes = append(r.notes, note)
	if err := b.verdict(); err != nil {
		return err
	}
	// Later packets caused by the mutated ones are ignored.
	r.allowed = append(r.allowed, "any")
	r.completions = nil
	if !b.own {
		r.also = 0
	}
	return r.silence(r.d.quiet)
}

// listen receives what the device has sent so far, and creates a new victim if it has ended.
func (r *run) listen(v *victim) error {
	wait := time.Duration(0)
	if r.d.link.real() {
		wait = 500 * time.Microsecond
	}
	for {
		p, ok := r.next(r.d.link.now().Add(wait))
		if !ok {
			return nil
		}
		if dead := v.hear(p); dead != "" && r.also != 0 {
			v.ended[dead]++
			return v.make()
		}
	}
}

// witness sends a WRITE on the script's own connection and requires the acknowledgement.
func (b *barrage) witness() error {
	r, v := b.r, b.v
	off := uint64(b.psn*96) % (b.target.len - 96)
	data := script.Pattern('w', uint64(b.psn), uint64(b.psn)+96)
	words := fmt.Sprintf("RDMA_WRITE_ONLY %d ackreq va=%#x rkey=%#x data=0x%x", b.psn, b.target.addr+off, b.target.rkey, data)
	for try := 0; ; try++ {
		if err := r.deliver(script.SplitWords(words), 1, false); err != nil {
			return err
		}
		for end := r.d.link.now().Add(r.d.patience / 4); ; {
			p, ok := r.next(end)
			if !ok {
				break
			}
			if p.Packet.DestQP != r.qpn {
				if dead := v.hear(p); dead != "" {
					v.ended[dead]++
					if err := v.make(); err != nil {
						return err
					}
				}
				continue
			}
			if isAck(p) && uint32(p.Packet.PSN) == b.psn {
				copy(b.model[off:], data)
				b.psn++
				if r.also != 0 {
					return r.silentDeath(v)
				}
				return nil
			}
			if p.Packet.Opcode == bth.RCAcknowledge && p.Packet.AETH.Syndrome.Kind() == aeth.Nak && p.Packet.AETH.Syndrome.Nak() != aeth.NakPSNSequenceError {
				return deviated("the connection ended with %s, after %s", r.describe(p), b.rep.String())
			}
		}
		if _, err := r.d.agent.do("info"); err != nil {
			return err
		}
		if try == 4 {
			return deviated("the connection sends no more acknowledgements, after %s", b.rep.String())
		}
	}
}

// silentDeath creates a new victim if the old one is in Error without having sent a NAK.
func (r *run) silentDeath(v *victim) error {
	a, err := r.agentDo("query qp=%d", v.qp)
	if err != nil {
		return err
	}
	if a.words["state"] != "err" {
		return nil
	}
	v.ended["Error without a NAK"]++
	return v.make()
}
