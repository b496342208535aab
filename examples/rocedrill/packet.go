package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp/script"
)

// packet is a frame received from the device.
type packet struct {
	frame.Frame
	at   time.Time
	n    int  // number in the recording, from 1
	retx bool // a request with a PSN that was received before
}

// recorder writes all frames to a pcapng file, with the statement as comment.
type recorder struct {
	w   *capture.NGWriter
	buf *bufio.Writer
	n   int // frames so far
	err error
}

func newRecorder(w io.Writer) (*recorder, error) {
	if w == nil {
		return &recorder{}, nil
	}
	r := &recorder{buf: bufio.NewWriterSize(w, 1<<16)}
	var err error
	if r.w, err = capture.NewNGWriter(r.buf, "rocedrill"); err != nil {
		return nil, err
	}
	_, err = r.w.AddInterface(capture.Interface{Link: frame.Ethernet, Name: "drill"})
	return r, err
}

func (r *recorder) write(at time.Time, b []byte, comment string) int {
	r.n++
	if r.w != nil && r.err == nil {
		r.err = r.w.Write(&capture.Record{Time: at, HasTime: true, Data: b, WireLen: len(b)}, comment)
	}
	return r.n
}

func (r *recorder) flush() error {
	if r.w == nil {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	return r.buf.Flush()
}

// build returns the frame that a statement "< OPCODE ..." describes. The words of the frame
// are removed from w, then those of the packet.
func (r *run) build(w *script.Words) (*frame.Frame, func([]byte) []byte) {
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: r.d.mac, SrcMAC: ourMAC, Src: r.d.our4, Dst: r.d.ip4,
		DF: true, HopLimit: 64, SrcPort: 0xc000 | uint16(r.qpn&0x3fff), DstPort: frame.Port}
	if r.v6 {
		f.Net, f.Src, f.Dst = frame.IPv6, r.d.our6, r.d.ip6
	}
	f.TrafficClass = uint8(w.Num("tclass", 8, 0))
	if s, ok := w.Str("ecn"); ok {
		f.TrafficClass |= map[string]uint8{"ce": 3, "ect0": 2, "ect1": 1}[s]
	}
	f.DF = !w.Flag("!df")
	f.HopLimit = uint8(w.Num("hops", 8, 64))
	f.ID = uint16(w.Num("ipid", 16, 0))
	f.SrcPort = uint16(w.Num("sport", 16, uint64(f.SrcPort)))
	f.DstPort = uint16(w.Num("dport", 16, frame.Port))
	f.UDPChecksum = uint16(w.Num("udpsum", 16, 0))
	for key, to := range map[string]*netip.Addr{"from": &f.Src, "to": &f.Dst} {
		if s, ok := w.Str(key); ok {
			a, err := netip.ParseAddr(s)
			if err != nil || a.Is4() != to.Is4() {
				w.Fail("%s=%s is no address of this family", key, s)
			}
			*to = a
		}
	}
	if f.Dst.IsMulticast() {
		f.DstMAC = multicastMAC(f.Dst)
	}
	p := &f.Packet
	p.M, p.PKey, p.DestQP = true, 0xffff, r.dutQPN
	p.AETH.Syndrome = aeth.AckSyndrome(aeth.NoCredits)
	p.DETH.QKey, p.DETH.SrcQP = defaultQKey, r.qpn
	p.XRCETH.SRQ = r.srqNum
	resv6, resv7, pad := w.Num("resv6", 6, 0), w.Num("resv7", 7, 0), w.Num("padbyte", 8, 0)
	cut, extend := w.Int("cut", 0), w.Int("extend", 0)
	icrc, _ := w.Str("icrc")
	iplen, udplen := w.Int("iplen", 0), w.Int("udplen", 0)
	form := script.ParseForm(r.service, w, r.keys)
	form.Fill(p)
	p.Resv6, p.Resv7 = uint8(resv6), uint8(resv7)
	p.Pad = [3]byte{uint8(pad), uint8(pad), uint8(pad)}
	if p.Opcode.Class() == bth.Request {
		p.PSN = p.PSN.Add(r.shift)
	}
	// Changes that cannot be expressed as fields are made to the bytes.
	return f, func(b []byte) []byte {
		n := len(b) - bth.ICRCSize
		if cut > 0 || extend > 0 {
			b = append(b[:max(n-cut, 42)], make([]byte, extend+bth.ICRCSize)...)
			repair(b)
		}
		switch icrc {
		case "bad":
			b[len(b)-1] ^= 0xff
		case "zero":
			clear(b[len(b)-4:])
		case "swapped": // the other byte order
			t := b[len(b)-4:]
			t[0], t[1], t[2], t[3] = t[3], t[2], t[1], t[0]
		}
		if f.Net == frame.IPv4 && iplen != 0 {
			binary.BigEndian.PutUint16(b[16:], binary.BigEndian.Uint16(b[16:])+uint16(iplen))
			ipChecksum(b[14:34])
		}
		if f.Net == frame.IPv4 && udplen != 0 {
			binary.BigEndian.PutUint16(b[38:], binary.BigEndian.Uint16(b[38:])+uint16(udplen))
		}
		return b
	}
}

