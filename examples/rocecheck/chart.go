package main

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// kind is one kind of mark on a time line. Later kinds are drawn on top.
type kind struct {
	class string
	name  string
	of    []conform.Class
	rsp   bool // from the other direction
}

var kinds = []kind{
	{"response", "acknowledgement", []conform.Class{conform.ClassAck}, true},
	{"data", "READ response, atomic acknowledgement", []conform.Class{conform.ClassResponse}, true},
	{"new", "request", []conform.Class{conform.ClassNew}, false},
	{"late", "out of order", []conform.Class{conform.ClassLate}, false},
	{"copy", "copy", []conform.Class{conform.ClassCopy}, false},
	{"resent", "sent again", []conform.Class{conform.ClassResent}, false},
	{"invalid", "dropped by receivers", []conform.Class{conform.ClassInvalid}, false},
	{"cnp", "CNP", []conform.Class{conform.ClassCongestion}, true},
	{"rnr", "RNR NAK", []conform.Class{conform.ClassRNR}, true},
	{"nak", "NAK", []conform.Class{conform.ClassNak}, true},
}

// Geometry of a picture, in units of its view box.
const (
	chartW, chartH = 1100.0, 280.0
	left, right    = 70.0, 16.0
	top, bottom    = 22.0, 30.0
)

// axis maps values to coordinates.
type axis struct {
	lo, hi float64 // values
	a, b   float64 // coordinates
}

func (x axis) at(v float64) float64 {
	if x.hi <= x.lo {
		return (x.a + x.b) / 2
	}
	return x.a + (v-x.lo)/(x.hi-x.lo)*(x.b-x.a)
}

// scale is an axis, or a time line with parts cut out.
type scale interface {
	at(float64) float64
	ticks(n int) []float64
	from() float64
	to() float64
}

func (x axis) from() float64 { return x.a }
func (x axis) to() float64   { return x.b }

// maxHover is the largest number of marks of a kind that get a hover text.
const maxHover = 400

// cutLine is a time line of which idle parts are cut out.
type cutLine struct {
	parts []axis
}

// cutIdle cuts out of x the time in which no packet was seen, where it is a large part of the
// whole.
func cutIdle(seen []float64, x axis) cutLine {
	slices.Sort(seen)
	var parts []axis
	lo := x.lo
	for i := 1; i < len(seen); i++ {
		if gap := seen[i] - seen[i-1]; gap > (x.hi-x.lo)/12 && len(parts) < 11 {
			parts = append(parts, axis{lo: lo, hi: seen[i-1]})
			lo = seen[i]
		}
	}
	parts = append(parts, axis{lo: lo, hi: x.hi})
	const cut = 14.0 // width of a cut
	// Each part gets a width in proportion to its time, but at least a minimum.
	whole, busy := x.b-x.a-cut*float64(len(parts)-1), 0.0
	for _, p := range parts {
		busy += p.hi - p.lo
	}
	least := whole / float64(len(parts)) / 3
	free := whole - least*float64(len(parts))
	at := x.a
	for i := range parts {
		p := &parts[i]
		width := least
		if busy > 0 {
			width += free * (p.hi - p.lo) / busy
		} else {
			width += free / float64(len(parts))
		}
		p.a, p.b = at, at+width
		at += width + cut
	}
	return cutLine{parts}
}

func (l cutLine) from() float64 { return l.parts[0].a }
func (l cutLine) to() float64   { return l.parts[len(l.parts)-1].b }

func (l cutLine) at(v float64) float64 {
	for i, p := range l.parts {
		if v <= p.hi || i == len(l.parts)-1 {
			return p.at(max(v, p.lo))
		}
	}
	return 0
}

func (l cutLine) ticks(n int) []float64 {
	if len(l.parts) == 1 {
		return l.parts[0].ticks(n)
	}
	var out []float64
	for _, p := range l.parts {
		out = append(out, p.lo)
	}
	return out
}

// draw marks the cuts.
func (l cutLine) draw(b *bytes.Buffer, y axis) {
	for i := 1; i < len(l.parts); i++ {
		from, to := l.parts[i-1].b, l.parts[i].a
		fmt.Fprintf(b, "<path class=\"cut\" d=\"M%.1f %.1fV%.1fM%.1f %.1fV%.1f\"><title>%s without packets</title></path>\n",
			from+5, y.a, y.b, to-5, y.a, y.b, ns(l.parts[i].lo-l.parts[i-1].hi))
	}
}

