package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame/capture"
)

// slow gives what it has, and then waits for the test.
type slow struct {
	io.Reader
	more chan struct{}
}

func (s *slow) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err == io.EOF {
		<-s.more
	}
	return n, err
}

// shared is a buffer that may be read while it is written.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The figures of -metrics are in the OpenMetrics text format, whose end is marked.
func TestMetricsServed(t *testing.T) {
	data, err := os.ReadFile(captures + "rc-loss-request.pcap")
	require.NoError(t, err)
	in := &slow{bytes.NewReader(data), make(chan struct{})}
	r, w := io.Pipe()
	var out shared
	done := make(chan int)
	go func() {
		done <- run([]string{"-follow", "-interval", "10ms", "-metrics", "127.0.0.1:0", "-"}, in, &out, w)
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	go io.Copy(io.Discard, r)
	url := regexp.MustCompile(`http://\S+`).FindString(line)
	require.NotEmpty(t, url, line)
	var body string
	require.Eventually(t, func() bool {
		resp, err := http.Get(url)
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		require.Contains(t, resp.Header.Get("Content-Type"), "openmetrics")
		body = string(b)
		return strings.Contains(body, "roce_retransmissions_total{cause=\"timer\"} 3\n")
	}, 10*time.Second, 10*time.Millisecond)
	require.True(t, strings.HasSuffix(body, "\n# EOF\n"))
	sample := regexp.MustCompile(`^[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+$`)
	meta := regexp.MustCompile(`^# (TYPE|UNIT|HELP) [a-z_]+ .+$|^# EOF$`)
	for l := range strings.Lines(body) {
		l = strings.TrimSuffix(l, "\n")
		require.True(t, sample.MatchString(l) || meta.MatchString(l), l)
	}
	// Each name is documented, and in the dashboard.
	doc, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(body, -1) {
		require.Contains(t, string(doc), "`"+m[1], m[1])
	}
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "frames/s") }, 10*time.Second, time.Millisecond)
	close(in.more)
	require.Equal(t, exitGood, <-done)
	require.Contains(t, out.String(), "No rule is broken.")
}

// Ctrl-C ends -follow with the report, be it on standard input that says nothing more,
// in the middle of a record, or on a file that another program writes.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot interrupt itself there")
	}
	data, err := os.ReadFile(captures + "rc-loss-request.pcap")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "growing.pcap")
	require.NoError(t, os.WriteFile(file, data[:len(data)-5], 0o600))
	for _, name := range []string{"-", file} {
		in := &slow{bytes.NewReader(data[:len(data)-5]), make(chan struct{})}
		var out, errs shared
		done := make(chan int)
		go func() { done <- run([]string{"-follow", "-interval", "10ms", name}, in, &out, &errs) }()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), "frames/s") }, 10*time.Second, time.Millisecond)
		self, err := os.FindProcess(os.Getpid())
		require.NoError(t, err)
		require.NoError(t, self.Signal(os.Interrupt))
		select {
		case code := <-done:
			require.Equal(t, exitGood, code, errs.String())
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on")
		}
		close(in.more)
		require.Empty(t, errs.String())
		require.Contains(t, out.String(), "No rule is broken. 37.2 % of 78 data frames were sent again.\n103 frames")
	}
}

// The dashboard is JSON, and asks for figures that there are.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(b, &d))
	require.GreaterOrEqual(t, len(d.Panels), 6)
	doc, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, p := range d.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			for _, name := range regexp.MustCompile(`roce_[a-z_]+`).FindAllString(q.Expr, -1) {
				require.Contains(t, string(doc), "`"+strings.TrimSuffix(name, "_total"), p.Title)
			}
		}
	}
}

// -write keeps the frames of breaches with what is said of them.
func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.pcapng")
	code, _, errs := call(t, "-write", file, captures+"rc-local-drop-read.pcap")
	require.Equal(t, exitWrong, code)
	require.Empty(t, errs)
	recs, err := capture.ReadFile(file)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(recs), 5) // frames 12, 14, 17, 19, 21, and those that they depend on
	require.Less(t, len(recs), 12)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(b), "breach RS-15 (read-opcode): the response at PSN 6636326 should be")
}

