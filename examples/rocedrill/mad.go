package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/script"
)

// call is a connection by RDMA-CM that a script opens.
type call struct {
	to           netip.AddrPort
	local, guid  uint64 // communication ID and CA GUID of ours
	remote       uint32 // communication ID of the device
	tid          uint64
	established  bool
	rep          cm.REP
	psn, reqSent uint32
	asked        uint16 // destination port of the last REQ
}

// errStarting: rping and rdma_server serve one connection, and are restarted after it.
var errStarting = errors.New("the program does not listen, or not yet again")

var madNames = []string{"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"}

func isMAD(word string) bool { return slices.Contains(madNames, word) }

// decodeMAD decodes a datagram of QP 1.
func decodeMAD(b []byte) (*madMessage, error) {
	m := &madMessage{}
	return m, m.Decode(b)
}

type madMessage struct{ cm.Message }

// String returns the message in the words of a script, without the parts that differ in each
// run.
func (m *madMessage) String() string {
	switch m.Header.AttributeID {
	case cm.AttrREJ:
		return fmt.Sprintf("REJ reason=%d rejected=%d", m.REJ.Reason, m.REJ.MessageRejected)
	case cm.AttrSIDRREP:
		return fmt.Sprintf("SIDR_REP status=%d", m.SIDRREP.Status)
	case cm.AttrAPR:
		return fmt.Sprintf("APR status=%d", m.APR.APStatus)
	}
	return m.Header.AttributeID.String()
}

// dial prepares a call to the program that the script needs: call [v6]. The script itself
// sends and expects the messages.
func (r *run) dial(w *script.Words) error {
	w.Flag("v6") // r.needs has handled it
	if err := w.Done(); err != nil {
		return err
	}
	r.d.comms++
	r.service, r.mads = bth.RC, true
	r.calls.local = uint64(r.d.comms)<<8 | commID
	r.calls.guid, r.calls.tid = 0x0200_5e00_5300_0001, r.calls.local
	return nil
}

// ends returns the addresses of a call, IPv4 or IPv6 as the script requests.
func (r *run) ends() (ours, theirs netip.Addr) {
	if r.v6 {
		return r.d.our6, r.d.ip6
	}
	return r.d.our4, r.d.ip4
}

// callProgram connects to a program: REQ, REP, RTU.
func (r *run) callProgram() error {
	if err := r.dial(script.SplitWords("")); err != nil {
		return err
	}
	var refused error
	for try := range 20 {
		refused = nil
		if err := r.sendMAD(script.SplitWords("REQ")); err != nil {
			return err
		}
		for end := r.d.link.now().Add(r.d.patience); ; {
			p, ok := r.next(end)
			if !ok {
				break
			}
			m, err := decodeMAD(p.Packet.Payload)
			if p.Packet.DestQP != 1 || err != nil {
				continue
			}
			if m.Header.AttributeID == cm.AttrREJ {
				refused = fmt.Errorf("the program refuses the connection: %v: %s", m.REJ.Reason, m.REJ.Reason.Sentence())
				break
			}
			if m.Header.AttributeID == cm.AttrREP {
				r.learn(m)
				return r.sendMAD(script.SplitWords("RTU"))
			}
		}
		if refused == nil && try == 2 || !r.d.link.real() {
			break
		}
		time.Sleep(300 * time.Millisecond) // the program may be starting
	}
	if refused != nil {
		return refused
	}
	return fmt.Errorf("no response to a REQ to %v", r.calls.to)
}

// learn stores the numbers of a REP.
func (r *run) learn(m *madMessage) {
	c := &r.calls
	c.rep, c.remote = m.REP, m.REP.LocalCommID
	c.rep.PrivateData = nil
	r.dutQPN, r.shift = m.REP.LocalQPN, int(m.REP.StartingPSN)
}

// ofEarlierCall reports whether a message belongs to a call of an earlier script. A late REP
// is rejected, so that the program is free again.
func (r *run) ofEarlierCall(p *packet) bool {
	m, err := decodeMAD(p.Packet.Payload)
	if err != nil {
		return false
	}
	ours := map[cm.AttributeID]uint32{cm.AttrREP: m.REP.RemoteCommID, cm.AttrREJ: m.REJ.RemoteCommID, cm.AttrMRA: m.MRA.RemoteCommID,
		cm.AttrDREQ: m.DREQ.RemoteCommID, cm.AttrDREP: m.DREP.RemoteCommID}[m.Header.AttributeID]
	if ours&0xff != commID || ours>>8 >= r.d.comms {
		return false
	}
	if m.Header.AttributeID == cm.AttrREP {
		last := r.last
		_ = r.sendMAD(script.SplitWords(fmt.Sprintf("REJ comm_id=%d remote_id=%d reason=4 rejected=1", ours, m.REP.LocalCommID)))
		r.last = last
	}
	return true
}

