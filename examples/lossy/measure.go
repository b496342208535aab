package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/roce-go/roce/examples/internal/svg"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
)

// The link.
const (
	rate  = 100e9
	delay = 2 * time.Microsecond
)

// Where timeouts matter, a point goes on until it has seen enough of them, or rare
// times as many packets as asked for.
const (
	enough = 12
	rare   = 8
)

// point is a transfer.
type point struct {
	MTU      int     `json:"mtu"`
	Size     int     `json:"size"`
	Timeout  float64 `json:"timeout_us"`
	Loss     float64 `json:"loss"`
	Goodput  float64 `json:"goodput_gbps"`
	Packets  uint64  `json:"packets"`
	Lost     uint64  `json:"lost"`
	Again    uint64  `json:"retransmitted"`
	Naks     uint64  `json:"packet_seq_err"`
	Timeouts uint64  `json:"local_ack_timeout_err"`
	Virtual  float64 `json:"virtual_ms"`
	Status   string  `json:"status"`

	code int
}

type curve struct {
	mtu, size, timeout int
	points             []point
}

// others are the timeouts of the last panel.
var others = []int{14, 10, 6}

// curves returns what is to be measured: every MTU with every size, then the
// largest of both with other timeouts.
func (o *options) curves() (cs []*curve) {
	add := func(mtu, size, timeout int) {
		c := &curve{mtu: mtu, size: size, timeout: timeout}
		for _, l := range o.losses {
			c.points = append(c.points, point{MTU: mtu, Size: size, Loss: l, Timeout: 4.096 * float64(int(1)<<timeout), code: timeout})
		}
		cs = append(cs, c)
	}
	for _, m := range o.mtus {
		for _, s := range o.sizes {
			add(m, s, o.timeout)
		}
	}
	for _, t := range others {
		if t != o.timeout {
			add(slices.Max(o.mtus), slices.Max(o.sizes), t)
		}
	}
	return cs
}

func (p *point) measure(o *options) error {
	n := simnet.New(simnet.Config{Seed: o.seed, Carry: simnet.Shared})
	var hosts [2]*simnet.Host
	for i := range hosts {
		var err error
		if hosts[i], err = n.AddHost(simnet.HostConfig{}); err != nil {
			return err
		}
	}
	l, err := n.Connect(hosts[0], hosts[1], simnet.LinkConfig{Rate: rate, Delay: delay})
	if err != nil {
		return err
	}
	l.AB().SetFaults(simnet.Faults{Loss: p.Loss})
	l.BA().SetFaults(simnet.Faults{Loss: p.Loss})
	f, err := n.AddFlow(simnet.FlowConfig{
		From: hosts[0], To: hosts[1], Op: qp.OpWrite, Size: p.Size,
		Depth: 2 + 256<<10/p.Size, // several round trips of data
		Conn:  simnet.ConnConfig{MTU: p.MTU, Timeout: uint8(p.code), RetryForever: true},
	})
	if err != nil {
		return err
	}
	q, _ := f.QPs()
	most := uint64(o.packets)
	if p.Loss >= 0.0002 {
		// Timeouts are rare and weigh much.
		most *= rare
	}
	perPacket := uint64(min(p.MTU, p.Size))
	limit := max(time.Second, 60*time.Duration(4096<<p.code))
	for n.Elapsed() < limit && f.Status() == qp.Success {
		if err := n.Run(time.Millisecond); err != nil {
			return err
		}
		got := f.Received() / perPacket
		if got >= most || got >= uint64(o.packets) && q.Counters().LocalAckTimeoutErr >= enough {
			break
		}
	}
	took, bytes := n.Elapsed(), f.Received()
	c := q.Counters()
	p.Goodput = float64(bytes) * 8 / float64(took)
	p.Packets, p.Again, p.Naks, p.Timeouts = c.TxPackets, c.Retransmitted, c.PacketSeqErr, c.LocalAckTimeoutErr
	p.Lost = l.AB().Counters().Lost + l.BA().Counters().Lost
	p.Virtual = float64(took) / 1e6
	p.Status = f.Status().String()
	return nil
}

// cliff returns the loss at which the curve falls to half of what it is without,
// between the points on the logarithm of the loss.
func (c *curve) cliff() (loss float64, ok bool) {
	ps := slices.Clone(c.points)
	slices.SortFunc(ps, func(a, b point) int { return int(math.Copysign(1, a.Loss-b.Loss)) })
	if len(ps) == 0 {
		return 0, false
	}
	half := ps[0].Goodput / 2
	for i := 1; i < len(ps); i++ {
		a, b := ps[i-1], ps[i]
		if a.Goodput >= half && b.Goodput < half && a.Loss > 0 {
			t := (a.Goodput - half) / (a.Goodput - b.Goodput)
			return math.Exp(math.Log(a.Loss)*(1-t) + math.Log(b.Loss)*t), true
		}
	}
	return 0, false
}

