package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// verdict is the result of a script.
type verdict int

const (
	follows verdict = iota
	deviates
	notApplicable
	notReached
)

var verdictNames = []string{"follows", "deviates", "not applicable", "not reached"}

func (v verdict) String() string { return verdictNames[v] }

// result is a verdict and its evidence.
type result struct {
	s       *drill
	verdict verdict
	line    int    // of the statement that did not hold
	stmt    string // that statement
	why     string // what happened instead; or why there is no verdict
	frame   int    // frame number in the recording
	first   int    // number of the first frame of the script
	tries   int
	misses  int  // tries that deviated
	died    bool // the device's host crashed
	notes   []string
	kernel  []string // warnings of the kernel of the device's host
	trace   []traced
	took    time.Duration
}

// examine runs a script, after the scripts that it builds on, and repeats it if timing may
// have caused a deviation.
func (d *device) examine(s *drill) *result {
	if res := d.bases[s.id]; res != nil {
		return res
	}
	for _, b := range s.on {
		if res := d.examine(b); res.verdict == deviates {
			return &result{s: s, verdict: notReached, tries: 1, first: d.rec.n + 1, why: fmt.Sprintf("it builds on %s, which deviates", b.id)}
		}
	}
	res := d.repeat(s)
	if s.basis != nil {
		d.bases[s.id] = res
	}
	return res
}

// repeat runs a script until its result is clear.
func (d *device) repeat(s *drill) *result {
	res := d.once(s)
	for try := 0; try < 10 && res.verdict == notReached && res.why == errStarting.Error() && d.link.real(); try++ {
		time.Sleep(300 * time.Millisecond)
		res = d.once(s)
	}
	if res.verdict != deviates || !d.link.real() || res.stmt == quietKernel || res.died {
		return res
	}
	first := res
	first.misses = 1
	for ; first.tries < 3; first.tries++ {
		again := d.once(s)
		if again.verdict == notReached && again.why == errStarting.Error() {
			continue
		}
		if again.verdict == notReached {
			break // the device, or its agent, has a problem: the earlier result counts
		}
		if again.died {
			return again
		}
		first.kernel = append(first.kernel, again.kernel...)
		slices.Sort(first.kernel)
		first.kernel = slices.Compact(first.kernel)
		if again.verdict == deviates {
			first.misses++
		} else {
			res = again
		}
	}
	if res == first || first.misses > 1 {
		return first
	}
	res.tries, res.misses, res.kernel = first.tries, first.misses, first.kernel
	res.notes = append(res.notes, fmt.Sprintf("did not hold in 1 try of %d: line %d: %s: %s", first.tries, first.line, first.stmt, first.why))
	return res
}

// once runs a script.
func (d *device) once(s *drill) (res *result) {
	if s.by != "agent" && d.link.real() {
		time.Sleep(300 * time.Millisecond) // programs that end with a connection need time to restart
	}
	alive := false
	if a, ok := d.agent.(*remote); ok {
		a.revive()
		alive = a.err == nil && d.link.real()
	}
	start := d.link.now()
	res = &result{s: s, tries: 1, first: d.rec.n + 1}
	r := &run{d: d, s: s, connection: connection{seen: map[uint32]bool{}},
		resources: resources{keys: map[string]uint32{}, regions: map[string]liveRegion{}, bufs: map[string][2]uint64{}}}
	d.qpns++
	r.qpn, r.last = firstQPN+d.qpns, start
	err := r.needs()
	for _, st := range s.lines {
		if err != nil {
			break
		}
		r.line, r.stmt = st.line, st.text
		err = r.statement(st.text)
	}
	if err == nil {
		r.line, r.stmt = r.line+1, "end"
		err = r.end()
	}
	if r.heard > maxHeard {
		err = deviated("more than %d frames were received", maxHeard)
	}
	res.line, res.stmt, res.frame = r.line, r.stmt, r.lastFrame
	r.cleanup()
	said, gone := r.kernelLog()
	if said != "" {
		r.kernel = append(r.kernel, said)
	}
	switch {
	case gone && alive:
		if how, notIt := d.obituary(); notIt != nil {
			err = notIt
		} else {
			err = deviated("%s; the last packet to it: %s", how, r.lastSent)
			res.stmt, res.died = livingHost, true
		}
	case r.stmt == livingHost:
		res.died = true
	case said != "" && err == nil:
		err, res.stmt = deviated("%s", said), quietKernel
	}
	var dev *deviation
	var na inapplicable
	switch {
	case err == nil:
		res.line, res.stmt, res.frame = 0, "", 0
	case errors.As(err, &dev):
		res.verdict, res.why = deviates, err.Error()
	case errors.As(err, &na):
		res.verdict, res.why = notApplicable, err.Error()
	default:
		res.verdict, res.why = notReached, err.Error()
	}
	res.kernel = slices.Compact(slices.Sorted(slices.Values(r.kernel)))
	res.trace = r.trace
	res.notes, res.took = r.notes, d.link.now().Sub(start)
	return res
}

