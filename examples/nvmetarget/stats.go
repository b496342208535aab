package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/examples/internal/svg"
)

// stats counts commands of I/O queues. Its lock is held only for a short time.
type stats struct {
	mu sync.Mutex
	totals
	points []point
	last   totals
}

type totals struct {
	reads, writes, others uint64
	readBytes, writeBytes uint64
	waited                time.Duration // sum, from a capsule to the acknowledgement of its response
	longest               time.Duration // since the last sample
}

// point holds the counts of an interval.
type point struct {
	at, took time.Duration
	totals
}

// done counts a command; its bytes are counted only if it succeeded, because before that the
// length is only what the host claims.
func (s *stats) done(sl *slot, r *result) {
	if sl.q.id == 0 {
		return
	}
	d := time.Since(sl.began)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch sl.cmd.Opcode {
	case nvme.Read:
		s.reads++
		s.readBytes += uint64(len(r.data))
	case nvme.Write:
		s.writes++
		if r.status == nvme.Success {
			s.writeBytes += uint64(sl.cmd.SGL.Length)
		}
	default:
		s.others++
	}
	s.waited += d
	s.longest = max(s.longest, d)
}

func (s *stats) sum() totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals
}

// maxPoints bounds the points kept for the picture; at the limit, pairs of points are merged.
const maxPoints = 2000

// sample returns the counts since the last sample, and keeps them for the picture.
func (s *stats) sample(at, took time.Duration) point {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := point{at: at, took: took, totals: s.totals}
	p.reads -= s.last.reads
	p.writes -= s.last.writes
	p.others -= s.last.others
	p.readBytes -= s.last.readBytes
	p.writeBytes -= s.last.writeBytes
	p.waited -= s.last.waited
	s.last, s.longest = s.totals, 0
	s.points = append(s.points, p)
	if len(s.points) == maxPoints {
		for i := range maxPoints / 2 {
			s.points[i] = s.points[2*i].add(s.points[2*i+1])
		}
		s.points = s.points[:maxPoints/2]
	}
	return p
}

func (p point) add(q point) point {
	p.at, p.took = q.at, p.took+q.took
	p.reads += q.reads
	p.writes += q.writes
	p.others += q.others
	p.readBytes += q.readBytes
	p.writeBytes += q.writeBytes
	p.waited += q.waited
	p.longest = max(p.longest, q.longest)
	return p
}

func (p *point) commands() uint64 { return p.reads + p.writes + p.others }

func (p *point) mean() time.Duration {
	if n := p.commands(); n != 0 {
		return p.waited / time.Duration(n)
	}
	return 0
}

// String returns the line that is printed each second.
func (p *point) String() string {
	s := p.took.Seconds()
	return fmt.Sprintf("%6.0f reads/s %6.1f MB/s  %6.0f writes/s %6.1f MB/s  latency %v, longest %v",
		float64(p.reads)/s, float64(p.readBytes)/s/1e6, float64(p.writes)/s, float64(p.writeBytes)/s/1e6,
		p.mean().Round(10*time.Microsecond), p.longest.Round(10*time.Microsecond))
}

// watch samples once a second until stop is closed, and prints a line if w is not nil.
func (t *target) watch(w io.Writer, stop <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := t.start
	for {
		var now time.Time
		select {
		case <-stop:
			if w != nil {
				fmt.Fprint(w, "\r\x1b[K")
			}
			return
		case now = <-tick.C:
		}
		p := t.stats.sample(now.Sub(t.start), now.Sub(last))
		last = now
		if w != nil {
			controllers, conns := t.count()
			fmt.Fprintf(w, "\r\x1b[K%s  %d controllers, %d queues", &p, controllers, conns)
		}
	}
}

// summary prints the totals.
func (t *target) summary(w io.Writer) {
	v := t.stats.sum()
	p := point{totals: v}
	fmt.Fprintf(w, "nvmetarget: %d reads (%.1f MB), %d writes (%.1f MB), %d other commands, mean latency %v, %d errors\n",
		v.reads, float64(v.readBytes)/1e6, v.writes, float64(v.writeBytes)/1e6, v.others, p.mean().Round(time.Microsecond), t.errs.count())
}

// picture draws the samples.
func (t *target) picture(name string) error {
	t.stats.mu.Lock()
	points := append([]point(nil), t.stats.points...)
	t.stats.mu.Unlock()
	series := func(name string, y func(*point) float64) svg.Series {
		s := svg.Series{Name: name}
		for i := range points {
			s.X = append(s.X, points[i].at.Seconds())
			s.Y = append(s.Y, y(&points[i]))
		}
		return s
	}
	second := func(p *point) float64 { return p.took.Seconds() }
	pic := svg.Picture{Title: "nvmetarget", Sub: t.cfg.nqn, Charts: []svg.Chart{
		{Title: "Commands", XLabel: "seconds", YLabel: "per second", Series: []svg.Series{
			series("reads", func(p *point) float64 { return float64(p.reads) / second(p) }),
			series("writes", func(p *point) float64 { return float64(p.writes) / second(p) }),
		}},
		{Title: "Data", XLabel: "seconds", YLabel: "MB/s", Series: []svg.Series{
			series("read", func(p *point) float64 { return float64(p.readBytes) / second(p) / 1e6 }),
			series("written", func(p *point) float64 { return float64(p.writeBytes) / second(p) / 1e6 }),
		}},
		{Title: "Latency", XLabel: "seconds", YLabel: "ms", Series: []svg.Series{
			series("mean", func(p *point) float64 { return float64(p.mean()) / 1e6 }),
			series("longest", func(p *point) float64 { return float64(p.longest) / 1e6 }),
		}},
	}, Notes: []string{"Latency: from a command's arrival to the acknowledgement of its response."}}
	return os.WriteFile(name, pic.Render(), 0o644)
}

// errorEntries is how many errors the error log keeps.
const errorEntries = 64

// errorLog holds the last commands that failed.
type errorLog struct {
	mu   sync.Mutex
	n    uint64
	last [errorEntries]errorEntry
}

type errorEntry struct {
	n      uint64
	queue  uint16
	cid    uint16
	status nvme.Status
	lba    uint64
	nsid   uint32
}

func (l *errorLog) add(s *slot, st nvme.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.last[l.n%errorEntries]
	l.n++
	*e = errorEntry{l.n, s.q.id, s.cmd.CID, st, 0, s.cmd.NSID}
	if s.q.id != 0 {
		e.lba = s.cmd.Cdw(10)
	}
}

func (l *errorLog) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// page returns the log page: the newest error first, 64 bytes each.
func (l *errorLog) page() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := make([]byte, 64*errorEntries)
	le := binary.LittleEndian
	for i := range min(l.n, errorEntries) {
		e := &l.last[(l.n-1-i)%errorEntries]
		x := b[64*i:]
		le.PutUint64(x, e.n)
		le.PutUint16(x[8:], e.queue)
		le.PutUint16(x[10:], e.cid)
		le.PutUint16(x[12:], uint16(e.status<<1))
		le.PutUint16(x[14:], 0xffff) // no particular byte
		le.PutUint64(x[16:], e.lba)
		le.PutUint32(x[24:], e.nsid)
	}
	return b
}
