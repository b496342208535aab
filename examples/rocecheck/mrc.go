package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/conform/mrcwatch"
)

// mrcChecker judges MRC packets and keeps what the report needs.
type mrcChecker struct {
	w        *mrcwatch.Watcher
	finding  mrcwatch.Finding
	breaches uint64
	notes    uint64
	events   uint64
	groups   map[mrcKey]*mrcGroup
	order    []*mrcGroup
	flows    []mrcwatch.Flow
	more     int // flows beyond maxFlows
	leftOut  int // flows excluded by -qp and -host
}

type mrcKey struct {
	check    mrcwatch.Check
	severity conform.Severity
	src, dst netip.Addr
	qp       uint32
}

type mrcGroup struct {
	mrcKey
	n      uint64
	frames []uint64
	text   string
}

func (c *checker) startMRC() {
	m := &mrcChecker{groups: map[mrcKey]*mrcGroup{}}
	w, err := mrcwatch.New(mrcwatch.Config{
		Finder: frame.Finder{UDPPort: c.cfg.UDPPort, TrimmedDSCP: c.mrcOptions.Trimmed, Tunnels: true},
		Halves: c.mrcOptions.Halves, Complete: c.cfg.Complete, Closed: func(f *mrcwatch.Flow) {
			if !c.filter.keeps(f.Src, f.Dst, f.QP, f.PeerQP) {
				m.leftOut++
				return
			}
			m.closed(f)
		},
	})
	if err != nil {
		panic(err) // cannot happen: parse has checked the options
	}
	m.w = w
	c.mrc = m
}

func (m *mrcChecker) closed(f *mrcwatch.Flow) {
	if len(m.flows) >= maxFlows {
		m.more++
		return
	}
	row := *f
	counters := *f.Counters
	row.Counters = &counters
	row.Paths = slices.Clone(f.Paths)
	m.flows = append(m.flows, row)
}

// handleMRC judges the current record, and reports whether it is an MRC packet.
func (c *checker) handleMRC() bool {
	r := &c.rec
	taken := c.mrc.w.HandleFrame(c.w.Frames()+1, r.Time, r.Link, r.Data, r.WireLen)
	if taken { // counted, so that frame numbers agree; the RoCE watcher ignores an empty frame
		c.w.HandleFrame(r.Time, r.Link, nil, 0)
	}
	c.drainMRC()
	return taken
}

// mrcJudged reports whether any MRC packet was judged that the options select.
func (c *checker) mrcJudged() bool {
	m := c.mrc
	return m != nil && m.w.Packets() > 0 && !(m.leftOut > 0 && len(m.flows) == 0 && m.breaches == 0)
}

func (c *checker) drainMRC() {
	m := c.mrc
	for m.w.NextFinding(&m.finding) {
		f := &m.finding
		if !c.filter.keeps(f.Src, f.Dst, f.QP, 0) {
			continue
		}
		switch f.Severity {
		case conform.Breach:
			m.breaches++
		case conform.Note:
			m.notes++
		default:
			m.events++
		}
		if c.json {
			c.writeMRCFinding(f)
		}
		k := mrcKey{f.Check, f.Severity, f.Src, f.Dst, f.QP}
		g := m.groups[k]
		if g == nil {
			if len(m.groups) >= maxGroups {
				continue
			}
			g = &mrcGroup{mrcKey: k, text: f.String()}
			m.groups[k] = g
			m.order = append(m.order, g)
		}
		g.n++
		if len(g.frames) < maxSample {
			g.frames = append(g.frames, f.Frame)
		}
	}
}

func (c *checker) finishMRC() {
	c.mrc.w.Finish()
	c.drainMRC()
	slices.SortStableFunc(c.mrc.flows, func(a, b mrcwatch.Flow) int { return cmp.Compare(a.First, b.First) })
}

func (c *checker) writeMRCFinding(f *mrcwatch.Finding) {
	j := jsonFinding{Type: "finding", Severity: f.Severity.String(), Rule: f.Check.String(), Check: f.Check.String(),
		Time: stamp(f.Time), PSN: uint32(f.PSN), Text: f.String(), Src: f.Src.String(), Dst: f.Dst.String(), QP: hex(f.QP)}
	j.File, j.Frame = c.place(f.Frame)
	_, j.Earlier = c.place(f.Earlier)
	c.writeJSON(&j)
}