// maxHeard is the largest number of frames that a script receives: more is a flood.
const maxHeard = 1 << 18

var overIPv6 = regexp.MustCompile(`^(dut|call) .*\bv6\b`)

// needs returns an error if something that a script needs is missing.
func (r *run) needs() error {
	v6 := r.s.has(overIPv6)
	r.v6 = v6
	if v6 && !r.d.ip6.IsValid() {
		return inapplicable("the device has no IPv6 address that is known here")
	}
	switch by := r.s.by; {
	case by == "agent" && r.d.agent == nil:
		return inapplicable("needs the agent")
	case by == "cm" && len(r.d.cm) == 0:
		return inapplicable("needs a program that takes connections")
	case by != "agent":
		name := by
		if by == "cm" {
			name = "rping"
		}
		to, ok := r.d.cm[programAt{name, v6}]
		for at, a := range r.d.cm {
			if by == "cm" && !ok && at.v6 == v6 {
				to, ok = a, true
			}
		}
		switch {
		case !ok && v6:
			return inapplicable("needs a program that takes connections over IPv6")
		case !ok && by == "cm":
			return inapplicable("needs a program that takes connections over IPv4")
		case !ok:
			return inapplicable("needs " + by)
		}
		r.calls.to = to
	}
	for _, n := range r.s.needs {
		if n == "ecn" && r.d.can[n] == "" {
			r.d.can[n] = r.d.probe(ecnProbe)
		}
		if v := r.d.can[n]; v == "" || v == "0" {
			return inapplicable("the device has no " + n)
		}
	}
	return nil
}

// ecnProbe tests whether the device sends CNPs at all.
const ecnProbe = `== probe
# .
rule CA17-44
dut rc
region m len=4096
repeat 20 < RDMA_WRITE_ONLY 0 va=m rkey=m len=1024 ecn=ce
allow any
+100ms > CNP
`

// meetProbes tests whether the agent's device is the one at the other end of the wire. One
// packet that it receives, or one that it sends, is enough.
const meetProbes = `== a WRITE arrives
# .
rule RS-07
dut rc
region m len=64
repeat 3 same < RDMA_WRITE_ONLY 0 ackreq va=m rkey=m data=a[0:8]
allow any
wait 20ms
memory m a[0:8]

== a SEND leaves
# .
rule RQ-01
dut rc
allow any
post SEND data=a[0:8]
> SEND_ONLY 0
`

// meets returns an error if no packet passes between the wire and the agent's device.
func (d *device) meets() error {
	g, err := parseGroup("meets", "meets", meetProbes)
	if err != nil || d.agent == nil || !d.link.real() {
		return err
	}
	var res *result
	for _, s := range g.scripts {
		if res = d.once(s); res.verdict == follows {
			return nil
		}
	}
	if res.verdict == notReached {
		return errors.New(res.why)
	}
	return fmt.Errorf("%v responds to ARP, but no RoCE packet reaches the agent's device from there, and none comes from it: is the agent (%s) at the host of %v, and at that of its devices? %s",
		d.ip4, d.can["device"], d.ip4, "drill-agent -d names one, and its address must be one of the RDMA device's")
}

// probe runs a script to find what a device can; "1" or "0".
func (d *device) probe(text string) string {
	g, err := parseGroup("probe", "probe", text)
	if err == nil && d.agent != nil && d.once(g.scripts[0]).verdict == follows {
		return "1"
	}
	return "0"
}