func multicastMAC(a netip.Addr) (m frame.MAC) {
	b := a.AsSlice()
	if a.Is4() {
		return frame.MAC{1, 0, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	return frame.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// repair sets the lengths, the IPv4 checksum and the ICRC of a frame to match its bytes.
func repair(b []byte) {
	ip := b[14:]
	switch ip[0] >> 4 {
	case 4:
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-20))
		ipChecksum(ip[:20])
	default:
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
		binary.BigEndian.PutUint16(ip[44:], uint16(len(ip)-40))
	}
	n := len(ip) - bth.ICRCSize
	binary.LittleEndian.PutUint32(ip[n:], crc.Sum(ip[:n]))
}

func ipChecksum(h []byte) {
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], ^frame.OnesSum(0, h))
}

// transmit sends a frame and records it.
func (r *run) transmit(b []byte) error {
	for len(b) < 60 {
		b = append(b, 0)
	}
	r.last = r.d.link.now()
	r.lastFrame = r.d.rec.write(r.last, b, fmt.Sprintf("%s line %d: %s", r.s.id, r.line, r.stmt))
	r.lastSent = r.stmt
	r.note("<", strings.TrimPrefix(r.stmt, "< "))
	return r.d.link.send(b)
}

// next returns the next packet of the device for this script.
func (r *run) next(until time.Time) (*packet, bool) {
	for {
		b, at, ok := r.d.link.await(until)
		if !ok {
			return nil, false
		}
		if r.heard++; r.heard > maxHeard {
			return nil, false
		}
		p := &packet{at: at}
		if !isRoCE(b) {
			continue
		}
		p.n = r.d.rec.write(at, b, fmt.Sprintf("%s line %d, seen at: %s", r.s.id, r.line, r.stmt))
		r.lastFrame = p.n
		if err := p.Decode(frame.Ethernet, b); err != nil {
			r.fault(p, "cannot be decoded: %v", err)
			continue
		}
		if p.Src != r.d.ip4 && p.Src != r.d.ip6 {
			continue
		}
		if p.Packet.DestQP != r.qpn && p.Packet.DestQP != 1 && (r.also == 0 || p.Packet.DestQP != r.also) {
			if p.Packet.DestQP < firstQPN || p.Packet.DestQP > r.qpn { // packets to QPs of earlier scripts are ignored
				r.fault(p, "for QP 0x%x, which there is not", p.Packet.DestQP)
			}
			continue
		}
		if p.Packet.DestQP == 1 && (!r.mads || r.ofEarlierCall(p)) {
			continue
		}
		if p.CheckICRC() != frame.ICRCGood {
			r.fault(p, "the ICRC is wrong")
			if !slices.Contains(r.allowed, "badicrc") {
				continue
			}
		}
		r.wellformed(p)
		if p.Packet.DestQP == r.qpn && !slices.Contains(r.ports, p.SrcPort) && len(r.ports) < 10 {
			r.ports = append(r.ports, p.SrcPort)
		}
		switch p.Packet.Opcode.Class() {
		case bth.Request:
			p.retx = r.seen[uint32(p.Packet.PSN)]
			r.seen[uint32(p.Packet.PSN)] = true
		case bth.Response:
			if s := p.Packet.AETH.Syndrome; p.Packet.Opcode.Ext()&bth.HasAETH != 0 && s.Kind() == aeth.Nak && s.Nak() != aeth.NakPSNSequenceError {
				r.fatal = true
			}
			p.Packet.PSN = p.Packet.PSN.Add(-r.shift)
		}
		r.note(">", r.describe(p))
		return p, true
	}
}

