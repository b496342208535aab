package conform_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/conform"
)

// way is a way to capture the same traffic, in which nothing may look like a broken
// rule.
type way struct {
	name string
	make func(recs []rec) []rec
	// same: all counts are as in the original. Else only that there is no breach,
	// and that something is reported as not judged where tellNot is set.
	same    bool
	tellNot bool
	noIDs   bool // the original is one without IPv4 identifications, too
}

// eth puts b into an outer Ethernet frame of a type.
func eth(t uint16, b []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 9, 2, 2, 0, 0, 0, 9, 1}, t), b...)
}

// ip4 puts b into an outer IPv4 packet of a protocol.
func ip4(proto byte, b []byte) []byte {
	h := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0, 198, 51, 100, 1, 198, 51, 100, 2}
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(b)))
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return append(h, b...)
}

func udp4(port uint16, b []byte) []byte {
	h := binary.BigEndian.AppendUint16(nil, 50000)
	h = binary.BigEndian.AppendUint16(h, port)
	h = binary.BigEndian.AppendUint16(h, uint16(8+len(b)))
	return eth(0x800, ip4(17, append(append(h, 0, 0), b...)))
}

func gre(typ uint16, more []byte, flags uint16, b []byte) []byte {
	h := binary.BigEndian.AppendUint16(nil, flags)
	h = binary.BigEndian.AppendUint16(h, typ)
	return eth(0x800, ip4(47, append(append(h, more...), b...)))
}

// inner returns the packet in an Ethernet frame without tags, and whether it is
// IPv6.
func inner(b []byte) ([]byte, bool) { return b[14:], b[12] == 0x86 }

var tunnelWays = map[string]func(b []byte) []byte{
	"vlan": func(b []byte) []byte { return slices.Concat(b[:12], []byte{0x81, 0, 0, 7}, b[12:]) },
	"qinq": func(b []byte) []byte { return slices.Concat(b[:12], []byte{0x88, 0xa8, 0, 9, 0x81, 0, 0, 7}, b[12:]) },
	"3 tags": func(b []byte) []byte {
		return slices.Concat(b[:12], []byte{0x88, 0xa8, 0, 9, 0x81, 0, 0, 7, 0x81, 0, 0, 8}, b[12:])
	},
	"vxlan":  func(b []byte) []byte { return udp4(4789, append([]byte{8, 0, 0, 0, 0, 0x13, 0x88, 0}, b...)) },
	"geneve": func(b []byte) []byte { return udp4(6081, append([]byte{0, 0, 0x65, 0x58, 0, 0x13, 0x88, 0}, b...)) },
	"gre": func(b []byte) []byte {
		p, six := inner(b)
		if six {
			return gre(0x86dd, nil, 0, p)
		}
		return gre(0x800, nil, 0, p)
	},
	"gretap":  func(b []byte) []byte { return gre(0x6558, nil, 0, b) },
	"erspan1": func(b []byte) []byte { return gre(0x88be, nil, 0, b) },
	"erspan2": func(b []byte) []byte {
		return gre(0x88be, []byte{0, 0, 0, 1}, 0x1000, append([]byte{0x10, 0, 0, 1, 0, 0, 0, 2}, b...))
	},
	"erspan3": func(b []byte) []byte {
		return gre(0x22eb, []byte{0, 0, 0, 1}, 0x1000, append([]byte{0x20, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0}, b...))
	},
	"mpls": func(b []byte) []byte {
		p, _ := inner(b)
		return eth(0x8847, append([]byte{0, 1, 0x01, 64}, p...))
	},
	"mirror of a switch": func(b []byte) []byte { return gre(0x8949, make([]byte, 22), 0, b) },
	"srv6": func(b []byte) []byte {
		p, six := inner(b)
		next := byte(4)
		if six {
			next = 41
		}
		// One segment, which is where it goes: RFC 8754, section 2.
		dst := netip.MustParseAddr("2001:db8:f::2").As16()
		src := netip.MustParseAddr("2001:db8:f::1").As16()
		srh := slices.Concat([]byte{next, 2, 4, 0, 0, 0, 0, 0}, dst[:])
		h := []byte{0x60, 0, 0, 0, 0, 0, 43, 64}
		binary.BigEndian.PutUint16(h[4:], uint16(len(srh)+len(p)))
		return eth(0x86dd, slices.Concat(h, src[:], dst[:], srh, p))
	},
	"ip in ip": func(b []byte) []byte {
		p, six := inner(b)
		if six {
			return eth(0x800, ip4(41, p))
		}
		return eth(0x800, ip4(4, p))
	},
	"vxlan in erspan": func(b []byte) []byte {
		return gre(0x88be, []byte{0, 0, 0, 1}, 0x1000, append([]byte{0x10, 0, 0, 1, 0, 0, 0, 2}, udp4(4789, append([]byte{8, 0, 0, 0, 0, 0x13, 0x88, 0}, b...))...))
	},
}

