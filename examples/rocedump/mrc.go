package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/examples/internal/term"
)

// seenMRC is called with each MRC packet before it is printed: the op of an endpoint response
// is that of its request, if that was seen.
func (d *dumper) seenMRC() {
	f := &d.frame
	m := f.MRC
	id := uint16(m.PSN)
	switch m.Opcode {
	case mrc.EndpointRequest:
		d.requests.Seen(f.Src, f.Dst, id, m.ERTH.Op)
	case mrc.EndpointResponse:
		if op, ok := d.requests.Op(f.Src, f.Dst, id); ok {
			m.EETH.Op = op
		}
	}
}

// mrcNames are the names of the opcodes when MRC is on.
var mrcNames = func() (names [256]string) {
	for i := range names {
		if op := bth.Opcode(i); mrc.Known(op) {
			names[i] = mrc.Name(op)
		} else {
			names[i] = shortNames[i]
		}
	}
	return names
}()

// appendMRC appends the headers as JSON.
func appendMRC(b []byte, m *mrc.Packet) []byte {
	e := m.Ext()
	if e&mrc.HasMETH != 0 {
		b = num(b, `,"meth":{"rqmsn":`, uint64(m.METH.RQMSN))
		b = append(num(b, `,"msn":`, uint64(m.METH.MSN)), '}')
	}
	if e&mrc.HasTSETH != 0 {
		b = num(b, `,"tseth":{"tx_timestamp":`, uint64(m.TSETH.TxTimestamp))
		b = flag01(b, `,"tsr":`, m.TSETH.TSR)
		b = num(b, `,"reserved":`, uint64(m.TSETH.Resv11))
		b = append(num(b, `,"ftype":`, uint64(m.TSETH.FType)), '}')
	}
	if e&mrc.HasRETH != 0 {
		b = appendRETH(b, &m.RETH)
	}
	if e&mrc.HasImmDt != 0 {
		b = hexa(b, `,"imm":"0x`, uint64(m.ImmDt.Imm), 8)
	}
	if e&mrc.HasAETH != 0 {
		b = appendAETH(b, &m.AETH)
	}
	if e&mrc.HasSETH != 0 {
		b = appendSETH(b, &m.SETH)
	}
	if e&mrc.HasCCState != 0 && m.SETH.CCType == 0 {
		c := &m.CCState
		b = num(b, `,"cc_state":{"tx_timestamp":`, uint64(c.TxTimestamp))
		b = num(b, `,"ooo_count":`, uint64(c.OOOCount))
		b = flag01(b, `,"restore_cwnd":`, c.RestoreCwnd)
		b = num(b, `,"rcv_cwnd_pen":`, uint64(c.RcvCwndPen))
		b = num(b, `,"rcvd_bytes":`, uint64(c.RcvdBytes))
		b = append(num(b, `,"rcvd_bytes_value":`, uint64(c.RcvdBytes)*mrc.RcvdBytesUnit), '}')
	}
	if e&mrc.HasNETH != 0 {
		n := &m.NETH
		b = num(b, `,"neth":{"type":`, uint64(n.Type))
		b = num(b, `,"next":`, uint64(n.Next))
		b = num(b, `,"reason":`, uint64(n.Reason))
		if n.Reason.Known() {
			b = append(append(append(b, `,"reason_name":"`...), n.Reason.String()...), '"')
		}
		b = num(b, `,"vendor_info":`, uint64(n.VendorInfo))
		b = num(b, `,"entropy":`, uint64(n.Entropy))
		b = num(b, `,"spdcid":`, uint64(n.SPDCID))
		b = num(b, `,"dpdcid":`, uint64(n.DPDCID))
		b = num(b, `,"nack_psn":`, uint64(n.PSN))
		b = num(b, `,"cc_type":`, uint64(n.CCType))
		b = num(b, `,"cc_flags":`, uint64(n.CCFlags))
		b = append(num(b, `,"tx_timestamp":`, uint64(n.TxTimestamp)), '}')
	}
	if e&mrc.HasPETH != 0 {
		h := &m.PETH
		b = num(b, `,"peth":{"type":`, uint64(h.Type))
		b = num(b, `,"next":`, uint64(h.Next))
		b = num(b, `,"vendor_info":`, uint64(h.VendorInfo))
		b = num(b, `,"probe_id":`, uint64(h.ProbeID))
		b = num(b, `,"spdcid":`, uint64(h.SPDCID))
		b = num(b, `,"dpdcid":`, uint64(h.DPDCID))
		b = append(appendTime(b, &h.Time), '}')
	}
	if e&mrc.HasERTH != 0 {
		h := &m.ERTH
		b = num(b, `,"erth":{"type":`, uint64(h.Type))
		b = num(b, `,"next":`, uint64(h.Next))
		b = appendOp(b, h.Op)
		b = num(b, `,"vendor_info":`, uint64(h.VendorInfo))
		b = hexa(b, `,"port_status_mask":"0x`, uint64(h.PortStatus), 8)
		b = append(appendTime(b, &h.Time), '}')
	}
	if e&mrc.HasEETH != 0 {
		h := &m.EETH
		b = num(b, `,"eeth":{"type":`, uint64(h.Type))
		b = num(b, `,"next":`, uint64(h.Next))
		b = appendOp(b, h.Op)
		b = append(num(b, `,"tx_timestamp":`, uint64(h.TxTimestamp)), '}')
	}
	return b
}

