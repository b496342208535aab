package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp/conform"
)

// findings are what was found.
type findings struct {
	breaches, notes, events uint64
	left                    uint64 // findings that the baseline has too
	groups                  map[groupKey]*group
	order                   []*group
	ungrouped               uint64 // findings beyond maxGroups
}

// Limits of what is kept for the report, so that memory does not grow with the capture.
const (
	maxGroups = 10000
	maxFlows  = 10000
	maxSample = 8
)

// groupKey identifies a group: the findings of one check in one flow.
type groupKey struct {
	check    conform.Check
	severity conform.Severity
	flowKey
}

type group struct {
	groupKey
	peerQP uint32
	n      uint64
	frames []uint64
	texts  []string
	first  time.Time
	filter string // for Wireshark: the first
}

func (c *checker) group(f *conform.Finding) {
	k := groupKey{f.Check, f.Severity, flowOf(f)}
	g := c.groups[k]
	if g == nil {
		if len(c.groups) >= maxGroups {
			c.ungrouped++
			return
		}
		g = &group{groupKey: k, first: f.Time, filter: displayFilter(f)}
		c.groups[k] = g
		c.order = append(c.order, g)
	}
	g.n++
	g.peerQP = max(g.peerQP, f.PeerQP)
	if len(g.frames) < maxSample || c.all && len(g.frames) < 100_000 {
		g.frames = append(g.frames, f.Frame)
		if len(g.texts) < 3 || c.all {
			g.texts = append(g.texts, f.String())
		}
	}
}

// figures are the values of a histogram that a report shows.
type figures struct {
	n                   uint64
	min, mean, max      time.Duration
	p50, p90, p99, p999 time.Duration
}

func figuresOf(h *conform.Histogram) figures {
	return figures{h.Count(), h.Min(), h.Mean(), h.Max(), h.Quantile(500), h.Quantile(900), h.Quantile(990), h.Quantile(999)}
}

// flowRow is what is kept of a flow after the watcher has closed it.
type flowRow struct {
	flowKey
	peerQP              uint32
	service             bth.Service
	mtu                 int
	counters            conform.Counters
	latency, completion figures
	track               *track // for the page, if it was recorded
	other               int    // where the other direction is, from here; 0: none
}

// faces reports whether g may be the other direction of f: at a router, in another VLAN.
func (f *flowRow) faces(g *flowRow) bool {
	return f.peerQP != 0 && g.src == f.dst && g.dst == f.src && g.qp == f.peerQP && g.peerQP == f.qp
}

func (c *checker) closed(f *conform.Flow) {
	if f.Frames == 0 {
		return // created by connection management and never used
	}
	if !c.filter.keeps(f.Src, f.Dst, f.QP, f.PeerQP) {
		c.leftOut++
		return
	}
	row := flowRow{flowKey{f.Src, f.Dst, f.QP, f.Segment}, f.PeerQP, f.Service, f.MTU, *f.Counters, figuresOf(f.Latency), figuresOf(f.Completion), nil, 0}
	if c.tracks != nil {
		row.track = c.tracks.take(f.ID)
	}
	if len(c.flows) < maxFlows {
		c.flows = append(c.flows, row)
	} else {
		c.moreFlows++
	}
}

// sortFlows puts the two directions of a connection next to each other, in the order of their
// first frames.
func (c *checker) sortFlows() {
	slices.SortStableFunc(c.flows, func(a, b flowRow) int { return cmp.Compare(a.counters.First, b.counters.First) })
	done := make([]bool, len(c.flows))
	at := map[flowKey][]int{} // whatever the network
	for i, f := range c.flows {
		k := flowKey{f.src, f.dst, f.qp, frame.Segment{}}
		at[k] = append(at[k], i)
	}
	out := make([]flowRow, 0, len(c.flows))
	for i, f := range c.flows {
		if done[i] {
			continue
		}
		done[i] = true
		out = append(out, f)
		if f.peerQP == 0 {
			continue
		}
		other := -1
		for _, j := range at[flowKey{f.dst, f.src, f.peerQP, frame.Segment{}}] {
			if g := &c.flows[j]; !done[j] && f.faces(g) && (other < 0 || g.network == f.network && c.flows[other].network != f.network) {
				other = j
			}
		}
		if other >= 0 {
			done[other] = true
			out[len(out)-1].other = 1
			out = append(out, c.flows[other])
			out[len(out)-1].other = -1
		}
	}
	c.flows = out
}