func eachFrame(f func(b []byte) []byte) func([]rec) []rec {
	return func(recs []rec) []rec {
		out := make([]rec, len(recs))
		for i, r := range recs {
			r.data = f(slices.Clone(r.data))
			r.wire = len(r.data)
			out[i] = r
		}
		return out
	}
}

// zeroID clears the IPv4 identification and makes all right again.
func zeroID(r rec) rec {
	var f frame.Frame
	if f.Decode(frame.Ethernet, r.data) == nil && f.CheckICRC() == frame.ICRCGood {
		f.ID = 0
		r.data = f.AppendTo(nil)
		r.wire = len(r.data)
	}
	return r
}

func eachRecord(f func(rec) rec, recs []rec) []rec {
	recs = slices.Clone(recs)
	for i := range recs {
		recs[i] = f(recs[i])
	}
	return recs
}

// routed is r one router later.
func routed(r rec) rec {
	b := slices.Clone(r.data)
	b[5], b[11] = 0x77, 0x78
	switch {
	case b[12] == 8 && b[13] == 0:
		b[22]--
		sum := uint32(binary.BigEndian.Uint16(b[24:])) + 0x100
		binary.BigEndian.PutUint16(b[24:], uint16(sum+sum>>16))
	case b[12] == 0x86:
		b[21]--
	}
	r.data = b
	return r
}

// mirrored adds a copy of each frame, d later, as a second mirror port has it
// behind a router.
func mirrored(d time.Duration, ids bool) func([]rec) []rec {
	return func(recs []rec) []rec {
		var a, b []rec
		for _, r := range recs {
			if !ids {
				r = zeroID(r)
			}
			a = append(a, r)
			b = append(b, routed(r))
		}
		return merge(a, b, d)
	}
}

func ways() []way {
	out := []way{}
	for _, name := range slices.Sorted(mapKeys(tunnelWays)) {
		out = append(out, way{name: "in " + name, make: eachFrame(tunnelWays[name]), same: true})
	}
	for _, d := range []time.Duration{500, 20 * us, 300 * us} {
		out = append(out, way{name: fmt.Sprintf("mirrored %v later", d), make: mirrored(d, false), same: true, noIDs: true},
			way{name: fmt.Sprintf("mirrored %v later, with ids", d), make: mirrored(d, true), same: true})
	}
	for _, d := range []time.Duration{5 * us, 30 * us, -5 * us, -30 * us} {
		out = append(out, way{name: fmt.Sprintf("two taps, skew %v", d), same: true, make: func(recs []rec) []rec { return merge(recs, recs, d+2*us) }})
	}
	for _, percent := range []int{1, 5, 10, 20} {
		for seed := range uint64(5) {
			out = append(out, way{name: fmt.Sprintf("%d %% missing, %d", percent, seed), make: func(recs []rec) []rec {
				rng := rand.New(rand.NewPCG(seed, uint64(percent)))
				return slices.DeleteFunc(slices.Clone(recs), func(rec) bool { return rng.IntN(100) < percent })
			}})
		}
	}
	for _, from := range []byte{1, 2} {
		out = append(out, way{name: fmt.Sprintf("one direction %d", from), tellNot: true, make: func(recs []rec) []rec { return oneWay(recs, from) }})
	}
	step := 1
	if testing.Short() {
		step = 9
	}
	for n := 54; n <= 128; n += step {
		out = append(out, way{name: fmt.Sprintf("snaplen %d", n), make: func(recs []rec) []rec { return snap(recs, n) }})
	}
	for _, d := range []time.Duration{1 * us, 10 * us, 40 * us} {
		out = append(out, way{name: fmt.Sprintf("clock jitter %v", d), make: func(recs []rec) []rec { return jitter(recs, d, false) }},
			way{name: fmt.Sprintf("clock jitter %v, sorted", d), make: func(recs []rec) []rec { return jitter(recs, d, true) }})
	}
	out = append(out, way{name: "all stamps equal", tellNot: true, make: func(recs []rec) []rec {
		recs = slices.Clone(recs)
		for i := range recs {
			recs[i].ts = recs[0].ts
		}
		return recs
	}}, way{name: "an hour's jump", make: func(recs []rec) []rec {
		recs = slices.Clone(recs)
		for i := range recs[len(recs)/2:] {
			recs[len(recs)/2+i].ts = recs[len(recs)/2+i].ts.Add(time.Hour)
		}
		return recs
	}}, way{name: "an hour back", make: func(recs []rec) []rec {
		recs = slices.Clone(recs)
		for i := range recs[len(recs)/2:] {
			recs[len(recs)/2+i].ts = recs[len(recs)/2+i].ts.Add(-time.Hour)
		}
		return recs
	}})
	return out
}

