package main

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

func page(t *testing.T, args ...string) (file, text string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "page.html")
	_, _, errs := call(t, append([]string{"-html", file}, args...)...)
	require.Empty(t, errs)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return file, string(b)
}

func TestPage(t *testing.T) {
	_, text := page(t, captures+"rc-loss-request.pcap")
	// Nothing is fetched, and nothing runs.
	for _, no := range []string{"http:", "https:", "<script", "src=", "@import", "url("} {
		require.NotContains(t, text, no)
	}
	require.Equal(t, strings.Count(text, "href="), strings.Count(text, `href="#c`))
	// Findings lead to the time line of their flow, which is there.
	require.Contains(t, text, `<a href="#c0">`)
	require.Contains(t, text, `<article id="c0">`)
	// What costs most comes first.
	order := []string{"What it costs", "What to look at", "Worst connections", "<h2>Findings", "<h2>Time lines", "<h2>Key figures", "<h2>Flows"}
	for i := 1; i < len(order); i++ {
		require.Less(t, strings.Index(text, order[i-1]), strings.Index(text, order[i]), order[i])
	}
	require.Contains(t, text, "<title>sent again, PSN 6636334, frame ") // shown under the mouse
	require.Contains(t, text, " without packets</title>")               // cut out
	require.Equal(t, strings.Count(text, "<svg"), strings.Count(text, "</svg>"))
	require.Equal(t, strings.Count(text, "<table"), strings.Count(text, "</table>"))
	require.Contains(t, text, "Requests of 192.0.2.2 to 192.0.2.1 QP 0x000011")
	// Each kind of mark has a colour and a size.
	for _, k := range kinds {
		require.Regexp(t, `path\.`+k.class+`\{stroke:var\(--[a-z]+\);stroke-width:\d`, text)
	}
	// All 29 retransmissions and 4 NAKs are drawn.
	require.Equal(t, 29, points(text, "resent"))
	require.Equal(t, 4, points(text, "nak"))
	require.Equal(t, 78-29, points(text, "new"))
	require.NotContains(t, text, "NaN")
	require.NotContains(t, text, "Inf")

	// QPs that were asked for.
	_, text = page(t, "-qp", "0x12", captures+"perftest-write.pcap")
	require.NotContains(t, text, "Requests of 192.0.2.2 to 192.0.2.1 QP 0x000011")
	require.Contains(t, text, "Requests of 192.0.2.2 to 192.0.2.1 QP 0x000012")
	require.Contains(t, text, "Requests of 192.0.2.1 to 192.0.2.2 QP 0x000012")
	_, text = page(t, "-qp", "99", captures+"perftest-write.pcap")
	require.Contains(t, text, "None of the chosen QPs")
}

// points counts the marks of one kind in the time lines.
func points(page, class string) int {
	n := -1 // the legend
	for {
		_, after, ok := strings.Cut(page, `<path class="`+class+`" d="`)
		if !ok {
			return n
		}
		d, rest, _ := strings.Cut(after, `"`)
		n += strings.Count(d, "M")
		page = rest
	}
}

// Both directions of a connection have a time line of their own, each with the
// PSNs of only its requests.
func TestBothDirections(t *testing.T) {
	_, text := page(t, captures+"cm-rping.pcap")
	var axes []string
	for _, a := range strings.Split(text, "aria-label=\"PSN, from ")[1:] {
		psn, _, _ := strings.Cut(a, ",")
		axes = append(axes, psn)
	}
	require.Len(t, axes, 2)
	// No mark is far from the others: each axis spans what its requester sent.
	for _, a := range strings.Split(text, "aria-label=\"PSN, from ")[1:] {
		svg, _, _ := strings.Cut(a, "</svg>")
		require.NotRegexp(t, `>[+-][0-9]{4,}</text>`, svg)
	}
}

func TestEveryPage(t *testing.T) {
	files, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	for _, f := range files {
		_, text := page(t, f)
		require.NotContains(t, text, "NaN", f)
		require.NotContains(t, text, "Inf", f)
		require.NotContains(t, text, "%!", f)
		require.True(t, strings.HasSuffix(text, "</html>\n"))
	}
}

func TestSampleBounded(t *testing.T) {
	var s sample
	for i := range 1_000_000 {
		s.add(point{t: int64(i), class: conform.ClassNew})
	}
	require.LessOrEqual(t, len(s.points), maxPoints)
	require.GreaterOrEqual(t, len(s.points), maxPoints/2)
	for i, p := range s.points {
		require.EqualValues(t, i*int(s.stride), p.t)
	}
	var b bins
	n := uint64(0)
	for i := range 100_000 {
		b.add(1_000_000+int64(i)*777_777, 10)
		n += 10
	}
	sum := uint64(0)
	for _, v := range b.bytes {
		sum += v
	}
	require.Equal(t, n, sum)
}