func (c *checker) writeJSON(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: numbers and strings
	}
	c.out.Write(b)
	c.werr = c.out.WriteByte('\n')
}

type jsonMRCPath struct {
	Entropy       string    `json:"entropy"`
	Packets       uint64    `json:"packets"`
	CE            uint64    `json:"ecn_ce"`
	CEShare       float64   `json:"ecn_ce_share"`
	Retransmitted uint64    `json:"retransmitted"`
	SACKs         [4]uint64 `json:"sack_m"`
	NACKs         uint64    `json:"nacks"`
}

type jsonMRCFlow struct {
	Type           string            `json:"type"`
	Src            string            `json:"src"`
	Dst            string            `json:"dst"`
	QP             string            `json:"qp"`
	PeerQP         string            `json:"peer_qp,omitempty"`
	Packets        uint64            `json:"packets"`
	PayloadBytes   uint64            `json:"payload_bytes"`
	GoodBytes      uint64            `json:"good_bytes"`
	Retransmitted  uint64            `json:"retransmitted"`
	Copies         uint64            `json:"copies"`
	OutOfOrder     uint64            `json:"out_of_order"`
	Holes          uint64            `json:"holes"`
	Trimmed        uint64            `json:"trimmed"`
	CE             uint64            `json:"ecn_ce"`
	Messages       uint64            `json:"messages"`
	SACKs          uint64            `json:"sacks"`
	SACKVerdicts   [4]uint64         `json:"sack_m"`
	NACKs          uint64            `json:"nacks"`
	NACKReasons    map[string]uint64 `json:"nack_reasons,omitempty"`
	Acks           uint64            `json:"acks"`
	NAKs           uint64            `json:"naks"`
	Probes         uint64            `json:"probes"`
	ProbesAnswered uint64            `json:"probes_answered"`
	PathsInUse     int               `json:"paths_in_use"`
	Paths          []jsonMRCPath     `json:"paths"`
	First          string            `json:"first_timestamp"`
	Last           string            `json:"last_timestamp"`
}

// writeMRCTotals writes the flows and the total as JSON.
func (c *checker) writeMRCTotals() {
	m := c.mrc
	for i := range m.flows {
		f := &m.flows[i]
		j := jsonMRCFlow{Type: "mrc_flow", Src: f.Src.String(), Dst: f.Dst.String(), QP: hex(f.QP),
			Packets: f.Packets, PayloadBytes: f.PayloadBytes, GoodBytes: f.GoodBytes, Retransmitted: f.Retransmitted,
			Copies: f.Copies, OutOfOrder: f.OutOfOrder, Holes: f.Holes, Trimmed: f.Trimmed, CE: f.CE, Messages: f.Messages,
			SACKs: f.SACKs, SACKVerdicts: f.SACKVerdicts, NACKs: f.NACKs, NACKReasons: map[string]uint64{}, Acks: f.Acks, NAKs: f.NAKs,
			Probes: f.Probes, ProbesAnswered: f.ProbesAnswered, PathsInUse: len(f.Paths), Paths: []jsonMRCPath{},
			First: stamp(time.Unix(0, f.First).UTC()), Last: stamp(time.Unix(0, f.Last).UTC())}
		if f.PeerQP != 0 {
			j.PeerQP = hex(f.PeerQP)
		}
		for r, n := range f.NACKReasons {
			if n > 0 {
				j.NACKReasons[mrc.Reason(r).String()] = n
			}
		}
		for _, p := range busiest(f.Paths) {
			j.Paths = append(j.Paths, jsonMRCPath{fmt.Sprintf("0x%08x", p.Entropy), p.Packets, p.CE, share(p.CE, p.Packets), p.Retransmitted, p.Verdicts, p.NACKs})
		}
		c.writeJSON(&j)
	}
	c.writeJSON(struct {
		Type     string `json:"type"`
		Packets  uint64 `json:"packets"`
		Breaches uint64 `json:"breaches"`
		Notes    uint64 `json:"notes"`
		Events   uint64 `json:"events"`
		Flows    int    `json:"flows"`
		Unpaired uint64 `json:"unpaired"`
	}{"mrc_total", m.w.Packets(), m.breaches, m.notes, m.events, len(m.flows) + m.more, m.w.Unpaired()})
}