// ticks returns at most n+1 round values.
func (x axis) ticks(n int) []float64 {
	if x.hi <= x.lo {
		return []float64{x.lo}
	}
	step := math.Pow(10, math.Floor(math.Log10((x.hi-x.lo)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (x.hi-x.lo)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var out []float64
	for v := math.Ceil(x.lo/step-1e-9) * step; v <= x.hi+step*1e-9; v += step {
		out = append(out, v)
	}
	return out
}

func open(b *bytes.Buffer, w, h float64, title string) {
	fmt.Fprintf(b, "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=%q>\n<text class=\"t\" x=\"%g\" y=\"14\">%s</text>\n", w, h, title, left, title)
}

func grid(b *bytes.Buffer, x scale, y axis, xText, yText func(float64) string, xn, yn int) {
	for _, v := range y.ticks(yn) {
		p := y.at(v)
		fmt.Fprintf(b, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", x.from(), p, x.to(), x.from()-6, p+4, yText(v))
	}
	for _, v := range x.ticks(xn) {
		p := x.at(v)
		fmt.Fprintf(b, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", p, y.a, p, y.a+17, xText(v))
	}
}

// times returns the axis of the times from lo to hi, in nanoseconds.
func (c *checker) times(h *half, a, b float64) axis {
	lo, hi := h.req.counters.First, h.req.counters.Last
	if h.rsp != nil {
		lo, hi = min(lo, h.rsp.counters.First), max(hi, h.rsp.counters.Last)
	}
	if hi == lo {
		hi++
	}
	return axis{float64(0), float64(hi - lo), a, b}
}

func ns(v float64) string {
	if v == 0 {
		return "0"
	}
	s := time.Duration(math.Round(v)).Round(time.Duration(math.Pow(10, math.Floor(math.Log10(v))-2))).String()
	return strings.Replace(s, "µ", "u", 1)
}

// chartPSN draws PSN over time.
func (c *checker) chartPSN(b *bytes.Buffer, h *half) {
	x := c.times(h, left, chartW-right)
	start := h.req.counters.First
	if h.rsp != nil {
		start = min(start, h.rsp.counters.First)
	}
	// PSNs relative to the first request: each point is within half the PSN range (2^23) of
	// the one before.
	first := psn.PSN(0)
	for _, s := range [...]*sample{&h.req.track.plain, &h.req.track.special} {
		if i := slices.IndexFunc(s.points, func(p point) bool { return !p.rsp }); i >= 0 {
			first = psn.PSN(s.points[i].psn)
			break
		}
	}
	type mark struct {
		t, y float64
		p    point
	}
	marks := make([][]mark, len(kinds))
	y := axis{0, 4, chartH - bottom, top} // whole numbers
	collect := func(s *sample, rsp bool) {
		at, u := first, 0
		for _, p := range s.points {
			k := kindOf(p.class, rsp)
			if k < 0 || p.rsp != rsp {
				continue // of the other direction, which has its own PSNs
			}
			v := float64(u)
			if p.class != conform.ClassCongestion {
				u += psn.PSN(p.psn).Diff(at)
				at = psn.PSN(p.psn)
				v = float64(u)
			}
			marks[k] = append(marks[k], mark{float64(p.t - start), v, p})
			y.lo, y.hi = min(y.lo, v), max(y.hi, v)
		}
	}
	collect(&h.req.track.plain, false)
	collect(&h.req.track.special, false)
	if h.rsp != nil {
		collect(&h.rsp.track.plain, true)
		collect(&h.rsp.track.special, true)
	}
	var seen []float64
	for i := range marks {
		for _, m := range marks[i] {
			seen = append(seen, m.t)
		}
	}
	line := cutIdle(seen, x)
	open(b, chartW, chartH, fmt.Sprintf("PSN, from %d, over time", uint32(first)))
	line.draw(b, y)
	grid(b, line, y, ns, func(v float64) string {
		if math.Abs(v) < .5 {
			return "0"
		}
		return fmt.Sprintf("%+.0f", v)
	}, 10, 6)
	if c.tracks != nil {
		for _, p := range c.tracks.pauses.points {
			if v := float64(p.t - start); v >= x.lo && v <= x.hi {
				fmt.Fprintf(b, "<path class=\"pause\" d=\"M%.1f %.1fV%.1f\"/>", line.at(v), y.a, y.b)
			}
		}
	}
	for i, k := range kinds {
		if len(marks[i]) == 0 {
			continue
		}
		if len(marks[i]) <= maxHover {
			for _, m := range marks[i] {
				fmt.Fprintf(b, "<path class=%q d=\"M%.1f %.1fh0\"><title>%s, PSN %d, frame %d, at %s</title></path>\n", k.class, line.at(m.t), y.at(m.y),
					k.name, m.p.psn, m.p.frame, ns(m.t))
			}
			continue
		}
		fmt.Fprintf(b, "<path class=%q d=\"", k.class)
		// Marks at the same coordinates are drawn once.
		last := ""
		for _, m := range marks[i] {
			if s := fmt.Sprintf("M%.1f %.1fh0", line.at(m.t), y.at(m.y)); s != last {
				b.WriteString(s)
				last = s
			}
		}
		fmt.Fprintf(b, "\"><title>%s</title></path>\n", k.name)
	}
	b.WriteString("</svg>\n")
}

func kindOf(class conform.Class, rsp bool) int {
	for i, k := range kinds {
		if k.rsp != rsp {
			continue
		}
		for _, of := range k.of {
			if of == class {
				return i
			}
		}
	}
	return -1
}

// chartGoodput draws good payload over time: of the requests, and of the READ responses.
func chartGoodput(b *bytes.Buffer, h *half) {
	const w, hgt = 660.0, 200.0
	start, end := h.req.counters.First, h.req.counters.Last
	rows := []*bins{&h.req.track.good}
	if h.rsp != nil {
		start, end = min(start, h.rsp.counters.First), max(end, h.rsp.counters.Last)
		if h.rsp.track.classes[conform.ClassResponse] > 0 {
			rows = append(rows, &h.rsp.track.good)
		}
	}
	x := axis{0, float64(max(end-start, 1)), left, w - right}
	y := axis{0, 0, hgt - bottom, top}
	for _, r := range rows {
		for i := 0; i <= r.last && r.width > 0; i++ {
			y.hi = max(y.hi, r.rate(i))
		}
	}
	open(b, w, hgt, "goodput over time, bits per second")
	if y.hi == 0 {
		y.hi = 1
	}
	grid(b, x, y, ns, func(v float64) string {
		if v == 0 {
			return "0"
		}
		return rate(v)
	}, 6, 4)
	for n, r := range rows {
		if r.width == 0 {
			continue
		}
		class := ""
		if n == 1 {
			class = " r"
		}
		var line bytes.Buffer
		for i := 0; i <= r.last; i++ {
			a := x.at(float64(r.start - start + int64(i)*r.width))
			z := x.at(min(x.hi, float64(r.start-start+int64(i+1)*r.width)))
			if i == 0 {
				fmt.Fprintf(&line, "M%.1f %.1f", a, y.a)
			}
			fmt.Fprintf(&line, "V%.1fH%.1f", y.at(r.rate(i)), max(z, a+1))
		}
		fmt.Fprintf(&line, "V%.1f", y.a)
		fmt.Fprintf(b, "<path class=\"area%s\" d=\"%s\"/><path class=\"edge%s\" d=\"%s\"/>\n", class, line.String(), class, line.String())
	}
	b.WriteString("</svg>\n")
}

func (b *bins) rate(i int) float64 { return float64(b.bytes[i]) * 8 / (float64(b.width) / 1e9) }

// chartLatency draws percentiles on a logarithmic scale.
func chartLatency(b *bytes.Buffer, f *flowRow) {
	const w, hgt = 440.0, 200.0
	l := &f.latency
	open(b, w, hgt, "latency, request to acknowledgement")
	if l.n == 0 {
		fmt.Fprintf(b, "<text x=\"%g\" y=\"100\">nothing was acknowledged</text></svg>\n", left)
		return
	}
	rows := []struct {
		name string
		d    time.Duration
	}{{"min", l.min}, {"p50", l.p50}, {"p90", l.p90}, {"p99", l.p99}, {"p999", l.p999}, {"max", l.max}}
	lo := math.Floor(math.Log10(float64(max(l.min, 1))))
	x := axis{lo, math.Max(math.Ceil(math.Log10(float64(max(l.max, 1)))), lo+1), left, w - 70}
	for v := x.lo; v <= x.hi; v++ {
		fmt.Fprintf(b, "<path class=\"axis\" d=\"M%.1f %gV%g\"/><text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
			x.at(v), top, hgt-bottom, x.at(v), hgt-bottom+17, ns(math.Pow(10, v)))
	}
	step := (hgt - bottom - top) / float64(len(rows))
	for i, r := range rows {
		p := top + float64(i)*step
		z := x.at(math.Log10(float64(max(r.d, 1))))
		fmt.Fprintf(b, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text><path class=\"bar\" d=\"M%g %.1fH%.1fv%.1fH%gz\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
			left-6, p+step*.65, r.name, left, p+3, z, step-6, left, z+5, p+step*.65, short(r.d))
	}
	b.WriteString("</svg>\n")
}
