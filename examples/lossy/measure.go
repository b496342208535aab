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

// If timeouts may matter, a measurement goes on until it has seen enough timeouts, or the
// relative error of the goodput is at most near, or rare times the requested number of packets
// have arrived.
const (
	enough = 30
	near   = 0.1
	rare   = 8
)

// point is a measurement of one transfer.
type point struct {
	MTU      int     `json:"mtu"`
	Size     int     `json:"size"`
	Timeout  float64 `json:"timeout_us"`
	Loss     float64 `json:"loss"`
	Selects  bool    `json:"selective_repeat"`
	Goodput  float64 `json:"goodput_gbps"`
	Low      float64 `json:"goodput_low_gbps"`  // lower bound by the number of timeouts, 95 %
	High     float64 `json:"goodput_high_gbps"` // upper bound by the number of timeouts, 95 %
	Model    float64 `json:"model_gbps"`
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
	selective          bool
	points             []point
}

// others are the other timeouts, for the last panel.
var others = []int{14, 10, 6}

// curves returns what is measured: every MTU with every size, and the largest size with
// selective repeat, then the largest MTU and size with other timeouts.
func (o *options) curves() (cs []*curve) {
	add := func(mtu, size, timeout int, selective bool) {
		c := &curve{mtu: mtu, size: size, timeout: timeout, selective: selective}
		for _, l := range o.losses {
			p := point{MTU: mtu, Size: size, Loss: l, Timeout: 4.096 * float64(int(1)<<timeout), Selects: selective, Model: c.model(l), code: timeout}
			if selective {
				p.Timeout = float64(rtoHigh) / 1e3
			}
			c.points = append(c.points, p)
		}
		cs = append(cs, c)
	}
	for _, m := range o.mtus {
		for _, s := range o.sizes {
			add(m, s, o.timeout, false)
		}
		add(m, slices.Max(o.sizes), o.timeout, true)
	}
	for _, t := range others {
		if t != o.timeout {
			add(slices.Max(o.mtus), slices.Max(o.sizes), t, false)
		}
	}
	return cs
}

// Timeouts of selective repeat: the defaults of qp.Selective.
const (
	rtoLow  = 100 * time.Microsecond
	rtoHigh = 320 * time.Microsecond
)

// selective returns selective repeat with about four times as many packets in flight as a
// round trip needs, so that the sender goes on while it retransmits.
func selective(mtu int) qp.Selective {
	packet := float64(mtu+wire) * 8 / (rate / 1e9)
	return qp.Selective{Packets: max(16, int(4*turn(packet)/packet)), RTOLow: rtoLow, RTOHigh: rtoHigh}
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
	conn := simnet.ConnConfig{MTU: p.MTU, Timeout: uint8(p.code), RetryForever: true}
	if p.Selects {
		conn.Selective = selective(p.MTU)
	}
	f, err := n.AddFlow(simnet.FlowConfig{
		From: hosts[0], To: hosts[1], Op: qp.OpWrite, Size: p.Size,
		Depth: 2 + 256<<10/p.Size, // several round trips of data
		Conn:  conn,
	})
	if err != nil {
		return err
	}
	q, _ := f.QPs()
	most := uint64(o.packets)
	if p.Loss >= 0.0002 {
		// Timeouts are rare, but each one costs much time.
		most *= rare
	}
	perPacket := uint64(min(p.MTU, p.Size))
	limit := max(time.Second, 60*time.Duration(4096<<p.code))
	for n.Elapsed() < limit && f.Status() == qp.Success {
		if err := n.Run(time.Millisecond); err != nil {
			return err
		}
		got := f.Received() / perPacket
		p.estimate(n.Elapsed(), f.Received(), q.Counters().LocalAckTimeoutErr)
		if got >= most || got >= uint64(o.packets) && (p.Timeouts >= enough || p.High-p.Low <= 2*near*p.Goodput) {
			break
		}
	}
	took := n.Elapsed()
	c := q.Counters()
	p.estimate(took, f.Received(), c.LocalAckTimeoutErr)
	p.Packets, p.Again, p.Naks = c.TxPackets, c.Retransmitted, c.PacketSeqErr
	p.Lost = l.AB().Counters().Lost + l.BA().Counters().Lost
	p.Virtual = float64(took) / 1e6
	p.Status = f.Status().String()
	return nil
}

