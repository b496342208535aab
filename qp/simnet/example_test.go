package simnet_test

import (
	"fmt"
	"os"
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// Two hosts, one link, a lost packet, and what the wire saw.
func Example() {
	n := simnet.New(simnet.Config{Seed: 1})
	a, _ := n.AddHost(simnet.HostConfig{Name: "a"})
	b, _ := n.AddHost(simnet.HostConfig{Name: "b"})
	link, err := n.Connect(a, b, simnet.LinkConfig{Rate: 100e9, Delay: 2 * time.Microsecond})
	if err != nil {
		panic(err)
	}
	link.AB().SetFaults(simnet.Faults{LossList: []uint64{0}})
	qa, qb, err := n.ConnectQPs(a, b, simnet.ConnConfig{MTU: 1024})
	if err != nil {
		panic(err)
	}
	n.Trace(os.Stdout)

	inbox := make([]byte, 2000)
	_ = qb.PostRecv(&qp.RecvWR{ID: 7, Local: inbox})
	_ = qa.PostSend(n.Now(), &qp.SendWR{ID: 8, Flags: qp.Signaled, Local: make([]byte, 2000)})
	if _, err := n.RunUntilIdle(time.Second); err != nil {
		panic(err)
	}
	var wc qp.Completion
	for a.CQ.Poll(&wc) || b.CQ.Poll(&wc) {
		fmt.Println(wc.ID, wc.Op, wc.Status)
	}
	// Output:
	//        0.000 us  a > b  RC_SEND_FIRST                qp 0x11 psn 0x011000 1024 B  lost
	//        0.088 us  a > b  RC_SEND_LAST                 qp 0x11 psn 0x011001 A 976 B
	//        2.172 us  b > a  RC_ACKNOWLEDGE               qp 0x11 psn 0x011000 NAK PSN sequence error
	//        4.178 us  a > b  RC_SEND_FIRST                qp 0x11 psn 0x011000 1024 B
	//        4.266 us  a > b  RC_SEND_LAST                 qp 0x11 psn 0x011001 A 976 B
	//        6.350 us  b > a  RC_ACKNOWLEDGE               qp 0x11 psn 0x011001 msn 1 credits 0
	// 8 SEND success
	// 7 RECV success
}

// An incast with DCQCN, watched.
func ExampleScenario() {
	p := cnp.Paper()
	ecn := cnp.PaperCongestion()
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: simnet.Decoded},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, ECN: &ecn},
		Host:    simnet.HostConfig{Control: cnp.Controller(p)},
		Rate:    40e9,
	}.Star(5)
	if err != nil {
		panic(err)
	}
	s := lab.NewScenario(f.Network, 10*time.Microsecond)
	s.Watch(f.Bottleneck)
	for _, h := range f.Hosts()[1:] {
		s.Flow(simnet.FlowConfig{From: h, To: f.Hosts()[0], Op: qp.OpWrite, Size: 1 << 20, Conn: simnet.ConnConfig{DSCP: 26}})
	}
	r, err := s.Run(50 * time.Millisecond)
	if err != nil {
		panic(err)
	}
	from, to := 25*time.Millisecond, 50*time.Millisecond
	fmt.Println("fair:", r.Fairness(from, to, time.Millisecond) > 0.95)
	fmt.Println("dropped:", r.Dropped)
	// Output:
	// fair: true
	// dropped: 0
}
