package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/qp/simnet/lab"
)

func title(scenario string, o *options) string {
	t := scenarioOf(scenario).title
	if strings.Contains(t, "%d") {
		return fmt.Sprintf(t, o.n)
	}
	return t
}

// of returns the runs of a scenario.
func of(runs []*experiment, scenario string) (es []*experiment) {
	for _, e := range runs {
		if e.Scenario == scenario {
			es = append(es, e)
		}
	}
	return es
}

// others returns the flows without the one that the scenario shows apart.
func (e *experiment) others() []flowResult {
	switch scenarioOf(e.Scenario).first {
	case "":
		return e.Flows
	default:
		return e.Flows[1:]
	}
}

// row is a result of all runs of a scenario.
type row struct {
	name  string
	value func(e *experiment) string
}

func table(w io.Writer, runs []*experiment, o *options) {
	for i, scenario := range o.scenarios {
		es := of(runs, scenario)
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s; %.4g Gb/s, %g ms\n", title(scenario, o), es[0].Rate, es[0].Virtual)
		rows := []row{{"", func(e *experiment) string { return e.Control }}}
		switch scenario {
		case "allreduce":
			rows = append(rows, reduceRows()...)
		case "websearch", "mixed":
			rows = append(rows, searchRows(es)...)
		default:
			rows = append(rows, flowRows(scenarioOf(scenario).first)...)
		}
		counts := countRows()
		if len(es[0].Bins) != 0 {
			counts = counts[queueRows:] // there is no congested queue
		}
		rows = append(rows, counts...)
		for _, r := range rows {
			fmt.Fprintf(w, "%26s", r.name)
			for _, e := range es {
				fmt.Fprintf(w, " %10s", r.value(e))
			}
			fmt.Fprintln(w)
		}
	}
}

func gbps(v float64) string { return fmt.Sprintf("%.3f", v) }
func us(v float64) string   { return fmt.Sprintf("%.0f", v) }

func flowRows(first string) []row {
	others := func(e *experiment, f func(v []float64) float64) string {
		var v []float64
		for _, x := range e.others() {
			v = append(v, x.Goodput)
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
	rows := []row{{"goodput, Gb/s", func(e *experiment) string { return gbps(e.Goodput) }}}
	each := "a flow: "
	if first != "" {
		each = "another flow: "
		rows = append(rows, row{first, func(e *experiment) string { return gbps(e.Flows[0].Goodput) }})
	}
	return append(rows,
		row{each + "least", func(e *experiment) string { return others(e, slices.Min[[]float64]) }},
		row{each + "mean", func(e *experiment) string { return others(e, mean) }},
		row{each + "most", func(e *experiment) string { return others(e, slices.Max[[]float64]) }},
		row{"Jain's index", func(e *experiment) string { return fmt.Sprintf("%.4f", e.Jain) }},
		row{"message, us: median", func(e *experiment) string { return us(e.FCT50) }},
		row{"99th percentile", func(e *experiment) string { return us(e.FCT99) }},
		row{"most", func(e *experiment) string { return us(e.FCTMax) }},
	)
}

func reduceRows() []row {
	return []row{
		{"goodput of a host, Gb/s", func(e *experiment) string { return gbps(e.Goodput) }},
		{"rounds", func(e *experiment) string { return fmt.Sprint(len(e.Rounds)) }},
		{"round, us: median", func(e *experiment) string { return us(e.FCT50) }},
		{"most", func(e *experiment) string { return us(e.FCTMax) }},
	}
}

func searchRows(es []*experiment) []row {
	rows := []row{
		{"messages done", func(e *experiment) string { return fmt.Sprint(e.Messages) }},
		{"unfinished at the end", func(e *experiment) string { return fmt.Sprint(e.Left) }},
		{"slowdown, mean", func(e *experiment) string { return fmt.Sprintf("%.2f", e.Slow) }},
		{"mean time, to 1 MB, us", func(e *experiment) string {
			over, sum := 0, time.Duration(0)
			for i := range e.Bins {
				if b := &e.Bins[i]; b.To != 0 && b.To <= 1_000_000 {
					over += b.Over
					sum += b.MeanTime * time.Duration(b.Over)
				}
			}
			return fmt.Sprintf("%.1f", float64(sum)/1e3/float64(max(over, 1)))
		}},
	}
	for _, q := range []struct {
		name string
		of   func(b *lab.Bin) float64
	}{
		{"median", func(b *lab.Bin) float64 { return b.P50 }},
		{"95 %", func(b *lab.Bin) float64 { return b.P95 }},
		{"99 %", func(b *lab.Bin) float64 { return b.P99 }},
	} {
		for k := range es[0].Bins {
			rows = append(rows, row{fmt.Sprintf("slowdown, %s, %s", q.name, binText(&es[0].Bins[k])), func(e *experiment) string {
				if e.Bins[k].Over == 0 {
					return "none"
				}
				return fmt.Sprintf("%.2f", q.of(&e.Bins[k]))
			}})
		}
	}
	return rows
}

func binText(b *lab.Bin) string {
	if b.To == 0 {
		return "more"
	}
	return "to " + sizeText(b.To)
}

func sizeText(n int) string {
	if n >= 1_000_000 {
		return fmt.Sprintf("%d MB", n/1_000_000)
	}
	return fmt.Sprintf("%d KB", n/1000)
}

// queueRows is the number of countRows about the congested queue.
const queueRows = 3

func countRows() []row {
	kb := func(n int) string { return fmt.Sprintf("%.1f", float64(n)/1000) }
	count := func(n uint64) string { return fmt.Sprint(n) }
	return []row{
		{"queue, KB: mean", func(e *experiment) string { return kb(e.Mean) }},
		{"99th percentile", func(e *experiment) string { return kb(e.P99) }},
		{"most", func(e *experiment) string { return kb(e.Max) }},
		{"packets marked", func(e *experiment) string { return count(e.Marks) }},
		{"CNPs", func(e *experiment) string { return count(e.CNPs) }},
		{"pauses", func(e *experiment) string { return count(e.Pauses) }},
		{"paused, ms of all links", func(e *experiment) string { return fmt.Sprintf("%.2f", e.PausedFor) }},
		{"packets dropped", func(e *experiment) string { return count(e.Drops) }},
		{"packets sent again", func(e *experiment) string { return count(e.Again) }},
	}
}
