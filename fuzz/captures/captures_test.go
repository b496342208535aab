package captures_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/fuzz/captures"
)

// TestSections: each capture has its dissection, by itself.
func TestSections(t *testing.T) {
	entries, err := captures.Files.ReadDir(".")
	require.NoError(t, err)
	require.Len(t, entries, 50)
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".pcap")
		text := captures.Dissection(name)
		require.True(t, strings.HasPrefix(text, "frame.number\t"), name)
		require.Equal(t, 1, strings.Count(text, "frame.number"), name)
		require.NotContains(t, text, "== ")
	}
	require.Contains(t, captures.Console("rc-mixed"), "LOCAL qpn=")
	require.Empty(t, captures.Console("rc-mix"))
	require.Empty(t, captures.Dissection("none"))
}