func appendSETH(b []byte, s *mrc.SETH) []byte {
	b = num(b, `,"seth":{"type":`, uint64(s.Type))
	b = num(b, `,"next":`, uint64(s.Next))
	b = num(b, `,"m":`, uint64(s.M))
	b = flag01(b, `,"pr":`, s.PR)
	if s.PR {
		b = num(b, `,"probe_id":`, uint64(s.ProbeID()))
	} else {
		b = signed(b, `,"ack_psn_offset":`, int64(s.AckPSNOffset()))
		b = num(b, `,"ack_psn":`, uint64(s.AckPSN()))
	}
	b = num(b, `,"entropy":`, uint64(s.Entropy))
	b = num(b, `,"spdcid":`, uint64(s.SPDCID))
	b = num(b, `,"dpdcid":`, uint64(s.DPDCID))
	b = num(b, `,"cack_psn":`, uint64(s.CumPSN))
	b = num(b, `,"cc_type":`, uint64(s.CCType))
	b = num(b, `,"cc_flags":`, uint64(s.CCFlags))
	b = num(b, `,"mpr":`, uint64(s.MPR))
	b = num(b, `,"mpr_packets":`, uint64(s.Window()))
	b = signed(b, `,"sack_offset":`, int64(s.SACKOffset))
	b = num(b, `,"sack_base_psn":`, uint64(s.SACKBase()))
	return append(hexa(b, `,"sack_bitmap":"0x`, s.SACKBitmap, 16), '}')
}

func appendTime(b []byte, t *mrc.TSETH) []byte {
	b = num(b, `,"tx_timestamp":`, uint64(t.TxTimestamp))
	b = flag01(b, `,"tsr":`, t.TSR)
	return num(b, `,"ftype":`, uint64(t.FType))
}

func appendOp(b []byte, op mrc.Op) []byte {
	b = num(b, `,"op":`, uint64(op))
	if op.Known() {
		b = append(append(append(b, `,"op_name":"`...), op.String()...), '"')
	}
	return b
}

func flag01(b []byte, key string, on bool) []byte {
	v := uint64(0)
	if on {
		v = 1
	}
	return num(b, key, v)
}

func signed(b []byte, key string, v int64) []byte {
	return strconv.AppendInt(append(b, key...), v, 10)
}

func mrcColour(m *mrc.Packet) string {
	switch {
	case m.Opcode == mrc.NACK, m.Opcode == mrc.Acknowledge && m.AETH.Syndrome.Kind() != aeth.Ack:
		return term.Yellow
	case mrc.Class(m.Opcode) == bth.Response:
		return term.Green
	}
	return term.Cyan
}

