// Package wire holds the flags of the programs that open an endpoint: the wire, its
// addresses, faults, and a capture.
package wire

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/endpoint"
)

// Usage describes the wire in a program's help text.
const Usage = `WIRE is one of
  -segment LOCAL,REMOTE  Ethernet in UDP datagrams, as QEMU's -netdev dgram has it
  -udp ADDRESS           a plain UDP socket on port 4791 of this host (Linux)
  -tap NAME              a TAP interface, made if need be (Linux, CAP_NET_ADMIN)
  -packet NAME           an interface, beside what the host does with it (Linux,
                         CAP_NET_RAW)
`

// Flags are the flags.
type Flags struct {
	// DefaultWindow is the default of -window. 0 means 32.
	DefaultWindow int

	segment, udp, tap, packet string
	mac, ips, faults, capture string
	strict                    bool
	window                    int
	poll                      time.Duration
	seed                      uint64
}

// Register adds the flags to a set.
func (f *Flags) Register(fs *flag.FlagSet) {
	if f.DefaultWindow == 0 {
		f.DefaultWindow = 32
	}
	fs.StringVar(&f.segment, "segment", "", "`LOCAL,REMOTE`: addresses with ports")
	fs.StringVar(&f.udp, "udp", "", "local IP `address` of the socket")
	fs.StringVar(&f.tap, "tap", "", "TAP interface `name`")
	fs.StringVar(&f.packet, "packet", "", "interface `name`")
	fs.BoolVar(&f.strict, "strict", false, "with -udp: take IPv4 packets of identification 0 only")
	fs.StringVar(&f.mac, "mac", "52:54:00:00:00:01", "Ethernet `address` of the port; not with -udp")
	fs.StringVar(&f.ips, "ip", "192.0.2.1,2001:db8::1", "IP `addresses` of the port; not with -udp")
	fs.StringVar(&f.faults, "faults", "", "`list` of loss=P, duplicate=P, reorder=P: percent of the frames, each way, or with sent- or received- before the name one way; not with -udp")
	fs.Uint64Var(&f.seed, "seed", 1, "`number` that the faults follow from")
	fs.StringVar(&f.capture, "capture", "", "`file` for the packets sent and received, as pcap")
	fs.DurationVar(&f.poll, "poll", 0, "with -udp and -packet: `time` to look for packets without sleeping after the last, which costs a processor and makes latencies shorter")
	fs.IntVar(&f.window, "window", f.DefaultWindow, "most `packets` outstanding on a connection; a peer in software loses what its buffers do not hold")
}

// Window returns the maximum number of packets in flight on a connection.
func (f *Flags) Window() int { return f.window }

// UDP reports whether the wire is a UDP socket.
func (f *Flags) UDP() bool { return f.udp != "" }

// Open opens the endpoint that the flags describe. closing closes it, and the capture.
func (f *Flags) Open(cfg endpoint.Config) (ep *endpoint.Endpoint, closing func() error, err error) {
	name, w, err := f.wire(&cfg)
	if err != nil {
		return nil, nil, err
	}
	if f.window < 1 || f.window > 1<<20 {
		return nil, nil, fmt.Errorf("-window %d: want 1 to %d", f.window, 1<<20)
	}
	if f.poll < 0 {
		return nil, nil, fmt.Errorf("-poll %v: want 0 or more", f.poll)
	}
	cfg.BusyPoll = f.poll
	if f.faults != "" {
		if f.UDP() {
			return nil, nil, errors.New("-faults: a UDP wire has no frames to lose; take another one")
		}
		faults, err := ParseFaults(f.faults, f.seed)
		if err != nil {
			return nil, nil, err
		}
		cfg.Filter = faults.Filter
	}
	var file *os.File
	if f.capture != "" {
		if file, err = os.Create(f.capture); err != nil {
			return nil, nil, fmt.Errorf("-capture: %w", err)
		}
	}
	fail := func(err error) (*endpoint.Endpoint, func() error, error) {
		if file != nil {
			file.Close()
		}
		return nil, nil, err
	}
	if ep, err = cfg.Open(w); err != nil {
		return fail(fmt.Errorf("%s: %w", name, err))
	}
	if file != nil {
		if err := ep.Capture(file); err != nil {
			ep.Close()
			return fail(err)
		}
	}
	return ep, func() error {
		err := ep.Close()
		if file != nil {
			err = errors.Join(err, ep.Capture(nil), file.Close())
		}
		return err
	}, nil
}