// traced is a packet on the card: its number in the recording, < to the device or > from it,
// and its description.
type traced struct {
	N         int
	Way, What string
}

// note keeps a packet for the card.
func (r *run) note(way, what string) {
	if len(r.trace) == 60 {
		r.trace = r.trace[1:]
	}
	r.trace = append(r.trace, traced{r.d.rec.n, way, what})
}

// fault records an error of a frame, whatever the script is about.
func (r *run) fault(p *packet, format string, v ...any) {
	if len(r.faults) < 100 {
		r.faults = append(r.faults, fault{p.n, fmt.Sprintf(format, v...)})
	}
}

type fault struct {
	frame int
	what  string
}

// wellformed records which rules a packet breaks, of those that hold for every packet.
func (r *run) wellformed(f *packet) {
	p := &f.Packet
	check := func(bad bool, format string, v ...any) {
		if bad {
			r.fault(f, format+" in %v", append(v, p.Opcode)...)
		}
	}
	response := p.Opcode.Class() == bth.Response
	check(f.CheckIPv4() == frame.ChecksumBad, "the IPv4 header checksum is wrong")
	check(f.CheckUDP() == frame.ChecksumBad, "the UDP checksum is wrong")
	check(f.Net == frame.IPv4 && !f.DF, "DF is clear")
	check(len(f.Options) != 0, "IPv4 options")
	check(f.HopLimit == 0, "a hop limit of 0")
	check(p.PKey&0x7fff != 0x7fff, "P_Key 0x%04x, not that of the QP,", p.PKey)
	check(p.TVer != 0, "TVer %d", p.TVer)
	for i := range p.PadCnt {
		check(p.Pad[i] != 0, "a pad byte of 0x%02x", p.Pad[i])
	}
	check(p.FECN, "FECN")
	check(p.BECN != (p.Opcode == bth.CNP), "BECN is %v", p.BECN)
	check(p.Resv6 != 0 || p.Resv7 != 0, "reserved bits of the BTH")
	check(response && p.AckReq, "AckReq")
	endsReceive := p.Opcode.Send() && !p.Opcode.First() && !p.Opcode.Middle() || p.Opcode.Ext()&bth.HasImmDt != 0
	check(p.SE && !endsReceive, "SE")
	if p.Opcode.Ext()&bth.HasAETH != 0 {
		s := p.AETH.Syndrome
		check(s&0x80 != 0 || s>>5 == 2 || s>>5 == 3 && s&0x1f > 4, "reserved syndrome 0x%02x", uint8(s))
	}
	check(p.DETH.Resv8 != 0, "the reserved byte of the DETH")
	if p.Opcode == bth.CNP {
		for _, b := range p.Payload {
			check(b != 0, "a byte of 0x%02x", b)
		}
		check(p.PSN != 0 || p.AckReq || p.SE, "a PSN, AckReq or SE")
	}
}

var liveNumber = regexp.MustCompile(`\b(va|rkey|inv_rkey|qpn|src_qp)=(0x[0-9a-f]+|[0-9]+)`)

// describe describes a packet in words that are the same in each run: keys and addresses of
// the device are replaced by names.
func (r *run) describe(p *packet) string {
	text := script.Describe(&p.Packet, p.retx)
	if p.Packet.DestQP == 1 {
		if m, err := decodeMAD(p.Packet.Payload); err == nil {
			return m.String()
		}
	}
	return liveNumber.ReplaceAllStringFunc(text, func(w string) string {
		key, s, _ := strings.Cut(w, "=")
		n, _ := strconv.ParseUint(s, 0, 64)
		if key == "src_qp" && uint32(n) == r.dutQPN {
			return key + "=its"
		}
		for name, m := range r.regions {
			switch {
			case key == "va" && n >= m.addr && n-m.addr <= m.len:
				return fmt.Sprintf("va=%s+%d", name, n-m.addr)
			case strings.HasSuffix(key, "rkey") && n == uint64(m.rkey):
				return key + "=" + name
			}
		}
		return w
	})
}

