package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/conform"
)

// maxComments bounds the number of comments kept for -write.
const maxComments = 200_000

// comment keeps the text of a finding as a comment of its frame, for -write.
func (c *checker) comment(f *conform.Finding) {
	if c.write == "" || f.Frame == 0 || f.Severity == conform.Event && !c.all {
		return
	}
	if len(c.comments) >= maxComments {
		return
	}
	s := fmt.Sprintf("%v %v (%v): %v", f.Severity, f.Rule(), f.Check, f)
	c.comments[f.Frame] = append(c.comments[f.Frame], s)
	if f.Earlier != 0 && c.comments[f.Earlier] == nil {
		c.comments[f.Earlier] = []string{} // shown, without a comment
	}
}

// writeBad writes the frames of findings, and the earlier ones that they depend
// on, to a pcapng file with the findings as comments. It reads the files again.
func (c *checker) writeBad() (err error) {
	f, err := os.Create(c.write)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, 64<<10)
	w, err := capture.NewNGWriter(out, "rocecheck")
	if err != nil {
		return err
	}
	type iface struct {
		link frame.Link
		n    int
		file int
	}
	ifaces := map[iface]int{}
	for i, s := range c.spans {
		r, err := capture.Open(s.name, nil)
		if err != nil {
			return err
		}
		var rec capture.Record
		for n := s.before; ; {
			if err = r.Next(&rec); err != nil {
				break
			}
			if !c.looksAt(&rec) {
				continue
			}
			n++
			comments, ok := c.comments[n]
			if !ok {
				continue
			}
			k := iface{rec.Link, rec.Iface, i}
			id, ok := ifaces[k]
			if !ok {
				if id, err = w.AddInterface(capture.Interface{Link: rec.Link, Name: s.name}); err != nil {
					break
				}
				ifaces[k] = id
			}
			rec.Iface = id
			if err = w.Write(&rec, comments...); err != nil {
				break
			}
		}
		r.Close()
		if err != nil && err != io.EOF {
			return err
		}
	}
	return out.Flush()
}

// looksAt reports whether a record is in the time range of the filter and is not MRC.
func (c *checker) looksAt(r *capture.Record) bool { return c.filter.inTime(r.Time, c.begin) }