func jitter(recs []rec, d time.Duration, sorted bool) []rec {
	rng := rand.New(rand.NewPCG(uint64(d), 3))
	recs = slices.Clone(recs)
	for i := range recs {
		recs[i].ts = recs[i].ts.Add(time.Duration(rng.Int64N(2*int64(d))) - d)
	}
	if sorted {
		slices.SortStableFunc(recs, func(a, b rec) int { return a.ts.Compare(b.ts) })
	}
	return recs
}

// counted are the counts that do not depend on how traffic is captured.
func counted(w *conform.Watcher) string {
	c := w.Total()
	return fmt.Sprintf("messages %d %d data %d bytes %d good %d resent %d acks %d naks %d rnr %d timers %d", c.MessagesTx, c.MessagesDone,
		c.DataFrames, c.PayloadBytes, c.GoodBytes, c.Retransmitted, c.Acks, c.Naks, c.RNRs, c.LocalAckTimeoutErr)
}

// TestWays: however traffic is captured, no breach is found that the plain capture
// does not show, and what can be counted is counted alike.
func TestWays(t *testing.T) {
	table := ways()
	for n, name := range names(t) {
		recs := load(t, name)
		w0, whole := watch(t, conform.Config{}, recs)
		if strings.HasPrefix(name, "probe") || name == "rc-local-drop-read" {
			// What is wrong there shows in another way where less is left.
			_, all := watch(t, conform.Config{Complete: true}, recs)
			whole = append(whole, all...)
		}
		want := counted(w0)
		w1, _ := watch(t, conform.Config{}, eachRecord(zeroID, recs))
		wantNoIDs := counted(w1)
		t.Run(name, func(t *testing.T) {
			for i, v := range table {
				if testing.Short() && (i+n)%3 != 0 {
					continue // another capture has its turn
				}
				if strings.HasPrefix(name, "probe") && (strings.Contains(v.name, "missing") || strings.Contains(v.name, "hour")) {
					continue // too little is left to see what is wrong on purpose
				}
				got := v.make(recs)
				if len(got) == 0 {
					continue
				}
				w, all := watch(t, conform.Config{}, got)
				noNewBreach(t, kinds(whole), kinds(all), v.name)
				if v.same && !strings.HasPrefix(name, "probe") {
					if v.noIDs {
						require.Equal(t, wantNoIDs, counted(w), v.name)
					} else {
						require.Equal(t, want, counted(w), v.name)
					}
				}
				if v.tellNot && w0.RoCEFrames() > 1 && w.RoCEFrames() > 1 && strings.HasPrefix(name, "rc-") {
					n := uint64(0)
					w.NotJudged(func(_ conform.Rule, _ conform.Reason, k uint64) bool { n += k; return true })
					require.Positive(t, n, "%s: nothing is reported as not judged", v.name)
				}
			}
		})
	}
}

// kinds takes what noNewBreach compares: the times differ here.
func kinds(all []conform.Finding) []conform.Finding { return all }

// composedRuns is how many captures TestComposed looks at.
//
//	go test ./qp/conform -run TestComposed -composed 10000 -composed-from 210000
//
// Those that showed a breach which was none have a place in the list of TestComposed, and
// their causes are removed. Of the last 10,000, from 210000 on, none did; of the 10,000
// before, one.
var (
	composedRuns = flag.Int("composed", 0, "captures of TestComposed; 0: 1500, or 150 with -short")
	composedFrom = flag.Uint64("composed-from", 0, "the first one's seed")
)

// spoiler is a way in which a network or a capture may change what is seen of sound
// devices.
type spoiler struct {
	name string
	make func(rng *rand.Rand, recs []rec) []rec
}

