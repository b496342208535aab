package cm_test

import (
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/cm"
)

var (
	_ encoding.BinaryAppender    = (*cm.Message)(nil)
	_ encoding.BinaryUnmarshaler = (*cm.Message)(nil)
)

// datagram is one entry of the tables in testdata.
type datagram struct {
	file   string
	frame  string
	mad    []byte
	fields map[string]string
}

func (d *datagram) name() string { return d.file + "/" + d.frame }

// captured returns the datagrams of all captures.
func captured(t testing.TB) []datagram {
	text, err := os.ReadFile("testdata/cm.txt")
	require.NoError(t, err)
	var all []datagram
	var file string
	for line := range strings.Lines(string(text)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case !ok:
		case k == "==":
			file = v
		case k == "frame":
			all = append(all, datagram{file: file, frame: v, fields: map[string]string{}})
		case k == "mad":
			all[len(all)-1].mad, err = hex.DecodeString(v)
			require.NoError(t, err)
		default:
			all[len(all)-1].fields[k] = v
		}
	}
	require.Len(t, all, 14, "datagrams in the captures")
	return all
}

// find returns a captured datagram.
func find(t testing.TB, file, frame string) []byte {
	for _, d := range captured(t) {
		if d.file == file && d.frame == frame {
			return d.mad
		}
	}
	t.Fatalf("no frame %s in %s", frame, file)
	return nil
}

