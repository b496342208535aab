package main

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
)

// summary counts the frames of a file.
type summary struct {
	frames, roce, undecodable, pauses int
	first, last                       time.Time
	opcodes                           [256]tally
	services                          [8]tally
	other                             protocols
	tunnels                           [256]int // by frame.TunnelKind, of RoCE packets
	icrc                              [3]int   // by frame.ICRCState
	ce                                int
	badSums                           int // IPv4 header checksums
	mrc                               mrcSummary
	errors                            map[error]int
	qps                               map[qpKey]*tally
	segments                          segments
	moreQPs                           tally // of QPs beyond maxQPs
	lastKeys                          [4]qpKey
	lastQPs                           [4]*tally
	cut                               bool // the file could not be read to its end
}

// tally counts packets and their payload in bytes.
type tally struct{ packets, payload int }

func (t *tally) add(n tally) { t.packets += n.packets; t.payload += n.payload }

// qpKey identifies a QP: its number has a meaning only at one address.
type qpKey struct {
	dst netip.Addr
	qp  uint32
	seg uint32 // network of the address, by summary.segments
}

// maxQPs bounds the memory for a capture full of random packets.
const maxQPs = 1 << 16

func newSummary() *summary {
	return &summary{errors: map[error]int{}, qps: map[qpKey]*tally{}, other: protocols{n: map[frame.Protocol]int{}},
		segments: newSegments()}
}

func (s *summary) add(d *dumper, v verdict, icrc frame.ICRCState, why error) {
	s.frames++
	if d.rec.HasTime {
		if s.first.IsZero() || d.rec.Time.Before(s.first) {
			s.first = d.rec.Time
		}
		if d.rec.Time.After(s.last) {
			s.last = d.rec.Time
		}
	}
	switch v {
	case isPause:
		s.pauses++
		return
	case isOther:
		return
	case isError:
		s.undecodable++
		s.errors[why]++ // the keys are package variables, so there are few
		return
	}
	f := &d.frame
	n := tally{1, max(0, f.PayloadLen())}
	s.roce++
	s.opcodes[f.Packet.Opcode].add(n)
	s.services[f.Packet.Opcode.Service()].add(n)
	s.icrc[icrc]++
	if f.ECN() == frame.CE {
		s.ce++
	}
	if d.badSum {
		s.badSums++
	}
	for i := range f.Outer.Len() {
		s.tunnels[f.Outer.Tunnel(i).Kind]++
	}
	if f.IsMRC() {
		s.mrc.add(f.MRC)
	}
	seg := uint32(0)
	if f.VLANs != 0 || f.Outer.Len() != 0 {
		seg = s.segments.id(f.Segment())
	}
	s.qp(qpKey{f.Dst, f.Packet.DestQP, seg}).add(n)
}

// qp returns the tally of a QP, mostly without a map lookup.
func (s *summary) qp(k qpKey) *tally {
	i := (k.qp ^ k.qp>>4) & 3
	if s.lastKeys[i] == k && s.lastQPs[i] != nil {
		return s.lastQPs[i]
	}
	t := s.qps[k]
	if t == nil {
		if len(s.qps) >= maxQPs {
			return &s.moreQPs
		}
		t = new(tally)
		s.qps[k] = t
	}
	s.lastKeys[i], s.lastQPs[i] = k, t
	return t
}

// merge adds the counts of o.
func (s *summary) merge(o *summary) {
	s.frames += o.frames
	s.roce += o.roce
	s.undecodable += o.undecodable
	s.pauses += o.pauses
	for p, n := range o.other.n {
		s.other.n[p] += n
	}
	s.other.total += o.other.total
	for i, n := range o.tunnels {
		s.tunnels[i] += n
	}
	s.ce += o.ce
	s.badSums += o.badSums
	s.mrc.merge(&o.mrc)
	if s.first.IsZero() || !o.first.IsZero() && o.first.Before(s.first) {
		s.first = o.first
	}
	if o.last.After(s.last) {
		s.last = o.last
	}
	for i := range s.opcodes {
		s.opcodes[i].add(o.opcodes[i])
	}
	for i := range s.services {
		s.services[i].add(o.services[i])
	}
	for i := range s.icrc {
		s.icrc[i] += o.icrc[i]
	}
	for err, n := range o.errors {
		s.errors[err] += n
	}
	for _, k := range o.sortedQPs() { // segments get their numbers in this order
		t := o.qps[k]
		k.seg = s.segments.id(o.segments.all[k.seg])
		s.qp(k).add(*t)
	}
	s.moreQPs.add(o.moreQPs)
	s.cut = s.cut || o.cut
}

