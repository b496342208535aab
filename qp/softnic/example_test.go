package softnic_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Two ports on a wire: one writes to the memory of the other.
func Example() {
	now := time.Unix(0, 0) // any clock does, also one that the caller makes up
	var ports [2]*softnic.Port
	var regions [2]*qp.Regions
	for i := range ports {
		regions[i], _ = qp.NewRegions(8)
		ports[i], _ = softnic.New(softnic.Config{
			MAC:     frame.MAC{2, 0, 0, 0, 0, byte(i + 1)},
			GIDs:    []softnic.GID{{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}},
			Regions: regions[i],
		})
	}
	memory := make([]byte, 16)
	rkey, _ := regions[1].Register(qp.Region{Data: memory, Addr: 0x1000, Access: qp.RemoteWrite})

	// A QP at each end, both of them brought to RTS.
	cq := softnic.NewCQ()
	var qps [2]*softnic.QP
	for i, p := range ports {
		qps[i], _ = p.CreateQP(softnic.QPConfig{Config: qp.Config{MaxSendWR: 8}, SendCQ: cq})
	}
	for i, q := range qps {
		gid, _ := ports[1-i].GID(0)
		a := qp.Attr{PKey: 0xffff, Access: qp.RemoteWrite, PathMTU: 1024, DestQPN: qps[1-i].Num(),
			AH: qp.AHAttr{GID: gid}, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
		if err := q.Connect(now, &a); err != nil {
			fmt.Println(err)
		}
	}

	err := qps[0].PostSend(now, &qp.SendWR{ID: 7, Op: qp.OpWrite, Flags: qp.Signaled, Local: []byte("hello, memory"), RemoteAddr: 0x1000, RKey: rkey})
	if err != nil {
		fmt.Println(err)
	}
	// The wire: until neither has a frame for the other. The first are an ARP
	// request and its reply.
	var buf []byte
	for moved := true; moved; {
		moved = false
		for i, p := range ports {
			frame, ok := p.NextFrame(now, buf[:0])
			if ok {
				ports[1-i].HandleFrame(now, frame)
				buf, moved = frame, true
			}
		}
	}
	var wc qp.Completion
	for cq.Poll(&wc) {
		fmt.Println(wc.ID, wc.Op, wc.Status)
	}
	fmt.Printf("%s\n", memory[:13])
	// Output:
	// 7 RDMA_WRITE success
	// hello, memory
}
