// Package input is shared by the programs that read captures: how files are named, and what
// is printed if one of them cannot be read.
package input

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/bth/mrc"
)

// Parse parses options, which may also follow files, and returns the files. All arguments
// after "--" are files.
func Parse(set *flag.FlagSet, args []string) (files []string, err error) {
	var rest []string
	for i, a := range args {
		if a == "--" {
			args, rest = args[:i], args[i+1:]
			break
		}
	}
	for {
		if err := set.Parse(args); err != nil {
			return nil, err
		}
		if args = set.Args(); len(args) == 0 {
			return append(files, rest...), nil
		}
		files = append(files, args[0])
		args = args[1:]
	}
}

// Unopened returns why capture.Open failed, and what to do about it.
func Unopened(err error) string {
	s := err.Error()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return strings.TrimPrefix(s, "open ") + "; check the path, or give - for standard input"
	case errors.Is(err, fs.ErrPermission):
		return strings.TrimPrefix(s, "open ") + "; captures are often readable by root alone: change its mode or copy it"
	case errors.Is(err, capture.ErrTruncated):
		return s + "; not even its header is whole"
	}
	return s
}

// Ended describes the error with which the reading of a file ended after n frames; it returns
// "" for a normal end. It also reports whether the file was only truncated.
func Ended(name string, err error, n int) (warning string, cut bool) {
	switch {
	case err == io.EOF:
		return "", false
	case errors.Is(err, capture.ErrTruncated):
		return fmt.Sprintf("%s: warning: the file ends in the middle of a record, after %d whole ones; is it still being written, or was the copy cut short?", name, n), true
	}
	return fmt.Sprintf("%s: %v; the %d frames before it were read", name, err, n), false
}

// Links counts the frames of link types that cannot be decoded.
type Links struct {
	N    int
	last frame.Link
}

// Skip counts a frame.
func (l *Links) Skip(link frame.Link) { l.last = link; l.N++ }

// Warning tells what was skipped and what to do about it.
func (l *Links) Warning(name string) string {
	return fmt.Sprintf("%s: %d frames skipped: link type %d is not known here; capture on an Ethernet or IP interface, or with -i any", name, l.N, l.last)
}

// MRC holds the options about MRC.
type MRC struct {
	On      bool       // -mrc
	Trimmed uint64     // -mrc-trimmed: bit n for DSCP n
	Halves  mrc.Halves // -mrc-port-half
}

// Flags adds the options to fs.
func (m *MRC) Flags(fs *flag.FlagSet) {
	fs.BoolVar(&m.On, "mrc", false, "")
	fs.Func("mrc-trimmed", "", func(s string) error {
		for _, part := range strings.Split(s, ",") {
			n, err := strconv.ParseUint(part, 0, 8)
			if err != nil || n > 63 {
				return fmt.Errorf("%q is no DSCP value; give 0 to 63", part)
			}
			m.Trimmed |= 1 << n
		}
		return nil
	})
	fs.Func("mrc-port-half", "", func(s string) error {
		switch s {
		case "low":
			m.Halves = mrc.LowInPort
		case "high":
			m.Halves = mrc.HighInPort
		default:
			return fmt.Errorf("%q is neither low nor high: which half of an entropy value is the UDP source port?", s)
		}
		return nil
	})
}

// Unused names the options that have no effect because another is not given.
func (m *MRC) Unused() string {
	if !m.On && (m.Trimmed != 0 || m.Halves != mrc.LowInPort) {
		return "-mrc-trimmed and -mrc-port-half say how MRC packets are read; give -mrc too"
	}
	return ""
}

// Live opens a network interface for the packets that find finds. An interrupt (Ctrl-C) ends
// the input, as the end of a file does. stop must be called at the end.
func Live(name string, find frame.Finder) (l *capture.Live, stop func(), err error) {
	l, err = capture.OpenLive(name, capture.LiveConfig{Finder: find})
	if err != nil {
		return nil, nil, err
	}
	interrupted, release := Interrupted()
	go func() {
		<-interrupted
		l.Close()
	}()
	return l, func() {
		release()
		l.Close()
	}, nil
}

// Interrupted returns a channel that is closed by the first interrupt (Ctrl-C), or by
// release, which must be called at the end. A second interrupt ends the program.
func Interrupted() (done <-chan struct{}, release func()) {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	over := make(chan struct{})
	var once sync.Once
	end := func() {
		signal.Stop(interrupts)
		once.Do(func() { close(over) })
	}
	go func() {
		select {
		case <-interrupts:
			end()
		case <-over:
		}
	}()
	return over, end
}

// Until reads r until done is closed, which then is the end of the input, whatever r has
// left. A Read of r that is blocked then is not waited for.
func Until(r io.Reader, done <-chan struct{}) io.Reader {
	u := &until{done: done, bufs: make(chan []byte, 1), got: make(chan chunk)}
	u.bufs <- make([]byte, 64<<10)
	go func() {
		for b := range u.bufs {
			n, err := r.Read(b[:cap(b)])
			select {
			case u.got <- chunk{b[:n], err}:
			case <-done:
				return
			}
		}
	}()
	return u
}

type chunk struct {
	b   []byte
	err error
}

type until struct {
	done <-chan struct{}
	bufs chan []byte // the only buffer, while it is empty
	got  chan chunk
	have chunk
	at   int
}

func (u *until) Read(p []byte) (int, error) {
	for u.at == len(u.have.b) {
		if u.have.err != nil {
			return 0, u.have.err
		}
		if u.have.b != nil {
			u.bufs <- u.have.b
			u.have.b = nil
		}
		select {
		case u.have = <-u.got:
			u.at = 0
		case <-u.done:
			return 0, io.EOF
		}
	}
	n := copy(p, u.have.b[u.at:])
	u.at += n
	return n, nil
}

// Dropped tells how many frames of an interface were lost, or returns "" if none was.
func Dropped(name string, s capture.LiveStats) string {
	if s.Dropped == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d frames were dropped, since they came faster than they were read; write less (-summary), or save them with tcpdump first",
		name, s.Dropped, s.Received)
}
