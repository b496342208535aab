package mutator_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/fuzz/mutator"
)

// TestMRCFields: the value that each kind reports is in the header that it
// names, as package mrc reads it, and the packet is whole.
func TestMRCFields(t *testing.T) {
	flag := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	ofTime := func(h *mrc.TSETH) uint64 {
		return flag(h.TSR)<<15 | uint64(h.Resv11)<<4 | uint64(h.FType)
	}
	type values = map[mutator.Kind]uint64
	fields := func(p *mrc.Packet) values {
		v := values{mutator.MRCRetransmission: flag(mrc.Rtx(&p.Header)), mutator.Reserved7: uint64(p.Resv7 & 0xf)}
		switch e := p.Ext(); {
		case e&mrc.HasMETH != 0:
			v[mutator.METHRQMSN], v[mutator.METHMSN] = uint64(p.METH.RQMSN), uint64(p.METH.MSN)
			v[mutator.MRCTimestampHeader] = flag(mrc.TS(&p.Header))
			v[mutator.RETHAddress], v[mutator.RETHRKey], v[mutator.RETHLength] = p.RETH.VA, uint64(p.RETH.RKey), uint64(p.RETH.DMALen)
			if e&mrc.HasTSETH != 0 {
				v[mutator.MRCTimestamp], v[mutator.MRCTimeFormat] = uint64(p.TSETH.TxTimestamp), ofTime(&p.TSETH)
			}
			if e&mrc.HasImmDt != 0 {
				v[mutator.Immediate] = uint64(p.ImmDt.Imm)
			}
		case e&mrc.HasAETH != 0:
			v[mutator.AETHSyndrome], v[mutator.AETHMSN] = uint64(p.AETH.Syndrome), uint64(p.AETH.MSN)
		case e&mrc.HasSETH != 0:
			s, c := &p.SETH, &p.CCState
			v[mutator.MRCType], v[mutator.SETHVerdict], v[mutator.SETHProbe] = uint64(s.Type)<<5|uint64(s.Next), uint64(s.M), flag(s.PR)
			v[mutator.SETHCause], v[mutator.MRCEntropy] = uint64(s.Cause), uint64(s.Entropy)
			v[mutator.MRCContext], v[mutator.MRCReserved] = uint64(s.SPDCID)<<16|uint64(s.DPDCID), uint64(s.Resv8)
			v[mutator.SETHCumulative], v[mutator.MRCCongestionType] = uint64(s.CumPSN), uint64(s.CCType)<<4|uint64(s.CCFlags)
			v[mutator.SETHWindow], v[mutator.SETHOffset] = uint64(s.MPR), uint64(uint16(s.SACKOffset))
			v[mutator.SETHBitmap], v[mutator.MRCTimestamp] = s.SACKBitmap, uint64(c.TxTimestamp)
			v[mutator.CCOutOfOrder] = flag(c.Resv1)<<15 | uint64(c.OOOCount)
			v[mutator.CCPenalty], v[mutator.CCReceived] = flag(c.RestoreCwnd)<<7|uint64(c.RcvCwndPen), uint64(c.RcvdBytes)
		case e&mrc.HasNETH != 0:
			n := &p.NETH
			v[mutator.MRCType], v[mutator.NETHReason], v[mutator.MRCVendor] = uint64(n.Type)<<5|uint64(n.Next), uint64(n.Reason), uint64(n.VendorInfo)
			v[mutator.MRCEntropy], v[mutator.MRCContext] = uint64(n.Entropy), uint64(n.SPDCID)<<16|uint64(n.DPDCID)
			v[mutator.MRCReserved], v[mutator.NETHSequence] = uint64(n.Resv8), uint64(n.PSN)
			v[mutator.MRCCongestionType], v[mutator.MRCTimestamp] = uint64(n.CCType)<<4|uint64(n.CCFlags), uint64(n.TxTimestamp)
		case e&mrc.HasPETH != 0:
			h := &p.PETH
			v[mutator.MRCType], v[mutator.MRCVendor], v[mutator.PETHID] = uint64(h.Type)<<5|uint64(h.Next), uint64(h.VendorInfo), uint64(h.ProbeID)
			v[mutator.MRCReserved], v[mutator.MRCContext] = uint64(h.Resv16), uint64(h.SPDCID)<<16|uint64(h.DPDCID)
			v[mutator.MRCTimestamp], v[mutator.MRCTimeFormat] = uint64(h.Time.TxTimestamp), ofTime(&h.Time)
		case e&mrc.HasERTH != 0:
			h := &p.ERTH
			v[mutator.MRCType], v[mutator.EndpointOp], v[mutator.MRCVendor] = uint64(h.Type)<<5|uint64(h.Next), uint64(h.Op), uint64(h.VendorInfo)
			v[mutator.ERTHPorts], v[mutator.MRCReserved] = uint64(h.PortStatus), uint64(h.Resv32)
			v[mutator.MRCTimestamp], v[mutator.MRCTimeFormat] = uint64(h.Time.TxTimestamp), ofTime(&h.Time)
		case e&mrc.HasEETH != 0:
			h := &p.EETH
			v[mutator.MRCType], v[mutator.EndpointOp] = uint64(h.Type)<<5|uint64(h.Next), uint64(h.Op)
			v[mutator.MRCTimestamp], v[mutator.MRCReserved] = uint64(h.TxTimestamp), uint64(h.Resv32)
		}
		return v
	}
	recs := builtMRC()
	seen := map[mutator.Kind]int{}
	kinds := mutator.MRCKinds.Or(mutator.ExtKinds).Or(mutator.KindsOf(mutator.Reserved7))
	for k := range kinds.All {
		for i := range recs {
			cfg := mutator.Config{Seed: 7, Kinds: mutator.KindsOf(k), Changes: 1, MRC: true}
			out, rep := mutate(t, cfg, uint64(i), &recs[i])
			was, err := decode(&cfg, &recs[i], recs[i].Data)
			require.NoError(t, err)
			is, err := decode(&cfg, &recs[i], out)
			require.NoError(t, err, rep.String())
			require.Equal(t, frame.ICRCGood, is.CheckICRC())
			before, after := fields(was.MRC), fields(is.MRC)
			_, has := before[k]
			if len(rep.Changes()) == 0 {
				require.False(t, has, "%v: %v", mrc.Name(was.MRC.Opcode), k)
				continue
			}
			seen[k]++
			c := rep.Changes()[0]
			require.Equal(t, before[k], c.Old, rep.String())
			require.Equal(t, after[k], c.New, rep.String())
			delete(before, k)
			delete(after, k)
			if k == mutator.MRCTimestampHeader { // the header comes or goes
				for _, k := range []mutator.Kind{mutator.MRCTimestamp, mutator.MRCTimeFormat} {
					delete(before, k)
					delete(after, k)
				}
			}
			require.Equal(t, before, after, "others of %s", rep)
			require.True(t, bytes.Equal(was.MRC.Payload, is.MRC.Payload))
		}
	}
	for k := range mutator.MRCKinds.All {
		require.NotZero(t, seen[k], k.String())
	}

	// Many changes of a frame: none undoes another.
	checked := 0
	for n := range uint64(40 * len(recs)) {
		cfg := mutator.Config{Changes: 8, Kinds: mutator.MRCKinds.Or(mutator.ExtKinds).Or(mutator.BTHKinds).AndNot(mutator.MalformKinds), MRC: true}
		r := &recs[n%uint64(len(recs))]
		out, rep := mutate(t, cfg, n, r)
		is, err := decode(&cfg, r, out)
		require.NoError(t, err, rep.String())
		if !is.IsMRC() {
			continue
		}
		after := fields(is.MRC)
		for _, c := range rep.Changes() {
			if v, ok := after[c.Kind]; ok && (c.Kind != mutator.Reserved7 || !rep.Has(mutator.KindsOf(mutator.OpcodeOther))) {
				require.Equal(t, c.New, v, "%v: %s", c.Kind, rep)
				checked++
			}
		}
	}
	require.Greater(t, checked, 1000)

	// Without Config.MRC nothing of all that is known.
	for i := range recs {
		_, rep := mutate(t, mutator.Config{Kinds: kinds.AndNot(mutator.KindsOf(mutator.Reserved7))}, uint64(i), &recs[i])
		require.Empty(t, rep.Changes())
	}
}