// deliver sends the packet that the statement names, n times with consecutive PSNs.
func (r *run) deliver(w *script.Words, n int, same bool) error {
	if words := w.Rest(); len(words) != 0 && isMAD(words[0]) {
		return r.sendMAD(w)
	}
	f, finish := r.build(w)
	if err := w.Done(); err != nil {
		return err
	}
	for i := range n {
		if err := r.transmit(finish(f.AppendTo(nil))); err != nil {
			return err
		}
		if !same {
			f.Packet.PSN = f.Packet.PSN.Add(1)
		}
		if r.d.link.real() && i%8 == 7 {
			time.Sleep(time.Millisecond) // the socket buffer of an emulated device is small
		}
	}
	return nil
}

// expect waits for a packet: A or B or nothing.
func (r *run) expect(w *script.Words, from, to time.Duration, eventually bool) error {
	alternatives := [][]string{nil}
	for _, word := range w.Rest() {
		if word == "or" {
			alternatives = append(alternatives, nil)
			continue
		}
		i := len(alternatives) - 1
		alternatives[i] = append(alternatives[i], word)
	}
	nothing := false
	for _, a := range alternatives {
		nothing = nothing || len(a) == 1 && a[0] == "nothing"
	}
	wait := to + r.d.slack
	if nothing {
		wait = min(wait, r.d.quiet)
	}
	start := r.last
	until := start.Add(wait)
	if now := r.d.link.now().Add(wait); to == r.d.patience && now.After(until) {
		until = now // the commands to the agent in between took time
	}
	for {
		p, ok := r.next(until)
		if !ok && nothing {
			r.last = until
			return nil
		}
		if !ok {
			return deviated("nothing was received%s", r.faultText())
		}
		best := ""
		for _, a := range alternatives {
			err := r.match(p, a)
			if err == nil {
				if d := p.at.Sub(start); from > 0 && d < from-r.d.jitter {
					return deviated("it arrived too early, after less than %v", from)
				}
				r.last = p.at
				return nil
			}
			var dev *deviation
			if !errors.As(err, &dev) {
				return err
			}
			if best == "" || best == "another opcode" {
				best = dev.got
			}
		}
		if r.allows(p) || eventually && isAck(p) {
			continue
		}
		if best == "another opcode" {
			return deviated("got %s", r.describe(p))
		}
		return deviated("%s, got %s", best, r.describe(p))
	}
}

func isAck(p *packet) bool {
	return p.Packet.Opcode.Operation() == bth.Acknowledge && p.Packet.AETH.Syndrome.Kind() == aeth.Ack
}

// faultText describes the frames that were dropped because of errors.
func (r *run) faultText() string {
	if len(r.faults) == 0 {
		return ""
	}
	return ", but a frame was dropped here: " + r.faults[len(r.faults)-1].what
}

// match compares a packet with an alternative of a statement.
func (r *run) match(p *packet, words []string) error {
	if len(words) == 0 {
		return errors.New("an alternative is empty")
	}
	if words[0] == "nothing" {
		return deviated("another opcode")
	}
	if isMAD(words[0]) || p.Packet.DestQP == 1 {
		return r.matchMAD(p, words)
	}
	w := script.SplitWords(strings.Join(words, " "))
	retx, first := w.Flag("retx"), w.Flag("!retx")
	f := script.ParseForm(r.service, w, r.keys)
	if err := w.Done(); err != nil {
		return err
	}
	if err := f.Match(&p.Packet); err != nil {
		return deviated("%v", err)
	}
	if retx && !p.retx || first && p.retx {
		return deviated("retransmission is %v", p.retx)
	}
	return nil
}