// commID is the low byte of our communication IDs; the other bits count calls.
const commID = 0x5a

// hangUp ends the connection.
func (r *run) hangUp() {
	c := &r.calls
	if !r.mads || c.remote == 0 {
		return
	}
	r.stmt = "end of the connection"
	if !c.established {
		_ = r.sendMAD(script.SplitWords("REJ reason=28 rejected=1"))
		return
	}
	for range 3 {
		_ = r.sendMAD(script.SplitWords("DREQ"))
		for end := r.d.link.now().Add(r.d.patience / 2); ; {
			p, ok := r.next(end)
			if !ok {
				break
			}
			if m, err := decodeMAD(p.Packet.Payload); err == nil && m.Header.AttributeID == cm.AttrDREP {
				return
			}
		}
	}
}

// sendMAD runs < REQ and the other messages; fields that are not given have the values of
// this call.
func (r *run) sendMAD(w *script.Words) error {
	c := &r.calls
	name := w.Next("the message")
	ours, theirs := r.ends()
	id := uint32(w.Num("comm_id", 32, c.local))
	remote := uint32(w.Num("remote_id", 32, uint64(c.remote)))
	tid := w.Num("tid", 64, c.tid)
	m := cm.Message{Header: cm.Header{BaseVersion: uint8(w.Num("base_version", 8, cm.BaseVersion)), MgmtClass: cm.ClassCM,
		ClassVersion: uint8(w.Num("class_version", 8, cm.ClassVersion)), Method: cm.Method(w.Num("method", 8, 3)), TransactionID: tid}}
	switch name {
	case "REQ":
		m.Header.AttributeID = cm.AttrREQ
		port := uint16(w.Num("port", 16, uint64(c.to.Port())))
		h, err := cm.NewCMAHeader(netip.AddrPortFrom(ours, 4000), theirs)
		if err != nil {
			return err
		}
		h.MajorVersion = uint8(w.Num("cma_version", 4, 0))
		h.IPVersion = uint8(w.Num("ip_version", 4, uint64(h.IPVersion)))
		c.psn, c.asked = 0, port
		m.REQ = cm.REQ{LocalCommID: id, ServiceID: cm.ServiceID(w.Num("service", 64, uint64(cm.IPServiceID(cm.ProtocolTCP, port)))), LocalCAGUID: w.Num("guid", 64, c.guid),
			LocalQPN: uint32(w.Num("qpn", 24, uint64(r.qpn))), ResponderResources: uint8(w.Num("resources", 8, 4)), InitiatorDepth: uint8(w.Num("depth", 8, 4)),
			RemoteCMResponseTimeout: 20, LocalCMResponseTimeout: uint8(w.Num("response_timeout", 5, 20)), TransportServiceType: cm.TransportServiceType(w.Num("transport", 2, 0)),
			StartingPSN: uint32(w.Num("psn", 24, 0)), RetryCount: uint8(w.Num("retry_cnt", 3, 7)), RNRRetryCount: 7, PartitionKey: 0xffff,
			PathPacketPayloadMTU: cm.MTU(w.Num("mtu", 4, 3)), MaxCMRetries: 15, PrivateData: h.AppendTo(nil)}
		p := &m.REQ.Primary
		p.LocalPortGID, p.RemotePortGID = ours.As16(), theirs.As16()
		p.HopLimit, p.PacketRate, p.LocalACKTimeout = 64, 3, uint8(w.Num("ack_timeout", 5, 18))
		p.LocalPortLID, p.RemotePortLID = 0xffff, 0xffff
	case "RTU":
		m.Header.AttributeID = cm.AttrRTU
		m.RTU = cm.RTU{LocalCommID: id, RemoteCommID: remote}
		c.established = true
	case "MRA":
		m.Header.AttributeID = cm.AttrMRA
		m.MRA = cm.MRA{LocalCommID: id, RemoteCommID: remote, MessageMRAed: cm.MessageMRAed(w.Num("mraed", 2, 1)), ServiceTimeout: uint8(w.Num("timeout", 5, 16))}
	case "REJ":
		m.Header.AttributeID = cm.AttrREJ
		m.REJ = cm.REJ{LocalCommID: id, RemoteCommID: remote, Reason: cm.Reason(w.Num("reason", 16, 28)), MessageRejected: cm.MessageRejected(w.Num("rejected", 2, 1))}
	case "DREQ":
		m.Header.AttributeID = cm.AttrDREQ
		m.DREQ = cm.DREQ{LocalCommID: id, RemoteCommID: remote, RemoteQPNEECN: uint32(w.Num("qpn", 24, uint64(r.dutQPN)))}
	case "DREP":
		m.Header.AttributeID = cm.AttrDREP
		m.DREP = cm.DREP{LocalCommID: id, RemoteCommID: remote}
	case "SIDR_REQ":
		m.Header.AttributeID = cm.AttrSIDRREQ
		port := uint16(w.Num("port", 16, 9))
		h, err := cm.NewCMAHeader(netip.AddrPortFrom(ours, 4000), theirs)
		if err != nil {
			return err
		}
		m.SIDRREQ = cm.SIDRREQ{RequestID: id, PartitionKey: 0xffff, ServiceID: cm.IPServiceID(cm.ProtocolUDP, port), PrivateData: h.AppendTo(nil)}
	case "LAP":
		m.Header.AttributeID = cm.AttrLAP
		m.LAP = cm.LAP{LocalCommID: id, RemoteCommID: remote, RemoteQPNEECN: r.dutQPN}
	default:
		return fmt.Errorf("%s cannot be sent", name)
	}
	qkey := uint32(w.Num("qkey", 32, 0x80010000))
	if err := w.Done(); err != nil {
		return err
	}
	f := &frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DstMAC: r.d.mac, SrcMAC: ourMAC, Src: ours, Dst: theirs,
		DF: true, HopLimit: 64, SrcPort: 0xc001, DstPort: frame.Port}
	if r.v6 {
		f.Net = frame.IPv6
	}
	p := &f.Packet
	p.Opcode, p.M, p.PKey, p.DestQP = bth.UDSendOnly, true, 0xffff, 1
	p.DETH.QKey, p.DETH.SrcQP = qkey, 1
	c.reqSent++
	p.PSN = p.PSN.Add(int(r.d.comms<<6 + c.reqSent))
	p.SetPayload(m.AppendTo(nil))
	return r.transmit(f.AppendTo(nil))
}

