package cnp_test

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
)

func ExampleHeader() {
	h := cnp.New(0x118, 0xffff)
	b := h.AppendTo(nil) // the ICRC comes after it
	fmt.Printf("%x\n", b)

	var got cnp.Header
	if err := got.Decode(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(got.BTH.Opcode, got.BTH.DestQP, got.BTH.BECN)
	// Output:
	// 8100ffff400001180000000000000000000000000000000000000000
	// CNP 280 true
}

// A sender's flow: each CNP cuts, each deadline raises.
func ExampleReactionPoint() {
	port, err := cnp.NewReactionPort(cnp.Paper(), 40e9)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Unix(0, 0)
	flow := port.ReactionPoint()
	flow.HandleCNP(now)
	fmt.Println(flow.Rate(), flow.TargetRate())
	for range 3 {
		at, ok := flow.Deadline()
		if !ok {
			break
		}
		flow.Tick(at)
		fmt.Println(at.Sub(now), flow.Rate())
	}
	// Output:
	// 20000000000 40000000000
	// 55µs 30000000000
	// 110µs 35000000000
	// 165µs 37500000000
}

// A receiver: the first marked packet causes a CNP at once, the next one after the gap.
func ExampleNotificationPoint() {
	np, err := cnp.NewNotificationPoint(cnp.Paper(), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Unix(0, 0)
	var gate cnp.Gate // one per QP
	for _, us := range []int{0, 10, 49, 55, 60, 120} {
		a := cnp.Arrival{Opcode: bth.RCWriteMiddle, ECN: cnp.CE}
		if np.HandlePacket(start.Add(time.Duration(us)*time.Microsecond), &a, &gate) {
			fmt.Println("CNP at", us)
		}
	}
	fmt.Println(np.NpEcnMarkedRocePackets, np.NpCnpSent)
	// Output:
	// CNP at 0
	// CNP at 55
	// CNP at 120
	// 6 3
}

func ExampleCongestionPoint() {
	cp, err := cnp.NewCongestionPoint(cnp.PaperCongestion())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, queue := range []int{4_000, 102_500, 250_000} {
		fmt.Printf("%d bytes: %.3f\n", queue, float64(cp.Threshold(queue))/(1<<32))
	}
	fmt.Println(cp.Mark(250_000, cnp.ECT0, 12345), cp.Mark(250_000, cnp.NotECT, 12345))
	// Output:
	// 4000 bytes: 0.000
	// 102500 bytes: 0.005
	// 250000 bytes: 1.000
	// true false
}

func ExamplePacer() {
	var p cnp.Pacer
	now := time.Unix(0, 0)
	p.SetRate(now, 30e9)
	for range 4 {
		fmt.Println(now.Sub(time.Unix(0, 0)))
		p.HandleSent(now, 1000) // 266.67 ns
		now, _ = p.Deadline()
	}
	// Output:
	// 0s
	// 266ns
	// 533ns
	// 800ns
}
