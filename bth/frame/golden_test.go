package frame_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	realcaptures "github.com/roce-go/roce/fuzz/captures"
)

// The captures of the Linux kernel's driver, one copy for the whole module.
const captures = "../../fuzz/captures"

func captureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(captures, "*.pcap"))
	require.NoError(t, err)
	require.Len(t, files, 50)
	return files
}

// readTable returns the dissection beside a capture: a map of fields for each
// frame.
func readTable(t *testing.T, capture string) (out []map[string]string) {
	t.Helper()
	text := realcaptures.Dissection(strings.TrimSuffix(filepath.Base(capture), ".pcap"))
	require.NotEmpty(t, text)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	require.Len(t, names, 54)
	for _, line := range lines[1:] {
		values := strings.Split(line, "\t")
		require.Len(t, values, len(names))
		row := map[string]string{}
		for i, name := range names {
			row[name] = values[i]
		}
		out = append(out, row)
	}
	return out
}

// What the probes' script sends wrong on purpose, by file and frame number; the
// .txt beside the capture says so.
var (
	probeRefused = map[string]error{
		"probe-responder 36": bth.ErrVersion, // "transport version 1"
		"probe-responder 53": bth.ErrOpcode,  // "reserved opcode 0x1f"
	}
	probeBadICRC = []string{
		"probe-requester 77", // "first ACK with a bad ICRC"
		"probe-responder 32", // "bad ICRC"
	}
)

// TestGolden holds every field of every frame of the captures against the
// dissection by tshark.
// Rules WI-8, WI-11, WI-15.
func TestGolden(t *testing.T) {
	var roce, good, noCRC int
	var bad []string
	refused := map[string]error{}
	for _, path := range captureFiles(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		rows := readTable(t, path)
		records, err := capture.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, records, len(rows), name)
		for i, rec := range records {
			id := fmt.Sprintf("%s %d", name, i+1)
			want := rows[i]
			got := map[string]string{"frame.number": strconv.Itoa(i + 1), "frame.len": strconv.Itoa(rec.WireLen)}
			var f frame.Frame
			err := frame.Finder{}.Decode(frame.Ethernet, rec.Data, rec.WireLen, &f)
			if want["udp.dstport"] != "4791" {
				require.ErrorIs(t, err, frame.ErrNotRoCE, id)
				require.Equal(t, frame.Frame{}, f, id)
				continue
			}
			roce++
			if err != nil {
				refused[id] = err
				require.Equal(t, frame.Frame{}, f, id)
				require.NoError(t, frame.Finder{}.Find(frame.Ethernet, rec.Data, rec.WireLen, &f), id)
				require.NoError(t, f.Packet.Header.Decode(f.Transport), id)
				f.Packet.ICRC = binary.LittleEndian.Uint32(f.Transport[f.TransportLen-4:])
			}
			again := append(f.AppendTo(nil), f.Trailer...)
			switch f.CheckICRC() {
			case frame.ICRCGood:
				good++
				if err == nil {
					require.Equal(t, rec.Data, again, "%s encoded again", id)
				}
			case frame.ICRCBad:
				bad = append(bad, id)
				n := len(again) - bth.ICRCSize
				require.Equal(t, rec.Data[:n], again[:n], "%s encoded again", id)
			default:
				t.Error("not checked:", id)
			}
			describe(got, &f)
			for field, w := range want {
				switch {
				case field == "_ws.expert.message": // remarks, no field
				case field == "infiniband.invariant.crc" && w == "":
					// tshark takes a SEND of few bytes for something else, and
					// knows no ICRC of opcodes that it does not know.
					noCRC++
					op := f.Packet.Opcode
					require.True(t, len(f.Packet.Payload) <= 4 && op.Send() || op == bth.CNP || !op.Known(), id)
				default:
					require.Equal(t, w, got[field], "%s %s", id, field)
				}
				delete(got, field)
			}
			require.Empty(t, got, id)
		}
	}
	require.Equal(t, 1413, roce)
	require.Equal(t, 14, noCRC)
	require.Equal(t, probeBadICRC, bad)
	require.Equal(t, probeRefused, refused)
	require.Equal(t, roce-len(bad), good)
}

