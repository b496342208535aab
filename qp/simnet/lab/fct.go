package lab

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// Bin is the slowdown of the transfers in a range of sizes.
type Bin struct {
	From  int `json:"from"` // bytes, the smallest size of the bin
	To    int `json:"to"`   // bytes, the smallest size above the bin, 0 for no end
	Count int `json:"count"`
	Over  int `json:"over"` // of Count
	// Percentiles of the slowdown: 50, 95, 99, 99.9. 0 where no transfer is complete.
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	// MeanTime is the mean completion time in nanoseconds.
	MeanTime time.Duration `json:"mean_ns"`
}

// DefaultBins are edges of sizes that suit the distributions of this package, in bytes.
var DefaultBins = []int{10_000, 100_000, 1_000_000, 10_000_000}

// Slowdowns sorts transfers into bins by their size, at the given edges in ascending order,
// and returns each bin's slowdown. The last row is that of all. Transfers that started
// before warmup do not count.
func Slowdowns(out []Outcome, edges []int, warmup time.Duration) []Bin {
	bins := make([]Bin, len(edges)+2)
	down := make([][]float64, len(bins))
	sum := make([]time.Duration, len(bins))
	for i, e := range edges {
		bins[i].To, bins[i+1].From = e, e
	}
	all := len(bins) - 1
	bins[all].From = 0
	for i := range out {
		o := &out[i]
		if o.Start < warmup {
			continue
		}
		at, found := slices.BinarySearch(edges, o.Size)
		if found {
			at++
		}
		for _, k := range [2]int{at, all} {
			bins[k].Count++
			if o.Over() {
				bins[k].Over++
				down[k] = append(down[k], o.Slowdown())
				sum[k] += o.Time
			}
		}
	}
	for k := range bins {
		b, d := &bins[k], down[k]
		if len(d) == 0 {
			continue
		}
		slices.Sort(d)
		at := func(p float64) float64 { return d[min(max(int(p*float64(len(d))+0.9999999)-1, 0), len(d)-1)] }
		b.P50, b.P95, b.P99, b.P999 = at(0.5), at(0.95), at(0.99), at(0.999)
		b.MeanTime = sum[k] / time.Duration(len(d))
	}
	return bins
}

// WriteBins writes a table of bins for people.
func WriteBins(w io.Writer, bins []Bin) {
	fmt.Fprintf(w, "%-22s %8s %8s %8s %8s %8s %12s\n", "size", "count", "median", "95 %", "99 %", "99.9 %", "mean time")
	for i, b := range bins {
		name := "all"
		switch {
		case i == len(bins)-1:
		case b.To == 0:
			name = "from " + bytesText(b.From)
		default:
			name = bytesText(b.From) + " to " + bytesText(b.To)
		}
		fmt.Fprintf(w, "%-22s %8d %8.2f %8.2f %8.2f %8.2f %12v", name, b.Count, b.P50, b.P95, b.P99, b.P999, b.MeanTime)
		if b.Over != b.Count {
			fmt.Fprintf(w, "  (%d not complete)", b.Count-b.Over)
		}
		fmt.Fprintln(w)
	}
}

func bytesText(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + " MB"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + " KB"
	}
	return strconv.Itoa(n) + " B"
}

// WriteOutcomes writes a line of CSV for each transfer.
func WriteOutcomes(w io.Writer, out []Outcome) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"start_us", "from", "to", "bytes", "time_us", "ideal_us", "slowdown"})
	us := func(d time.Duration) string { return strconv.FormatFloat(float64(d)/1000, 'f', 3, 64) }
	for i := range out {
		o := &out[i]
		row := []string{us(o.Start), strconv.Itoa(o.From), strconv.Itoa(o.To), strconv.Itoa(o.Size), "", us(o.Ideal), ""}
		if o.Over() {
			row[4], row[6] = us(o.Time), strconv.FormatFloat(o.Slowdown(), 'f', 4, 64)
		}
		_ = c.Write(row)
	}
	c.Flush()
	return c.Error()
}

// WriteCSV writes the report's samples: a line for each, with the time in microseconds,
// each flow's goodput in bits per second, and of each watched queue the length in bytes,
// the rate at which it was sent in bits per second, and the fraction of the time that it
// was paused.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	row := []string{"time_us"}
	for i := range r.Flows {
		row = append(row, r.Flows[i].Flow.Name()+" bit/s")
	}
	for _, q := range r.Queues {
		name := q.Direction.From().Name() + " > " + q.Direction.To().Name()
		row = append(row, name+" queue B", name+" bit/s", name+" paused")
	}
	_ = c.Write(row)
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for i := range r.Samples {
		row = append(row[:0], f(float64(r.At(i))/1000))
		for k := range r.Flows {
			row = append(row, f(float64(r.Flows[k].Bytes[i])*8/r.Every.Seconds()))
		}
		for _, q := range r.Queues {
			row = append(row, strconv.Itoa(q.Bytes[i]), f(float64(q.Sent[i])*8/r.Every.Seconds()), f(float64(q.Paused[i])/float64(r.Every)))
		}
		_ = c.Write(row)
	}
	c.Flush()
	return c.Error()
}

// WriteJSON writes v as a line of JSON.
func WriteJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// Percentile returns the percentile p (0..1) of d by the nearest rank, or 0 where d is
// empty. d is not changed.
func Percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	i := int(p*float64(len(d))+0.9999999) - 1
	return d[min(max(i, 0), len(d)-1)]
}

// Jain returns Jain's fairness index of the shares x: 1 when all are equal, 1/n when one
// has everything. It is 1 where x is empty or all zero.
func Jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
}