// writeText writes the report as text, worst first.
func (c *checker) writeText() {
	total := c.w.Total()
	p := func(format string, args ...any) { _, c.werr = fmt.Fprintf(c.out, format, args...) }

	for _, l := range wrap(c.verdict(), c.columns) {
		p("%s\n", c.paint(c.verdictColour(), l))
	}
	if c.left > 0 {
		p("%s of kinds that the baseline shows too are left out.\n", count(c.left, "finding", "findings"))
	}
	p("%s, %d of them RoCE, %s, %s\n", count(c.w.Frames(), "frame", "frames"), c.w.RoCEFrames(),
		count(uint64(len(c.flows)+c.moreFlows), "flow", "flows"), short(c.last.Sub(c.first)))
	if !c.roceJudged() {
		c.writeNothing()
		return
	}
	c.writeHidden()
	if total.ICRCUnchecked > 0 {
		p("%s cut short by the snapshot length: the ICRC is unchecked.\n", count(total.ICRCUnchecked, "packet is", "packets are"))
	}
	if total.CaptureLost > 0 {
		p("The capture lost at least %s acknowledged and never seen.\n", count(total.CaptureLost, "packet, which was", "packets, which were"))
	}
	if n := c.w.Evicted(); n > 0 {
		p("%s closed early to bound memory.\n", count(n, "flow was", "flows were"))
	}
	c.writeScreen(&total)

	for _, sev := range []conform.Severity{conform.Breach, conform.Note, conform.Event} {
		groups := c.ranked(sev)
		if len(groups) == 0 {
			continue
		}
		head := map[conform.Severity]string{conform.Breach: "Broken rules", conform.Note: "Notes", conform.Event: "Events"}[sev]
		p("\n%s\n", c.paint(colourOf(sev), head))
		limit := 40
		for i, g := range groups {
			if i == limit && !c.all {
				p("  ... and %d kinds more (-all lists them)\n", len(groups)-limit)
				break
			}
			head := fmt.Sprintf("%s  %d x", pad(g.check.String(), 18), g.n)
			where := c.where(g) + c.framesOf(g)
			p("  %s  %s", c.paint(colourOf(sev), pad(g.check.Rule().String(), 10)), head)
			if len(head)+len(where)+16 <= c.columns {
				p("  %s\n", where)
			} else {
				p("\n")
				c.lines("      ", where)
			}
			if sev != conform.Event {
				c.lines("      ", "rule: "+g.check.Rule().Title())
			}
			if sev == conform.Breach && g.filter != "" {
				p("      wireshark: %s\n", g.filter)
			}
			texts := g.texts
			if sev == conform.Event && !c.all {
				texts = texts[:min(1, len(texts))]
			}
			for j, t := range texts {
				c.lines("      ", t)
				if j == 2 && !c.all {
					break
				}
			}
		}
		if c.ungrouped > 0 && sev == conform.Event {
			p("  ... and %d findings in other flows\n", c.ungrouped)
		}
	}
	c.writeFlows()
	c.writeKeyFigures(&total)
}

func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-len(s))) }

func (c *checker) verdict() string {
	if !c.roceJudged() {
		return "There is nothing to judge."
	}
	if c.breaches == 0 {
		total := c.w.Total()
		head := "No rule is broken."
		if c.partly() {
			head = "No rule is broken, as far as could be judged: see below."
		}
		if total.Retransmitted == 0 {
			return head
		}
		return fmt.Sprintf(head+" %s of %s sent again.",
			digits(100*total.RetransmissionShare())+" %", count(total.DataFrames, "data frame was", "data frames were"))
	}
	rules := map[conform.Rule]bool{}
	for _, g := range c.order {
		if g.severity == conform.Breach {
			rules[g.check.Rule()] = true
		}
	}
	return fmt.Sprintf("%s broken, %s.", count(uint64(len(rules)), "rule is", "rules are"), count(c.breaches, "time", "times"))
}

func (c *checker) verdictColour() string {
	if c.breaches > 0 {
		return term.Red
	}
	return term.Green
}

func colourOf(s conform.Severity) string {
	switch s {
	case conform.Breach:
		return term.Red
	case conform.Note:
		return term.Yellow
	}
	return term.Cyan
}

