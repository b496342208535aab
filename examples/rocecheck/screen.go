package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

// flowRows are the flows that were closed.
type flowRows struct {
	flows     []flowRow
	moreFlows int
	leftOut   int // flows excluded by -qp and -host
}

// costs are the costs of a flow's events, as time that its sender waited.
type costs struct {
	timers, rnrs uint64
	timer, rnr   time.Duration
}

type flowKey struct {
	src, dst netip.Addr
	qp       uint32
	network  frame.Segment // VLANs and tunnel; zero: none
}

// flowOf returns the flow of a finding.
func flowOf(f *conform.Finding) flowKey { return flowKey{f.Src, f.Dst, f.QP, f.Segment} }

// between returns its two addresses, with arrow between them.
func (k *flowKey) between(arrow string) string {
	return k.src.String() + arrow + k.dst.String()
}

// in returns the network, after a space and in brackets, or "".
func (k *flowKey) in() string {
	if s := k.network.String(); s != "" {
		return " (" + s + ")"
	}
	return ""
}

// charge adds the cost of finding f.
func (c *checker) charge(f *conform.Finding) {
	if f.Check != conform.ResentTimeout && f.Check != conform.ResentRNR {
		return
	}
	k := flowOf(f)
	o := c.costs[k]
	if o == nil {
		if len(c.costs) >= maxFlows {
			return
		}
		o = &costs{}
		c.costs[k] = o
	}
	if f.Check == conform.ResentTimeout {
		o.timers++
		o.timer += time.Duration(f.Want)
	} else {
		o.rnrs++
		o.rnr += time.Duration(f.Want)
	}
}

// writeScreen writes the summary: what it costs, where it is, which connections are worst,
// what to do, and what was not judged.
func (c *checker) writeScreen(total *conform.Counters) {
	p := func(format string, args ...any) { _, c.werr = fmt.Fprintf(c.out, format, args...) }
	for _, l := range c.cost(total) {
		c.lines("", l)
	}
	if worst := c.worst(5); len(worst) > 0 {
		p("\nWorst connections\n")
		for _, w := range worst {
			c.lines("  ", w.String())
		}
	}
	if advice := c.advice(); len(advice) > 0 {
		p("\nWhat to look at\n")
		for _, a := range advice {
			for i, l := range wrap(a, min(76, c.columns-4)) {
				p("  %s %s\n", [2]string{"-", " "}[min(i, 1)], l)
			}
		}
	}
	c.writeUnjudged()
}

// cost returns lines that tell what was lost, and how much time that cost.
func (c *checker) cost(total *conform.Counters) (out []string) {
	var sum costs
	for _, o := range c.costs {
		sum.timers += o.timers
		sum.timer += o.timer
		sum.rnrs += o.rnrs
		sum.rnr += o.rnr
	}
	whole := short(c.last.Sub(c.first))
	if sum.timers > 0 {
		out = append(out, fmt.Sprintf("Cost: %s took %s, of %s captured.", count(sum.timers, "time-out", "time-outs"), short(sum.timer), whole))
	}
	if sum.rnrs > 0 {
		out = append(out, fmt.Sprintf("Cost: %s for receivers took %s, of %s captured.", count(sum.rnrs, "wait", "waits"), short(sum.rnr), whole))
	}
	if total.SequenceError+total.LostBehind > 0 {
		out = append(out, fmt.Sprintf("Losses: %s before the capture, %s behind it (reported by NAKs).",
			count(total.SequenceError, "gap", "gaps"), count(total.LostBehind, "packet", "packets")))
	}
	return out
}