func share(part, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

func busiest(paths []mrcwatch.Path) []mrcwatch.Path {
	paths = slices.Clone(paths)
	slices.SortFunc(paths, func(a, b mrcwatch.Path) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Entropy, b.Entropy))
	})
	return paths
}

// textPaths is the number of paths of a flow in the text; JSON has all of them.
const textPaths = 8

// writeMRC writes the report on MRC as text.
func (c *checker) writeMRC() {
	m := c.mrc
	p := func(format string, args ...any) { _, c.werr = fmt.Fprintf(c.out, format, args...) }
	p("\nMRC (experimental: only what independent readers of the specification agree on is judged)\n")
	if m.w.Packets() == 0 {
		p("  No MRC packet was found: opcodes 0xc6 to 0xde to UDP port 4791 (-port says another).\n")
		return
	}
	if !c.mrcJudged() {
		p("  The capture has %s, and none that -qp and -host name.\n", count(uint64(m.leftOut), "MRC flow", "MRC flows"))
		return
	}
	verdict := "no rule is broken"
	if m.breaches > 0 {
		verdict = "rules are broken, " + count(m.breaches, "time", "times")
	}
	p("  %s, %s: %s\n", count(m.w.Packets(), "packet", "packets"), count(uint64(len(m.flows)+m.more), "flow", "flows"),
		c.paint(colourOf(severityOf(m.breaches)), verdict))
	if n := m.w.Unpaired(); n > 0 {
		p("  not judged against requests: %s, of flows that are not known\n", count(n, "response", "responses"))
	}
	for _, sev := range []conform.Severity{conform.Breach, conform.Note, conform.Event} {
		for _, g := range m.order {
			if g.severity != sev {
				continue
			}
			p("  %s %s  %d x  %v -> %v QP %s%s\n      %s\n", c.paint(colourOf(sev), pad(sev.String(), 6)), pad(g.check.String(), 17), g.n,
				g.src, g.dst, hex(g.qp), c.framesOf(&group{n: g.n, frames: g.frames}), g.text)
		}
	}
	for i := range m.flows {
		f := &m.flows[i]
		if i == 50 && !c.all {
			p("  ... and %d flows more\n", len(m.flows)+m.more-i)
			break
		}
		p("  %v -> %v QP %s: %s, %d bytes of payload, %s\n", f.Src, f.Dst, hex(f.QP), count(f.Packets, "WRITE packet", "WRITE packets"),
			f.GoodBytes, count(f.Messages, "message", "messages"))
		p("      sent again %d, holes %d, out of order %d, copies %d, trimmed %d\n", f.Retransmitted, f.Holes, f.OutOfOrder, f.Copies, f.Trimmed)
		p("      %d SACKs (skip once %d, skip always %d), %d NACKs%s, %d ACKs, %d NAKs, %d of %d probes had a response\n",
			f.SACKs, f.SACKVerdicts[mrc.PathSkip], f.SACKVerdicts[mrc.PathBad], f.NACKs, reasons(f.NACKReasons[:]), f.Acks, f.NAKs,
			f.ProbesAnswered, f.Probes)
		p("      %s in use, congestion experienced %.1f %%\n", count(uint64(len(f.Paths)), "path", "paths"), 100*share(f.CE, f.Packets))
		for i, path := range busiest(f.Paths) {
			if i == textPaths && !c.all {
				p("        ... (-all lists them)\n")
				break
			}
			p("        ev 0x%08x: %d packets, congestion experienced %.1f %%, sent again %d\n", path.Entropy, path.Packets,
				100*share(path.CE, path.Packets), path.Retransmitted)
		}
	}
}

func severityOf(breaches uint64) conform.Severity {
	if breaches > 0 {
		return conform.Breach
	}
	return conform.Event
}

func reasons(n []uint64) string {
	s, sep := "", " ("
	for r, n := range n {
		if n > 0 {
			s += fmt.Sprintf("%s%v %d", sep, mrc.Reason(r), n)
			sep = ", "
		}
	}
	if s != "" {
		s += ")"
	}
	return s
}
