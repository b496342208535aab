package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/qp/script"
)

// recorder writes all frames to a pcapng file, with the statement as comment.
type recorder struct {
	w   *capture.NGWriter
	buf *bufio.Writer
	n   int // frames so far
	err error
}

func newRecorder(w io.Writer) (*recorder, error) {
	if w == nil {
		return &recorder{}, nil
	}
	r := &recorder{buf: bufio.NewWriterSize(w, 1<<16)}
	var err error
	if r.w, err = capture.NewNGWriter(r.buf, "rocedrill"); err != nil {
		return nil, err
	}
	_, err = r.w.AddInterface(capture.Interface{Link: frame.Ethernet, Name: "drill"})
	return r, err
}

func (r *recorder) write(at time.Time, b []byte, comment string) int {
	r.n++
	if r.w != nil && r.err == nil {
		r.err = r.w.Write(&capture.Record{Time: at, HasTime: true, Data: b, WireLen: len(b)}, comment)
	}
	return r.n
}

func (r *recorder) flush() error {
	if r.w == nil {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	return r.buf.Flush()
}

// rate and fall: rate D [cnp=GAP] takes what the device sends for a while, acknowledges it,
// and remembers how fast it came; falls F wants the last rate below F times the one before,
// rises F above it.
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

// falls D cnp=GAP to=PERCENT: during D with a CNP each GAP, at most PERCENT of the bytes come
// that came in the D before; recovers=PERCENT: and after as long a time again at least that.
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

// victim is the queue pair that mutated packets with a good ICRC go to.
type victim struct {
	r      *run
	qp     uint64
	qpn    uint32 // the device's
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

// frame is request i of those that are mutated: as the device expects it next.
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

// hear learns from what the device sends to the victim's peer.
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

// mutate N [icrc=bad]: N mutated packets, while data flows on the script's own connection,
// to a region that must be named w. With a bad ICRC they go to that connection itself, and
// else to another queue pair. What ends that one is counted.
func (r *run) mutate(w *script.Words) error {
	n := int(w.Num("n", 31, 1000))
	icrc, _ := w.Str("icrc")
	if err := w.Done(); err != nil {
		return err
	}
	if r.d.mutations != 0 {
		n = n * r.d.mutations / 100
	}
	target, ok := r.regions["w"]
	guard, ok2 := r.regions["guard"]
	if !ok || !ok2 {
		return fmt.Errorf("mutate needs the regions w and guard")
	}
	cfg := mutator.Config{Seed: r.d.seed, MaxFrame: 3000, Kinds: mutator.FieldKinds}
	if icrc == "bad" {
		cfg.ICRC = mutator.ICRCBad
		cfg.Kinds = mutator.FieldKinds.AndNot(mutator.EscapeKinds)
	}
	m, err := mutator.New(cfg)
	if err != nil {
		return err
	}
	if _, err := r.space(32768); err != nil {
		return err
	}
	v := &victim{r: r, ended: map[string]int{}, region: r.regions["v"]}
	if icrc == "bad" {
		v.qpn, v.ours, v.region = r.dutQPN, r.qpn, target
	} else if err := v.make(); err != nil {
		return err
	}
	model := make([]byte, target.len)
	var psn uint32
	var rep mutator.Report
	buf := make([]byte, 0, 10000)
	last, batch, alarms := "", []string{}, 0
	for i := range n {
		if icrc == "bad" {
			v.epsn = psn
		}
		b := v.frame(i)
		b = m.Mutate(uint64(i), frame.Ethernet, b, len(b), buf, &rep)
		if icrc == "bad" && !rep.RoCE {
			continue
		}
		r.stmt = "mutated: " + rep.String()
		if err := r.transmit(b); err != nil {
			return err
		}
		last = rep.String()
		if i%4 == 3 {
			if err := r.listen(v); err != nil {
				return fmt.Errorf("%w, after %s", err, last)
			}
		}
		batch = append(batch, last)
		if i%20 == 19 {
			if err := r.witness(&psn, model, target, v, last); err != nil {
				return err
			}
			if said, _ := r.kernelLog(); said != "" {
				alarms++
				if alarms == 1 {
					r.notes = append(r.notes, fmt.Sprintf("the kernel said: %s; after one of these packets: %s", said, strings.Join(batch, " | ")))
				}
			}
			batch = batch[:0]
		}
	}
	if err := r.compare(target.handle, 0, model); err != nil {
		return err
	}
	if err := r.compare(guard.handle, 0, make([]byte, guard.len)); err != nil {
		return deviated("the region that no packet named: %v", err)
	}
	var ends []string
	for _, k := range slices.Sorted(maps.Keys(v.ended)) {
		ends = append(ends, fmt.Sprintf("%d x %s", v.ended[k], k))
	}
	note := fmt.Sprintf("%d mutated packets, %d WRITEs beside them, all right", n, n/20)
	if len(ends) != 0 {
		note += "; what ended the other queue pair: " + strings.Join(ends, ", ")
	}
	r.notes = append(r.notes, note)
	if alarms != 0 {
		r.stmt = quietKernel
		return deviated("%s", "the kernel warned")
	}
	// What still comes of the mutated packets is nobody's business.
	r.allowed = append(r.allowed, "any")
	r.completions = nil
	if icrc != "bad" {
		r.also = 0
	}
	return r.silence(r.d.quiet)
}

// listen takes what the device has sent so far, and makes the victim anew where it died.
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

// witness writes to the script's own connection and wants the acknowledgement.
func (r *run) witness(psn *uint32, model []byte, m liveRegion, v *victim, last string) error {
	off := uint64(*psn*96) % (m.len - 96)
	data := script.Pattern('w', uint64(*psn), uint64(*psn)+96)
	words := fmt.Sprintf("RDMA_WRITE_ONLY %d ackreq va=%#x rkey=%#x data=0x%x", *psn, m.addr+off, m.rkey, data)
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
			if isAck(p) && uint32(p.Packet.PSN) == *psn {
				copy(model[off:], data)
				*psn++
				if r.also != 0 {
					return r.silentDeath(v)
				}
				return nil
			}
			if p.Packet.Opcode == bth.RCAcknowledge && p.Packet.AETH.Syndrome.Kind() == aeth.Nak && p.Packet.AETH.Syndrome.Nak() != aeth.NakPSNSequenceError {
				return deviated("the connection ended with %s, after %s", r.describe(p), last)
			}
		}
		if _, err := r.d.agent.do("info"); err != nil {
			r.notes = append(r.notes, fmt.Sprintf("the last packet before the device's host went silent: %s; those before it are in the capture", last))
			r.stmt = livingHost
			return deviated("it is gone")
		}
		if try == 4 {
			return deviated("the connection gives no more acknowledgements, after %s", last)
		}
	}
}

// silentDeath makes the victim anew where it is in Error without having said so.
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