// name returns the name of an opcode: MRC's if the file has MRC packets.
func (s *summary) name(opcode int) string {
	if s.mrc.packets > 0 {
		return mrc.Name(bth.Opcode(opcode))
	}
	return bth.Opcode(opcode).String()
}

func (s *summary) service(service int) string {
	if s.mrc.packets > 0 && bth.Service(service) == bth.Manufacturer6 {
		return "MRC"
	}
	return bth.Service(service).String()
}

// sortedQPs returns the QPs, busiest first.
func (s *summary) sortedQPs() []qpKey {
	keys := make([]qpKey, 0, len(s.qps))
	for k := range s.qps {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b qpKey) int {
		return cmp.Or(cmp.Compare(s.qps[b].packets, s.qps[a].packets), a.dst.Compare(b.dst), cmp.Compare(a.qp, b.qp), cmp.Compare(a.seg, b.seg))
	})
	return keys
}

// sortedErrors returns the reasons, most frequent first.
func (s *summary) sortedErrors() []error {
	reasons := make([]error, 0, len(s.errors))
	for err := range s.errors {
		reasons = append(reasons, err)
	}
	slices.SortFunc(reasons, func(a, b error) int {
		return cmp.Or(cmp.Compare(s.errors[b], s.errors[a]), cmp.Compare(a.Error(), b.Error()))
	})
	return reasons
}

// textQPs is the number of QPs in the text table; JSON has all of them.
const textQPs = 20