// rebuilt changes the fields of each frame that can be built again, with the right ICRC.
func rebuilt(recs []rec, change func(i int, f *frame.Frame)) []rec {
	recs = slices.Clone(recs)
	for i, r := range recs {
		var f frame.Frame
		if f.Decode(frame.Ethernet, r.data) != nil || f.CheckICRC() != frame.ICRCGood {
			continue
		}
		change(i, &f)
		d := f.AppendTo(nil)
		recs[i] = rec{r.ts, append(d, make([]byte, max(0, 60-len(d)))...), max(60, len(d))}
	}
	return recs
}

// natted gives the addresses of host 1 other names, as a translator does.
func natted(recs []rec) []rec {
	other := func(a netip.Addr) netip.Addr {
		if !a.Is4() || a.As4()[3] != 1 {
			return a
		}
		return netip.AddrFrom4([4]byte{198, 51, 100, 77})
	}
	return rebuilt(recs, func(_ int, f *frame.Frame) {
		if f.Packet.DestQP != 1 {
			f.Src, f.Dst = other(f.Src), other(f.Dst)
		}
	})
}

// The table's order is that in which they are used: what builds packets again first,
// what clocks do last.
var spoilers = []spoiler{
	{"without identifications", func(_ *rand.Rand, recs []rec) []rec { return eachRecord(zeroID, recs) }},
	{"translated addresses", func(_ *rand.Rand, recs []rec) []rec { return natted(recs) }},
	{"RoCE v1", func(_ *rand.Rand, recs []rec) []rec {
		return rebuilt(recs, func(_ int, f *frame.Frame) { asGRH(f) })
	}},
	{"wrapped PSNs", func(rng *rand.Rand, recs []rec) []rec {
		d := -6636321 - rng.IntN(40)
		return rebuilt(recs, func(_ int, f *frame.Frame) {
			if p := &f.Packet; p.DestQP != 1 && p.Opcode != bth.CNP {
				p.PSN = p.PSN.Add(d)
			} else if m := (cm.Message{}); p.DestQP == 1 && m.Decode(p.Payload) == nil {
				m.REQ.StartingPSN = uint32(psn.PSN(m.REQ.StartingPSN).Add(d))
				m.REP.StartingPSN = uint32(psn.PSN(m.REP.StartingPSN).Add(d))
				p.SetPayload(m.AppendTo(nil))
			}
		})
	}},
	{"the same QP numbers again", func(rng *rand.Rand, recs []rec) []rec {
		return then(slices.Clone(recs), recs, 11*time.Second+time.Duration(rng.IntN(1000))*ms)
	}},
	{"copied by the network", func(rng *rand.Rand, recs []rec) []rec {
		out := slices.Clone(recs)
		for _, r := range recs {
			if rng.IntN(20) == 0 {
				r.ts = r.ts.Add(time.Duration(rng.IntN(20)) * us)
				out = append(out, r)
			}
		}
		slices.SortStableFunc(out, func(a, b rec) int { return a.ts.Compare(b.ts) })
		return out
	}},
	{"captured before and behind a translator", func(rng *rand.Rand, recs []rec) []rec {
		return merge(recs, natted(recs), time.Duration(rng.IntN(20))*us)
	}},
	{"mirrored", func(rng *rand.Rand, recs []rec) []rec {
		return mirrored([]time.Duration{500, 5 * us, 40 * us, 300 * us}[rng.IntN(4)], rng.IntN(2) == 0)(recs)
	}},
	{"two taps", func(rng *rand.Rand, recs []rec) []rec {
		return merge(recs, recs, time.Duration(rng.IntN(60)-30)*us)
	}},
	{"a second time in a tunnel", func(rng *rand.Rand, recs []rec) []rec {
		names := slices.Sorted(mapKeys(tunnelWays))
		return merge(recs, eachFrame(tunnelWays[names[rng.IntN(len(names))]])(recs), time.Duration(rng.IntN(60))*us)
	}},
	{"in a tunnel", func(rng *rand.Rand, recs []rec) []rec {
		names := slices.Sorted(mapKeys(tunnelWays))
		return eachFrame(tunnelWays[names[rng.IntN(len(names))]])(recs)
	}},
	{"begins in the middle", func(rng *rand.Rand, recs []rec) []rec { return recs[rng.IntN(len(recs)):] }},
	{"ends in the middle", func(rng *rand.Rand, recs []rec) []rec { return recs[:rng.IntN(len(recs))+1] }},
	{"missing here and there", func(rng *rand.Rand, recs []rec) []rec {
		p := []float64{0.005, 0.02, 0.1, 0.3}[rng.IntN(4)]
		return slices.DeleteFunc(slices.Clone(recs), func(rec) bool { return rng.Float64() < p })
	}},
	{"missing in bursts", func(rng *rand.Rand, recs []rec) []rec {
		left := 0
		return slices.DeleteFunc(slices.Clone(recs), func(rec) bool {
			if left == 0 && rng.IntN(40) == 0 {
				left = 1 + rng.IntN(12)
			}
			left = max(0, left-1)
			return left > 0
		})
	}},
	{"one host missing in part", func(rng *rand.Rand, recs []rec) []rec {
		from, p := byte(1+rng.IntN(2)), []float64{0.1, 0.5, 1}[rng.IntN(3)]
		return slices.DeleteFunc(slices.Clone(recs), func(r rec) bool { return r.data[11] == from && rng.Float64() < p })
	}},
	{"cut", func(rng *rand.Rand, recs []rec) []rec { return snap(recs, 54+rng.IntN(90)) }},
	{"clock jitter", func(rng *rand.Rand, recs []rec) []rec {
		return jitter(recs, time.Duration(1+rng.IntN(20))*us, rng.IntN(2) == 0)
	}},
	{"clock jumps", func(rng *rand.Rand, recs []rec) []rec {
		recs = slices.Clone(recs)
		d := []time.Duration{-time.Hour, -time.Second, -ms, ms, time.Second, time.Hour}[rng.IntN(6)]
		for i := rng.IntN(len(recs)); i < len(recs); i++ {
			recs[i].ts = recs[i].ts.Add(d)
		}
		return recs
	}},
	{"microseconds", func(_ *rand.Rand, recs []rec) []rec {
		return eachRecord(func(r rec) rec { r.ts = r.ts.Truncate(us); return r }, recs)
	}},
	{"milliseconds", func(_ *rand.Rand, recs []rec) []rec {
		return eachRecord(func(r rec) rec { r.ts = r.ts.Truncate(ms); return r }, recs)
	}},
	{"all stamps equal", func(_ *rand.Rand, recs []rec) []rec {
		return eachRecord(func(r rec) rec { r.ts = recs[0].ts; return r }, recs)
	}},
}