// wrap breaks s into lines of at most n characters.
func wrap(s string, n int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > n {
			out = append(out, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(out, line)
}

// amiss holds the problems of a flow.
type amiss struct {
	flowKey
	breaches, events uint64
	cost             costs
}

func (r *amiss) String() string {
	var parts []string
	if r.breaches > 0 {
		parts = append(parts, count(r.breaches, "breach", "breaches"))
	}
	if r.events > 0 {
		parts = append(parts, count(r.events, "retransmission", "retransmissions"))
	}
	if d := r.cost.timer + r.cost.rnr; d > 0 {
		parts = append(parts, short(d)+" waited")
	}
	return fmt.Sprintf("%s QP %s%s: %s", r.between(" > "), hex(r.qp), r.in(), strings.Join(parts, ", "))
}

// worst returns the n connections with the most problems.
func (c *checker) worst(n int) []*amiss {
	rows := map[flowKey]*amiss{}
	at := func(k flowKey) *amiss {
		if rows[k] == nil {
			rows[k] = &amiss{flowKey: k}
		}
		return rows[k]
	}
	for _, g := range c.order {
		k := g.flowKey
		switch {
		case !g.src.IsValid():
		case g.severity == conform.Breach:
			at(k).breaches += g.n
		case g.check.Rule() == conform.RuleRetransmit || g.check.Rule() == conform.RuleTimeout:
			at(k).events += g.n
		}
	}
	for k, o := range c.costs {
		at(k).cost = *o
	}
	list := make([]*amiss, 0, len(rows))
	for _, r := range rows {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *amiss) int {
		return cmp.Or(cmp.Compare(b.breaches, a.breaches), cmp.Compare(b.cost.timer+b.cost.rnr, a.cost.timer+a.cost.rnr),
			cmp.Compare(b.events, a.events), a.src.Compare(b.src), a.dst.Compare(b.dst), cmp.Compare(a.qp, b.qp))
	})
	return list[:min(n, len(list))]
}

// unjudged returns, by reason, the rules that could not be judged in full.
func (c *checker) unjudged() []string {
	rules := map[conform.Reason][]string{}
	n := map[conform.Reason]uint64{}
	c.w.NotJudged(func(r conform.Rule, why conform.Reason, k uint64) bool {
		rules[why] = append(rules[why], r.String())
		n[why] = max(n[why], k)
		return true
	})
	var out []string
	for why := conform.Reason(0); why < 16; why++ {
		if len(rules[why]) > 0 {
			out = append(out, fmt.Sprintf("%s: %v (%s).", strings.Join(rules[why], ", "), why, count(n[why], "case", "cases")))
		}
	}
	return out
}

// partly reports whether much could not be judged, for a reason other than lost
// frames and copies.
func (c *checker) partly() (yes bool) {
	c.w.NotJudged(func(_ conform.Rule, why conform.Reason, _ uint64) bool {
		yes = why != conform.ReasonLoss && why != conform.ReasonCopies
		return !yes
	})
	return yes
}

func (c *checker) writeUnjudged() {
	list := c.unjudged()
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(c.out, "\nNot judged\n")
	for _, s := range list {
		for i, l := range wrap(s, min(76, c.columns-4)) {
			fmt.Fprintf(c.out, "  %s %s\n", [2]string{"-", " "}[min(i, 1)], l)
		}
	}
}

// writeNothing writes why there was nothing to judge.
func (c *checker) writeNothing() {
	p := func(format string, args ...any) { _, c.werr = fmt.Fprintf(c.out, format, args...) }
	paused := false
	c.w.PausesBy(func(mac frame.MAC, prio int, s conform.Pauses) bool {
		if !paused {
			p("\nPauses, by their sender\n")
		}
		paused = true
		p("  %02x:%02x:%02x:%02x:%02x:%02x  priority %d  %s, %s, %s stopped\n", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], prio,
			count(s.Frames, "pause", "pauses"), count(s.Resume, "resume", "resumes"), short(s.Time))
		return true
	})
	p("\n")
	c.lines("", c.why())
	if c.w.RoCEFrames() > 0 {
		return
	}
	type other struct {
		p frame.Protocol
		n uint64
	}
	var others []other
	c.w.Others(func(pr frame.Protocol, n uint64) bool {
		others = append(others, other{pr, n})
		return true
	})
	if len(others) == 0 {
		return
	}
	slices.SortFunc(others, func(a, b other) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.p.String(), b.p.String()))
	})
	p("\nWhat there is instead\n")
	for i, o := range others {
		if i == 12 {
			p("  ... and %d kinds more\n", len(others)-i)
			break
		}
		hides := ""
		if o.p.MayHide() {
			hides = "  (RoCE may be inside, unread)"
		}
		p("  %8d  %v%s\n", o.n, o.p, hides)
	}
}

// writeHidden names what may hide RoCE in a capture that has some in the open.
func (c *checker) writeHidden() {
	c.w.Others(func(pr frame.Protocol, n uint64) bool {
		if pr.MayHide() {
			fmt.Fprintf(c.out, "%s of %v were not decoded.\n", count(n, "frame", "frames"), pr)
		}
		return true
	})
}

func (c *checker) port() uint16 {
	if c.cfg.UDPPort == 0 {
		return frame.Port
	}
	return c.cfg.UDPPort
}

// goodput returns the rate of t and its time, or "-" where there is no rate.
func goodput(t *conform.Counters) string {
	if t.Goodput() == 0 {
		return "-"
	}
	return rate(t.Goodput()) + "b/s over " + short(t.Duration())
}