// mrcDetails appends the headers as text.
func mrcDetails(b []byte, f *frame.Frame, halves mrc.Halves) []byte {
	m := f.MRC
	e := m.Ext()
	if e&mrc.HasMETH != 0 {
		b = num(b, " msn ", uint64(m.METH.MSN))
		if e&mrc.HasImmDt != 0 {
			b = num(b, " rqmsn ", uint64(m.METH.RQMSN))
		}
	}
	if e&mrc.HasTSETH != 0 {
		b = num(b, " ts ", uint64(m.TSETH.TxTimestamp))
	}
	if e&mrc.HasRETH != 0 {
		b = rethText(b, &m.RETH)
	}
	if e&mrc.HasImmDt != 0 {
		b = hexText(b, " imm 0x", uint64(m.ImmDt.Imm), 8)
	}
	if e&mrc.HasAETH != 0 {
		b = aethText(b, &m.AETH)
	}
	if e&mrc.HasSETH != 0 {
		s := &m.SETH
		b = num(b, " all to ", uint64(s.CumPSN))
		b = num(b, " from ", uint64(s.SACKBase()))
		b = hexText(b, " bitmap 0x", s.SACKBitmap, 16)
		if s.PR {
			b = num(b, " probe ", uint64(s.ProbeID()))
		} else {
			b = num(b, " caused by ", uint64(s.AckPSN()))
		}
		b = num(b, " m ", uint64(s.M))
		b = hexText(b, " of ev 0x", uint64(s.Entropy), 8)
		if s.MPR != 0 {
			b = num(b, " mpr ", uint64(s.Window()))
		}
		if s.CCType == 0 {
			b = num(b, " held ", uint64(m.CCState.OOOCount))
			b = num(b, " received ", uint64(m.CCState.RcvdBytes)*mrc.RcvdBytesUnit)
		}
	}
	if e&mrc.HasNETH != 0 {
		b = append(append(b, ' '), m.NETH.Reason.String()...)
		b = num(b, " psn ", uint64(m.NETH.PSN))
		b = hexText(b, " of ev 0x", uint64(m.NETH.Entropy), 8)
	}
	if e&mrc.HasPETH != 0 {
		b = num(b, " probe ", uint64(m.PETH.ProbeID))
	}
	if e&mrc.HasERTH != 0 {
		b = append(append(b, ' '), m.ERTH.Op.String()...)
		if m.ERTH.Op == mrc.PortStatusUpdate {
			b = hexText(b, " ports 0x", uint64(m.ERTH.PortStatus), 8)
		}
	}
	if e&mrc.HasEETH != 0 {
		b = append(append(b, ' '), m.EETH.Op.String()...)
	}
	if m.Trimmed {
		b = append(b, " trimmed"...)
	}
	return hexText(b, " ev 0x", uint64(halves.Entropy(f.SrcPort, f.FlowLabel)), 8)
}

// mrcSummary holds the counts that only MRC has.
type mrcSummary struct {
	packets, rtx, trimmed int
	probeResponses        int
	verdicts              [4]int   // SACKs by the state of the path that they report
	reasons               [256]int // NACKs by reason
}

func (s *mrcSummary) add(m *mrc.Packet) {
	s.packets++
	if mrc.Rtx(&m.Header) {
		s.rtx++
	}
	if m.Trimmed {
		s.trimmed++
	}
	switch m.Opcode {
	case mrc.SACK:
		s.verdicts[m.SETH.M&3]++
		if m.SETH.PR {
			s.probeResponses++
		}
	case mrc.NACK:
		s.reasons[m.NETH.Reason]++
	}
}

func (s *mrcSummary) merge(o *mrcSummary) {
	s.packets += o.packets
	s.rtx += o.rtx
	s.trimmed += o.trimmed
	s.probeResponses += o.probeResponses
	for i, n := range o.verdicts {
		s.verdicts[i] += n
	}
	for i, n := range o.reasons {
		s.reasons[i] += n
	}
}

func (s *mrcSummary) writeText(out io.Writer) {
	if s.packets == 0 {
		return
	}
	fmt.Fprintf(out, "\n  MRC: %d packets, sent again %d, trimmed %d, probe responses %d\n", s.packets, s.rtx, s.trimmed, s.probeResponses)
	fmt.Fprintf(out, "  SACKs: path good %d, to skip once %d, to skip always %d, undefined %d\n",
		s.verdicts[0], s.verdicts[1], s.verdicts[2], s.verdicts[3])
	sep := "  NACKs: "
	for i, n := range s.reasons {
		if n > 0 {
			fmt.Fprintf(out, "%s%v %d", sep, mrc.Reason(i), n)
			sep = ", "
		}
	}
	if sep == ", " {
		fmt.Fprintln(out)
	}
}

func (s *mrcSummary) appendJSON(b []byte) []byte {
	if s.packets == 0 {
		return b
	}
	b = num(b, `,"mrc":{"packets":`, uint64(s.packets))
	b = num(b, `,"rtx":`, uint64(s.rtx))
	b = num(b, `,"trimmed":`, uint64(s.trimmed))
	b = num(b, `,"probe_responses":`, uint64(s.probeResponses))
	b = append(b, `,"sack_m":[`...)
	for i, n := range s.verdicts {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	b = append(b, `],"nacks":[`...)
	comma := ""
	for i, n := range s.reasons {
		if n > 0 {
			b = num(append(b, comma...), `{"reason":`, uint64(i))
			if r := mrc.Reason(i); r.Known() {
				b = append(append(append(b, `,"reason_name":"`...), r.String()...), '"')
			}
			b = append(num(b, `,"packets":`, uint64(n)), '}')
			comma = ","
		}
	}
	return append(b, "]}"...)
}
