package mutator_test

import (
	"fmt"
	"net/netip"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
)

// Throw a hundred variants of a captured frame at a receiver of one's own. The
// report of one that breaks it says what was changed, and Mutate with the same
// seed and number builds it again.
func Example() {
	f := frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DF: true, SrcPort: 0xc001,
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		Packet: bth.Packet{Header: bth.Header{Opcode: bth.RCSendOnly, PKey: 0xffff, DestQP: 0x11, PSN: 5}},
	}
	f.Packet.SetPayload([]byte("captured"))
	captured := f.AppendTo(nil)

	m, err := mutator.New(mutator.Config{
		Seed:  1,
		Kinds: mutator.BTHKinds.Or(mutator.PayloadKinds).AndNot(mutator.MalformKinds),
	})
	if err != nil {
		panic(err)
	}
	receive := func(b []byte) (ok bool) {
		var f frame.Frame
		return f.Decode(frame.Ethernet, b) == nil && f.CheckICRC() == frame.ICRCGood
	}
	buf := make([]byte, 0, 10000)
	var rep mutator.Report
	accepted := 0
	for n := range uint64(100) {
		b := m.Mutate(n, frame.Ethernet, captured, len(captured), buf, &rep)
		if receive(b) {
			accepted++
		}
	}
	m.Mutate(42, frame.Ethernet, captured, len(captured), buf, &rep)
	fmt.Println("accepted:", accepted)
	fmt.Println(&rep)
	// Output:
	// accepted: 100
	// frame 42: psn 0x5 -> 0x4; icrc valid
}
