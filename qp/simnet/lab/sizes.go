package lab

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"

	"github.com/roce-go/roce/qp/simnet"
)

// Sizes is a distribution of flow sizes in bytes: a cumulative distribution function
// that is linear between its points.
type Sizes struct {
	Name   string
	points []point
}

type point struct {
	bytes, part float64
}

// WebSearch, Hadoop and Storage are distributions that papers on RDMA congestion control
// use, as HPCC's authors published them with their simulator: web search (Alizadeh et
// al., DCTCP, SIGCOMM 2010; mean 1.7 MB), Hadoop at Facebook (Roy et al., SIGCOMM 2015;
// mean 120 KB), a distributed storage of Alibaba (2019; mean 41 KB).
var (
	WebSearch = mustSizes("websearch", 0, 0, 10e3, 15, 20e3, 20, 30e3, 30, 50e3, 40, 80e3, 53, 200e3, 60, 1e6, 70, 2e6, 80,
		5e6, 90, 10e6, 97, 30e6, 100)
	Hadoop = mustSizes("hadoop", 0, 0, 100, 1, 200, 2, 300, 5, 350, 15, 400, 20, 500, 30, 600, 40, 700, 50, 1000, 60, 2000, 67,
		7000, 70, 30e3, 72, 50e3, 82, 80e3, 87, 120e3, 90, 300e3, 95, 1e6, 97.5, 2e6, 99, 10e6, 100)
	Storage = mustSizes("storage", 0, 0, 4000, 22.93, 8000, 69.21, 16e3, 80.61, 32e3, 90.47, 64e3, 93.53, 128e3, 96.77,
		256e3, 97.53, 2e6, 100)
)

// SizesByName returns WebSearch, Hadoop or Storage by its name.
func SizesByName(name string) (*Sizes, error) {
	for _, s := range []*Sizes{WebSearch, Hadoop, Storage} {
		if s.Name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: no distribution %q, want websearch, hadoop or storage", simnet.ErrConfig, name)
}

// NewSizes returns the distribution of which percents[i] percent are at most bytes[i]. Both
// ascend, percents from 0 to 100. Errors wrap simnet.ErrConfig.
func NewSizes(name string, bytes, percents []float64) (*Sizes, error) {
	s := &Sizes{Name: name}
	if len(bytes) < 2 || len(bytes) != len(percents) || percents[0] != 0 || percents[len(percents)-1] != 100 {
		return nil, fmt.Errorf("%w: sizes %s: want points from 0 to 100 percent", simnet.ErrConfig, name)
	}
	for i := range bytes {
		p := point{bytes[i], percents[i] / 100}
		if !(p.bytes >= 0 && p.bytes <= 1<<31) || i > 0 && !(p.bytes >= bytes[i-1] && percents[i] >= percents[i-1]) {
			return nil, fmt.Errorf("%w: sizes %s: point %d (%v bytes, %v %%) is not above the one before", simnet.ErrConfig, name, i, bytes[i], percents[i])
		}
		s.points = append(s.points, p)
	}
	return s, nil
}

func mustSizes(name string, v ...float64) *Sizes {
	var bytes, percents []float64
	for i := 0; i < len(v); i += 2 {
		bytes, percents = append(bytes, v[i]), append(percents, v[i+1])
	}
	s, err := NewSizes(name, bytes, percents)
	if err != nil {
		panic(err)
	}
	return s
}

// ReadSizes reads a distribution: a line for each point, bytes and percent, as the files
// of HPCC's simulator have them. # begins a comment.
func ReadSizes(name string, r io.Reader) (*Sizes, error) {
	var bytes, percents []float64
	for sc, n := bufio.NewScanner(r), 1; sc.Scan(); n++ {
		line, _, _ := strings.Cut(sc.Text(), "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		var b, p float64
		if _, err := fmt.Sscan(line, &b, &p); err != nil {
			return nil, fmt.Errorf("%w: sizes %s, line %d: %q, want bytes and percent", simnet.ErrConfig, name, n, line)
		}
		bytes, percents = append(bytes, b), append(percents, p)
	}
	return NewSizes(name, bytes, percents)
}

// Mean returns the mean size.
func (s *Sizes) Mean() float64 {
	mean := 0.0
	for i := 1; i < len(s.points); i++ {
		a, b := s.points[i-1], s.points[i]
		mean += (b.part - a.part) * (a.bytes + b.bytes) / 2
	}
	return mean
}

// At returns the quantile u, 0 to 1, of the sizes in bytes, at least 1.
func (s *Sizes) At(u float64) int {
	i := sort.Search(len(s.points)-1, func(i int) bool { return s.points[i].part >= u })
	if i == 0 {
		i = 1
	}
	a, b := s.points[i-1], s.points[i]
	x := b.bytes
	if b.part > a.part {
		x = a.bytes + (b.bytes-a.bytes)*(u-a.part)/(b.part-a.part)
	}
	return max(1, int(math.Round(x)))
}
