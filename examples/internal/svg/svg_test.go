package svg

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWellFormed(t *testing.T) {
	p := Picture{Title: "a < b & c", Sub: `"x"`, Columns: 2, Notes: []string{"n"}, Charts: []Chart{
		{Title: "log", XLog: true, XZero: "none", Series: []Series{{Name: "s", X: []float64{0, 1e-4, 0.1}, Y: []float64{3, 2, 1}, Dots: true}}, Lines: []Line{{2, "two"}}},
		{Title: "empty"},
		{Title: "flat", Series: []Series{{X: []float64{1, 2}, Y: []float64{0, 0}, Step: true, Dash: true}}},
	}}
	b := p.Render()
	d := xml.NewDecoder(strings.NewReader(string(b)))
	for {
		_, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.NotContains(t, string(b), "NaN")
	require.NotContains(t, string(b), "Inf")
	require.Equal(t, string(b), string(p.Render()))
}

func TestTicks(t *testing.T) {
	require.InDeltaSlice(t, []float64{0, 20, 40, 60, 80, 100}, ticks(0, 100, 5), 1e-9)
	require.InDeltaSlice(t, []float64{0, 0.5, 1}, ticks(0, 1.2, 3), 1e-9)
}
