package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		id, first, within string
	}{
		{"RS-13", "RS-13: the MSN counts completed request messages\n", "- Source: "},
		{"wi-9", "WI-9: the table of opcodes\n", "- Held by: bth/"},
		{"RP-2", "RP-2: ", "- Held by: cnp/"},
		{"timeout", "TIMEOUT: ", "time-out with the round trip"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitGood, run([]string{"-explain", c.id}, nil, &out, &errs), "%s: %s", c.id, &errs)
		require.True(t, strings.HasPrefix(out.String(), c.first), out.String())
		require.Contains(t, out.String(), c.within)
	}
	var out, errs bytes.Buffer
	require.Equal(t, exitUsage, run([]string{"-explain", "XX-1"}, nil, &out, &errs))
	require.Contains(t, errs.String(), "no such rule")
}
