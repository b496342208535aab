package lab

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/qp/simnet"
)

// Read creates the network that a file describes, a line for each part:
//
//	# a pair of leaves
//	switch leaf0
//	switch leaf1
//	host   h0
//	link   h0 leaf0 100G 1us
//	link   leaf0 leaf1 400G 500ns
//
// A link has the names of its ends, its rate (K, M, G, T for powers of a thousand bits a
// second) and its delay. Where a link leaves them out, the delay is Delay of t, and the
// rate is Rate where an end is a host, else Core.
func (t Topology) Read(r io.Reader) (*Fabric, error) {
	f := t.build()
	nodes := make(map[string]simnet.Node)
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		text, _, _ := strings.Cut(sc.Text(), "#")
		w := strings.Fields(text)
		if len(w) == 0 {
			continue
		}
		if err := t.part(f, nodes, w); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	return f, sc.Err()
}

func (t *Topology) part(f *Fabric, nodes map[string]simnet.Node, w []string) error {
	switch {
	case w[0] == "switch" && len(w) == 2:
		c := t.Switch
		c.Name = w[1]
		s, err := f.AddSwitch(c)
		if err != nil {
			return err
		}
		nodes[w[1]] = s
	case w[0] == "host" && (len(w) == 2 || len(w) == 3):
		c := t.Host
		c.Name, c.LineRate = w[1], t.Rate
		if len(w) == 3 {
			r, err := parseRate(w[2])
			if err != nil {
				return err
			}
			c.LineRate = r
		}
		if c.Addr.IsValid() {
			t.Host.Addr = c.Addr.Next()
		}
		h, err := f.AddHost(c)
		if err != nil {
			return err
		}
		nodes[w[1]] = h
	case w[0] == "link" && len(w) >= 3 && len(w) <= 5:
		c := simnet.LinkConfig{Rate: t.Core, Delay: t.Delay}
		var ends [2]simnet.Node
		for i := range ends {
			if ends[i] = nodes[w[1+i]]; ends[i] == nil {
				return fmt.Errorf("%w: no switch or host %q before this line", simnet.ErrConfig, w[1+i])
			}
			if _, ok := ends[i].(*simnet.Host); ok {
				c.Rate = t.Rate
			}
		}
		var err error
		if len(w) > 3 {
			if c.Rate, err = parseRate(w[3]); err != nil {
				return err
			}
		}
		if len(w) > 4 {
			if c.Delay, err = time.ParseDuration(w[4]); err != nil {
				return fmt.Errorf("%w: delay %q, want such as 500ns or 1us", simnet.ErrConfig, w[4])
			}
		}
		_, err = f.Connect(ends[0], ends[1], c)
		return err
	default:
		return fmt.Errorf("%w: %q, want \"switch NAME\", \"host NAME [RATE]\" or \"link NAME NAME [RATE [DELAY]]\"", simnet.ErrConfig, strings.Join(w, " "))
	}
	return nil
}

// parseRate reads a rate in bits per second, such as 100G.
func parseRate(s string) (uint64, error) {
	scale := 1.0
	if i := strings.IndexAny("KMGT", s[len(s)-1:]); i >= 0 {
		scale, s = [4]float64{1e3, 1e6, 1e9, 1e12}[i], s[:len(s)-1]
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v*scale <= 1e13) {
		return 0, fmt.Errorf("%w: rate %q, want such as 100G, 10T at most", simnet.ErrConfig, s)
	}
	return uint64(v * scale), nil
}
