// Package svg draws line charts for the example programs: panels with labelled
// axes, grid and legend, as an SVG picture that needs no fonts or scripts of its own.
package svg

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Colours that people with any colour vision can tell apart, dark enough for
// thin lines on white.
var Palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f3fbf", "#555555"}

// Series is a line.
type Series struct {
	Name   string // in the legend; empty leaves it out
	X, Y   []float64
	Colour string // empty: the palette's
	Dash   bool
	Dots   bool // a mark at each point
	Step   bool // each value holds until the next point
	Thin   bool
}

// Line is a level across a chart, with a label.
type Line struct {
	Y    float64
	Text string
}

// Chart is a panel.
type Chart struct {
	Title, XLabel, YLabel string
	XLog                  bool // X values of 0 or less are drawn at the left edge, named XZero
	XZero                 string
	XMin, XMax            float64 // equal: from the data
	YMin, YMax            float64 // equal: from 0 or the minimum of the data to its maximum
	YLog                  bool    // values below YMin, which must be more than 0, are drawn at it
	Series                []Series
	Lines                 []Line
	XTick, YTick          func(v float64) string // nil: shortest number
}

// Picture is a title, a line below it, and panels.
type Picture struct {
	Title, Sub string
	Columns    int // of panels; 0 means 1
	W, H       int // of a panel, pixels; 0 means 640 by 320
	Charts     []Chart
	Notes      []string // below the panels
}

const (
	left, right, top, bottom = 74, 24, 40, 56
	margin                   = 20
	head                     = 66
	noteLine                 = 18
	legendLine               = 17
)

// Render returns the picture.
func (p *Picture) Render() []byte {
	cols := max(p.Columns, 1)
	w, h := p.W, p.H
	if w == 0 {
		w = 640
	}
	if h == 0 {
		h = 320
	}
	rows := (len(p.Charts) + cols - 1) / cols
	width := 2*margin + cols*w
	height := head + rows*h + len(p.Notes)*noteLine + margin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="30" font-size="19" font-weight="bold">%s</text>`+"\n", margin, escape(p.Title))
	fmt.Fprintf(&b, `<text x="%d" y="51" fill="#555">%s</text>`+"\n", margin, escape(p.Sub))
	for i := range p.Charts {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", margin+i%cols*w, head+i/cols*h)
		p.Charts[i].draw(&b, i, float64(w), float64(h))
		b.WriteString("</g>\n")
	}
	for i, s := range p.Notes {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#333">%s</text>`+"\n", margin, head+rows*h+(i+1)*noteLine-2, escape(s))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// scale maps values to pixels.
type scale struct {
	lo, hi     float64
	from, size float64
	log        bool
}

func (s *scale) at(v float64) float64 {
	lo, hi := s.lo, s.hi
	if s.log {
		v = math.Log10(max(v, lo))
		lo, hi = math.Log10(lo), math.Log10(hi)
	}
	return s.from + (v-lo)/(hi-lo)*s.size
}

func (c *Chart) bounds() (x, y scale) {
	x = scale{lo: math.Inf(1), hi: math.Inf(-1), log: c.XLog}
	y = scale{lo: 0, hi: math.Inf(-1)}
	zero := false
	for _, s := range c.Series {
		for i := range s.X {
			if c.XLog && s.X[i] <= 0 {
				zero = true
			} else {
				x.lo, x.hi = min(x.lo, s.X[i]), max(x.hi, s.X[i])
			}
			y.lo, y.hi = min(y.lo, s.Y[i]), max(y.hi, s.Y[i])
		}
	}
	for _, l := range c.Lines {
		y.hi = max(y.hi, l.Y)
	}
	if c.XMin != c.XMax {
		x.lo, x.hi = c.XMin, c.XMax
	} else if zero {
		x.lo /= 4 // room for "none" on the left
	}
	y.log = c.YLog
	if c.YMin != c.YMax {
		y.lo, y.hi = c.YMin, c.YMax
	} else {
		y.hi += (y.hi - y.lo) * 0.08
	}
	if !(x.hi > x.lo) {
		x.lo, x.hi = 0, 1
		x.log = false
	}
	if !(y.hi > y.lo) {
		y.hi = y.lo + 1
	}
	return x, y
}

