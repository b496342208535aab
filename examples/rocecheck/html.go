package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/roce-go/roce/qp/conform"
)

// pageConnections is how many connections the page shows in detail.
const pageConnections = 6

// half is one direction of requests of a connection, and their responses.
type half struct {
	req, rsp *flowRow // rsp may be nil
	badness  uint64
}

// halves returns the directions that the page shows, worst first, or those of the QPs given
// by -qp.
func (c *checker) halves() []half {
	bad := map[*flowRow]uint64{}
	for _, g := range c.order {
		for i := range c.flows {
			f := &c.flows[i]
			if f.flowKey == g.flowKey {
				switch g.severity {
				case conform.Breach:
					bad[f] += 1_000_000 + g.n
				case conform.Note:
					bad[f] += 100
				default:
					bad[f] += g.n
				}
			}
		}
	}
	var out []half
	for i := range c.flows {
		f := &c.flows[i]
		if f.track == nil || f.track.classes[conform.ClassNew]+f.track.classes[conform.ClassResent] == 0 {
			continue
		}
		h := half{req: f, badness: bad[f]}
		if g := c.other(i); g != nil && g.track != nil {
			h.rsp = g
			h.badness += bad[g]
		}
		if c.filter.qps != nil && !c.filter.qps[f.qp] && !c.filter.qps[f.peerQP] {
			continue
		}
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b half) int {
		return cmp.Or(cmp.Compare(b.badness, a.badness), cmp.Compare(b.req.counters.Bytes, a.req.counters.Bytes))
	})
	if c.filter.qps == nil && len(out) > pageConnections {
		out = out[:pageConnections]
	}
	return out
}

// writeHTML writes the page. It is self-contained: style and pictures are inline, there is no
// script, and nothing is loaded.
func (c *checker) writeHTML(b *bytes.Buffer) {
	total := c.w.Total()
	name := strings.Join(c.files, ", ")
	fmt.Fprintf(b, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>rocecheck: %s</title>\n<style>%s</style>\n</head>\n<body>\n",
		html.EscapeString(name), style)
	class := "good"
	switch {
	case c.breaches > 0:
		class = "bad"
	case total.RetransmissionShare() > .001:
		class = "fair"
	}
	fmt.Fprintf(b, "<header><h1>%s</h1><p class=\"verdict %s\">%s</p><p>%d frames, %d of them RoCE, %d flows, %s from %s</p></header>\n",
		html.EscapeString(name), class, html.EscapeString(c.verdict()), c.w.Frames(), c.w.RoCEFrames(), len(c.flows)+c.moreFlows,
		short(c.last.Sub(c.first)), c.first.UTC().Format("2006-01-02 15:04:05 MST"))

	halves := c.halves()
	c.htmlScreen(b, halves, &total)
	c.htmlFindings(b, halves)
	if len(halves) > 0 {
		b.WriteString("<section><h2>Time lines</h2>\n<p class=\"legend\">")
		for _, k := range kinds {
			fmt.Fprintf(b, "<span><svg width=\"14\" height=\"12\" aria-hidden=\"true\"><path class=\"%s\" d=\"M7 6h0\"/></svg>%s</span> ", k.class, k.name)
		}
		b.WriteString("</p>\n<p class=\"legend\">Time without packets is cut out where a bar with two lines stands. The mouse on a mark shows the packet, where there are not too many.</p>\n")
		for i := range halves {
			c.htmlHalf(b, i, &halves[i])
		}
		b.WriteString("</section>\n")
	} else if c.filter.qps != nil {
		b.WriteString("<section><h2>Time lines</h2><p>None of the chosen QPs sent a request in this capture.</p></section>\n")
	}
	b.WriteString("<section><h2>Key figures</h2><dl>\n")
	for _, r := range c.keyFigures(&total) {
		fmt.Fprintf(b, "<dt>%s</dt><dd>%s</dd>\n", html.EscapeString(r[0]), html.EscapeString(r[1]))
	}
	b.WriteString("</dl></section>\n")
	c.htmlFlows(b)
	b.WriteString("</body>\n</html>\n")
}

// htmlScreen writes the summary at the top of the page.
func (c *checker) htmlScreen(b *bytes.Buffer, halves []half, total *conform.Counters) {
	list := func(head string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(b, "<section><h2>%s</h2><ul>\n", head)
		for _, s := range items {
			fmt.Fprintf(b, "<li>%s</li>\n", s)
		}
		b.WriteString("</ul></section>\n")
	}
	escaped := func(in []string) (out []string) {
		for _, s := range in {
			out = append(out, html.EscapeString(s))
		}
		return out
	}
	list("What it costs", escaped(c.cost(total)))
	list("What to look at", escaped(c.advice()))
	var worst []string
	for _, r := range c.worst(5) {
		s := html.EscapeString(r.String())
		if i := chartOf(halves, r.flowKey); i >= 0 {
			s = fmt.Sprintf("<a href=\"#c%d\">%s</a>", i, s)
		}
		worst = append(worst, s)
	}
	list("Worst connections", worst)
	list("Not judged", escaped(c.unjudged()))
}

