package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/roce-go/roce/examples/internal/svg"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// notes tell what to look at in a picture.
var notes = map[string][]string{
	"incast": {"With PFC alone the queue fills until the senders are paused, and stays there. The others keep it where they aim: DCQCN about",
		"its marking thresholds, Swift and TIMELY at a delay, HPCC empty. What is above is the first round trips of all senders at full rate.",
		"HPCC needs windows of many packets to share well: 5 us at 40 Gb/s are 24 of them for all (try -rate 100 -mtu 256)."},
	"converge": {"The second flow finds the link full. How long until both have the same, and what queue that takes, is what the controls differ in."},
	"burst": {"Each burst is a small incast on top of the long flow. With PFC alone it waits behind a full queue; with control the queue is short",
		"when it comes, and the long flow pays with a cut."},
	"parking": {"Every link carries two flows, so that the fair share of all is a half. A control that counts marks over the whole way cuts the long",
		"flow more often. One that holds a delay at its target has a queue at each link, and the long flow sees three of them."},
	"unfair": {"A pause holds back an input of the switch, whoever sends by it. The near host has an input to itself, the far ones share the other:",
		"with PFC alone it gets half of the receiver's link. Control looks at flows."},
	"victim": {"The victim's own way has room everywhere. But the pause that holds back the incast stops the link between the switches for all.",
		"Control takes the pauses away once it has settled. A victim that was cut before then climbs back as fast as its control lets it."},
	"allreduce": {"A round is as slow as the slowest of its steps: two neighbours whose paths share a link between the racks have half of it each.",
		"Which do is decided by the hash of the ports, the same in all pictures."},
	"websearch": {"A slowdown is the time of a message over what it takes on an empty network. Short messages suffer from the queues that long ones make."},
	"mixed":     {"A slowdown is the time of a message over what it takes on an empty network. Try -pfc=false -selective."},
}

// Parts of a picture: number of points along the time axis.
const (
	ratePoints  = 240
	queuePoints = 480
)

// queueFloor is the lowest value of the queue axis, in KB: empty queues are drawn there.
const queueFloor = 1

// picture draws a scenario, with one scale for all charts of a kind.
func picture(scenario string, runs []*experiment, o *options) []byte {
	es := of(runs, scenario)
	e := es[0]
	p := svg.Picture{
		Title: title(scenario, o),
		Sub: fmt.Sprintf("%.4g Gb/s links, 1 us each, MTU %d; marking from %d KB to %d KB, %.3g %% there; simulated",
			e.Rate, o.mtu, e.ecn.Kmin/1000, e.ecn.Kmax/1000, float64(e.ecn.Pmax)/10_000),
		Columns: 2, W: 580, H: 290, Notes: notes[scenario],
	}
	switch scenario {
	case "allreduce":
		p.Charts = append(p.Charts, roundsChart(es))
	case "websearch", "mixed":
		p.Charts = append(p.Charts,
			slowdownChart(es, "median", func(b *lab.Bin) float64 { return b.P50 }),
			slowdownChart(es, "99th percentile", func(b *lab.Bin) float64 { return b.P99 }))
		most := max(p.Charts[0].YMax, p.Charts[1].YMax)
		p.Charts[0].YMax, p.Charts[1].YMax = most, most
		for i := range p.Charts[1].Series { // one legend, in the chart with room for it
			p.Charts[1].Series[i].Name = ""
		}
	default:
		p.Charts = curves(es, o)
	}
	return p.Render()
}

// curves draws rates and queue over time, a row for each control.
func curves(es []*experiment, o *options) (out []svg.Chart) {
	rate, queue := 0.0, 0
	for _, e := range es {
		c := e.rates(o)
		for _, s := range c.Series {
			if len(s.Y) != 0 {
				rate = max(rate, slices.Max(s.Y))
			}
		}
		queue = max(queue, slices.Max(e.report.Queues[0].Bytes), int(e.ecn.Kmax))
		out = append(out, c, e.queue())
	}
	for i := range out {
		if i%2 == 0 {
			out[i].YMax = rate * 1.08
		} else {
			out[i].YMin, out[i].YMax = queueFloor, float64(queue)/1000*1.5
		}
	}
	return out
}