func (c *Chart) draw(b *bytes.Buffer, id int, w, h float64) {
	x, y := c.bounds()
	x.from, x.size = left, w-left-right
	y.from, y.size = h-bottom, -(h - top - bottom)
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14" font-weight="bold">%s</text>`+"\n", left, top-14, escape(c.Title))
	fmt.Fprintf(b, `<clipPath id="c%d"><rect x="%d" y="%d" width="%s" height="%s"/></clipPath>`+"\n", id, left, top-3, num(x.size), num(3-y.size+1))

	for _, v := range yTicks(&y) {
		py := y.at(v)
		fmt.Fprintf(b, `<path d="M%d %sH%s" stroke="#e3e3e3"/><text x="%d" y="%s" text-anchor="end" fill="#444">%s</text>`+"\n",
			left, num(py), num(w-right), left-8, num(py+4), escape(label(c.YTick, v)))
	}
	for _, v := range c.xTicks(&x) {
		px := x.at(v)
		text := label(c.XTick, v)
		if c.XLog && c.XZero != "" && v == x.lo {
			text = c.XZero
		}
		fmt.Fprintf(b, `<path d="M%s %dV%s" stroke="#f0f0f0"/><path d="M%s %sv5" stroke="#444"/><text x="%s" y="%s" text-anchor="middle" fill="#444">%s</text>`+"\n",
			num(px), top, num(h-bottom), num(px), num(h-bottom), num(px), num(h-bottom+18), escape(text))
	}
	fmt.Fprintf(b, `<path d="M%d %dV%sH%s" fill="none" stroke="#444"/>`+"\n", left, top, num(h-bottom), num(w-right))
	fmt.Fprintf(b, `<text x="%s" y="%s" text-anchor="middle">%s</text>`+"\n", num(left+x.size/2), num(h-bottom+38), escape(c.XLabel))
	fmt.Fprintf(b, `<text transform="translate(20,%s) rotate(-90)" text-anchor="middle">%s</text>`+"\n", num(top-y.size/2), escape(c.YLabel))

	for _, l := range c.Lines {
		py := y.at(l.Y)
		fmt.Fprintf(b, `<path d="M%d %sH%s" stroke="#999" stroke-dasharray="2 3"/>`+"\n", left, num(py), num(w-right))
	}
	fmt.Fprintf(b, `<g clip-path="url(#c%d)" fill="none">`+"\n", id)
	for i := range c.Series {
		c.Series[i].draw(b, colour(&c.Series[i], i), &x, &y)
	}
	b.WriteString("</g>\n")
	for _, l := range c.Lines { // with a rim, over the lines of data
		fmt.Fprintf(b, `<text x="%s" y="%s" text-anchor="end" font-size="11" fill="#444" stroke="#fff" stroke-width="3" paint-order="stroke">%s</text>`+"\n",
			num(w-right-4), num(y.at(l.Y)-4), escape(l.Text))
	}
	c.legend(b, &x, &y)
}

func colour(s *Series, i int) string {
	if s.Colour != "" {
		return s.Colour
	}
	return Palette[i%len(Palette)]
}

func (s *Series) draw(b *bytes.Buffer, col string, x, y *scale) {
	if len(s.X) == 0 {
		return
	}
	fmt.Fprintf(b, `<path stroke="%s"`, col)
	if s.Thin {
		b.WriteString(` stroke-width="1.1"`)
	} else {
		b.WriteString(` stroke-width="2" stroke-linejoin="round"`)
	}
	if s.Dash {
		b.WriteString(` stroke-dasharray="5 4"`)
	}
	b.WriteString(` d="`)
	for i := range s.X {
		px, py := num(x.at(s.X[i])), num(y.at(s.Y[i]))
		switch {
		case i == 0:
			b.WriteString("M" + px + " " + py)
		case s.Step:
			b.WriteString("H" + px + "V" + py)
		default:
			b.WriteString("L" + px + " " + py)
		}
	}
	b.WriteString("\"/>\n")
	if s.Dots {
		for i := range s.X {
			fmt.Fprintf(b, `<circle cx="%s" cy="%s" r="3.2" fill="%s"/>`+"\n", num(x.at(s.X[i])), num(y.at(s.Y[i])), col)
		}
	}
}

// cell is the size of the grid, in pixels, that is used to find room for a chart's legend.
const cell = 6

// room counts the items drawn in each cell of a chart. After sum, each cell holds the sum of
// all cells above and to the left.
type room struct {
	cols, rows int
	n          []int
}

func (r *room) add(px, py float64, weight int) {
	px, py = (px-left)/cell, (py-top)/cell
	if px >= 0 && py >= 0 && px < float64(r.cols) && py < float64(r.rows) {
		r.n[(int(py)+1)*(r.cols+1)+int(px)+1] += weight
	}
}

func (r *room) sum() {
	w := r.cols + 1
	for i := w; i < len(r.n); i++ {
		if i%w != 0 {
			r.n[i] += r.n[i-1] + r.n[i-w] - r.n[i-w-1]
		}
	}
}

// hits returns the number of items drawn in w x h cells.
func (r *room) hits(cx, cy, w, h int) int {
	at := func(x, y int) int { return r.n[y*(r.cols+1)+x] }
	return at(cx+w, cy+h) - at(cx, cy+h) - at(cx+w, cy) + at(cx, cy)
}

