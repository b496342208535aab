package lab

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/roce-go/roce/qp/simnet"
)

// Shard is the part of a sweep that one machine runs: points I, I+N, I+2N and so on. The
// zero value is all of it.
type Shard struct {
	I, N int
}

// ParseShard reads "i/n", i from 0 to n-1, and "" as all.
func ParseShard(s string) (Shard, error) {
	if s == "" {
		return Shard{0, 1}, nil
	}
	a, b, ok := strings.Cut(s, "/")
	i, err1 := strconv.Atoi(a)
	n, err2 := strconv.Atoi(b)
	if !ok || err1 != nil || err2 != nil || n < 1 || i < 0 || i >= n {
		return Shard{}, fmt.Errorf("%w: shard %q, want i/n with i from 0 to n-1, such as 0/4", simnet.ErrConfig, s)
	}
	return Shard{i, n}, nil
}

// Has reports whether point k is of the shard.
func (s Shard) Has(k int) bool { return s.N <= 1 || k%s.N == s.I }

// Sweep runs fn for each point of the shard, on as many cores as there are, each point on
// one, and calls got with each result in the order of the points. The first error of fn or
// got ends it. Results do not depend on the number of cores or shards, as long as fn
// depends only on its point: lines of JSON that shards wrote can be joined and sorted.
func Sweep[P, R any](points []P, shard Shard, fn func(i int, p P) (R, error), got func(i int, r R) error) error {
	type result struct {
		r    R
		err  error
		done chan struct{}
	}
	var mine []int
	for i := range points {
		if shard.Has(i) {
			mine = append(mine, i)
		}
	}
	results := make([]result, len(mine))
	for k := range results {
		results[k].done = make(chan struct{})
	}
	var next, stop = make(chan int), make(chan struct{})
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(mine)) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for k := range next {
				x := &results[k]
				x.r, x.err = fn(mine[k], points[mine[k]])
				close(x.done)
			}
		}()
	}
	go func() {
		defer close(next)
		for k := range mine {
			select {
			case next <- k:
			case <-stop:
				return
			}
		}
	}()
	defer wait.Wait()
	defer close(stop)
	for k := range mine {
		<-results[k].done
		if err := results[k].err; err != nil {
			return fmt.Errorf("point %d: %w", mine[k], err)
		}
		if err := got(mine[k], results[k].r); err != nil {
			return err
		}
	}
	return nil
}