// estimate sets the goodput and its bounds. The bounds follow from the number of timeouts
// seen, which are rare, long, and random.
func (p *point) estimate(took time.Duration, bytes, timeouts uint64) {
	p.Timeouts = timeouts
	few, many := poisson(float64(timeouts))
	one := p.Timeout * 1e3 // ns
	busy := max(float64(took)-float64(timeouts)*one, 1)
	p.Goodput = float64(bytes) * 8 / float64(took)
	p.Low, p.High = float64(bytes)*8/(busy+many*one), float64(bytes)*8/(busy+few*one)
	if p.Loss == 0 {
		p.Low, p.High = p.Goodput, p.Goodput
	}
}

// poisson returns the bounds of the mean of a Poisson variable of which n was observed, with
// a probability of 95 %, accurate to some per cent (the square root of such a variable has a
// variance of a quarter).
func poisson(n float64) (low, high float64) {
	if n == 0 {
		return 0, 3.7
	}
	return max(0, math.Pow(math.Sqrt(n)-0.98, 2)), math.Pow(math.Sqrt(n+1)+0.98, 2)
}

// vague reports whether timeouts make the goodput very uncertain.
func (p *point) vague() bool { return p.Low < 0.7*p.Goodput || p.High > 1.4*p.Goodput }

// cliff returns the loss at which the goodput is half of that without loss, interpolated
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
	if c.selective {
		return fmt.Sprintf("MTU %d, %s, selective repeat", c.mtu, bytesText(c.size))
	}
	return fmt.Sprintf("MTU %d, %s, timeout %s", c.mtu, bytesText(c.size), timeoutText(c.timeout))
}

