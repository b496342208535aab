package svg

import (
	"encoding/xml"
	"fmt"
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

// The legend covers no point, where a place without any is left: neither a single one, nor
// one in each corner.
func TestLegendCoversNothing(t *testing.T) {
	for _, s := range []Series{
		{Name: "one", X: []float64{9.9}, Y: []float64{9.9}, Dots: true},
		{Name: "four", X: []float64{0.1, 9.9, 9.9, 0.1}, Y: []float64{0.1, 0.1, 9.9, 9.9}, Dots: true},
	} {
		c := Chart{XMin: 0, XMax: 10, YMin: 0, YMax: 10, Series: []Series{s}}
		p := Picture{Charts: []Chart{c}}
		var x, y, w, h float64
		_, rest, _ := strings.Cut(string(p.Render()), `fill="none">`) // the lines
		_, rest, _ = strings.Cut(rest, "</g>")
		_, err := fmt.Sscanf(strings.TrimSpace(rest), `<rect x="%f" y="%f" width="%f" height="%f"`, &x, &y, &w, &h)
		require.NoError(t, err)
		sx, sy := c.bounds()
		sx.from, sx.size = left, 640-left-right
		sy.from, sy.size = 320-bottom, -(320 - top - bottom)
		for i := range s.X {
			px, py := sx.at(s.X[i]), sy.at(s.Y[i])
			require.False(t, px > x && px < x+w && py > y && py < y+h, "%s: point %d at %.0f, %.0f under %.0f, %.0f, %.0f, %.0f", s.Name, i, px, py, x, y, w, h)
		}
	}
}

func TestTicks(t *testing.T) {
	require.InDeltaSlice(t, []float64{0, 20, 40, 60, 80, 100}, ticks(0, 100, 5), 1e-9)
	require.InDeltaSlice(t, []float64{0, 0.5, 1}, ticks(0, 1.2, 3), 1e-9)
}
