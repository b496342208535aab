package main

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// explain prints the counters after an error, and the cause that they suggest.
func (e *endpoint) explain(w io.Writer) {
	m := e.ep.Metrics()
	c := m.QPs
	for _, p := range e.pairs {
		c = add(c, p.qp.Counters())
	}
	for _, x := range e.conns {
		c = add(c, x.Counters())
	}
	if m.Endpoint != (roce.Counters{}) {
		printCounters(w, "endpoint", m.Endpoint)
	}
	printCounters(w, "port", m.Port)
	printCounters(w, "queue pairs", c)
	cause := likely(&m.Port, &c)
	if m.Endpoint.TooLong != 0 {
		cause = "the link's MTU has become smaller than packets: choose a smaller -mtu"
	}
	if cause != "" {
		fmt.Fprintln(w, "likely:", cause)
	}
}

func add(a, b qp.Counters) qp.Counters {
	x, y := reflect.ValueOf(&a).Elem(), reflect.ValueOf(b)
	for i := range x.NumField() {
		x.Field(i).SetUint(x.Field(i).Uint() + y.Field(i).Uint())
	}
	return a
}

// printCounters prints the counters that are not zero.
func printCounters(w io.Writer, of string, v any) {
	var list []string
	x := reflect.ValueOf(v)
	for i := range x.NumField() {
		if n := x.Field(i).Uint(); n != 0 {
			list = append(list, fmt.Sprintf("%s %d", x.Type().Field(i).Name, n))
		}
	}
	if len(list) == 0 {
		list = []string{"nothing sent, nothing received"}
	}
	fmt.Fprintf(w, "counters of the %s: %s\n", of, strings.Join(list, ", "))
}

// likely returns the cause that the counters suggest, or "".
func likely(p *softnic.Counters, c *qp.Counters) string {
	switch {
	case p.TxUnresolved != 0:
		return "no host has the peer's address on this network (no response to ARP or neighbour discovery): look at the address, at the interface's state, and with -segment at the ports, which are swapped at the other end"
	case p.RxICRCEncapsulated != 0 && p.RxRoCE == 0:
		return "the received packets have a wrong ICRC: something on the way changes them (NAT), or with -udp the peer does not set Don't Fragment, or -strict is set"
	case p.RxRoCE == 0 && p.TxFrames != 0:
		return "no RoCE packet was received from the network: the peer is not there or its queue pair not connected, a filter drops UDP port 4791, or the interface is down; with -segment the ports are swapped at the other end"
	case p.RxNoQP != 0 && c.RxPackets == 0:
		return "the received packets are for queue pairs that do not exist here: the peer is connected to another program, or to an earlier run"
	case p.RxWrongAddress != 0 && c.RxPackets == 0:
		return "the received packets are to another address, or from another one than the peer sent: choose the GIDs (-gid here, -g or -x there) of one network"
	case c.RNRNakRetryErr != 0 || c.RNRNakReceived != 0 && c.RetryExceededErr != 0:
		return "the peer has no receives posted"
	case c.ReqRemoteAccessErrors != 0:
		return "the peer's memory does not allow it: key, address, length or rights"
	case c.ReqRemoteInvalidRequest != 0 || c.RespLocalLengthError != 0:
		return "a message is longer than its receive: start both ends with the same -size"
	case c.RetryExceededErr != 0 && c.RxPackets == 0:
		return "the peer does not respond: its queue pair may not be connected, or a filter drops UDP port 4791 on the way there"
	case c.RetryExceededErr != 0:
		return "the peer no longer responds: it has ended, or packets are lost; -timeout and -retry give it more time, -rate sends slower"
	case c.UCMessagesDropped != 0 || c.OutOfSequence != 0 && c.Retransmitted == 0:
		return "packets are lost, which the service does not send again: -rate sends slower"
	}
	return ""
}
