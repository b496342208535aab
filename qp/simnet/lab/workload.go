package lab

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/roce-go/roce/qp/simnet"
)

// Transfer is a message from one host to another. Hosts are numbered as Network.Hosts.
type Transfer struct {
	Start    time.Duration // since the network's start
	From, To int
	Size     int // bytes
	// After are transfers, by their index in the workload, that must be complete before
	// this one starts, as its host sees it: received, where they are to From, or completed,
	// where they are from it.
	After []int
}

// Poisson returns transfers between random pairs of hosts, with sizes of s, that start
// independently of each other from 0 to until. Their number is such that their bytes use
// the fraction load of each host's link of rate bits per second.
func Poisson(seed uint64, s *Sizes, hosts int, load float64, rate uint64, until time.Duration) []Transfer {
	rng := rand.New(rand.NewPCG(seed, 0x706f6973736f6e))
	perSecond := load * float64(rate) / 8 / s.Mean() * float64(hosts)
	var out []Transfer
	if hosts < 2 || !(perSecond > 0) {
		return nil
	}
	for t := 0.0; ; {
		t += rng.ExpFloat64() / perSecond * 1e9
		if t >= float64(until) {
			return out
		}
		from := rng.IntN(hosts)
		to := (from + 1 + rng.IntN(hosts-1)) % hosts
		out = append(out, Transfer{Start: time.Duration(t), From: from, To: to, Size: s.At(rng.Float64())})
	}
}

// RingAllReduce returns the transfers by which hosts hosts reduce size bytes: 2(n-1) steps
// for n hosts, in each of which every host sends a part of size/n to the next, as soon as
// it has received that of the step before.
func RingAllReduce(hosts, size int) []Transfer {
	var out []Transfer
	for step := range 2 * (hosts - 1) {
		for h := range hosts {
			t := Transfer{From: h, To: (h + 1) % hosts, Size: max(1, size/hosts)}
			if step > 0 {
				t.After = []int{len(out) - hosts - h + (h+hosts-1)%hosts}
			}
			out = append(out, t)
		}
	}
	return out
}

// Rounds returns a workload repeated rounds times. At each host no transfer of a round
// starts before the last ones of the round before are complete there: transfers from and to
// the host for which no other waits or, where others wait for each, all of them.
func Rounds(list []Transfer, rounds int) []Transfer {
	waited := make([]bool, len(list))
	for _, t := range list {
		for _, k := range t.After {
			waited[k] = true
		}
	}
	ends, all := make(map[int][]int), make(map[int][]int) // by host
	for i, t := range list {
		for _, h := range [2]int{t.From, t.To} {
			if all[h] = append(all[h], i); !waited[i] {
				ends[h] = append(ends[h], i)
			}
		}
	}
	for h := range all {
		if len(ends[h]) == 0 {
			ends[h] = all[h]
		}
	}
	var out []Transfer
	for r := range rounds {
		base := len(list) * r
		for _, t := range list {
			after := make([]int, 0, len(t.After))
			for _, k := range t.After {
				after = append(after, base+k)
			}
			if r > 0 {
				t.Start = 0
				for _, k := range ends[t.From] {
					after = append(after, base-len(list)+k)
				}
			}
			t.After = after
			out = append(out, t)
		}
	}
	return out
}

// AllToAll returns the transfers by which each host sends size bytes to each other, the
// next one first, each after the one before.
func AllToAll(hosts, size int) []Transfer {
	var out []Transfer
	for k := 1; k < hosts; k++ {
		for h := range hosts {
			t := Transfer{From: h, To: (h + k) % hosts, Size: size}
			if k > 1 {
				t.After = []int{len(out) - hosts}
			}
			out = append(out, t)
		}
	}
	return out
}

// Incast returns rounds in which hosts 1 to n send size bytes to host 0, which requests the
// next round, by a message of one byte to each, when it has received all of the one before.
func Incast(n, size, rounds int) []Transfer {
	var out []Transfer
	for r := range rounds {
		first := len(out)
		if r > 0 {
			var last []int
			for i := range n {
				last = append(last, first-n+i)
			}
			for h := 1; h <= n; h++ {
				out = append(out, Transfer{From: 0, To: h, Size: 1, After: last})
			}
		}
		for h := 1; h <= n; h++ {
			t := Transfer{From: h, To: 0, Size: size}
			if r > 0 {
				t.After = []int{first + h - 1}
			}
			out = append(out, t)
		}
	}
	return out
}

// ReadTransfers reads a workload: a line for each transfer, its start in microseconds,
// the hosts that it is from and to, by number, and its bytes, separated by commas or
// blanks; further numbers are lines, from 0, that it waits for. # begins a comment.
func ReadTransfers(r io.Reader) ([]Transfer, error) {
	var out []Transfer
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		f := strings.FieldsFunc(line, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' })
		if len(f) == 0 {
			continue
		}
		var t Transfer
		us := 0.0
		if len(f) < 4 {
			return nil, fmt.Errorf("%w: line %d: %d fields, want start_us, from, to, bytes", simnet.ErrConfig, n, len(f))
		}
		if _, err := fmt.Sscan(strings.Join(f[:4], " "), &us, &t.From, &t.To, &t.Size); err != nil || us < 0 || us > 1e12 {
			return nil, fmt.Errorf("%w: line %d: %q, want start_us, from, to, bytes", simnet.ErrConfig, n, line)
		}
		t.Start = time.Duration(us * 1000)
		for _, x := range f[4:] {
			k := 0
			if _, err := fmt.Sscan(x, &k); err != nil {
				return nil, fmt.Errorf("%w: line %d: %q is not the number of a transfer", simnet.ErrConfig, n, x)
			}
			t.After = append(t.After, k)
		}
		out = append(out, t)
	}
	return out, sc.Err()
}

// WriteTransfers writes what ReadTransfers reads.
func WriteTransfers(w io.Writer, list []Transfer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "# start_us,from,to,bytes[,after...]")
	for _, t := range list {
		fmt.Fprintf(b, "%.3f,%d,%d,%d", float64(t.Start)/1000, t.From, t.To, t.Size)
		for _, k := range t.After {
			fmt.Fprintf(b, ",%d", k)
		}
		fmt.Fprintln(b)
	}
	return b.Flush()
}
