package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/roce-go/roce/examples/internal/svg"
)

var titles = map[string]string{
	"incast":   "Incast: %d hosts send to one",
	"converge": "Two flows share a link, the second comes later",
	"burst":    "A long flow, and bursts of 64 KiB from %d hosts every 5 ms",
	"victim":   "%d hosts congest one; a victim shares a link with them on its way to another",
}

var presetTitles = map[string]string{"off": "PFC alone", "paper": "DCQCN, paper's values", "nvidia": "DCQCN, NVIDIA's defaults"}

func title(scenario string, o *options) string {
	if scenario == "converge" {
		return titles[scenario]
	}
	return fmt.Sprintf(titles[scenario], o.n)
}

// first returns the words for the flow that a scenario sets apart from the others.
func (e *experiment) first() (name string, others []flowResult) {
	switch e.Scenario {
	case "burst":
		return "long flow", e.Flows[1:]
	case "victim":
		return "victim", e.Flows[1:]
	}
	return "", e.Flows
}

// row is a figure of all runs of a scenario.
type row struct {
	name  string
	value func(e *experiment) string
}

func table(w io.Writer, runs []*experiment, o *options) {
	gbps := func(v float64) string { return fmt.Sprintf("%.3f", v) }
	kb := func(n int) string { return fmt.Sprintf("%.1f", float64(n)/1000) }
	count := func(n uint64) string { return fmt.Sprint(n) }
	us := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	others := func(e *experiment, f func(v []float64) float64) string {
		_, fs := e.first()
		v := make([]float64, len(fs))
		for i := range fs {
			v[i] = fs[i].Goodput
		}
		return gbps(f(v))
	}
	mean := func(v []float64) float64 {
		sum := 0.0
		for _, x := range v {
			sum += x
		}
		return sum / float64(len(v))
	}
	for i, scenario := range o.scenarios {
		var es []*experiment
		for _, e := range runs {
			if e.Scenario == scenario {
				es = append(es, e)
			}
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s; %.4g Gb/s, %g ms\n", title(scenario, o), o.rate, es[0].Virtual)
		special, _ := es[0].first()
		rows := []row{{"", func(e *experiment) string { return e.Preset }}, {"goodput, Gb/s", func(e *experiment) string { return gbps(e.Goodput) }}}
		each := "a flow: "
		if special != "" {
			each = "another flow: "
			rows = append(rows, row{special, func(e *experiment) string { return gbps(e.Flows[0].Goodput) }})
		}
		rows = append(rows,
			row{each + "least", func(e *experiment) string { return others(e, slices.Min[[]float64]) }},
			row{each + "mean", func(e *experiment) string { return others(e, mean) }},
			row{each + "most", func(e *experiment) string { return others(e, slices.Max[[]float64]) }},
			row{"Jain's index", func(e *experiment) string { return fmt.Sprintf("%.4f", e.Jain) }},
			row{"queue, KB: mean", func(e *experiment) string { return kb(e.Mean) }},
			row{"99th percentile", func(e *experiment) string { return kb(e.P99) }},
			row{"most", func(e *experiment) string { return kb(e.Max) }},
			row{"message, us: median", func(e *experiment) string { return us(e.FCT50) }},
			row{"99th percentile", func(e *experiment) string { return us(e.FCT99) }},
			row{"most", func(e *experiment) string { return us(e.FCTMax) }},
			row{"packets marked", func(e *experiment) string { return count(e.Marks) }},
			row{"CNPs", func(e *experiment) string { return count(e.CNPs) }},
			row{"pauses", func(e *experiment) string { return count(e.Pauses) }},
			row{"paused, ms of all links", func(e *experiment) string { return fmt.Sprintf("%.2f", e.PausedFor) }},
			row{"packets dropped", func(e *experiment) string { return count(e.Drops) }},
			row{"packets sent again", func(e *experiment) string { return count(e.Again) }},
		)
		for _, r := range rows {
			fmt.Fprintf(w, "%26s", r.name)
			for _, e := range es {
				fmt.Fprintf(w, " %12s", r.value(e))
			}
			fmt.Fprintln(w)
		}
	}
}

// notes say what to look at.
var notes = map[string][]string{
	"incast": {"With PFC alone the queue fills until the senders are paused, and stays there. DCQCN keeps it near the marking thresholds",
		"and the pauses away, once the first round trips of all senders at full rate are over."},
	"converge": {"Both flows are cut as often as marks reach them, the faster one harder: the gap closes. How fast the rates climb between cuts",
		"is what the two presets differ in."},
	"burst": {"Each burst is a small incast on top of the long flow. With PFC alone it waits behind a full queue; with DCQCN the queue is short",
		"when it comes, and the long flow pays with a cut."},
	"victim": {"The victim's own way has room everywhere. But the pause that holds back the incast stops the link between the switches for all.",
		"DCQCN takes the pauses away once it has settled. A victim that was marked before then climbs back as fast as its preset lets it."},
}

// Parts of a picture: points across it.
const (
	ratePoints  = 240
	queuePoints = 480
)

// picture draws rates and queue of a scenario, a row for each preset.
func picture(scenario string, runs []*experiment, o *options) []byte {
	p := svg.Picture{
		Title:   title(scenario, o),
		Sub:     fmt.Sprintf("%.4g Gb/s links, 1 us each, 4 KiB packets; marking from %d KB to %d KB, %.3g %% there; simulated", o.rate, o.ecn.Kmin/1000, o.ecn.Kmax/1000, float64(o.ecn.Pmax)/10_000),
		Columns: 2, W: 580, H: 290, Notes: notes[scenario],
	}
	var rates []int // places of the charts of rates, which get one scale
	most := 0.0
	for _, e := range runs {
		if e.Scenario != scenario {
			continue
		}
		rates = append(rates, len(p.Charts))
		c := e.rates(o)
		for _, s := range c.Series {
			if len(s.Y) != 0 {
				most = max(most, slices.Max(s.Y))
			}
		}
		p.Charts = append(p.Charts, c, e.queue(o))
	}
	for _, i := range rates {
		p.Charts[i].YMax = min(o.rate, most*1.1)
	}
	return p.Render()
}

// rates draws the goodput of each flow.
func (e *experiment) rates(o *options) svg.Chart {
	c := svg.Chart{
		Title: presetTitles[e.Preset] + ": goodput of each flow", XLabel: "virtual time, ms", YLabel: "goodput, Gb/s",
		XMin: 0, XMax: e.Virtual,
	}
	r := e.report
	step := max(r.Every, (e.to / ratePoints).Truncate(r.Every))
	for i := range r.Flows {
		s := svg.Series{Name: r.Flows[i].Flow.Name(), Thin: len(r.Flows) > 3}
		if (e.Scenario == "burst" || e.Scenario == "victim") && i > 0 {
			// Many of a kind: one colour, one line in the legend.
			s.Colour, s.Thin = svg.Palette[1], true
			if s.Name = ""; i == 1 {
				s.Name = map[string]string{"burst": "each burst sender", "victim": "each incast sender"}[e.Scenario]
			}
		} else if e.Scenario == "incast" {
			s.Name = ""
		}
		for t := step; t <= e.to; t += step {
			s.X = append(s.X, float64(t)/1e6)
			s.Y = append(s.Y, r.Goodput(i, t-step, t)/1e9)
		}
		c.Series = append(c.Series, s)
	}
	if e.Scenario == "victim" { // on top
		slices.Reverse(c.Series)
		c.Series[len(c.Series)-1].Colour = svg.Palette[0]
	}
	if fair := o.rate * 4096 / 4178; e.Scenario == "incast" {
		c.Lines = append(c.Lines, svg.Line{Y: fair / float64(o.n), Text: "fair share"})
	} else if e.Scenario == "converge" {
		c.Lines = append(c.Lines, svg.Line{Y: fair / 2, Text: "fair share"})
	}
	return c
}

// queue draws the congested queue: its mean, and its most, in each interval.
func (e *experiment) queue(o *options) svg.Chart {
	c := svg.Chart{
		Title: presetTitles[e.Preset] + ": the congested queue", XLabel: "virtual time, ms", YLabel: "queue, KB",
		XMin: 0, XMax: e.Virtual,
	}
	r := e.report
	b := r.Queues[0].Bytes
	// A start that says nothing of the rest may leave the picture.
	if most, settled := slices.Max(b), slices.Max(b[len(b)/4:]); most > 4*settled && settled > 0 {
		c.YMax = max(float64(settled), float64(o.ecn.Kmax)) / 1000 * 1.4
		c.Title += fmt.Sprintf(" (first %d KB)", most/1000)
	}
	per := max(1, len(b)/queuePoints)
	mean, high := svg.Series{Name: "mean"}, svg.Series{Name: "most", Colour: "#9ecae1", Thin: true}
	for i := 0; i+per <= len(b); i += per {
		sum, top := 0, 0
		for _, x := range b[i : i+per] {
			sum, top = sum+x, max(top, x)
		}
		t := float64(r.At(i+per-1)) / float64(time.Millisecond)
		mean.X, mean.Y = append(mean.X, t), append(mean.Y, float64(sum)/float64(per)/1000)
		high.X, high.Y = append(high.X, t), append(high.Y, float64(top)/1000)
	}
	mean.Colour = svg.Palette[0]
	c.Series = []svg.Series{high, mean}
	if o.ecn.Kmax > 0 {
		c.Lines = append(c.Lines, svg.Line{Y: float64(o.ecn.Kmax) / 1000, Text: fmt.Sprintf("Kmax %d KB", o.ecn.Kmax/1000)})
	}
	return c
}
