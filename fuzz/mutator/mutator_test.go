package mutator_test

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
)

func TestConfig(t *testing.T) {
	for _, cfg := range []mutator.Config{
		{ICRC: 3}, {Lengths: 2}, {Keep: 101}, {Keep: -1}, {Changes: 9}, {Changes: -1},
		{MaxFrame: 100}, {MaxFrame: 70000}, {Hold: 5000}, {Hold: -1},
	} {
		_, err := mutator.New(cfg)
		require.ErrorIs(t, err, mutator.ErrConfig, "%+v", cfg)
		_, err = mutator.NewStream(cfg)
		require.ErrorIs(t, err, mutator.ErrConfig, "%+v", cfg)
	}
}

func TestParseKinds(t *testing.T) {
	for list, want := range map[string]mutator.Kinds{
		"all":         mutator.AllKinds,
		"none":        mutator.KindsOf(mutator.None),
		"psn, drop":   mutator.KindsOf(mutator.PSN, mutator.Drop),
		"-sequence":   mutator.FieldKinds,
		"bth,-opcode": mutator.BTHKinds.AndNot(mutator.KindsOf(mutator.OpcodeService)),
		"raw,reth-va": mutator.RawKinds.Or(mutator.KindsOf(mutator.RETHAddress)),
	} {
		got, err := mutator.ParseKinds(list)
		require.NoError(t, err, list)
		require.Equal(t, want, got, list)
	}
	for _, list := range []string{"", "psn,", "closed", "PSN", "-nothing"} {
		_, err := mutator.ParseKinds(list)
		require.ErrorIs(t, err, mutator.ErrKind, list)
	}
	seen := make(map[string]bool)
	for k := range mutator.AllKinds.All {
		got, err := mutator.ParseKinds(k.String())
		require.NoError(t, err)
		require.Equal(t, mutator.KindsOf(k), got)
		require.False(t, seen[k.String()], k)
		seen[k.String()] = true
	}
	for name, set := range mutator.Groups {
		require.False(t, seen[name], name)
		require.Positive(t, set.Len())
	}
}

func TestNames(t *testing.T) {
	require.Equal(t, "psn", mutator.PSN.String())
	require.Equal(t, "closed", mutator.Closed.String())
	require.Equal(t, "200", mutator.Kind(200).String())
	require.Equal(t, "valid bad keep 3", mutator.ICRC(0).String()+" "+mutator.ICRCBad.String()+" "+mutator.ICRCKeep.String()+" "+mutator.ICRC(3).String())
	require.Equal(t, "udp-length", mutator.LieUDP.String())
	require.Equal(t, "99", mutator.Lie(99).String())
	require.False(t, mutator.AllKinds.Has(200))
}

func TestKeep(t *testing.T) {
	r := built()[0]
	kept := 0
	for n := range uint64(1000) {
		out, rep := mutate(t, mutator.Config{Keep: 30}, n, &r)
		if rep.Kept {
			kept++
			require.Equal(t, r.Data, out)
			require.Contains(t, rep.String(), "kept")
		}
	}
	require.InDelta(t, 300, kept, 60)
}

// captured returns the frames of the captures beside this package.
func captured(t testing.TB) (recs []mutator.Record) {
	names, err := filepath.Glob("../captures/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		more, err := records.ReadFile(name)
		require.NoError(t, err)
		recs = append(recs, more...)
	}
	return recs
}

// built returns a frame for each known opcode, network header, link and number
// of tags.
func built() (recs []mutator.Record) {
	payload := []byte("some payload that is not a multiple of 4")[:39]
	for i := range 256 {
		op := bth.Opcode(i)
		if !op.Known() {
			continue
		}
		f := frame.Frame{
			Net: frame.Net(1 + i%3), DF: true, HopLimit: 64, SrcPort: 0xc001,
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
			Packet: bth.Packet{Header: bth.Header{Opcode: op, PKey: 0xffff, DestQP: 0x11, PSN: 0xffffff}},
		}
		if f.Net != frame.IPv4 {
			f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		}
		switch op.Payload() {
		case bth.UpToMTU, bth.OneToMTU, bth.ExactlyMTU:
			f.Packet.SetPayload(payload)
		case bth.EightBytes:
			f.Packet.SetPayload(payload[:8])
		case bth.SixteenZero:
			f.Packet.SetPayload(make([]byte, 16))
		}
		net := f.AppendTo(nil)
		ether := map[frame.Net][]byte{frame.IPv4: {8, 0}, frame.IPv6: {0x86, 0xdd}, frame.GRH: {0x89, 0x15}}[f.Net]
		add := func(link frame.Link, parts ...[]byte) {
			b := bytes.Join(append(parts, net), nil)
			recs = append(recs, mutator.Record{Link: link, Data: b, WireLen: len(b)})
		}
		tag := []byte{0x81, 0, 0, 9}
		add(frame.Ethernet, make([]byte, 12), ether)
		add(frame.Ethernet, make([]byte, 12), tag, ether)
		add(frame.Ethernet, make([]byte, 12), []byte{0x88, 0xa8, 0, 1}, tag, ether)
		add(frame.LinuxSLL, make([]byte, 14), ether)
		add(frame.LinuxSLL, make([]byte, 14), tag, ether)
		add(frame.LinuxSLL2, ether, make([]byte, 18))
		add(frame.LinuxSLL2, tag[:2], make([]byte, 18), tag[2:], ether)
		if f.Net != frame.GRH {
			add(frame.RawIP, nil)
		}
	}
	return recs
}

// builtMRC returns a frame for each opcode of MRC, with and without a timestamp
// header, over IPv4 and IPv6.
func builtMRC() (recs []mutator.Record) {
	for i := range 256 {
		op := bth.Opcode(i)
		if !mrc.Known(op) {
			continue
		}
		for j := range 4 {
			f := frame.Frame{
				Link: frame.Ethernet, Net: frame.Net(1 + j&1), DF: true, SrcPort: 0xc001, MRC: new(mrc.Packet),
				Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
			}
			if f.Net != frame.IPv4 {
				f.Src, f.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			}
			p := f.MRC
			p.Header = bth.Header{Opcode: op, PKey: 0xffff, DestQP: 0x11, PSN: 0xffffff}
			mrc.SetTS(&p.Header, j&2 != 0)
			p.TSETH.FType, p.PETH.Time.FType, p.ERTH.Time.FType, p.NETH.CCType = 1, 1, 1, 2
			p.METH.MSN, p.RETH.DMALen, p.SETH.SACKOffset, p.NETH.Reason = 7, 39, 1, mrc.NoBitmap
			if mrc.IsWrite(op) {
				p.SetPayload([]byte("some payload that is not a multiple of 4")[:39])
			}
			b := f.AppendTo(nil)
			recs = append(recs, mutator.Record{Link: f.Link, Data: b, WireLen: len(b)})
		}
	}
	return recs
}

// decode decodes a frame as cfg says.
func decode(cfg *mutator.Config, r *mutator.Record, b []byte) (f frame.Frame, err error) {
	if cfg.MRC {
		f.MRC = new(mrc.Packet)
	}
	err = f.Decode(r.Link, b)
	return f, err
}

func mutate(t require.TestingT, cfg mutator.Config, n uint64, r *mutator.Record) ([]byte, *mutator.Report) {
	m, err := mutator.New(cfg)
	require.NoError(t, err)
	var rep mutator.Report
	return m.Mutate(n, r.Link, r.Data, r.WireLen, nil, &rep), &rep
}
