package main

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strconv"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/reth"
)

// jsonLine builds JSON lines without an allocation for each line.
type jsonLine struct {
	name []byte // of the file, quoted
	head []byte // {"file":...,"frame":
	time clock
}

func (j *jsonLine) start(name string) {
	j.name, _ = json.Marshal(name) // never fails for a string
	j.head = append(append(j.head[:0], `{"file":`...), j.name...)
	j.head = append(j.head, `,"frame":`...)
}

func (j *jsonLine) append(b []byte, d *dumper, v verdict, icrc frame.ICRCState, why error) []byte {
	b = append(b, j.head...)
	b = strconv.AppendInt(b, int64(d.rec.Number), 10)
	switch v {
	case isError:
		b = append(b, `,"error":"`...)
		b = append(b, why.Error()...) // our own texts need no escapes
		return append(b, "\"}\n"...)
	case isOther:
		b = append(b, `,"skipped":"`...)
		b = d.appendOther(b, why)
		return append(b, "\"}\n"...)
	}
	if d.rec.HasTime {
		b = append(b, `,"time":"`...)
		b = j.time.append(b, d.rec.Time)
		b = append(b, '"')
	}
	if v == isPause {
		return appendPause(b, &d.pause)
	}
	f := &d.frame
	b = appendOuter(b, &f.Outer)
	b = appendVLANs(b, f.VLAN[:f.VLANs])
	b = appendNet(b, f.Net, f.Src, f.Dst)
	if f.Net != frame.GRH {
		b = num(b, `,"sport":`, uint64(f.SrcPort))
	}
	b = num(b, `,"dscp":`, uint64(f.DSCP()))
	b = num(b, `,"ecn":`, uint64(f.ECN()))
	b = num(b, `,"ttl":`, uint64(f.HopLimit))
	sum := f.Packet.ICRC
	if f.IsMRC() {
		sum = f.MRC.ICRC
		b = appendBTH(b, &f.Packet.Header, mrc.Name(f.Packet.Opcode))
		b = append(b, `,"rtx":`...)
		b = strconv.AppendBool(b, mrc.Rtx(&f.MRC.Header))
		b = append(b, `,"ts":`...)
		b = strconv.AppendBool(b, mrc.TS(&f.MRC.Header))
		b = appendMRC(append(b, '}'), f.MRC)
	} else {
		b = append(appendBTH(b, &f.Packet.Header, f.Packet.Opcode.String()), '}')
		b = appendExt(b, &f.Packet)
	}
	b = num(b, `,"payload":`, uint64(max(0, f.PayloadLen())))
	if f.Trimmed {
		b = append(b, `,"trimmed":true`...)
	} else if !f.Truncated() {
		b = append(b, `,"icrc":"`...)
		var wire [4]byte
		binary.LittleEndian.PutUint32(wire[:], sum)
		b = appendHex(b, uint64(binary.BigEndian.Uint32(wire[:])), 8)
		b = append(b, '"')
	}
	b = append(b, `,"icrc_state":"`...)
	b = append(b, icrc.String()...)
	if d.badSum {
		b = append(b, `","ip_checksum":"bad`...)
	}
	return append(b, "\"}\n"...)
}

// appendOuter appends the tunnels, outermost first.
func appendOuter(b []byte, o *frame.Outer) []byte {
	for i := range o.Len() {
		u := o.Tunnel(i)
		key := `},{"kind":"`
		if i == 0 {
			key = `,"outer":[{"kind":"`
		}
		b = append(append(append(b, key...), u.Kind.String()...), '"')
		if u.HasID {
			b = num(b, `,"id":`, uint64(u.ID))
		}
		b = appendVLANs(b, u.VLAN[:u.VLANs])
		if u.Net != 0 {
			b = appendNet(b, u.Net, u.Src, u.Dst)
		}
	}
	if o.Len() > 0 {
		b = append(b, "}]"...)
	}
	return b
}

func appendVLANs(b []byte, tags []frame.VLAN) []byte {
	if len(tags) == 0 {
		return b
	}
	b = append(b, `,"vlan":[`...)
	for i, v := range tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(v.ID()), 10)
	}
	return append(b, ']')
}

func appendNet(b []byte, net frame.Net, src, dst netip.Addr) []byte {
	b = append(append(b, `,"net":"`...), net.String()...)
	b = appendAddr(append(b, `","src":"`...), src)
	b = appendAddr(append(b, `","dst":"`...), dst)
	return append(b, '"')
}

func appendMAC(b []byte, mac [6]byte) []byte {
	for i, v := range mac {
		if i > 0 {
			b = append(b, ':')
		}
		b = appendHex(b, uint64(v), 2)
	}
	return b
}

func appendPause(b []byte, p *pfc.Frame) []byte {
	b = append(b, `,"pfc":{"src":"`...)
	b = appendMAC(b, p.Src)
	b = append(b, `","enable":[`...)
	comma := false
	for prio := range pfc.Priorities {
		if _, ok := p.Time(prio); ok {
			if comma {
				b = append(b, ',')
			}
			comma = true
			b = strconv.AppendInt(b, int64(prio), 10)
		}
	}
	b = append(b, `],"quanta":[`...)
	for prio := range pfc.Priorities {
		if prio > 0 {
			b = append(b, ',')
		}
		q := p.Quanta[prio]
		if t, ok := p.Time(prio); ok {
			q = t
		}
		b = strconv.AppendUint(b, uint64(q), 10)
	}
	return append(b, "]}}\n"...)
}