// dissect prints m as tshark prints it. Private data are those of the REQ with
// RDMA-CM's header before them, if there is one.
func dissect(t *testing.T, m *cm.Message) map[string]string {
	f := map[string]string{}
	put := func(name, format string, v any) { f["infiniband."+name] = fmt.Sprintf(format, v) }
	flag := func(name string, v bool) {
		if v {
			put(name, "%s", "0x01")
		} else {
			put(name, "%s", "0x00")
		}
	}
	gid := func(name string, g cm.GID) {
		if g.Addr().Is4() {
			name += "_ipv4"
		}
		put(name, "%s", g)
	}

	h := &m.Header
	put("mad.baseversion", "0x%02x", h.BaseVersion)
	put("mad.mgmtclass", "0x%02x", uint8(h.MgmtClass))
	put("mad.classversion", "0x%02x", h.ClassVersion)
	put("mad.method", "0x%02x", uint8(h.Method))
	put("mad.status", "0x%04x", h.Status)
	put("mad.classspecific", "0x%04x", h.ClassSpecific)
	put("mad.transactionid", "0x%016x", h.TransactionID)
	put("mad.attributeid", "0x%04x", uint16(h.AttributeID))
	put("mad.attributemodifier", "0x%08x", h.AttributeModifier)

	switch h.AttributeID {
	case cm.AttrREQ:
		r := &m.REQ
		put("cm.req", "0x%08x", r.LocalCommID)
		put("cm.req.serviceid", "0x%016x", uint64(r.ServiceID))
		put("cm.req.serviceid.prefix", "%010x", uint64(r.ServiceID)>>24)
		put("cm.req.serviceid.protocol", "0x%02x", r.ServiceID.Protocol())
		put("cm.req.serviceid.dport", "0x%04x", r.ServiceID.Port())
		put("cm.req.localcaguid", "0x%016x", r.LocalCAGUID)
		put("cm.req.localqkey", "0x%08x", r.LocalQKey)
		put("cm.req.localqpn", "0x%06x", r.LocalQPN)
		put("cm.req.responderres", "0x%02x", r.ResponderResources)
		put("cm.req.localeecn", "0x%06x", r.LocalEECN)
		put("cm.req.initdepth", "0x%02x", r.InitiatorDepth)
		put("cm.req.remoteeecn", "0x%06x", r.RemoteEECN)
		put("cm.req.remoteresptout", "0x%02x", r.RemoteCMResponseTimeout)
		put("cm.req.transpsvctype", "0x%02x", uint8(r.TransportServiceType))
		flag("cm.req.e2eflowctrl", r.EndToEndFlowControl)
		put("cm.req.startpsn", "0x%06x", r.StartingPSN)
		put("cm.req.localresptout", "0x%02x", r.LocalCMResponseTimeout)
		put("cm.req.retrcount", "0x%02x", r.RetryCount)
		put("cm.req.pkey", "0x%04x", r.PartitionKey)
		put("cm.req.pppmtu", "0x%02x", uint8(r.PathPacketPayloadMTU))
		flag("cm.req.rdcexist", r.RDCExists)
		put("cm.req.rnrretrcount", "0x%02x", r.RNRRetryCount)
		put("cm.req.maxcmretr", "0x%02x", r.MaxCMRetries)
		flag("cm.req.srq", r.SRQ)
		put("cm.req.ext_transport", "0x%02x", r.ExtendedTransportType)
		for name, p := range map[string]*cm.Path{"prim": &r.Primary, "alt": &r.Alternate} {
			name = "cm.req." + name + "_"
			put(name+"locallid", "%d", p.LocalPortLID)
			put(name+"remotelid", "%d", p.RemotePortLID)
			// tshark 4.0.17 takes these from too few bytes: 20 bits of a word
			// from its first three bytes, the twelve bits that follow from its
			// first byte. TestFlowLabel shows that the word is right here.
			put(name+"flowlabel", "0x%08x", p.FlowLabel>>8)
			put(name+"reserved0", "0x%08x", p.FlowLabel>>12>>6)
			put(name+"pktrate", "0x%08x", p.FlowLabel>>12&0x3f)
			put(name+"tfcclass", "0x%02x", p.TrafficClass)
			put(name+"hoplim", "0x%02x", p.HopLimit)
			put(name+"sl", "0x%02x", p.SL)
			flag(name+"subnetlocal", p.SubnetLocal)
			put(name+"localacktout", "0x%02x", p.LocalACKTimeout)
			if p == &r.Primary {
				gid(name+"localgid", p.LocalPortGID)
				gid(name+"remotegid", p.RemotePortGID)
				put(name+"reserved1", "0x%02x", p.Reserved1)
				put(name+"reserved2", "0x%02x", p.Reserved2)
			} else {
				put(name+"localgid", "%x", p.LocalPortGID[:])
				put(name+"remotegid", "%x", p.RemotePortGID[:])
				// The dissector gives both the same name.
				put(name+"reserved1", "%s", fmt.Sprintf("0x%02x,0x%02x", p.Reserved1, p.Reserved2))
			}
		}
		var c cm.CMAHeader
		consumer, ok := r.CMA(&c)
		require.True(t, ok)
		put("cm.req.ip_cm", "%x", r.PrivateData)
		put("cm.req.ip_cm.majv", "0x%02x", c.MajorVersion)
		put("cm.req.ip_cm.minv", "0x%02x", c.MinorVersion)
		put("cm.req.ip_cm.ipv", "0x%02x", c.IPVersion)
		put("cm.req.ip_cm.reserved", "0x%02x", c.Reserved)
		put("cm.req.ip_cm.sport", "0x%04x", c.Port)
		put(fmt.Sprintf("cm.req.ip_cm.sip%d", c.IPVersion), "%s", c.Src())
		put(fmt.Sprintf("cm.req.ip_cm.dip%d", c.IPVersion), "%s", c.Dst())
		put("cm.req.ip_cm.private", "%x", consumer)
	case cm.AttrREP:
		r := &m.REP
		put("cm.rep", "0x%08x", r.LocalCommID)
		put("cm.rep.remotecommid", "0x%08x", r.RemoteCommID)
		put("cm.rep.localqkey", "0x%08x", r.LocalQKey)
		put("cm.rep.localqpn", "0x%06x", r.LocalQPN)
		put("cm.rep.localeecn", "0x%06x", r.LocalEECN)
		put("cm.rep.startpsn", "0x%06x", r.StartingPSN)
		put("cm.rep.respres", "0x%02x", r.ResponderResources)
		put("cm.rep.initdepth", "0x%02x", r.InitiatorDepth)
		put("cm.rep.tgtackdelay", "0x%02x", r.TargetACKDelay)
		put("cm.rep.failoveracc", "0x%02x", r.FailoverAccepted)
		flag("cm.rep.e2eflowctrl", r.EndToEndFlowControl)
		put("cm.rep.rnrretrcount", "0x%02x", r.RNRRetryCount)
		flag("cm.rep.srq", r.SRQ)
		put("cm.rep.reserved", "0x%02x", r.Reserved)
		put("cm.rep.localcaguid", "0x%016x", r.LocalCAGUID)
		put("cm.rep.private", "%x", r.PrivateData)
	case cm.AttrRTU:
		put("cm.rtu.localcommid", "0x%08x", m.RTU.LocalCommID)
		put("cm.rtu.remotecommid", "0x%08x", m.RTU.RemoteCommID)
		put("cm.rtu.private", "%x", m.RTU.PrivateData)
	case cm.AttrREJ:
		r := &m.REJ
		put("cm.rej.localcommid", "0x%08x", r.LocalCommID)
		put("cm.rej.remotecommid", "0x%08x", r.RemoteCommID)
		put("cm.rej.msgrej", "0x%02x", uint8(r.MessageRejected))
		put("cm.rej.reserved0", "0x%02x", r.Reserved0)
		put("cm.rej.rejinfolen", "0x%02x", r.RejectInfoLength)
		put("cm.rej.reserved1", "0x%02x", r.Reserved1)
		put("cm.rej.reason", "0x%04x", uint16(r.Reason))
		put("cm.rej.ari", "%x", r.ARI)
		put("cm.rej.private", "%x", r.PrivateData)
	case cm.AttrDREQ:
		put("cm.dreq.localcommid", "0x%08x", m.DREQ.LocalCommID)
		put("cm.dreq.remotecommid", "0x%08x", m.DREQ.RemoteCommID)
		put("cm.req.remoteqpneecn", "0x%06x", m.DREQ.RemoteQPNEECN)
		put("cm.dreq.private", "%x", m.DREQ.PrivateData)
	case cm.AttrDREP:
		put("cm.drsp.localcommid", "0x%08x", m.DREP.LocalCommID)
		put("cm.drsp.remotecommid", "0x%08x", m.DREP.RemoteCommID)
		put("cm.drsp.private", "%x", m.DREP.PrivateData)
	}
	return f
}

