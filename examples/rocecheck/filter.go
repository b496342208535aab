package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/qp/conform"
)

// filter chooses what is reported. Hosts and QPs choose findings and flows; all packets are
// judged, since a connection is judged by both of its directions. Times choose packets.
type filter struct {
	hosts    map[netip.Addr]bool
	qps      map[uint32]bool
	from, to time.Time
	fromIn   time.Duration // after the first frame; negative: no limit
	toIn     time.Duration
}

func (f *filter) setQPs(s string) error {
	f.qps = map[uint32]bool{}
	for _, s := range strings.Split(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(s), 0, 24)
		if err != nil {
			return fmt.Errorf("%q is no QP number; give numbers of 24 bits such as 0x11,18", s)
		}
		f.qps[uint32(n)] = true
	}
	return nil
}

func (f *filter) setHosts(s string) error {
	f.hosts = map[netip.Addr]bool{}
	for _, s := range strings.Split(s, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return fmt.Errorf("%q is no address; give IPv4 or IPv6 addresses such as 192.0.2.1", s)
		}
		f.hosts[a.Unmap()] = true
	}
	return nil
}

// moment reads a date and time of day (RFC 3339), or a duration after the first frame.
func moment(s string, at *time.Time, in *time.Duration) error {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		*in = d
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return fmt.Errorf("%q is no time; give one such as 2026-01-31T12:00:00Z, or one after the first frame such as 1.5s", s)
	}
	*at = t
	return nil
}

// timed reports whether the filter has a time limit.
func (f *filter) timed() bool {
	return f.fromIn >= 0 || f.toIn >= 0 || !f.from.IsZero() || !f.to.IsZero()
}

// inTime reports whether a frame at time t is in the time range; begin is the time of the
// first frame.
func (f *filter) inTime(t, begin time.Time) bool {
	return !(!f.from.IsZero() && t.Before(f.from) || !f.to.IsZero() && t.After(f.to) ||
		f.fromIn >= 0 && t.Sub(begin) < f.fromIn || f.toIn >= 0 && t.Sub(begin) > f.toIn)
}

func (f *filter) keeps(src, dst netip.Addr, qp, peer uint32) bool {
	if f.hosts != nil && !f.hosts[src] && !f.hosts[dst] {
		return false
	}
	return f.qps == nil || f.qps[qp] || peer != 0 && f.qps[peer]
}

// order returns an error text if -from is after -to.
func (f *filter) order() string {
	if f.toIn >= 0 && f.fromIn > f.toIn || !f.from.IsZero() && !f.to.IsZero() && f.from.After(f.to) {
		return "-from is after -to: nothing lies between them"
	}
	return ""
}

// roceJudged reports whether any RoCE packet was judged that the options select.
func (c *checker) roceJudged() bool {
	return c.w.RoCEFrames() > 0 && !(c.leftOut > 0 && len(c.flows) == 0 && c.breaches == 0)
}

// nothing reports that nothing was judged: the capture has no RoCE, or nothing that the
// options select.
func (c *checker) nothing() bool { return !c.roceJudged() && !c.mrcJudged() }

// why returns the reason that nothing was judged.
func (c *checker) why() string {
	switch {
	case c.w.RoCEFrames() > 0:
		return fmt.Sprintf("The capture has %s, and none that -qp and -host name: without these options the report lists all.",
			count(uint64(c.leftOut), "flow", "flows"))
	case c.filter.timed() && !c.begin.IsZero():
		return fmt.Sprintf("No RoCE packet is between -from and -to: the capture is from %s to %s.", stamp(c.begin), stamp(c.end))
	}
	return fmt.Sprintf("No RoCE packet was found. RoCE v2 is UDP to port %d (-port says another), v1 is Ethertype 0x8915; tunnels are decoded.", c.port())
}

// displayFilter is a filter for Wireshark that shows the packet of a finding.
func displayFilter(f *conform.Finding) string {
	if !f.Src.IsValid() {
		return ""
	}
	family := "ip"
	if f.Src.Is6() {
		family = "ipv6"
	}
	s := fmt.Sprintf("%s.src == %v && %s.dst == %v && infiniband.bth.destqp == 0x%06x", family, f.Src, family, f.Dst, f.QP)
	if f.Frame != 0 {
		s += fmt.Sprintf(" && infiniband.bth.psn == %d", f.PSN)
	}
	return s
}
