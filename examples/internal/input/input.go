// Package input is what programs that read captures have in common: which files
// are named, and what a person is told where one of them cannot be read.
package input

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// Parse parses options, which may stand after files too, and returns the files.
// What follows "--" are files.
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

// Unopened says why capture.Open failed, and what to do about it.
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

// Ended says what is wrong with a file whose reading ended with err after n
// frames, and nothing at a good end. It reports whether the file was merely cut.
func Ended(name string, err error, n int) (warning string, cut bool) {
	switch {
	case err == io.EOF:
		return "", false
	case errors.Is(err, capture.ErrTruncated):
		return fmt.Sprintf("%s: warning: the file ends in the middle of a record, after %d whole ones; is it still being written, or was the copy cut short?", name, n), true
	}
	return fmt.Sprintf("%s: %v; the %d frames before it were read", name, err, n), false
}

// Links counts the frames of link types that cannot be looked into.
type Links struct {
	N    int
	last frame.Link
}

// Skip counts a frame.
func (l *Links) Skip(link frame.Link) { l.last = link; l.N++ }

// Warning says what was skipped and what to do about it.
func (l *Links) Warning(name string) string {
	return fmt.Sprintf("%s: %d frames skipped: link type %d is not known here; capture on an Ethernet or IP interface, or with -i any", name, l.N, l.last)
}