// chartOf returns the number of the time line that shows a flow, or -1.
func chartOf(halves []half, k flowKey) int {
	is := func(f *flowRow) bool { return f != nil && f.flowKey == k }
	for i := range halves {
		if is(halves[i].req) {
			return i
		}
	}
	for i := range halves {
		if is(halves[i].rsp) {
			return i
		}
	}
	return -1
}

func (c *checker) htmlFindings(b *bytes.Buffer, halves []half) {
	b.WriteString("<section><h2>Findings</h2>\n")
	if len(c.order) == 0 {
		b.WriteString("<p>None.</p></section>\n")
		return
	}
	b.WriteString("<table><thead><tr><th>severity</th><th>rule</th><th>what</th><th class=\"n\">times</th><th>flow</th><th>frames</th></tr></thead><tbody>\n")
	n := 0
	for _, sev := range []conform.Severity{conform.Breach, conform.Note, conform.Event} {
		for _, g := range c.ranked(sev) {
			if n++; n > 300 {
				break
			}
			text := ""
			if len(g.texts) > 0 {
				text = g.texts[0]
			}
			where := html.EscapeString(c.where(g))
			if i := chartOf(halves, g.flowKey); i >= 0 {
				where = fmt.Sprintf("<a href=\"#c%d\">%s</a>", i, where)
			}
			fmt.Fprintf(b, "<tr class=\"%s\"><td>%s</td><td title=\"%s\">%s</td><td>%s</td><td class=\"n\">%d</td><td>%s</td><td>%s</td></tr>\n",
				sev, sev, html.EscapeString(g.check.Rule().Title()), g.check.Rule(), html.EscapeString(text), g.n, where,
				html.EscapeString(strings.TrimPrefix(strings.TrimSpace(c.framesOf(g)), "frame ")))
		}
	}
	b.WriteString("</tbody></table>\n")
	if n > 300 {
		fmt.Fprintf(b, "<p>... and %d kinds more.</p>\n", n-300)
	}
	b.WriteString("</section>\n")
}

func (c *checker) htmlFlows(b *bytes.Buffer) {
	b.WriteString("<section><h2>Flows</h2><p>Packets to a QP; the other direction of a connection is below it.</p>\n<table class=\"flows\"><thead><tr>")
	heads := []string{"flow", "QP", "service", "MTU", "frames", "data", "resent", "gaps", "copies", "NAK", "RNR", "CNP", "CE", "msgs", "done", "p50", "p99", "p999", "goodput", "eff."}
	for i, h := range heads {
		class := ""
		if i >= 3 {
			class = " class=\"n\""
		}
		fmt.Fprintf(b, "<th%s>%s</th>", class, h)
	}
	b.WriteString("</tr></thead><tbody>\n")
	for i := range c.flows {
		if i == 500 {
			break
		}
		f := &c.flows[i]
		k := &f.counters
		fmt.Fprintf(b, "<tr><td>%s%s</td><td>%s</td><td>%s</td>", f.between(" &rarr; "), f.in(), hex(f.qp), f.service)
		for _, v := range []uint64{uint64(f.mtu), k.Frames, k.DataFrames, k.Retransmitted, k.SequenceError, k.Duplicates, k.Naks, k.RNRs, k.CNPs, k.CE, k.MessagesTx, k.MessagesDone} {
			if v == 0 {
				b.WriteString("<td class=\"n zero\">0</td>")
			} else {
				fmt.Fprintf(b, "<td class=\"n\">%d</td>", v)
			}
		}
		lat := [3]string{"-", "-", "-"}
		if f.latency.n > 0 {
			lat = [3]string{short(f.latency.p50), short(f.latency.p99), short(f.latency.p999)}
		}
		for _, s := range lat {
			fmt.Fprintf(b, "<td class=\"n\">%s</td>", s)
		}
		fmt.Fprintf(b, "<td class=\"n\">%s</td><td class=\"n\">%.0f %%</td></tr>\n", rate(k.Goodput()), 100*k.PayloadEfficiency())
	}
	b.WriteString("</tbody></table>\n")
	if n := len(c.flows) + c.moreFlows - 500; n > 0 {
		fmt.Fprintf(b, "<p>... and %d flows more.</p>\n", n)
	}
	b.WriteString("</section>\n")
}