// TestChromium opens the page in a headless browser: it is laid out, says
// nothing on the console, and draws what it should in colours of its own.
func TestChromium(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			browser = p
			break
		}
	}
	if browser == "" {
		t.Skip("no Chromium")
	}
	file, _ := page(t, captures+"rc-loss-request.pcap")
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	// Through a proxy that does not exist, whatever is fetched from outside fails and is
	// reported on the console.
	start := func(args ...string) ([]byte, []byte) {
		cmd := exec.CommandContext(ctx, browser, append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
			"--proxy-server=127.0.0.1:9", "--hide-scrollbars",
			"--enable-logging=stderr", "--user-data-dir=" + filepath.Join(dir, "profile"), "--window-size=1340,2000"}, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Run(), "%s", errs.String())
		return out.Bytes(), errs.Bytes()
	}
	// shot returns how many points of each colour the page shows at a place.
	shot := func(url, size string) map[[3]uint32]int {
		name := filepath.Join(dir, "shot.png")
		start("--screenshot="+name, "--window-size="+size, "file://"+url)
		f, err := os.Open(name)
		require.NoError(t, err)
		defer f.Close()
		img, err := png.Decode(f)
		require.NoError(t, err)
		colours := map[[3]uint32]int{}
		for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
			for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
				r, g, b, _ := img.At(x, y).RGBA()
				colours[[3]uint32{r >> 8, g >> 8, b >> 8}]++
			}
		}
		return colours
	}
	request, resent := [3]uint32{0x2b, 0x6c, 0xb0}, [3]uint32{0xc9, 0x2a, 0x2a}
	dom, errs := start("--dump-dom", "file://"+file)
	require.NotContains(t, string(errs), "CONSOLE")
	require.NotContains(t, string(dom), "<script")
	require.Contains(t, string(dom), "goes back to PSN 6636334")
	require.GreaterOrEqual(t, bytes.Count(dom, []byte("<svg")), 3)
	colours := shot(file, "1340,2000")
	for name, c := range map[string][3]uint32{"request": request, "sent again": resent, "NAK": {0x8b, 0, 0}, "panel": {0xf6, 0xf8, 0xfa}} {
		require.Greater(t, colours[c], 50, name)
	}
	// A finding's link leads to the chart, which then has a border of its own.
	require.Greater(t, shot(file+"#c0", "1340,2000")[request], colours[request]+1000)

	// Both directions of a connection have a chart of their own, each with a PSN axis
	// that begins at its requester's first PSN.
	file, _ = page(t, captures+"cm-rping.pcap")
	dom, errs = start("--dump-dom", "file://"+file)
	require.NotContains(t, string(errs), "CONSOLE")
	for i, first := range firstPSNs(t, captures+"cm-rping.pcap") {
		svg := article(t, string(dom), i)
		require.Contains(t, svg, fmt.Sprintf("aria-label=\"PSN, from %d, over time\"", first))
		require.Contains(t, svg, `class="new"`)
		require.Regexp(t, `<text [^>]*text-anchor="end">0</text>`, svg)  // of PSNs
		require.Regexp(t, `<text [^>]*text-anchor="end">\+[1-9]`, svg)   // above it
		require.Regexp(t, `text-anchor="middle">[0-9.]+m?s</text>`, svg) // of time
	}
	for _, href := range regexp.MustCompile(`href="#(c[0-9]+)"`).FindAllStringSubmatch(string(dom), -1) {
		require.Contains(t, string(dom), `<article id="`+href[1]+`">`)
	}
}

// article returns the i-th time line of a page.
func article(t *testing.T, dom string, i int) string {
	_, after, ok := strings.Cut(dom, fmt.Sprintf(`<article id="c%d">`, i))
	require.True(t, ok)
	svg, _, ok := strings.Cut(after, "</article>")
	require.True(t, ok)
	return svg
}

// firstPSNs returns the first PSN of the requests that each of the two hosts sent on
// a connection, in the order of the page: most bytes first.
func firstPSNs(t *testing.T, file string) []uint32 {
	recs, err := capture.ReadFile(file)
	require.NoError(t, err)
	type side struct {
		first psn.PSN
		bytes int
	}
	sides := map[byte]*side{}
	for _, r := range recs {
		var f frame.Frame
		if f.Decode(r.Link, r.Data) != nil || f.Packet.Opcode.Service() != bth.RC {
			continue
		}
		k := f.Src.AsSlice()[len(f.Src.AsSlice())-1]
		if f.Packet.Opcode.Class() == bth.Request && sides[k] == nil {
			sides[k] = &side{first: f.Packet.PSN}
		}
		if sides[k] != nil {
			sides[k].bytes += r.WireLen
		}
	}
	require.Len(t, sides, 2)
	var out []uint32
	a, b := sides[1], sides[2]
	if a.bytes < b.bytes {
		a, b = b, a
	}
	for _, s := range []*side{a, b} {
		out = append(out, uint32(s.first))
	}
	return out
}