// occupied counts what the chart draws: points weigh more than lines, and the labels of
// levels most.
func (c *Chart) occupied(x, y *scale) *room {
	r := &room{cols: int(x.size) / cell, rows: int(-y.size) / cell}
	r.n = make([]int, (r.cols+1)*(r.rows+1))
	for _, s := range c.Series {
		for i := range s.X {
			px, py := x.at(s.X[i]), y.at(s.Y[i])
			if r.add(px, py, 1); s.Dots {
				r.add(px, py, 20)
			}
			if i == 0 {
				continue
			}
			fx, fy := x.at(s.X[i-1]), y.at(s.Y[i-1])
			steps := min(math.Ceil(max(math.Abs(px-fx), math.Abs(py-fy))/cell), 1000)
			for k := 1.0; k < steps; k++ {
				r.add(fx+(px-fx)*k/steps, fy+(py-fy)*k/steps, 1)
			}
		}
	}
	for _, l := range c.Lines {
		py := y.at(l.Y)
		words := left + x.size - 4 - 6.5*float64(len([]rune(l.Text))) // left edge of the label, which ends at the right edge
		for px := float64(left); px < left+x.size; px += cell {
			if r.add(px, py, 1); px > words-cell {
				r.add(px, py, 1000)
				r.add(px, py-10, 1000)
			}
		}
	}
	r.sum()
	return r
}

// legend draws the names of the series, in one column or more, where fewest lines are covered
// and no label of a level is.
func (c *Chart) legend(b *bytes.Buffer, x, y *scale) {
	var named []int
	longest := 0
	for i, s := range c.Series {
		if s.Name != "" {
			named = append(named, i)
			longest = max(longest, len([]rune(s.Name)))
		}
	}
	if len(named) == 0 {
		return
	}
	r := c.occupied(x, y)
	each := 46 + 6.5*float64(longest)
	bestX, bestY, bestCols, best := 0, 0, 1, math.MaxInt
	for cols := 1; cols <= len(named); cols++ {
		rows := (len(named) + cols - 1) / cols
		w, h := int(each*float64(cols))/cell+2, (rows*legendLine+10)/cell+2
		for cx := r.cols - w; cx >= 0; cx-- {
			for cy := 0; cy <= r.rows-h; cy++ {
				fx, fy := max(cx-1, 0), max(cy-1, 0) // with a margin around it
				around := r.hits(fx, fy, min(cx+w+1, r.cols)-fx, min(cy+h+1, r.rows)-fy)
				if n := 10*r.hits(cx, cy, w, h) + around; n < best {
					bestX, bestY, bestCols, best = cx, cy, cols, n
				}
			}
		}
	}
	rows := (len(named) + bestCols - 1) / bestCols
	fromX, fromY := float64(left+bestX*cell+cell/2), float64(top+bestY*cell+cell/2)
	fmt.Fprintf(b, `<rect x="%s" y="%s" width="%s" height="%d" rx="3" fill="#fff" fill-opacity="0.85" stroke="#ddd"/>`+"\n",
		num(fromX), num(fromY), num(each*float64(bestCols)), rows*legendLine+10)
	for k, i := range named {
		s := &c.Series[i]
		dash := ""
		if s.Dash {
			dash = ` stroke-dasharray="5 4"`
		}
		px, py := fromX+each*float64(k/rows), fromY+17+float64(k%rows*legendLine)
		fmt.Fprintf(b, `<path d="M%s %sh24" stroke="%s" stroke-width="2"%s/><text x="%s" y="%s">%s</text>`+"\n",
			num(px+7), num(py-4), colour(s, i), dash, num(px+37), num(py), escape(s.Name))
	}
}

func (c *Chart) xTicks(x *scale) []float64 {
	if !x.log {
		return ticks(x.lo, x.hi, int(x.size/80))
	}
	var out []float64
	if c.XZero != "" {
		out = append(out, x.lo)
	}
	for e := math.Ceil(math.Log10(x.lo) - 1e-9); e <= math.Log10(x.hi)+1e-9; e++ {
		if v := math.Pow(10, e); c.XZero == "" || x.at(v)-x.at(x.lo) > 30 {
			out = append(out, v)
		}
	}
	return out
}

// yTicks returns round values up the axis; on a logarithmic one of three decades or
// less also 2 and 5 of each.
func yTicks(y *scale) (out []float64) {
	if !y.log {
		return ticks(y.lo, y.hi, int(-y.size/32))
	}
	steps := []float64{1, 2, 5}
	if y.hi/y.lo > 1500 {
		steps = steps[:1]
	}
	for e := math.Floor(math.Log10(y.lo)); e <= math.Log10(y.hi); e++ {
		for _, k := range steps {
			if v := k * math.Pow(10, e); v >= y.lo*(1-1e-9) && v <= y.hi*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}

// ticks returns about n round values from lo to hi.
func ticks(lo, hi float64, n int) []float64 {
	raw := (hi - lo) / float64(max(n, 2))
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	switch r := raw / step; {
	case r > 5:
		step *= 10
	case r > 2:
		step *= 5
	case r > 1:
		step *= 2
	}
	var out []float64
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9; i++ {
		out = append(out, i*step+0) // no -0
	}
	return out
}

func label(f func(float64) string, v float64) string {
	if f != nil {
		return f(v)
	}
	return strconv.FormatFloat(math.Round(v*1e9)/1e9, 'g', -1, 64)
}

// num writes a coordinate to a tenth of a pixel.
func num(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escape(s string) string { return escaper.Replace(s) }
