package term_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/term"
)

func TestProgress(t *testing.T) {
	now := time.Unix(0, 0)
	var out strings.Builder
	p := term.NewProgress(&out, func() time.Time { return now })

	p.Update("a.pcap", 1, 100, 7, "frames")
	require.Empty(t, out.String(), "nothing at once")
	p.Clear()
	require.Empty(t, out.String(), "nothing to clear")

	now = now.Add(600 * time.Millisecond)
	p.Update("a.pcap", 50, 100, 7, "frames")
	require.Contains(t, out.String(), "a.pcap:  50 %, 7 frames")
	out.Reset()
	p.Update("a.pcap", 51, 100, 8, "frames")
	require.Empty(t, out.String(), "not too often")

	now = now.Add(600 * time.Millisecond)
	p.Update("-", 5<<20, 0, 9, "frames")
	require.Contains(t, out.String(), "-: 5 MiB, 9 frames")
	p.Clear()
	require.True(t, strings.HasSuffix(out.String(), "\r\x1b[K"))

	var none *term.Progress
	none.Update("a", 1, 2, 3, "frames")
	none.Clear()
}

func TestIs(t *testing.T) {
	require.False(t, term.Is(new(strings.Builder)))
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	require.False(t, term.Is(null))
	require.False(t, term.Colour(null))
}
