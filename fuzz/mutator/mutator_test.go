package mutator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

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