// describe fills in tshark's fields in tshark's manner.
func describe(m map[string]string, f *frame.Frame) {
	p := &f.Packet
	dec := func(k string, v uint64) { m[k] = strconv.FormatUint(v, 10) }
	hexa := func(k string, digits int, v uint64) { m[k] = fmt.Sprintf("0x%0*x", digits, v) }
	flag := func(k string, v bool) {
		m[k] = "0"
		if v {
			m[k] = "1"
		}
	}
	if f.Net == frame.IPv4 {
		hexa("eth.type", 4, frame.EtherTypeIPv4)
		m["ip.src"], m["ip.dst"] = f.Src.String(), f.Dst.String()
		hexa("ip.dsfield", 2, uint64(f.TrafficClass))
		dec("ip.ttl", uint64(f.HopLimit))
	} else {
		hexa("eth.type", 4, frame.EtherTypeIPv6)
		m["ipv6.src"], m["ipv6.dst"] = f.Src.String(), f.Dst.String()
		hexa("ipv6.tclass", 8, uint64(f.TrafficClass))
		hexa("ipv6.flow", 6, uint64(f.FlowLabel))
		dec("ipv6.hlim", uint64(f.HopLimit))
	}
	if f.VLANs > 0 {
		dec("vlan.id", uint64(f.VLAN[0].ID()))
	}
	dec("udp.srcport", uint64(f.SrcPort))
	dec("udp.dstport", uint64(f.DstPort))
	dec("udp.length", uint64(f.TransportLen)+8)
	hexa("udp.checksum", 4, uint64(f.UDPChecksum))

	dec("infiniband.bth.opcode", uint64(p.Opcode))
	flag("infiniband.bth.se", p.SE)
	flag("infiniband.bth.m", p.M)
	dec("infiniband.bth.padcnt", uint64(p.PadCnt))
	dec("infiniband.bth.tver", uint64(p.TVer))
	dec("infiniband.bth.p_key", uint64(p.PKey))
	hexa("infiniband.bth.destqp", 6, uint64(p.DestQP))
	flag("infiniband.bth.a", p.AckReq)
	dec("infiniband.bth.psn", uint64(p.PSN))
	e := p.Opcode.Ext()
	if e&bth.HasDETH != 0 {
		hexa("infiniband.deth.q_key", 16, uint64(p.DETH.QKey))
		hexa("infiniband.deth.srcqp", 8, uint64(p.DETH.SrcQP))
	}
	if e&bth.HasRETH != 0 {
		hexa("infiniband.reth.va", 16, p.RETH.VA)
		hexa("infiniband.reth.r_key", 8, uint64(p.RETH.RKey))
		dec("infiniband.reth.dmalen", uint64(p.RETH.DMALen))
	}
	if e&bth.HasAtomicETH != 0 {
		a := p.AtomicETH
		hexa("infiniband.reth.va", 16, a.VA)
		hexa("infiniband.reth.r_key", 8, uint64(a.RKey))
		m["infiniband.atomiceth"] = fmt.Sprintf("%016x%08x%016x%016x", a.VA, a.RKey, a.SwapAdd, a.Compare)
		dec("infiniband.atomiceth.swapdt", a.SwapAdd)
		dec("infiniband.atomiceth.cmpdt", a.Compare)
	}
	if e&bth.HasAETH != 0 {
		s := p.AETH.Syndrome
		dec("infiniband.aeth.syndrome", uint64(s))
		dec("infiniband.aeth.syndrome.opcode", uint64(s.Kind()))
		switch s.Kind() {
		case aeth.Ack:
			dec("infiniband.aeth.syndrome.credit_count", uint64(s.Credit()))
		case aeth.RNR:
			dec("infiniband.aeth.syndrome.timer", uint64(s.RNRTimer()))
		case aeth.Nak:
			dec("infiniband.aeth.syndrome.error_code", uint64(s.Nak()))
		}
		dec("infiniband.aeth.msn", uint64(p.AETH.MSN))
	}
	if e&bth.HasAtomicAckETH != 0 {
		dec("infiniband.atomicacketh.origremdt", p.AtomicAckETH.Orig)
	}
	if e&bth.HasImmDt != 0 {
		v := fmt.Sprintf("%08x", p.ImmDt.Imm)
		m["infiniband.immdt"] = v + "," + v
	}
	if e&bth.HasIETH != 0 {
		v := fmt.Sprintf("%08x", p.IETH.RKey)
		m["infiniband.ieth"] = v + "," + v
	}
	m["infiniband.invariant.crc"] = fmt.Sprintf("0x%x", binary.LittleEndian.AppendUint32(nil, p.ICRC))
	if e&bth.HasDETH != 0 && p.DestQP == 1 {
		describeMAD(m, p.Payload)
	}
}

// describeMAD reads the few fields of connection management that tshark's table
// has, as far as it takes to see that the payload is where it should be. The
// codec itself is in qp/cm.
func describeMAD(m map[string]string, b []byte) {
	attribute := binary.BigEndian.Uint16(b[16:])
	m["infiniband.mad.mgmtclass"] = fmt.Sprintf("0x%02x", b[1])
	m["infiniband.mad.method"] = fmt.Sprintf("0x%02x", b[3])
	m["infiniband.mad.attributeid"] = fmt.Sprintf("0x%04x", attribute)
	m["infiniband.mad.transactionid"] = fmt.Sprintf("0x%016x", binary.BigEndian.Uint64(b[8:]))
	switch attribute {
	case 0x10: // REQ
		m["infiniband.cm.req.localqpn"] = fmt.Sprintf("0x%x", b[56:59])
		m["infiniband.cm.req.startpsn"] = fmt.Sprintf("0x%x", b[68:71])
		m["infiniband.cm.req.pppmtu"] = fmt.Sprintf("0x%02x", b[74]>>4)
	case 0x13: // REP
		m["infiniband.cm.rep.localqpn"] = fmt.Sprintf("0x%x", b[36:39])
		m["infiniband.cm.rep.startpsn"] = fmt.Sprintf("0x%x", b[44:47])
	}
}