// matchMAD compares a management datagram with "> REP ...".
func (r *run) matchMAD(p *packet, words []string) error {
	m, err := decodeMAD(p.Packet.Payload)
	if p.Packet.DestQP != 1 || err != nil {
		return deviated("another opcode")
	}
	name, _, _ := strings.Cut(m.String(), " ")
	if name == "REJ" && words[0] == "REP" && m.REJ.Reason == cm.ReasonInvalidServiceID && r.calls.asked == r.calls.to.Port() {
		return errStarting
	}
	if name != words[0] {
		return deviated("another opcode")
	}
	c := &r.calls
	ids := map[string][2]uint32{ // local, remote
		"REP": {m.REP.LocalCommID, m.REP.RemoteCommID}, "REJ": {m.REJ.LocalCommID, m.REJ.RemoteCommID}, "MRA": {m.MRA.LocalCommID, m.MRA.RemoteCommID},
		"DREP": {m.DREP.LocalCommID, m.DREP.RemoteCommID}, "DREQ": {m.DREQ.LocalCommID, m.DREQ.RemoteCommID}, "APR": {m.APR.LocalCommID, m.APR.RemoteCommID},
		"SIDR_REP": {0, m.SIDRREP.RequestID},
	}[name]
	got := map[string]uint64{"remote_id": uint64(ids[1]), "comm_id": uint64(ids[0]), "tid": m.Header.TransactionID,
		"reason": uint64(m.REJ.Reason), "rejected": uint64(m.REJ.MessageRejected), "status": uint64(m.SIDRREP.Status) + uint64(m.APR.APStatus),
		"qpn": uint64(m.DREQ.RemoteQPNEECN), "depth": uint64(m.REP.InitiatorDepth), "resources": uint64(m.REP.ResponderResources)}
	for _, word := range words[1:] {
		key, v, _ := strings.Cut(word, "=")
		most := strings.HasSuffix(key, "<")
		key = strings.TrimSuffix(key, "<")
		have, ok := got[key]
		if !ok {
			return fmt.Errorf("no field %q", key)
		}
		var want uint64
		switch v {
		case "ours":
			want = map[string]uint64{"remote_id": c.local & 0xffffffff, "tid": c.tid, "qpn": uint64(r.qpn)}[key]
		case "theirs":
			want = uint64(c.remote)
		default:
			if want, err = strconv.ParseUint(v, 0, 64); err != nil {
				return err
			}
		}
		if have != want && !(most && have <= want) {
			return deviated("%s is %d, want %s", key, have, v)
		}
	}
	if name == "REP" {
		r.learn(m)
	}
	return nil
}