// htmlHalf writes the pictures of one direction.
func (c *checker) htmlHalf(b *bytes.Buffer, n int, h *half) {
	f := h.req
	peer := "its peer is not known"
	if f.peerQP != 0 {
		peer = "responses to QP " + hex(f.peerQP)
	}
	fmt.Fprintf(b, "<article id=\"c%d\"><h3>Requests of %s QP %s%s <small>%s, %s, MTU %s</small></h3>\n", n, f.between(" to "), hex(f.qp), f.in(), peer, f.service, mtuText(f.mtu))
	c.chartPSN(b, h)
	b.WriteString("<div class=\"pair\">\n")
	chartGoodput(b, h)
	chartLatency(b, f)
	b.WriteString("</div></article>\n")
}

func mtuText(m int) string {
	if m == 0 {
		return "unknown"
	}
	return fmt.Sprint(m)
}

const style = `
:root{--ink:#1c2430;--dim:#667080;--line:#d9dee6;--paper:#fff;--panel:#f6f8fa;--new:#2b6cb0;--response:#98a2b3;--data:#0f8a7e;--resent:#c92a2a;--copy:#b7791f;--nak:#8b0000;--rnr:#b5179e;--cnp:#6d28d9;--invalid:#111;--pause:#f2c14e}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#98a2b3;--line:#39424e;--paper:#161b22;--panel:#1d242d;--new:#6cb0f5;--response:#6b7585;--data:#3cc9b8;--resent:#ff6b6b;--copy:#e6b450;--nak:#ff8f8f;--rnr:#f06ad6;--cnp:#b392f0;--invalid:#fff;--pause:#806218}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1320px;padding:24px;background:var(--paper);color:var(--ink);font:14px/1.5 system-ui,sans-serif}
h1{font-size:20px;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:32px 0 8px}h3{font-size:14px;margin:0 0 8px}small{color:var(--dim);font-weight:400;margin-left:8px}
.verdict{font-size:18px;font-weight:600;margin:8px 0}.good{color:#2f7d32}.fair{color:var(--copy)}.bad{color:var(--resent)}
@media (prefers-color-scheme:dark){.good{color:#6fcf73}}
p{margin:6px 0}ul{margin:0;padding-left:20px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}dt{color:var(--dim)}dd{margin:0}
section{overflow-x:auto}td:nth-child(5),td:nth-child(2){white-space:nowrap}
table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:left;padding:3px 8px;border-bottom:1px solid var(--line);vertical-align:top}th{color:var(--dim);font-weight:500}
.flows td,.flows th{white-space:nowrap;padding:3px 6px}.n{text-align:right;font-variant-numeric:tabular-nums}.zero{color:var(--dim);opacity:.6}
tr.breach td:first-child{color:var(--resent);font-weight:600}tr.note td:first-child{color:var(--copy)}tr.event td:first-child{color:var(--dim)}
article{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:14px;margin:12px 0}
.pair{display:grid;grid-template-columns:3fr 2fr;gap:12px}
.legend span{display:inline-block;margin-right:12px;white-space:nowrap}.legend svg{vertical-align:-1px}
svg{display:block;width:100%;height:auto}.legend svg{display:inline;width:14px}
svg text{fill:var(--dim);font-size:11px}svg text.t{fill:var(--ink);font-size:12px}
.axis{stroke:var(--line);fill:none}
path.new,path.response,path.data,path.resent,path.copy,path.late,path.nak,path.rnr,path.cnp,path.invalid{fill:none;stroke-linecap:round}
path.new{stroke:var(--new);stroke-width:4}path.response{stroke:var(--response);stroke-width:3}path.data{stroke:var(--data);stroke-width:4}
path.resent{stroke:var(--resent);stroke-width:6}path.copy{stroke:var(--copy);stroke-width:6}path.late{stroke:var(--copy);stroke-width:4}
path.nak{stroke:var(--nak);stroke-width:9;stroke-linecap:square}path.rnr{stroke:var(--rnr);stroke-width:9;stroke-linecap:square}
path.cnp{stroke:var(--cnp);stroke-width:7}path.invalid{stroke:var(--invalid);stroke-width:7}
.cut{stroke:var(--dim);stroke-width:1.5}a{color:inherit}article:target{border-color:var(--new)}
.pause{stroke:var(--pause);stroke-width:2}
.area{fill:var(--new);opacity:.25}.edge{fill:none;stroke:var(--new);stroke-width:1.5}.area.r{fill:var(--data)}.edge.r{stroke:var(--data)}
.bar{fill:var(--new)}
@media (max-width:760px){.pair{grid-template-columns:1fr}}
`