// TestMRCOpcodeFits: with another opcode, of MRC or not, a packet gets its headers
// and payload.
func TestMRCOpcodeFits(t *testing.T) {
	toMRC := 0
	for _, k := range []mutator.Kind{mutator.OpcodeService, mutator.OpcodeOther} {
		for i, r := range append(builtMRC(), built()...) {
			cfg := mutator.Config{Seed: uint64(i), Kinds: mutator.KindsOf(k), Changes: 1, MRC: true}
			was, err := decode(&cfg, &r, r.Data)
			require.NoError(t, err)
			out, rep := mutate(t, cfg, uint64(i), &r)
			is, err := decode(&cfg, &r, out)
			require.NoError(t, err, rep.String())
			require.NotEqual(t, was.Packet.Opcode, is.Packet.Opcode)
			if was.Packet.Opcode != bth.CNP {
				require.Equal(t, k == mutator.OpcodeService, was.Packet.Opcode.Service() == is.Packet.Opcode.Service(), rep.String())
			}
			if !is.IsMRC() {
				continue
			}
			toMRC++
			if was.IsMRC() && mrc.IsWrite(was.MRC.Opcode) && mrc.IsWrite(is.MRC.Opcode) {
				require.Equal(t, was.MRC.METH, is.MRC.METH)
				require.Equal(t, was.MRC.RETH, is.MRC.RETH)
				require.True(t, bytes.Equal(was.MRC.Payload, is.MRC.Payload))
			}
			if !was.IsMRC() && was.Packet.Opcode.Ext()&bth.HasRETH != 0 && mrc.IsWrite(is.MRC.Opcode) {
				require.Equal(t, was.Packet.RETH, is.MRC.RETH, rep.String())
			}
		}
	}
	require.Greater(t, toMRC, 50)
}
