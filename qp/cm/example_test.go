package cm_test

import (
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/roce-go/roce/qp/cm"
)

// A watcher has one Message and decodes every datagram to queue pair 1 into it.
func ExampleMessage_Decode() {
	// The payload of a UD SEND to queue pair 1: a REJ of Linux's RDMA-CM. The
	// rest of its 256 bytes is zero.
	payload := make([]byte, cm.Size)
	hex.Decode(payload, []byte("0107020300000000000000023e7211ae001200000000000000000000ae11723e00000008"))

	var m cm.Message
	if err := m.Decode(payload); err != nil {
		fmt.Println(err)
		return
	}
	switch m.Header.AttributeID {
	case cm.AttrREQ:
		fmt.Printf("QP 0x%x calls %v\n", m.REQ.LocalQPN, m.REQ.ServiceID)
	case cm.AttrREP:
		fmt.Printf("QP 0x%x answers\n", m.REP.LocalQPN)
	case cm.AttrREJ:
		fmt.Printf("%v of 0x%08x rejected: %v\n", m.REJ.MessageRejected, m.REJ.RemoteCommID, m.REJ.Reason)
	default:
		fmt.Println(m.Header.AttributeID)
	}
	// Output: REQ of 0xae11723e rejected: invalid service ID
}

// A call as RDMA-CM does it: the service ID names protocol and port, the
// private data start with the addresses.
func ExampleMessage_AppendTo() {
	src, dst := netip.MustParseAddrPort("192.0.2.2:47385"), netip.MustParseAddr("192.0.2.1")
	call, err := cm.NewCMAHeader(src, dst)
	if err != nil {
		fmt.Println(err)
		return
	}
	m := cm.Message{
		Header: cm.NewHeader(cm.AttrREQ, 0x23e7211ae),
		REQ: cm.REQ{
			LocalCommID:          0xae11723e,
			ServiceID:            cm.IPServiceID(cm.ProtocolTCP, 7174),
			LocalQPN:             0x11,
			StartingPSN:          0xec421b,
			PartitionKey:         0xffff,
			PathPacketPayloadMTU: cm.MTU1024,
			RetryCount:           7,
			RNRRetryCount:        7,
			PrivateData:          append(call.AppendTo(nil), "hello"...),
		},
	}
	mad, err := m.AppendBinary(nil)
	fmt.Println(len(mad), err)

	var got cm.Message
	if err := got.Decode(mad); err != nil {
		fmt.Println(err)
		return
	}
	r := &got.REQ
	fmt.Printf("%v %v QP 0x%x, peer starts at PSN 0x%x, MTU %v\n",
		got.Header.AttributeID, r.ServiceID, r.LocalQPN, r.StartingPSN, r.PathPacketPayloadMTU)
	var h cm.CMAHeader
	if consumer, ok := r.CMA(&h); ok {
		fmt.Printf("%v port %d to %v: %q\n", h.Src(), h.Port, h.Dst(), consumer[:5])
	}
	// Output:
	// 256 <nil>
	// REQ tcp:7174 QP 0x11, peer starts at PSN 0xec421b, MTU 1024
	// 192.0.2.2 port 47385 to 192.0.2.1: "hello"
}