// Every management datagram of the captures, every field that tshark shows,
// and the same bytes again.
func TestCaptures(t *testing.T) {
	kinds := map[cm.AttributeID]int{}
	fields := 0
	for _, d := range captured(t) {
		t.Run(d.name(), func(t *testing.T) {
			require.Len(t, d.mad, cm.Size)
			var m cm.Message
			require.NoError(t, m.Decode(d.mad))
			assert.Equal(t, d.fields, dissect(t, &m))
			assert.NoError(t, m.Validate())
			assert.Equal(t, hex.EncodeToString(d.mad), hex.EncodeToString(m.AppendTo(nil)))
			kinds[m.Header.AttributeID]++
			fields += len(d.fields)
		})
	}
	assert.Equal(t, map[cm.AttributeID]int{
		cm.AttrREQ: 3, cm.AttrREP: 2, cm.AttrRTU: 2, cm.AttrREJ: 1, cm.AttrDREQ: 2, cm.AttrDREP: 2,
		cm.AttrSIDRREQ: 1, cm.AttrSIDRREP: 1,
	}, kinds)
	t.Logf("%d fields of the dissector compared", fields)
}

// tshark does not dissect SIDR. The expected values are in the rest of the capture: IP
// header of frame 10, and frames 12 to 15 (destination QP, Q_Key, as tshark
// shows them); 7174 is udaddy's port.
func TestCapturedSIDR(t *testing.T) {
	var m cm.Message
	require.NoError(t, m.Decode(find(t, "cm-udaddy", "10")))
	require.Equal(t, cm.AttrSIDRREQ, m.Header.AttributeID)
	q := m.SIDRREQ
	assert.Equal(t, uint32(0xae11723e), q.RequestID)
	assert.Equal(t, uint16(0xffff), q.PartitionKey)
	assert.Zero(t, q.Reserved)
	assert.Equal(t, cm.IPServiceID(cm.ProtocolUDP, 7174), q.ServiceID)
	assert.Len(t, q.PrivateData, cm.SIDRREQPrivateDataSize)
	var h cm.CMAHeader
	consumer, ok := q.CMA(&h)
	require.True(t, ok)
	assert.Equal(t, "192.0.2.2", h.Src().String())
	assert.Equal(t, "192.0.2.1", h.Dst().String())
	assert.Equal(t, uint16(0xb9b0), h.Port)
	assert.Len(t, consumer, 180)

	require.NoError(t, m.Decode(find(t, "cm-udaddy", "11")))
	require.Equal(t, cm.AttrSIDRREP, m.Header.AttributeID)
	p := m.SIDRREP
	assert.Equal(t, q.RequestID, p.RequestID)
	assert.Equal(t, cm.SIDRValid, p.Status)
	assert.Zero(t, p.AdditionalInformationLength)
	assert.Zero(t, p.VendorID)
	assert.Equal(t, uint32(0x11), p.QPN)
	assert.Equal(t, q.ServiceID, p.ServiceID)
	assert.Equal(t, uint32(0x01234567), p.QKey)
	assert.Len(t, p.AdditionalInformation, cm.SIDRREPInfoSize)
	assert.Len(t, p.PrivateData, cm.SIDRREPPrivateDataSize)
}

// The client of cm-rping starts with PSN 0x57ac93 (frame 13, a SEND), the
// server with 0xec421b (frame 15, a READ request), as tshark shows them.
func TestStartingPSNIsTheOtherSides(t *testing.T) {
	const client, server = 0x57ac93, 0xec421b
	var m cm.Message
	require.NoError(t, m.Decode(find(t, "cm-rping", "10"))) // REQ, from the client
	require.NoError(t, m.Decode(find(t, "cm-rping", "11"))) // REP, from the server
	assert.Equal(t, uint32(server), m.REQ.StartingPSN)
	assert.Equal(t, uint32(client), m.REP.StartingPSN)
}

