// Package term handles terminals for the example programs: colour, and a progress line on
// standard error.
package term

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device as well
	return err != nil || !os.SameFile(info, null)
}

// Colour reports whether to use colour on w: it is a terminal, and neither
// NO_COLOR nor TERM=dumb says otherwise.
func Colour(w io.Writer) bool {
	return Is(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// Colours, as escape sequences.
const (
	Reset   = "\x1b[0m"
	Red     = "\x1b[31m"
	Green   = "\x1b[32m"
	Yellow  = "\x1b[33m"
	Magenta = "\x1b[35m"
	Cyan    = "\x1b[36m"
	Dim     = "\x1b[2m"
)

// Progress is a line that shows the progress of long work. A nil Progress prints nothing.
type Progress struct {
	w           io.Writer
	now         func() time.Time
	start, last time.Time
	shown       bool
}

// Nothing is printed in the first moments of a piece of work, so that short ones do not show
// a progress line.
const (
	patience = 500 * time.Millisecond
	interval = 200 * time.Millisecond
)

// NewProgress returns a Progress on w. A nil now means time.Now.
func NewProgress(w io.Writer, now func() time.Time) *Progress {
	if now == nil {
		now = time.Now
	}
	t := now()
	return &Progress{w: w, now: now, start: t, last: t.Add(patience - interval)}
}

// Update reports that done of all units (of an unknown number if all is 0) of something
// called name are done, with n items so far.
func (p *Progress) Update(name string, done, all int64, n int, items string) {
	if p == nil {
		return
	}
	t := p.now()
	if t.Sub(p.last) < interval {
		return
	}
	p.last = t
	p.shown = true
	if all > 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%s: %3d %%, %d %s", name, min(100, done*100/all), n, items)
	} else {
		fmt.Fprintf(p.w, "\r\x1b[K%s: %d MiB, %d %s", name, done>>20, n, items)
	}
}

// Clear removes the line; a later Update shows it again.
func (p *Progress) Clear() {
	if p != nil && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