func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// ranked returns the groups of a severity, ordered by importance, then by frequency.
func (c *checker) ranked(sev conform.Severity) []*group {
	var out []*group
	for _, g := range c.order {
		if g.severity == sev {
			out = append(out, g)
		}
	}
	slices.SortStableFunc(out, func(a, b *group) int {
		return cmp.Or(cmp.Compare(weight(b.check.Rule()), weight(a.check.Rule())), cmp.Compare(b.n, a.n))
	})
	return out
}

// where returns the name of a group's flow.
func (c *checker) where(g *group) string {
	if !g.src.IsValid() {
		return ""
	}
	return fmt.Sprintf("%s QP %s%s", g.between(" -> "), hex(g.qp), g.in())
}

// framesOf lists the first frames of a group.
func (c *checker) framesOf(g *group) string {
	var b strings.Builder
	file := ""
	shown := 0
	for _, n := range g.frames {
		name, n := c.place(n)
		if n == 0 {
			continue
		}
		switch {
		case shown == 0 && len(c.spans) > 1:
			fmt.Fprintf(&b, "  %s frame %d", name, n)
		case shown == 0:
			fmt.Fprintf(&b, "  frame %d", n)
		case name != file:
			fmt.Fprintf(&b, ", %s frame %d", name, n)
		default:
			fmt.Fprintf(&b, ", %d", n)
		}
		file = name
		shown++
	}
	if uint64(len(g.frames)) < g.n {
		b.WriteString(", ...")
	}
	if shown == 0 {
		return "  (at the end)"
	}
	return b.String()
}

// writeFlows writes the table of flows.
func (c *checker) writeFlows() {
	rows := [][]string{{"flow", "QP", "svc", "MTU", "frames", "data", "resent", "gaps", "dup", "NAK", "RNR", "CNP", "CE", "msgs", "done", "p50", "p99", "p999", "goodput", "eff"}}
	for i := range c.flows {
		if i == 200 && !c.all {
			break
		}
		f := &c.flows[i]
		k := &f.counters
		lat := func(d time.Duration) string {
			if f.latency.n == 0 {
				return "-"
			}
			return short(d)
		}
		mtu := "-"
		if f.mtu != 0 {
			mtu = fmt.Sprint(f.mtu)
		}
		rows = append(rows, []string{f.between(">") + f.in(), hex(f.qp), f.service.String(), mtu,
			fmt.Sprint(k.Frames), fmt.Sprint(k.DataFrames), fmt.Sprint(k.Retransmitted), fmt.Sprint(k.SequenceError), fmt.Sprint(k.Duplicates),
			fmt.Sprint(k.Naks), fmt.Sprint(k.RNRs), fmt.Sprint(k.CNPs), fmt.Sprint(k.CE), fmt.Sprint(k.MessagesTx), fmt.Sprint(k.MessagesDone),
			lat(f.latency.p50), lat(f.latency.p99), lat(f.latency.p999), rate(k.Goodput()), fmt.Sprintf("%.0f%%", 100*k.PayloadEfficiency())})
	}
	fmt.Fprintf(c.out, "\nFlows (packets to a QP; the other direction of a connection is below it)\n")
	c.table(rows)
	if n := len(c.flows) + c.moreFlows - (len(rows) - 1); n > 0 {
		fmt.Fprintf(c.out, "  ... and %d flows more\n", n)
	}
}

// seldom lists the columns of the table of flows that are left out first when it is too wide.
var seldom = []string{"eff", "p999", "CE", "CNP", "dup", "svc", "MTU", "gaps", "RNR", "msgs", "data"}

// table writes the table of flows within the width of the report: columns that do not fit are
// left out, and a flow whose addresses are too long gets a line for them.
func (c *checker) table(rows [][]string) {
	widths := make([]int, len(rows[0]))
	whole := 1
	for i := range widths {
		for _, r := range rows {
			widths[i] = max(widths[i], len([]rune(r[i])))
		}
		whole += 1 + widths[i]
	}
	for _, name := range seldom {
		if i := slices.Index(rows[0], name); i >= 0 && whole > c.columns {
			whole -= 1 + widths[i]
			widths[i] = 0
		}
	}
	apart := whole > c.columns
	for n, r := range rows {
		var b strings.Builder
		b.WriteString(" ")
		for i, s := range r {
			space := strings.Repeat(" ", max(0, widths[i]-len([]rune(s))))
			switch {
			case widths[i] == 0:
			case i == 0 && apart && n == 0:
			case i == 0 && apart:
				b.WriteString(" " + s + "\n ")
			case i < 4:
				b.WriteString(" " + s + space)
			default:
				b.WriteString(" " + space + s)
			}
		}
		l := strings.TrimRight(b.String(), " ")
		if n == 0 {
			l = c.paint(term.Dim, l)
		}
		fmt.Fprintln(c.out, l)
	}
}