// TestComposed: however a network and a capture change what is seen of sound devices,
// several ways at once, none of them is accused.
func TestComposed(t *testing.T) {
	runs := *composedRuns
	if runs == 0 {
		runs = 1500
		if testing.Short() {
			runs = 150
		}
	}
	var all []string
	for _, name := range names(t) {
		// In these, something is wrong on purpose, which may show in other ways.
		if !strings.HasPrefix(name, "probe") && name != "rc-local-drop-read" {
			all = append(all, name)
		}
	}
	var sim *world // each one for some runs
	seeds := []uint64{5295, 1575, 3686, 4209, 4984, 577, 757, 909, 1349, 1645, 1926, 1990, 2527,
		5002, 6342, 6851, 6853, 11151, 6332, 9137, 5735, 9297, 9937, 12636, 21416, 22497, 24332, 61043, 66519, 71028, 72411,
		103644, 104273, 106114, 106503, 123084,
		174128, 174640, 174659, 175839, 182473, 185422, 188912, 198201,
		207563} // found something once
	for i := range uint64(runs) {
		seeds = append(seeds, *composedFrom+i)
	}
	for _, seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 77))
		name := all[rng.IntN(len(all))]
		recs := load(t, name)
		if sim == nil || sim.seed != 10000+seed/40 {
			sim = buildWorld(t, 10000+seed/40)
		}
		if rng.IntN(2) == 0 {
			name = []string{"a", "b", "middle", "merged"}[rng.IntN(4)]
			recs = sim.taps[name].recs
			name = fmt.Sprintf("world %d at %s", sim.seed, name)
		}
		_, whole := watch(t, conform.Config{}, recs)
		what := fmt.Sprintf("seed %d: %s", seed, name)
		last := -1
		for range 1 + rng.IntN(3) {
			i := rng.IntN(len(spoilers))
			if i <= last || len(recs) == 0 || len(recs) > 20000 {
				continue
			}
			last = i
			recs = spoilers[i].make(rng, recs)
			what += ", " + spoilers[i].name
		}
		if len(recs) == 0 {
			continue
		}
		_, found := watch(t, conform.Config{}, recs)
		noNewBreach(t, whole, found, what)
	}
}