// -baseline leaves out what was so before; -host, -qp, -from and -to choose.
func TestChoice(t *testing.T) {
	bad := captures + "rc-local-drop-read.pcap"
	code, out, _ := call(t, "-baseline", bad, bad)
	require.Equal(t, exitGood, code)
	require.Contains(t, out, "findings of kinds that the baseline shows too are left out.")
	code, _, _ = call(t, "-baseline", captures+"rc-read.pcap", bad)
	require.Equal(t, exitWrong, code)

	code, _, _ = call(t, "-host", "192.0.2.9", bad)
	require.Equal(t, exitNone, code)
	code, _, _ = call(t, "-host", "192.0.2.2", "-qp", "17", bad)
	require.Equal(t, exitWrong, code)
	code, _, _ = call(t, "-qp", "0x99", bad)
	require.Equal(t, exitNone, code)
	code, out, _ = call(t, "-to", "1ms", bad)
	require.Equal(t, exitNone, code)
	require.Contains(t, out, "No RoCE packet is between -from and -to: the capture is from ")
	code, _, _ = call(t, "-from", "2000-01-01T00:00:00Z", bad)
	require.Equal(t, exitWrong, code)
}

// The report fits 120 columns, or as many as are asked for, but for filters, which are
// to be copied.
func TestWidth(t *testing.T) {
	files, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	for _, columns := range []int{80, 100, 120, 200} {
		for _, f := range files {
			_, out, errs := call(t, "-columns", strconv.Itoa(columns), f)
			require.Empty(t, errs)
			for l := range strings.Lines(out) {
				if l = strings.TrimSuffix(l, "\n"); !strings.HasPrefix(l, "      wireshark: ") {
					require.LessOrEqual(t, len([]rune(l)), columns, "%s: %s", f, l)
				}
			}
		}
	}
	_, out, _ := call(t, "-columns", "140", captures+"rc-loss-request.pcap")
	require.Contains(t, out, "goodput eff\n")
	_, out, _ = call(t, "-columns", "80", captures+"rc-loss-request.pcap")
	require.Contains(t, out, "\n  192.0.2.2>192.0.2.1 0x000011 ")
	require.NotContains(t, out, " eff\n")
	require.Contains(t, out, "resent")

	// Addresses that leave no room have a line of their own.
	var b bytes.Buffer
	c := &checker{options: options{columns: 80}, out: bufio.NewWriter(&b), paint: func(_, s string) string { return s }}
	long := strings.Repeat("2001:db8:1234:5678:", 2) + ">" + strings.Repeat("2001:db8:1234:5678:", 2)
	c.table([][]string{{"flow", "QP", "svc", "MTU", "frames", "goodput", "eff"}, {long, "0x000011", "RC", "1024", "123456", "100G", "99%"}})
	require.NoError(t, c.out.Flush())
	require.Equal(t, "  QP       frames goodput\n  "+long+"\n  0x000011 123456    100G\n", b.String())
}

// What could not be judged is reported at once.
func TestPartly(t *testing.T) {
	recs, err := capture.ReadFile(captures + "rc-mixed.pcap")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "half.pcap")
	f, err := os.Create(file)
	require.NoError(t, err)
	w, err := capture.NewWriter(f, recs[0].Link)
	require.NoError(t, err)
	for _, r := range recs {
		if r.Data[11] == 2 { // one of the two hosts
			require.NoError(t, w.Write(r.Time, r.Data))
		}
	}
	require.NoError(t, f.Close())
	code, out, _ := call(t, file)
	require.Equal(t, exitGood, code)
	require.True(t, strings.HasPrefix(out, "No rule is broken, as far as could be judged: see below."), out)
	require.Contains(t, out, "\nNot judged\n  - RQ-23, RQ-28, RS-03, RS-13, RS-14, RS-15: the other direction was")
}
