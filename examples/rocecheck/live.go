package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/examples/internal/input"
	"github.com/roce-go/roce/qp/conform"
)

// live is what -follow, -i and -metrics need.
type live struct {
	mu          sync.Mutex // held while a frame is handled, and while the metrics are read
	dropped     func() uint64
	interrupted <-chan struct{} // closed when -follow ends before its input
	metricsAddr string
}

// idle is how long a flow may be silent before -follow closes and reports it.
const idle = time.Minute

// growing reads a file that another program is still writing.
type growing struct {
	f    *os.File
	stop <-chan struct{}
}

func (g *growing) Read(b []byte) (int, error) {
	for {
		n, err := g.f.Read(b)
		if n > 0 || err != nil && err != io.EOF {
			return n, err
		}
		select {
		case <-g.stop:
			return 0, io.EOF
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// open opens the input. Progress is known only for files, dropped frames only for interfaces.
func (c *checker) open(name string, stdin io.Reader) (src capture.Source, file *capture.File, shut func(), err error) {
	switch {
	case c.iface != "":
		live, stop, err := input.Live(name, frame.Finder{UDPPort: c.cfg.UDPPort, Tunnels: true, VXLANPorts: c.cfg.VXLANPorts})
		if err != nil {
			return nil, nil, nil, err
		}
		c.dropped = func() uint64 { s, _ := live.Stats(); return s.Dropped }
		return live, nil, func() {
			if s, err := live.Stats(); err == nil {
				if l := input.Dropped(name, s); l != "" {
					c.warn("%s", l)
				}
			}
			stop()
		}, nil
	case c.follow:
		r, f := stdin, io.NopCloser(nil)
		var release func()
		c.interrupted, release = input.Interrupted()
		if name == "-" {
			r = input.Until(stdin, c.interrupted)
		} else {
			file, err := os.Open(name)
			if err != nil {
				release()
				return nil, nil, nil, err
			}
			r, f = &growing{file, c.interrupted}, file
		}
		in, err := capture.NewReader(r)
		if err != nil {
			release()
			f.Close()
			return nil, nil, nil, err
		}
		return in, nil, func() { release(); f.Close() }, nil
	}
	f, err := capture.Open(name, stdin)
	if err != nil {
		return nil, nil, nil, err
	}
	return f, f, func() { f.Close() }, nil
}

func (c *checker) isInterrupted() bool {
	select {
	case <-c.interrupted:
		return true
	default:
		return false
	}
}

// watchLive starts to print interval lines and to serve metrics, as the options request. The
// function that it returns ends both.
func (c *checker) watchLive() (end func(), err error) {
	if !c.follow && c.metrics == "" {
		return func() {}, nil
	}
	done := make(chan struct{})
	var served *http.Server
	if c.metrics != "" {
		l, err := net.Listen("tcp", c.metrics)
		if err != nil {
			return nil, fmt.Errorf("-metrics: %w", err)
		}
		c.metricsAddr = l.Addr().String()
		mux := http.NewServeMux()
		mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
			c.mu.Lock()
			var b strings.Builder
			c.appendMetrics(&b)
			c.mu.Unlock()
			io.WriteString(w, b.String())
		})
		served = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		go served.Serve(l)
		c.warn("figures at http://%s/metrics", c.metricsAddr)
	}
	var ticks sync.WaitGroup
	if c.follow {
		ticks.Add(1)
		go func() {
			defer ticks.Done()
			c.tick(done)
		}()
	}
	return func() {
		close(done)
		ticks.Wait()
		if served != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = served.Shutdown(ctx) // requests in progress still get their response
		}
	}, nil
}

// tick prints a line each interval.
func (c *checker) tick(done <-chan struct{}) {
	t := time.NewTicker(c.interval)
	defer t.Stop()
	var last conform.Counters
	var breaches uint64
	for lines := 0; ; lines++ {
		select {
		case <-done:
			return
		case <-t.C:
		}
		c.mu.Lock()
		now := c.w.Total()
		if c.json {
			c.emit(intervalOf(&now, &last, c.interval, c.breaches-breaches))
		} else {
			if lines%20 == 0 {
				fmt.Fprintf(c.out, "%-8s %9s %9s %8s %6s %5s %5s %6s %6s %8s\n", "time", "frames/s", "goodput", "resent", "timers", "NAKs", "RNRs", "CE", "CNPs", "breaches")
			}
			s := c.interval.Seconds()
			fmt.Fprintf(c.out, "%-8s %9.0f %9s %8d %6d %5d %5d %6d %6d %8d\n", time.Now().Format("15:04:05"), float64(now.Frames-last.Frames)/s,
				rate(float64(now.GoodBytes-last.GoodBytes)*8/s), now.Retransmitted-last.Retransmitted, now.LocalAckTimeoutErr-last.LocalAckTimeoutErr,
				now.Naks-last.Naks, now.RNRs-last.RNRs, now.CE-last.CE, now.CNPs-last.CNPs, c.breaches-breaches)
		}
		last, breaches = now, c.breaches
		c.out.Flush()
		c.mu.Unlock()
	}
}

type jsonInterval struct {
	Type     string  `json:"type"`
	Time     string  `json:"time"`
	Frames   uint64  `json:"frames"`
	Goodput  float64 `json:"goodput_bps"`
	Resent   uint64  `json:"data_frames_retransmitted"`
	Timeouts uint64  `json:"local_ack_timeout_err"`
	Naks     uint64  `json:"nak"`
	RNRs     uint64  `json:"rnr_nak"`
	CE       uint64  `json:"ecn_ce"`
	CNPs     uint64  `json:"cnp"`
	Breaches uint64  `json:"breaches"`
}

func intervalOf(now, last *conform.Counters, d time.Duration, breaches uint64) jsonInterval {
	return jsonInterval{"interval", stamp(time.Now()), now.Frames - last.Frames, float64(now.GoodBytes-last.GoodBytes) * 8 / d.Seconds(),
		now.Retransmitted - last.Retransmitted, now.LocalAckTimeoutErr - last.LocalAckTimeoutErr, now.Naks - last.Naks, now.RNRs - last.RNRs,
		now.CE - last.CE, now.CNPs - last.CNPs, breaches}
}