// rates draws the goodput of each flow.
func (e *experiment) rates(o *options) svg.Chart {
	c := svg.Chart{
		Title: controlOf(e.Control).title + ": goodput of each flow", XLabel: "virtual time, ms", YLabel: "goodput, Gb/s",
		XMin: 0, XMax: e.Virtual,
	}
	r := e.report
	step := max(r.Every, (e.to / ratePoints).Truncate(r.Every))
	apart := scenarioOf(e.Scenario).first != ""
	for i := range r.Flows {
		s := svg.Series{Name: r.Flows[i].Flow.Name(), Thin: len(r.Flows) > 3}
		if apart && i > 0 {
			// Flows of the same kind have one colour and one line in the legend.
			s.Colour, s.Thin = svg.Palette[1], true
			if s.Name = ""; i == 1 {
				s.Name = map[string]string{"burst": "each burst sender", "victim": "each incast sender", "unfair": "each far host", "parking": "each flow over one link"}[e.Scenario]
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
	if apart { // drawn last, above the others
		slices.Reverse(c.Series)
		c.Series[len(c.Series)-1].Colour = svg.Palette[0]
	}
	share := map[string]float64{"incast": 1 / float64(o.n), "converge": 0.5, "parking": 0.5}[e.Scenario]
	if share != 0 {
		c.Lines = append(c.Lines, svg.Line{Y: e.Rate * float64(o.mtu) / float64(o.mtu+overhead) * share, Text: "fair share"})
	}
	return c
}

// queue draws the congested queue: its mean and its maximum in each interval.
func (e *experiment) queue() svg.Chart {
	c := svg.Chart{
		Title: controlOf(e.Control).title + ": the congested queue", XLabel: "virtual time, ms", YLabel: "queue, KB (logarithmic)",
		XMin: 0, XMax: e.Virtual, YLog: true,
	}
	r := e.report
	b := r.Queues[0].Bytes
	per := max(1, len(b)/queuePoints)
	mean, high := svg.Series{Name: "mean"}, svg.Series{Name: "most", Colour: "#9ecae1", Thin: true}
	for i := 0; i+per <= len(b); i += per {
		sum, top := 0, 0
		for _, x := range b[i : i+per] {
			sum, top = sum+x, max(top, x)
		}
		t := float64(r.At(i+per-1)) / float64(time.Millisecond)
		mean.X, mean.Y = append(mean.X, t), append(mean.Y, max(queueFloor, float64(sum)/float64(per)/1000))
		high.X, high.Y = append(high.X, t), append(high.Y, max(queueFloor, float64(top)/1000))
	}
	mean.Colour = svg.Palette[0]
	c.Series = []svg.Series{high, mean}
	for _, l := range []struct {
		name string
		at   uint32
	}{{"Kmin", e.ecn.Kmin}, {"Kmax", e.ecn.Kmax}} {
		if l.at >= 1000*queueFloor {
			c.Lines = append(c.Lines, svg.Line{Y: float64(l.at) / 1000, Text: fmt.Sprintf("%s %d KB", l.name, l.at/1000)})
		}
	}
	return c
}

// roundsChart draws the time of each round.
func roundsChart(es []*experiment) svg.Chart {
	c := svg.Chart{Title: "time of each round", XLabel: "virtual time at its end, ms", YLabel: "time, us", XMin: 0, XMax: es[0].Virtual}
	for _, e := range es {
		s := svg.Series{Name: controlOf(e.Control).title, Dots: true}
		at := 0.0
		for _, d := range e.Rounds {
			at += d / 1000
			s.X, s.Y = append(s.X, at), append(s.Y, d)
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// longest is the size of the longest message, in bytes.
const longest = 30_000_000

// slowdownChart draws slowdowns by size, a line for each control.
func slowdownChart(es []*experiment, name string, value func(b *lab.Bin) float64) svg.Chart {
	c := svg.Chart{
		Title: "slowdown by size, " + name, XLabel: "message, bytes (logarithmic)", YLabel: "slowdown (logarithmic)",
		XLog: true, YLog: true, YMin: 1, YMax: 2, XTick: func(v float64) string { return sizeText(int(v)) },
	}
	for _, e := range es {
		s := svg.Series{Name: controlOf(e.Control).title, Dots: true}
		for k := range e.Bins {
			if b := &e.Bins[k]; b.Over != 0 {
				v, size := value(b), b.To
				if size == 0 {
					size = longest
				}
				s.X, s.Y = append(s.X, float64(size)), append(s.Y, v)
				c.YMax = max(c.YMax, v*1.3)
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}