func table(w io.Writer, curves []*curve, o *options) {
	fmt.Fprintf(w, "Goodput in Gb/s of RDMA WRITEs on a 100 Gb/s link, 2 us each way, by loss\n\n")
	for i, row := range []func(c *curve) string{
		func(c *curve) string { return fmt.Sprintf("MTU %d", c.mtu) },
		func(c *curve) string { return bytesText(c.size) },
		func(c *curve) string {
			if c.selective {
				return "selects"
			}
			return timeoutText(c.timeout)
		},
	} {
		fmt.Fprintf(w, "%9s", []string{"", "message", "timeout"}[i])
		for _, c := range curves {
			fmt.Fprintf(w, " %8s", row(c))
		}
		fmt.Fprintln(w)
	}
	rows := func(value func(p *point) float64) {
		for i, l := range o.losses {
			fmt.Fprintf(w, "%9s", percent(l))
			for _, c := range curves {
				mark := " "
				if c.points[i].vague() {
					mark = "?"
				}
				fmt.Fprintf(w, " %7.3f%s", value(&c.points[i]), mark)
			}
			fmt.Fprintln(w)
		}
	}
	rows(func(p *point) float64 { return p.Goodput })
	fmt.Fprintln(w, "\n?  so few timeouts that with a chance of more than 5 % it is a third less, or more")
	fmt.Fprintf(w, "\nMeasured, divided by what the model says:\n\n")
	rows(func(p *point) float64 { return p.Goodput / p.Model })
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
of the loss. Selective repeat, an option of this module's queue pairs, sends again
only what is lost, and waits 100 or 320 us where nothing else tells.`

// picture draws a panel for each MTU, and one for the timeouts.
func picture(curves []*curve, o *options) []byte {
	p := svg.Picture{
		Title:   "Reliable connections under loss: go-back-N falls off a cliff, selective repeat does not",
		Sub:     "RDMA WRITEs on a 100 Gb/s link, 2 us each way, packets lost in both directions; simulated (dots), and what a model says (dashed)",
		Columns: 2, W: 600, H: 360,
	}
	panel := func(title string, name func(c *curve) string, keep func(c *curve) bool) {
		ch := svg.Chart{
			Title: title, XLabel: "packets lost (logarithmic)", YLabel: "goodput, Gb/s (logarithmic)",
			XLog: true, XZero: "none", YLog: true, YMin: 0.001, YMax: 100,
			XTick: func(v float64) string { return fmt.Sprintf("%.5g %%", v*100) },
		}
		for _, c := range curves {
			if !keep(c) {
				continue
			}
			colour := svg.Palette[len(ch.Series)/2%len(svg.Palette)]
			s := svg.Series{Name: name(c), Dots: true, Colour: colour}
			m := svg.Series{Dash: true, Thin: true, Colour: colour}
			for _, p := range c.points {
				s.X, s.Y = append(s.X, p.Loss), append(s.Y, p.Goodput)
				m.X, m.Y = append(m.X, p.Loss), append(m.Y, p.Model)
			}
			ch.Series = append(ch.Series, s, m)
		}
		if len(ch.Series) != 0 {
			p.Charts = append(p.Charts, ch)
		}
	}
	for _, m := range o.mtus {
		panel(fmt.Sprintf("MTU %d, timeout %s", m, timeoutText(o.timeout)), func(c *curve) string {
			if c.selective {
				return bytesText(c.size) + ", selective repeat"
			}
			return bytesText(c.size) + " messages"
		}, func(c *curve) bool { return c.mtu == m && c.timeout == o.timeout })
	}
	m, s := slices.Max(o.mtus), slices.Max(o.sizes)
	panel(fmt.Sprintf("MTU %d, %s messages: the timeout makes the cliff", m, bytesText(s)), func(c *curve) string { return "timeout " + timeoutText(c.timeout) },
		func(c *curve) bool { return c.mtu == m && c.size == s && !c.selective })
	p.Notes = []string{
		"A loss costs go-back-N a round trip, 4 us of data sent again: that bends a curve down slowly. When the packet sent again is lost too, or the",
		"NAK, the sender waits for its timeout. The chance of that is some twice the square of the loss: it does nothing for long and then everything.",
		"Where few timeouts were seen (a ? in the table), a dot lies where chance has put it.",
	}
	return p.Render()
}

// wire is the number of bytes of a data packet on the link besides its payload: preamble,
// Ethernet, IPv4, UDP, BTH, ICRC, FCS and the minimum gap between frames.
const wire = 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12

// turn is the time from the end of a lost packet until its sender goes back: the next packet
// shows the loss, and the NAK, of 62 bytes and the overhead of a frame, arrives.
func turn(packet float64) float64 {
	return packet + 2*float64(delay) + (62+24)*8/(rate/1e9)
}

// model returns the goodput, in Gb/s, of a sender that always has messages to send over a
// link: c tells how it retransmits, p is the probability that a packet is lost, in either
// direction.
//
// Go-back-N: a lost packet costs a turn, because everything that was sent meanwhile is
// retransmitted. If the NAK or the retransmitted packet is lost as well, there is no second
// NAK (rule RS-03): the sender waits for its timeout, each time that the packet is lost. The
// timer starts with the next packet that has AckReq set: the 64th, or the last of a message.
//
// Selective repeat: a lost packet costs the time of a packet, and so does a packet that
// arrives after a gap, which stays open for a turn, and whose NAK is lost.
func (c *curve) model(p float64) float64 {
	n := float64((c.size + c.mtu - 1) / c.mtu) // packets of a message
	bytes := float64(c.size) / n
	packet := (bytes + wire) * 8 / (rate / 1e9) // ns
	if c.selective {
		behind := 1 - math.Pow(1-p, turn(packet)/packet)
		return bytes * 8 / (packet * (1/(1-p) + p*behind))
	}
	asks := 0.0
	for i := 1.0; i <= n; i++ {
		asks += min(i, 64) / n
	}
	wait := 4096*math.Exp2(float64(c.timeout)) + asks*packet
	fails := 1 - (1-p)*(1-p)
	return bytes * 8 / (packet + p*(turn(packet)+fails/(1-p)*wait))
}