// appendBTH appends the object of the BTH without its closing brace.
func appendBTH(b []byte, h *bth.Header, name string) []byte {
	b = num(b, `,"bth":{"opcode":`, uint64(h.Opcode))
	b = append(b, `,"name":"`...)
	b = append(b, name...)
	b = append(b, `","se":`...)
	b = strconv.AppendBool(b, h.SE)
	b = append(b, `,"m":`...)
	b = strconv.AppendBool(b, h.M)
	b = num(b, `,"pad":`, uint64(h.PadCnt))
	b = num(b, `,"tver":`, uint64(h.TVer))
	b = hexa(b, `,"pkey":"0x`, uint64(h.PKey), 4)
	b = append(b, `,"fecn":`...)
	b = strconv.AppendBool(b, h.FECN)
	b = append(b, `,"becn":`...)
	b = strconv.AppendBool(b, h.BECN)
	b = num(b, `,"dest_qp":`, uint64(h.DestQP))
	b = append(b, `,"ack_req":`...)
	b = strconv.AppendBool(b, h.AckReq)
	return num(b, `,"psn":`, uint64(h.PSN))
}

func appendExt(b []byte, p *bth.Packet) []byte {
	e := p.Opcode.Ext()
	if e == 0 {
		return b
	}
	if e&bth.HasRETH != 0 {
		b = appendRETH(b, &p.RETH)
	}
	if e&bth.HasAETH != 0 {
		b = appendAETH(b, &p.AETH)
	}
	if e&bth.HasAtomicETH != 0 {
		b = hexa(b, `,"atomic_eth":{"va":"0x`, p.AtomicETH.VA, 16)
		b = hexa(b, `,"rkey":"0x`, uint64(p.AtomicETH.RKey), 8)
		b = hexa(b, `,"swap_add":"0x`, p.AtomicETH.SwapAdd, 16)
		b = hexa(b, `,"compare":"0x`, p.AtomicETH.Compare, 16)
		b = append(b, '}')
	}
	if e&bth.HasAtomicAckETH != 0 {
		b = hexa(b, `,"atomic_ack":"0x`, p.AtomicAckETH.Orig, 16)
	}
	if e&bth.HasDETH != 0 {
		b = hexa(b, `,"deth":{"qkey":"0x`, uint64(p.DETH.QKey), 8)
		b = num(b, `,"src_qp":`, uint64(p.DETH.SrcQP))
		b = append(b, '}')
	}
	if e&bth.HasRDETH != 0 {
		b = num(b, `,"rdeth":{"ee":`, uint64(p.RDETH.EE))
		b = append(b, '}')
	}
	if e&bth.HasXRCETH != 0 {
		b = num(b, `,"xrceth":{"srq":`, uint64(p.XRCETH.SRQ))
		b = append(b, '}')
	}
	if e&bth.HasImmDt != 0 {
		b = hexa(b, `,"imm":"0x`, uint64(p.ImmDt.Imm), 8)
	}
	if e&bth.HasIETH != 0 {
		b = hexa(b, `,"ieth":{"rkey":"0x`, uint64(p.IETH.RKey), 8)
		b = append(b, '}')
	}
	if e&bth.HasFETH != 0 {
		b = num(b, `,"feth":{"sel":`, uint64(p.FETH.Sel))
		b = num(b, `,"plt":`, uint64(p.FETH.Placement))
		b = append(b, '}')
	}
	return b
}

func appendRETH(b []byte, h *reth.Header) []byte {
	b = hexa(b, `,"reth":{"va":"0x`, h.VA, 16)
	b = hexa(b, `,"rkey":"0x`, uint64(h.RKey), 8)
	b = num(b, `,"dma_len":`, uint64(h.DMALen))
	return append(b, '}')
}

func appendAETH(b []byte, h *aeth.Header) []byte {
	s := h.Syndrome
	b = num(b, `,"aeth":{"syndrome":`, uint64(s))
	b = append(b, `,"kind":"`...)
	b = append(b, s.Kind().String()...)
	b = num(b, `","value":`, uint64(s.Value()))
	b = num(b, `,"msn":`, uint64(h.MSN))
	return append(b, '}')
}

func num(b []byte, key string, v uint64) []byte {
	return strconv.AppendUint(append(b, key...), v, 10)
}

// hexa appends a quoted number whose key ends in "0x.
func hexa(b []byte, key string, v uint64, digits int) []byte {
	return append(appendHex(append(b, key...), v, digits), '"')
}

func appendHex(b []byte, v uint64, digits int) []byte {
	const hex = "0123456789abcdef"
	for i := 4*digits - 4; i >= 0; i -= 4 {
		b = append(b, hex[v>>i&0xf])
	}
	return b
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		for i, v := range a.As4() {
			if i > 0 {
				b = append(b, '.')
			}
			b = strconv.AppendUint(b, uint64(v), 10)
		}
		return b
	}
	return a.AppendTo(b)
}

// clock formats times; it keeps the text of the current second, which is mostly the same.
type clock struct {
	sec  int64
	text []byte // without fraction and Z
}

// append appends t, in UTC, as RFC 3339 with nine digits of fraction.
func (c *clock) append(b []byte, t time.Time) []byte {
	if s := t.Unix(); len(c.text) == 0 || s != c.sec {
		c.sec = s
		c.text = t.AppendFormat(c.text[:0], "2006-01-02T15:04:05")
	}
	b = append(b, c.text...)
	b = appendNanos(b, t.Nanosecond())
	return append(b, 'Z')
}

func appendNanos(b []byte, n int) []byte {
	b = append(b, ".000000000"...)
	for i := len(b) - 1; n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}