// The kernel derives a connection's UDP source port from its flow label. Ports
// are those of the first packet behind RTU, as tshark shows them.
func TestFlowLabel(t *testing.T) {
	for file, port := range map[string]uint32{"cm-rping": 50711, "cm-rping-ipv6": 49873} {
		var m cm.Message
		require.NoError(t, m.Decode(find(t, file, "10")))
		label := m.REQ.Primary.FlowLabel
		assert.Equal(t, port, label&0x3fff^label>>14|0xc000, file)
		assert.Zero(t, m.REQ.Primary.Reserved0)
		assert.Zero(t, m.REQ.Primary.PacketRate)
	}
}

// words builds a message's data from hex and zeros up to DataSize.
func words(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return append(b, make([]byte, cm.DataSize-len(b))...)
}

// Layouts that no capture shows, written down from the specification's tables
// 106, 107, 108, 110, 115, 116 and 120 as the Linux header ibta_vol1_c12.h
// gives their offsets: each field has a value of its own.
func TestLayouts(t *testing.T) {
	t.Run("MRA", func(t *testing.T) {
		b := words(t, "01020304 05060708 6a 8d aa")
		var r cm.MRA
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.MRA{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, MessageMRAed: cm.MRAedREP, Reserved0: 0x2a,
			ServiceTimeout: 0x11, Reserved1: 5, PrivateData: b[10:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
	t.Run("REJ", func(t *testing.T) {
		b := words(t, "01020304 05060708 95 51 001c aabb")
		b[84] = 0xcc
		var r cm.REJ
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.REJ{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, MessageRejected: cm.RejectedOther, Reserved0: 0x15,
			RejectInfoLength: 0x28, Reserved1: 1, Reason: cm.ReasonConsumer, ARI: b[12:84], PrivateData: b[84:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
	t.Run("REQ", func(t *testing.T) {
		b := words(t, "01020304 05 060708 1112131415161718 2122232425262728 31323334 41424344"+
			"515253 54 616263 64 717273 ad 818283 ed 9192 5d b6"+
			// primary: LIDs, GIDs, flow label and rate, class, hop limit, SL, timeout
			"a1a2 a3a4 00000000000000000000ffffc0000201 00000000000000000000ffffc0000202 abcde 9a1 b1 b2 ca 9e"+
			"c1c2 c3c4 20010db8000000000000000000000001 20010db8000000000000000000000002 12345 678 d1 d2 35 63 ff")
		var r cm.REQ
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.REQ{
			LocalCommID: 0x01020304, Reserved0: 5, VendorID: 0x060708, ServiceID: 0x1112131415161718,
			LocalCAGUID: 0x2122232425262728, Reserved1: 0x31323334, LocalQKey: 0x41424344, LocalQPN: 0x515253,
			ResponderResources: 0x54, LocalEECN: 0x616263, InitiatorDepth: 0x64, RemoteEECN: 0x717273,
			// ad = 10101 10 1, ed = 11101 101, 5d = 0101 1 101, b6 = 1011 0 110
			RemoteCMResponseTimeout: 0x15, TransportServiceType: cm.ServiceRD, EndToEndFlowControl: true,
			StartingPSN: 0x818283, LocalCMResponseTimeout: 0x1d, RetryCount: 5, PartitionKey: 0x9192,
			PathPacketPayloadMTU: cm.MTU4096, RDCExists: true, RNRRetryCount: 5, MaxCMRetries: 11,
			ExtendedTransportType: 6,
			Primary: cm.Path{
				LocalPortLID: 0xa1a2, RemotePortLID: 0xa3a4,
				LocalPortGID:  netip.MustParseAddr("::ffff:192.0.2.1").As16(),
				RemotePortGID: netip.MustParseAddr("::ffff:192.0.2.2").As16(),
				// 9a1 = 100110 100001, ca = 1100 1 010, 9e = 10011 110
				FlowLabel: 0xabcde, Reserved0: 0x26, PacketRate: 0x21, TrafficClass: 0xb1, HopLimit: 0xb2,
				SL: 12, SubnetLocal: true, Reserved1: 2, LocalACKTimeout: 0x13, Reserved2: 6,
			},
			Alternate: cm.Path{
				LocalPortLID: 0xc1c2, RemotePortLID: 0xc3c4,
				LocalPortGID:  netip.MustParseAddr("2001:db8::1").As16(),
				RemotePortGID: netip.MustParseAddr("2001:db8::2").As16(),
				// 678 = 011001 111000, 35 = 0011 0 101, 63 = 01100 011
				FlowLabel: 0x12345, Reserved0: 0x19, PacketRate: 0x38, TrafficClass: 0xd1, HopLimit: 0xd2,
				SL: 3, Reserved1: 5, LocalACKTimeout: 0x0c, Reserved2: 3,
			},
			PrivateData: b[140:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
		assert.Equal(t, "192.0.2.1", r.Primary.LocalPortGID.String())
		assert.Equal(t, "2001:db8::2", r.Alternate.RemotePortGID.String())
	})
	t.Run("REP", func(t *testing.T) {
		b := words(t, "01020304 05060708 11121314 212223 d1 313233 d2 414243 d3 51 52 5a b6 6162636465666768 ee")
		var r cm.REP
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.REP{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, LocalQKey: 0x11121314, LocalQPN: 0x212223,
			LocalEECN: 0x313233, StartingPSN: 0x414243, VendorID: 0xd1d2d3, ResponderResources: 0x51,
			// 5a = 01011 01 0, b6 = 101 1 0110
			InitiatorDepth: 0x52, TargetACKDelay: 0x0b, FailoverAccepted: 1, RNRRetryCount: 5, SRQ: true,
			Reserved: 6, LocalCAGUID: 0x6162636465666768, PrivateData: b[36:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
	t.Run("SIDR_REP", func(t *testing.T) {
		b := words(t, "01020304 02 03 d1d2 111213 d3 2122232425262728 31323334 aabb")
		b[96] = 0xcc
		var r cm.SIDRREP
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.SIDRREP{
			RequestID: 0x01020304, Status: cm.SIDRRejected, AdditionalInformationLength: 3, VendorID: 0xd1d2d3,
			QPN: 0x111213, ServiceID: 0x2122232425262728, QKey: 0x31323334,
			AdditionalInformation: b[24:96], PrivateData: b[96:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
	t.Run("LAP", func(t *testing.T) {
		b := words(t, "01020304 05060708 090a0b0c 111213 8d 21222324 a1a2 a3a4"+
			"00000000000000000000ffffc0000201 00000000000000000000ffffc0000202 abcde 9 b1 b2 61 ca 9e ee")
		var r cm.LAP
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.LAP{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, Reserved0: 0x090a0b0c, RemoteQPNEECN: 0x111213,
			RemoteCMResponseTimeout: 0x11, Reserved1: 5, Reserved2: 0x21222324,
			Alternate: cm.Path{
				LocalPortLID: 0xa1a2, RemotePortLID: 0xa3a4,
				LocalPortGID:  netip.MustParseAddr("::ffff:192.0.2.1").As16(),
				RemotePortGID: netip.MustParseAddr("::ffff:192.0.2.2").As16(),
				// 9 = 1001, 61 = 01 100001
				FlowLabel: 0xabcde, Reserved0: 0x25, PacketRate: 0x21, TrafficClass: 0xb1, HopLimit: 0xb2,
				SL: 12, SubnetLocal: true, Reserved1: 2, LocalACKTimeout: 0x13, Reserved2: 6,
			},
			PrivateData: b[64:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
	t.Run("APR", func(t *testing.T) {
		b := words(t, "01020304 05060708 0a 0b 0c0d aabb")
		b[84] = 0xcc
		var r cm.APR
		require.NoError(t, r.Decode(b))
		assert.Equal(t, cm.APR{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, AdditionalInformationLength: 10,
			APStatus: cm.APInvalidHopLimit, Reserved: 0x0c0d, AdditionalInformation: b[12:84], PrivateData: b[84:],
		}, r)
		assert.Equal(t, b, r.AppendTo(nil))
	})
}

func TestErrors(t *testing.T) {
	good := find(t, "cm-rping", "10")
	with := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	var m cm.Message
	require.NoError(t, m.Decode(good))
	before := m
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"empty", nil, cm.ErrTruncated},
		{"one byte short", good[:cm.Size-1], cm.ErrTruncated},
		{"header only", good[:cm.HeaderSize], cm.ErrTruncated},
		{"subnet administration", with(1, 0x03), cm.ErrClass},
		{"class port information", with(17, 0x01), cm.ErrAttribute},
		{"attribute below", with(17, 0x0f), cm.ErrAttribute},
		{"attribute above", with(17, 0x1b), cm.ErrAttribute},
		{"attribute with a high bit", with(16, 0x01), cm.ErrAttribute},
	} {
		assert.ErrorIs(t, m.Decode(c.in), c.want, c.name)
		assert.Equal(t, before, m, c.name)
	}
	assert.ErrorIs(t, m.Header.Decode(good[:cm.HeaderSize-1]), cm.ErrTruncated)
	assert.Equal(t, before, m, "header")
	assert.True(t, errors.Is(cm.ErrTruncated, io.ErrUnexpectedEOF))
	assert.NoError(t, m.Decode(append(good[:cm.Size:cm.Size], 1, 2, 3)), "more bytes follow")

	assert.ErrorIs(t, m.UnmarshalBinary(append(good[:cm.Size:cm.Size], 1)), cm.ErrLength)
	assert.ErrorIs(t, m.UnmarshalBinary(good[:cm.Size-1]), cm.ErrTruncated)
	b := append([]byte(nil), good...)
	require.NoError(t, m.UnmarshalBinary(b))
	clear(b)
	assert.Equal(t, good, m.AppendTo(nil), "UnmarshalBinary copies")
}

func TestValidate(t *testing.T) {
	long := make([]byte, 256)
	for name, c := range map[string]struct {
		m    interface{ Validate() error }
		want error
	}{
		"QPN":             {&cm.REQ{LocalQPN: 1 << 24}, cm.ErrRange},
		"PSN":             {&cm.REQ{StartingPSN: 1 << 24}, cm.ErrRange},
		"MTU":             {&cm.REQ{PathPacketPayloadMTU: 16}, cm.ErrRange},
		"flow label":      {&cm.REQ{Primary: cm.Path{FlowLabel: 1 << 20}}, cm.ErrRange},
		"vendor fits":     {&cm.REQ{VendorID: 1<<24 - 1}, nil},
		"vendor":          {&cm.REQ{VendorID: 1 << 24}, cm.ErrRange},
		"reserved bits":   {&cm.REQ{Primary: cm.Path{Reserved0: 64}}, cm.ErrRange},
		"alternate SL":    {&cm.REQ{Alternate: cm.Path{SL: 16}}, cm.ErrRange},
		"REQ data":        {&cm.REQ{PrivateData: long[:93]}, cm.ErrTooLong},
		"REQ data fit":    {&cm.REQ{PrivateData: long[:92]}, nil},
		"MRA timeout":     {&cm.MRA{ServiceTimeout: 32}, cm.ErrRange},
		"MRA data":        {&cm.MRA{PrivateData: long[:223]}, cm.ErrTooLong},
		"REJ message":     {&cm.REJ{MessageRejected: 4}, cm.ErrRange},
		"REJ ARI":         {&cm.REJ{ARI: long[:73]}, cm.ErrTooLong},
		"REJ data":        {&cm.REJ{PrivateData: long[:149]}, cm.ErrTooLong},
		"REP vendor":      {&cm.REP{VendorID: 1 << 24}, cm.ErrRange},
		"REP RNR":         {&cm.REP{RNRRetryCount: 8}, cm.ErrRange},
		"REP data":        {&cm.REP{PrivateData: long[:197]}, cm.ErrTooLong},
		"RTU data":        {&cm.RTU{PrivateData: long[:225]}, cm.ErrTooLong},
		"DREQ QPN":        {&cm.DREQ{RemoteQPNEECN: 1 << 24}, cm.ErrRange},
		"DREQ data":       {&cm.DREQ{PrivateData: long[:221]}, cm.ErrTooLong},
		"DREP data":       {&cm.DREP{PrivateData: long[:225]}, cm.ErrTooLong},
		"SIDR_REQ data":   {&cm.SIDRREQ{PrivateData: long[:217]}, cm.ErrTooLong},
		"SIDR_REP QPN":    {&cm.SIDRREP{QPN: 1 << 24}, cm.ErrRange},
		"SIDR_REP info":   {&cm.SIDRREP{AdditionalInformation: long[:73]}, cm.ErrTooLong},
		"SIDR_REP data":   {&cm.SIDRREP{PrivateData: long[:137]}, cm.ErrTooLong},
		"LAP QPN":         {&cm.LAP{RemoteQPNEECN: 1 << 24}, cm.ErrRange},
		"LAP path":        {&cm.LAP{Alternate: cm.Path{PacketRate: 64}}, cm.ErrRange},
		"LAP data":        {&cm.LAP{PrivateData: long[:169]}, cm.ErrTooLong},
		"APR info":        {&cm.APR{AdditionalInformation: long[:73]}, cm.ErrTooLong},
		"APR data":        {&cm.APR{PrivateData: long[:149]}, cm.ErrTooLong},
		"CMA version":     {&cm.CMAHeader{IPVersion: 16}, cm.ErrRange},
		"message":         {&cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 1)}, nil},
		"message, member": {&cm.Message{Header: cm.NewHeader(cm.AttrDREQ, 1), DREQ: cm.DREQ{RemoteQPNEECN: 1 << 24}}, cm.ErrRange},
		"message, class":  {&cm.Message{Header: cm.Header{AttributeID: cm.AttrREQ}}, cm.ErrClass},
		"message, id":     {&cm.Message{Header: cm.NewHeader(9, 1)}, cm.ErrAttribute},
	} {
		assert.ErrorIs(t, c.m.Validate(), c.want, name)
	}

	bad := cm.Message{Header: cm.NewHeader(cm.AttrREQ, 1), REQ: cm.REQ{LocalQPN: 1 << 24}}
	got, err := bad.AppendBinary([]byte("x"))
	assert.ErrorIs(t, err, cm.ErrRange)
	assert.Equal(t, "x", string(got))

	unknown := cm.Message{Header: cm.NewHeader(9, 1)}
	assert.Len(t, unknown.AppendTo(nil), cm.Size)
}

// What is too wide is cut and does not reach its neighbours.
func TestMasking(t *testing.T) {
	wide := cm.REQ{
		VendorID: 0xff<<24 | 1, LocalQPN: 0xff<<24 | 2, TransportServiceType: 0xfc | 1, RetryCount: 0xf8 | 3,
		PathPacketPayloadMTU: 0xf0 | 4, RNRRetryCount: 0xf8 | 5, ExtendedTransportType: 0xf8 | 6,
		Primary: cm.Path{
			FlowLabel: 0xfff<<20 | 7, Reserved0: 0xc0, PacketRate: 0xc0 | 8, SL: 0xf0 | 9, Reserved1: 0xf8,
			LocalACKTimeout: 0xe0 | 10, Reserved2: 0xf8,
		},
		PrivateData: append(make([]byte, cm.REQPrivateDataSize), 0xff),
	}
	fits := cm.REQ{
		VendorID: 1, LocalQPN: 2, TransportServiceType: 1, RetryCount: 3, PathPacketPayloadMTU: 4,
		RNRRetryCount: 5, ExtendedTransportType: 6,
		Primary: cm.Path{FlowLabel: 7, PacketRate: 8, SL: 9, LocalACKTimeout: 10},
	}
	assert.Equal(t, fits.AppendTo(nil), wide.AppendTo(nil))
	assert.Error(t, wide.Validate())
	assert.NoError(t, fits.Validate())
}

func TestServiceID(t *testing.T) {
	s := cm.IPServiceID(cm.ProtocolTCP, 7174)
	assert.Equal(t, cm.ServiceID(0x0000000001061c06), s) // cm-rping, frame 10
	assert.True(t, s.IsIP())
	assert.Equal(t, uint8(6), s.Protocol())
	assert.Equal(t, uint16(7174), s.Port())
	assert.Equal(t, "tcp:7174", s.String())
	assert.Equal(t, "udp:4791", cm.IPServiceID(17, 4791).String())
	assert.Equal(t, "ip 132:1", cm.IPServiceID(132, 1).String())
	for _, other := range []cm.ServiceID{0, 0x0000000002061c06, 0x1000000001061c06, 0x0000000000061c06} {
		assert.False(t, other.IsIP())
		assert.Equal(t, fmt.Sprintf("0x%016x", uint64(other)), other.String())
	}
}

func TestCMAHeader(t *testing.T) {
	for _, c := range []struct{ src, dst, file string }{
		{"192.0.2.2:47385", "192.0.2.1", "cm-rping"},
		{"[2001:db8::2]:56873", "2001:db8::1", "cm-rping-ipv6"},
	} {
		var m cm.Message
		require.NoError(t, m.Decode(find(t, c.file, "10")))
		h, err := cm.NewCMAHeader(netip.MustParseAddrPort(c.src), netip.MustParseAddr(c.dst))
		require.NoError(t, err)
		assert.Equal(t, m.REQ.PrivateData[:cm.CMAHeaderSize], h.AppendTo(nil), c.file)
	}
	_, err := cm.NewCMAHeader(netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddr("2001:db8::1"))
	assert.ErrorIs(t, err, cm.ErrAddr)
	_, err = cm.NewCMAHeader(netip.AddrPort{}, netip.Addr{})
	assert.ErrorIs(t, err, cm.ErrAddr)

	h := cm.CMAHeader{IPVersion: 5}
	assert.False(t, h.Src().IsValid())
	assert.ErrorIs(t, h.Decode(make([]byte, cm.CMAHeaderSize-1)), cm.ErrTruncated)
	assert.Equal(t, cm.CMAHeader{IPVersion: 5}, h)

	ip := cm.IPServiceID(6, 1)
	v4 := append([]byte{0, 0x40}, make([]byte, 90)...)
	for name, r := range map[string]cm.REQ{
		"other service": {ServiceID: 1, PrivateData: v4},
		"short":         {ServiceID: ip, PrivateData: v4[:cm.CMAHeaderSize-1]},
		"version 1":     {ServiceID: ip, PrivateData: append([]byte{0x10}, v4[1:]...)},
		"IP version 5":  {ServiceID: ip, PrivateData: append([]byte{0, 0x50}, v4[2:]...)},
	} {
		_, ok := r.CMA(&h)
		assert.False(t, ok, name)
		assert.Equal(t, cm.CMAHeader{IPVersion: 5}, h, name)
	}
}

func TestStrings(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"REQ": cm.AttrREQ, "MRA": cm.AttrMRA, "REJ": cm.AttrREJ, "REP": cm.AttrREP, "RTU": cm.AttrRTU,
		"DREQ": cm.AttrDREQ, "DREP": cm.AttrDREP, "SIDR_REQ": cm.AttrSIDRREQ, "SIDR_REP": cm.AttrSIDRREP,
		"LAP": cm.AttrLAP, "APR": cm.AttrAPR, "0x0001": cm.AttributeID(1), "0x001b": cm.AttributeID(0x1b),
		"CM": cm.ClassCM, "0x04": cm.Class(4), "Send": cm.MethodSend, "Get": cm.MethodGet, "Set": cm.MethodSet,
		"GetResp": cm.MethodGetResp, "0x83": cm.Method(0x83),
		"invalid service ID": cm.ReasonInvalidServiceID, "consumer reject": cm.ReasonConsumer,
		"no QP available": cm.ReasonNoQP, "vendor option not supported": cm.ReasonVendorOptionNotSupported,
		"0": cm.Reason(0), "34": cm.Reason(34), "65535": cm.Reason(65535),
		"valid": cm.SIDRValid, "version not supported": cm.SIDRUnsupportedVersion, "6": cm.SIDRStatus(6),
		"loaded": cm.APLoaded, "invalid SL": cm.APInvalidSL, "14": cm.APStatus(14),
		"1024": cm.MTU1024, "256": cm.MTU256, "4096": cm.MTU4096, "MTU code 0": cm.MTU(0), "MTU code 6": cm.MTU(6),
		"RC": cm.ServiceRC, "UC": cm.ServiceUC, "RD": cm.ServiceRD, "extended": cm.ServiceExtended,
		"4": cm.TransportServiceType(4), "other": cm.RejectedOther, "3": cm.MessageRejected(3),
	} {
		assert.Equal(t, want, v.String())
	}
	// IBA 12.6.9.1, the AP statuses by number.
	assert.Equal(t, "[0:loaded 1:invalid communication ID 2:alternate paths not supported 3:rejected 4:redirected 5:is the current path "+
		"6:invalid QPN or EECN 7:invalid LID 8:invalid GID 9:invalid flow label 10:invalid traffic class 11:invalid hop limit "+
		"12:invalid packet rate 13:invalid SL]", fmt.Sprint(func() (all []string) {
		for _, s := range []cm.APStatus{cm.APLoaded, cm.APInvalidCommID, cm.APUnsupported, cm.APRejected, cm.APRedirect, cm.APIsCurrentPath, cm.APInvalidQPNEECN,
			cm.APInvalidLID, cm.APInvalidGID, cm.APInvalidFlowLabel, cm.APInvalidTrafficClass, cm.APInvalidHopLimit, cm.APInvalidPacketRate, cm.APInvalidSL} {
			all = append(all, fmt.Sprintf("%d:%v", uint8(s), s))
		}
		return all
	}()))
	assert.Equal(t, "REQ REP LAP 3", fmt.Sprint(cm.MRAedREQ, cm.MRAedREP, cm.MRAedLAP, cm.MessageMRAed(3)))
	assert.Equal(t, "REQ REP", fmt.Sprint(cm.RejectedREQ, cm.RejectedREP))
	for i := range 1 << 16 {
		assert.NotEmpty(t, cm.Reason(i).String())
		assert.NotEmpty(t, cm.AttributeID(i).String())
	}
	for i := range 256 {
		for _, s := range []fmt.Stringer{
			cm.Class(i), cm.Method(i), cm.SIDRStatus(i), cm.APStatus(i), cm.MTU(i), cm.TransportServiceType(i),
			cm.MessageMRAed(i), cm.MessageRejected(i),
		} {
			assert.NotEmpty(t, s.String())
		}
	}
}

func TestTimeout(t *testing.T) {
	assert.Equal(t, 4096*time.Nanosecond, cm.Timeout(0))
	assert.Equal(t, 4294967296*time.Nanosecond, cm.Timeout(20)) // RDMA-CM's, 4.3 s
	assert.Equal(t, 8796093022208*time.Nanosecond, cm.Timeout(31))
	assert.Equal(t, cm.Timeout(1), cm.Timeout(33))
}

func TestMTU(t *testing.T) {
	for code, want := range []int{0, 256, 512, 1024, 2048, 4096, 0} {
		assert.Equal(t, want, cm.MTU(code).Bytes())
	}
	assert.Zero(t, cm.MTU(255).Bytes())
	assert.Equal(t, [...]cm.MTU{1, 2, 3, 4, 5}, [...]cm.MTU{cm.MTU256, cm.MTU512, cm.MTU1024, cm.MTU2048, cm.MTU4096})
}