// wire returns the wire, and the flag that names it.
func (f *Flags) wire(cfg *endpoint.Config) (name string, w endpoint.Wire, err error) {
	for _, x := range []struct{ flag, value string }{{"-segment", f.segment}, {"-udp", f.udp}, {"-tap", f.tap}, {"-packet", f.packet}} {
		if x.value == "" {
			continue
		}
		if name != "" {
			return "", nil, fmt.Errorf("%s and %s: name one wire; see -h", name, x.flag)
		}
		name = x.flag
	}
	switch name {
	case "":
		return "", nil, errors.New("name a wire: -segment, -udp, -tap or -packet; see -h")
	case "-udp":
		a, err := Lookup(name, f.udp, false)
		if err != nil {
			return "", nil, err
		}
		if f.strict {
			return name, endpoint.StrictUDP(a.String()), nil
		}
		return name, endpoint.UDP(a.String()), nil
	}
	hw, err := net.ParseMAC(f.mac)
	if err != nil || len(hw) != 6 {
		return "", nil, fmt.Errorf("-mac %s is no Ethernet address", f.mac)
	}
	cfg.MAC = frame.MAC(hw)
	var addrs []netip.Addr
	for _, s := range strings.Split(f.ips, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return "", nil, fmt.Errorf("-ip: %w", err)
		}
		addrs = append(addrs, a)
	}
	switch name {
	case "-segment":
		local, remote, ok := strings.Cut(f.segment, ",")
		if !ok {
			return "", nil, fmt.Errorf("-segment %s: want LOCAL,REMOTE", f.segment)
		}
		return name, endpoint.Segment(local, remote, addrs...), nil
	case "-tap":
		return name, endpoint.TAP(f.tap, addrs...), nil
	}
	return name, endpoint.Packet(f.packet, addrs...), nil
}

// Lookup returns the address that a flag names, directly or as a host name; an IPv4 address
// if there is one, unless v6 is set.
func Lookup(flag, name string, v6 bool) (netip.Addr, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s %q is no address, and no host: %w", flag, name, err)
	}
	for _, a := range list {
		if a = a.Unmap(); a.Is4() != v6 {
			return a, nil
		}
	}
	return list[0].Unmap(), nil
}

// Faults drops, duplicates and reorders RoCE frames; other frames pass. Filter is for
// endpoint.Config.
type Faults struct {
	received, sent way

	mu  sync.Mutex
	rng *rand.Rand
}

// way holds the faults of a direction.
type way struct {
	loss, duplicate, reorder float64 // probabilities
	held                     []byte  // sent or received after the next frame
}

// ParseFaults reads a list like "loss=5,sent-reorder=1", in percent. A fault without a
// direction before its name applies to both.
func ParseFaults(list string, seed uint64) (*Faults, error) {
	f := &Faults{rng: rand.New(rand.NewPCG(seed, 0))}
	for _, part := range strings.Split(list, ",") {
		name, v, _ := strings.Cut(part, "=")
		p, err := strconv.ParseFloat(v, 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return nil, fmt.Errorf("-faults %q: want NAME=PERCENT, 0 to 100", part)
		}
		ways := []*way{&f.received, &f.sent}
		kind := name
		if dir, rest, ok := strings.Cut(name, "-"); ok {
			switch kind = rest; dir {
			case "received":
				ways = ways[:1]
			case "sent":
				ways = ways[1:]
			default:
				kind = ""
			}
		}
		for _, w := range ways {
			switch kind {
			case "loss":
				w.loss = p / 100
			case "duplicate":
				w.duplicate = p / 100
			case "reorder":
				w.reorder = p / 100
			default:
				return nil, fmt.Errorf("-faults %q: want loss, duplicate or reorder, and no direction before it but sent- or received-", name)
			}
		}
	}
	return f, nil
}

// Filter returns the frames that replace a frame. A frame that is held back follows the next
// one of its direction; if there is none, it is lost.
func (f *Faults) Filter(sent bool, b []byte) [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &f.received
	if sent {
		w = &f.sent
	}
	var out [][]byte
	var fr frame.Frame
	switch {
	case (frame.Finder{}).Find(frame.Ethernet, b, len(b), &fr) != nil:
		out = append(out, b)
	case f.rng.Float64() < w.loss:
		return nil
	case w.held == nil && f.rng.Float64() < w.reorder:
		w.held = append([]byte(nil), b...)
		return nil
	default:
		out = append(out, b)
		if f.rng.Float64() < w.duplicate {
			out = append(out, append([]byte(nil), b...))
		}
	}
	if h := w.held; h != nil {
		w.held = nil
		out = append(out, h)
	}
	return out
}