// lines writes text in lines that start with indent, within the width of the report.
func (c *checker) lines(indent, text string) {
	for _, l := range wrap(text, c.columns-len(indent)) {
		fmt.Fprintf(c.out, "%s%s\n", indent, l)
	}
}

func (c *checker) writeKeyFigures(t *conform.Counters) {
	fmt.Fprintf(c.out, "\nKey figures of all flows\n")
	for _, r := range c.keyFigures(t) {
		for i, l := range wrap(r[1], c.columns-23) {
			fmt.Fprintf(c.out, "  %s %s\n", pad([2]string{r[0]}[min(i, 1)], 20), l)
		}
	}
}

// keyFigures returns names and values of the key figures.
func (c *checker) keyFigures(t *conform.Counters) [][2]string {
	out := [][2]string{
		{"data frames", fmt.Sprintf("%d, %d bytes of payload, %.1f %% of the bytes on the wire", t.DataFrames, t.GoodBytes, 100*t.PayloadEfficiency())},
		{"goodput", goodput(t)},
		{"retransmitted", fmt.Sprintf("%d (%.3f %%), out of order %d, copies %d, gaps %d", t.Retransmitted, 100*t.RetransmissionShare(), t.OutOfOrder, t.Duplicates, t.SequenceError)},
		{"responses", fmt.Sprintf("%d acknowledgements, %d NAKs (%d sequence errors), %d RNR NAKs (%s waited)", t.Acks, t.Naks, t.NakSequence, t.RNRs, short(t.RNRWait))},
		{"messages", fmt.Sprintf("%d sent, %d acknowledged, %d failed", t.MessagesTx, t.MessagesDone, t.MessagesFail)},
		{"congestion", fmt.Sprintf("%d CE marks, %d CNPs (%.1f a second)", t.CE, t.CNPs, t.CNPRate())},
	}
	if f := figuresOf(c.w.Latency()); f.n > 0 {
		out = append(out, [2]string{"latency", fmt.Sprintf("min %s, avg %s, p50 %s, p99 %s, p999 %s, max %s", short(f.min), short(f.mean), short(f.p50), short(f.p99), short(f.p999), short(f.max))})
	}
	if f := figuresOf(c.w.Completion()); f.n > 0 {
		out = append(out, [2]string{"flow completion", fmt.Sprintf("min %s, avg %s, p50 %s, p99 %s, p999 %s, max %s", short(f.min), short(f.mean), short(f.p50), short(f.p99), short(f.p999), short(f.max))})
	}
	for prio := range 8 {
		if p := c.w.Pauses(prio); p.Frames+p.Resume > 0 {
			out = append(out, [2]string{fmt.Sprintf("pauses, priority %d", prio), fmt.Sprintf("%d frames, %d resumes, %s stopped", p.Frames, p.Resume, short(p.Time))})
		}
	}
	if t.ICRCBad+t.Invalid > 0 {
		out = append(out, [2]string{"dropped by receivers", fmt.Sprintf("%d with a bad ICRC, %d malformed", t.ICRCBad, t.Invalid)})
	}
	if t.Retransmitted > 0 {
		out = append(out, [2]string{"caused by", fmt.Sprintf("%d NAKs, %d implied NAKs, %d RNR NAKs, %d time-outs, %d not shown",
			t.PacketSeqErr, t.ImpliedNakSeqErr, t.RNRNakRetry, t.LocalAckTimeoutErr, t.UnknownCause)})
	}
	return out
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d)
	case d < time.Millisecond:
		return digits(float64(d)/1e3) + "us"
	case d < time.Second:
		return digits(float64(d)/1e6) + "ms"
	}
	return digits(float64(d)/1e9) + "s"
}

func digits(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// rate formats bits per second with a unit prefix.
func rate(v float64) string {
	switch {
	case v <= 0:
		return "-"
	case v < 1e3:
		return digits(v)
	case v < 1e6:
		return digits(v/1e3) + "k"
	case v < 1e9:
		return digits(v/1e6) + "M"
	}
	return digits(v/1e9) + "G"
}