func bytesText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func timeoutText(code int) string {
	us := 4.096 * float64(int(1)<<code)
	if us >= 1000 {
		return fmt.Sprintf("%.2g ms", us/1000)
	}
	return fmt.Sprintf("%.3g us", us)
}

func percent(v float64) string { return fmt.Sprintf("%.3g %%", v*100) }

func (c *curve) name() string {
	return fmt.Sprintf("MTU %d, %s, timeout %s", c.mtu, bytesText(c.size), timeoutText(c.timeout))
}

func table(w io.Writer, curves []*curve, o *options) {
	fmt.Fprintf(w, "Goodput in Gb/s of RDMA WRITEs on a 100 Gb/s link, 2 us each way, by loss\n\n")
	for i, row := range []func(c *curve) string{
		func(c *curve) string { return fmt.Sprintf("MTU %d", c.mtu) },
		func(c *curve) string { return bytesText(c.size) },
		func(c *curve) string { return timeoutText(c.timeout) },
	} {
		fmt.Fprintf(w, "%9s", []string{"", "message", "timeout"}[i])
		for _, c := range curves {
			fmt.Fprintf(w, " %8s", row(c))
		}
		fmt.Fprintln(w)
	}
	for i, l := range o.losses {
		fmt.Fprintf(w, "%9s", percent(l))
		for _, c := range curves {
			fmt.Fprintf(w, " %8.3f", c.points[i].Goodput)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nWhere it falls to half:\n")
	for _, c := range curves {
		if l, ok := c.cliff(); ok {
			fmt.Fprintf(w, "  %-42s %s of packets lost\n", c.name(), percent(l))
		} else {
			fmt.Fprintf(w, "  %-42s nowhere here\n", c.name())
		}
	}
	fmt.Fprintf(w, "\n%s\n", explanation)
}

const explanation = `Each loss costs a round trip: what was sent after the lost packet is sent again.
That alone bends the curve down slowly. The cliff is the timeout: when the packet
sent again is lost as well, or the NAK that asks for it, nobody asks a second time,
and the sender waits. For each packet that has a chance of about twice the square
of the loss.`

// picture draws a panel for each MTU, and one for the timeouts.
func picture(curves []*curve, o *options) []byte {
	p := svg.Picture{
		Title:   "Reliable connections under loss: goodput falls off a cliff",
		Sub:     "RDMA WRITEs on a 100 Gb/s link, 2 us each way, packets lost in both directions; go-back-N as RoCE has it, simulated",
		Columns: 2, W: 560, H: 330,
	}
	panel := func(title string, name func(c *curve) string, keep func(c *curve) bool) {
		ch := svg.Chart{
			Title: title, XLabel: "packets lost (logarithmic)", YLabel: "goodput, Gb/s",
			XLog: true, XZero: "none", YMin: 0, YMax: 100,
			XTick: func(v float64) string { return fmt.Sprintf("%.5g %%", v*100) },
		}
		var xs, ideal []float64
		mtu := 0
		for _, c := range curves {
			if !keep(c) {
				continue
			}
			s := svg.Series{Name: name(c), Dots: true}
			for _, p := range c.points {
				s.X, s.Y = append(s.X, p.Loss), append(s.Y, p.Goodput)
			}
			ch.Series = append(ch.Series, s)
			if mtu = c.mtu; len(xs) == 0 {
				xs = s.X
			}
		}
		if len(xs) == 0 {
			return
		}
		for _, l := range xs {
			// On the wire a packet has 82 bytes besides its payload.
			ideal = append(ideal, 100*(1-l)*float64(mtu)/float64(mtu+82))
		}
		ch.Series = append(ch.Series, svg.Series{Name: "only the lost sent again", X: xs, Y: ideal, Dash: true, Thin: true, Colour: "#888"})
		p.Charts = append(p.Charts, ch)
	}
	for _, m := range o.mtus {
		panel(fmt.Sprintf("MTU %d, timeout %s", m, timeoutText(o.timeout)), func(c *curve) string { return bytesText(c.size) + " messages" },
			func(c *curve) bool { return c.mtu == m && c.timeout == o.timeout })
	}
	m, s := slices.Max(o.mtus), slices.Max(o.sizes)
	panel(fmt.Sprintf("MTU %d, %s messages: the timeout makes the cliff", m, bytesText(s)), func(c *curve) string { return "timeout " + timeoutText(c.timeout) },
		func(c *curve) bool { return c.mtu == m && c.size == s })
	for i := range p.Charts {
		for j := range p.Charts[i].Series {
			p.Charts[i].Series[j].X = slices.Clone(p.Charts[i].Series[j].X)
		}
	}
	p.Notes = []string{
		"A loss costs a round trip, 4 us of data sent again: that bends a curve down slowly. When the packet sent again is lost too, or the NAK,",
		"the sender waits for its timeout. The chance of that is some twice the square of the loss: it does nothing for long and then everything.",
	}
	return p.Render()
}
