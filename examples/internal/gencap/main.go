// Gencap writes a pcap file of RDMA WRITEs of four connections in turn, each message
// acknowledged, with right ICRCs, to measure readers with:
//
//	go run ./examples/internal/gencap -n 200000 -payload 1024 FILE
//
// The same options give the same bytes.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/reth"
)

func main() {
	n := flag.Int("n", 200_000, "packets, acknowledgements included")
	payload := flag.Int("payload", 1024, "payload bytes of each, which is also the path MTU")
	perMessage := flag.Int("message", 16, "packets of a message")
	flag.Parse()
	if flag.NArg() != 1 || *n < 0 || *payload < 1 || *payload > 4096 || *perMessage < 2 {
		fmt.Fprintln(os.Stderr, "gencap: give one file name; -payload 1..4096, -message 2 or more")
		os.Exit(2)
	}
	if err := write(flag.Arg(0), *n, *payload, *perMessage); err != nil {
		fmt.Fprintln(os.Stderr, "gencap:", err)
		os.Exit(2)
	}
}

func write(name string, n, payload, perMessage int) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := generate(w, n, payload, perMessage); err != nil {
		f.Close()
		return err
	}
	if err := w.Flush(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func generate(out io.Writer, n, payload, perMessage int) error {
	w, err := capture.NewWriter(out, frame.Ethernet)
	if err != nil {
		return err
	}
	data := make([]byte, payload)
	for i := range data {
		data[i] = byte(i)
	}
	f := frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, DF: true, HopLimit: 64, TrafficClass: 26<<2 | uint8(frame.ECT0),
		DstMAC: frame.MAC{0x52, 0x54, 0, 0, 0, 1}, SrcMAC: frame.MAC{0x52, 0x54, 0, 0, 0, 2},
		Src: netip.AddrFrom4([4]byte{192, 0, 2, 2}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1}),
		Packet: bth.Packet{
			Header: bth.Header{PKey: 0xffff},
			RETH:   reth.Header{VA: 0x7f0000000000, RKey: 0x1234, DMALen: uint32(perMessage * payload)},
		},
	}
	ack := f
	ack.DstMAC, ack.SrcMAC, ack.Dst, ack.Src = f.SrcMAC, f.DstMAC, f.Src, f.Dst
	ack.Packet.Opcode = bth.RCAcknowledge
	ack.Packet.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
	var buf []byte
	at := time.Unix(1_700_000_000, 0)
	f.Packet.SetPayload(data)
	for i := range n {
		message, place := i/(perMessage+1), i%(perMessage+1) // the last place in a message is for the acknowledgement
		qp, round := uint32(message%4), message/4            // of its connection
		out, p := &f, &f.Packet
		switch place {
		case 0:
			p.Opcode = bth.RCWriteFirst
		case perMessage - 1:
			p.Opcode = bth.RCWriteLast
		case perMessage:
			out, p = &ack, &ack.Packet
			place-- // it acknowledges the packet before it
			p.AETH.MSN = uint32(round+1) & psn.Mask
		default:
			p.Opcode = bth.RCWriteMiddle
		}
		p.AckReq = p.Opcode == bth.RCWriteLast
		p.DestQP = 0x11 + qp
		if out == &ack {
			p.DestQP = 0x77 + qp
		}
		out.SrcPort = frame.SourcePort(frame.FlowLabel(0x77+qp, 0x11+qp))
		p.PSN = psn.PSN(round*perMessage+place) & psn.Mask
		out.ID = uint16(i)
		buf = out.AppendTo(buf[:0])
		if err := w.Write(at, buf); err != nil {
			return err
		}
		at = at.Add(100 * time.Nanosecond)
	}
	return nil
}