func (s *summary) appendText(b []byte, name string) []byte {
	out := bytes.NewBuffer(b)
	fmt.Fprintf(out, "%s\n", name)
	if s.cut {
		fmt.Fprintf(out, "  (not read to its end)\n")
	}
	fmt.Fprintf(out, "  frames %d, RoCE %d, undecodable %d, PFC and PAUSE %d, other %d\n",
		s.frames, s.roce, s.undecodable, s.pauses, s.other.total)
	if !s.first.IsZero() {
		fmt.Fprintf(out, "  from %s, %v long\n", s.first.Format("2006-01-02 15:04:05.000000000 MST"), s.last.Sub(s.first))
	}
	fmt.Fprintf(out, "  ICRC good %d, bad %d, unchecked %d; congestion experienced %d\n",
		s.icrc[frame.ICRCGood], s.icrc[frame.ICRCBad], s.icrc[frame.ICRCUnchecked], s.ce)

	if s.badSums > 0 {
		fmt.Fprintf(out, "  IPv4 header checksum bad %d\n", s.badSums)
	}
	sep := "  in tunnels: "
	for k, n := range s.tunnels {
		if n > 0 {
			fmt.Fprintf(out, "%s%s %d", sep, frame.TunnelKind(k), n)
			sep = ", "
		}
	}
	if sep == ", " {
		out.WriteByte('\n')
	}

	// Numbers are right-aligned, names left-aligned.
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, t tally) { fmt.Fprintf(w, "\t%d\t%d\t%s\n", t.packets, t.payload, "  "+name) }
	head := func(name string) { fmt.Fprintf(w, "\tpackets\tpayload bytes\t%s\n", "  "+name) }
	if s.roce > 0 {
		fmt.Fprintln(out)
		head("opcode")
		for i, t := range s.opcodes {
			if t.packets > 0 {
				row(fmt.Sprintf("0x%02x %s", i, s.name(i)), t)
			}
		}
		w.Flush()
		fmt.Fprintln(out)
		head("service")
		for i, t := range s.services {
			if t.packets > 0 {
				row(s.service(i), t)
			}
		}
		w.Flush()
		fmt.Fprintln(out)
		head("destination QP")
		keys := s.sortedQPs()
		rest := s.moreQPs
		for i, k := range keys {
			if i < textQPs {
				row(fmt.Sprintf("%s 0x%06x%s", k.dst, k.qp, segmentText(s.segments.all[k.seg])), *s.qps[k])
			} else {
				rest.add(*s.qps[k])
			}
		}
		if rest.packets > 0 {
			row("others (-json lists them)", rest)
		}
		w.Flush()
		s.mrc.writeText(out)
	}
	if s.undecodable > 0 {
		fmt.Fprintf(out, "\n  frames   undecodable because\n")
		for _, err := range s.sortedErrors() {
			fmt.Fprintf(out, "  %6d   %v\n", s.errors[err], err)
		}
	}
	if list := s.other.list("", nil); list != "" {
		fmt.Fprintf(out, "\n  other frames: %s\n", list)
	}
	if list := s.other.list("", frame.Protocol.MayHide); list != "" {
		fmt.Fprintf(out, "  RoCE packets may be in what was not decoded: %s\n", list)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// appendJSON appends one object; name is quoted already.
func (s *summary) appendJSON(b []byte, name []byte) []byte {
	b = append(append(b, `{"file":`...), name...)
	for _, c := range []struct {
		key string
		n   int
	}{
		{`,"frames":`, s.frames},
		{`,"roce":`, s.roce},
		{`,"undecodable":`, s.undecodable},
		{`,"pfc":`, s.pauses},
		{`,"other":`, s.other.total},
		{`,"ce":`, s.ce},
	} {
		b = num(b, c.key, uint64(c.n))
	}
	if s.badSums > 0 {
		b = num(b, `,"ip_checksum_bad":`, uint64(s.badSums))
	}
	if !s.first.IsZero() {
		var c clock
		b = c.append(append(b, `,"first":"`...), s.first)
		b = c.append(append(b, `","last":"`...), s.last)
		b = append(b, '"')
	}
	b = num(b, `,"icrc":{"good":`, uint64(s.icrc[frame.ICRCGood]))
	b = num(b, `,"bad":`, uint64(s.icrc[frame.ICRCBad]))
	b = num(b, `,"unchecked":`, uint64(s.icrc[frame.ICRCUnchecked]))

	b = append(b, `},"opcodes":[`...)
	comma := ""
	for i, t := range s.opcodes {
		if t.packets > 0 {
			b = num(append(b, comma...), `{"opcode":`, uint64(i))
			b = append(b, `,"name":"`...)
			b = append(b, s.name(i)...)
			b = tallyJSON(append(b, '"'), t)
			comma = ","
		}
	}
	b = append(b, `],"services":[`...)
	comma = ""
	for i, t := range s.services {
		if t.packets > 0 {
			b = append(append(b, comma...), `{"service":"`...)
			b = append(b, s.service(i)...)
			b = tallyJSON(append(b, '"'), t)
			comma = ","
		}
	}
	b = append(b, `],"qps":[`...)
	comma = ""
	for _, k := range s.sortedQPs() {
		b = append(append(b, comma...), `{"dst":"`...)
		b = appendAddr(b, k.dst)
		b = num(b, `","dest_qp":`, uint64(k.qp))
		b = segmentJSON(b, s.segments.all[k.seg])
		b = tallyJSON(b, *s.qps[k])
		comma = ","
	}
	b = append(b, `],"errors":[`...)
	comma = ""
	for _, err := range s.sortedErrors() {
		b = append(append(b, comma...), `{"error":`...)
		b = strconv.AppendQuote(b, err.Error())
		b = num(b, `,"frames":`, uint64(s.errors[err]))
		b = append(b, '}')
		comma = ","
	}
	b = s.mrc.appendJSON(append(b, ']'))
	b = append(b, `,"tunnels":[`...)
	comma = ""
	for k, n := range s.tunnels {
		if n > 0 {
			b = append(append(b, comma...), `{"kind":"`...)
			b = append(b, frame.TunnelKind(k).String()...)
			b = append(num(b, `","packets":`, uint64(n)), '}')
			comma = ","
		}
	}
	b = append(b, `],"protocols":[`...)
	comma = ""
	for _, p := range s.other.sorted() {
		b = append(append(b, comma...), `{"protocol":`...)
		b = strconv.AppendQuote(b, p.String())
		b = append(num(b, `,"frames":`, uint64(s.other.n[p])), '}')
		comma = ","
	}
	b = append(b, ']')
	if s.moreQPs.packets > 0 {
		b = append(b, `,"other_qps":{"packets":`...)
		b = strconv.AppendInt(b, int64(s.moreQPs.packets), 10)
		b = num(b, `,"payload":`, uint64(s.moreQPs.payload))
		b = append(b, '}')
	}
	b = append(b, `,"complete":`...)
	b = strconv.AppendBool(b, !s.cut)
	return append(b, "}\n"...)
}

func tallyJSON(b []byte, t tally) []byte {
	b = num(b, `,"packets":`, uint64(t.packets))
	b = num(b, `,"payload":`, uint64(t.payload))
	return append(b, '}')
}
