package main

import (
	"fmt"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/conform"
)

// known holds the kinds of findings that the baseline capture has.
type known map[conform.Check]bool

// readBaseline judges the capture that -baseline names.
func readBaseline(name string, cfg conform.Config) (known, error) {
	cfg.Closed = nil
	w, err := conform.New(cfg)
	if err != nil {
		return nil, err
	}
	recs, err := capture.Open(name, nil)
	if err != nil {
		return nil, err
	}
	defer recs.Close()
	k := known{}
	var f conform.Finding
	drain := func() {
		for w.NextFinding(&f) {
			k[f.Check] = true
		}
	}
	var rec capture.Record
	for recs.Next(&rec) == nil {
		w.HandleFrame(rec.Time, rec.Link, rec.Data, rec.WireLen)
		drain()
	}
	w.Finish()
	drain()
	if w.RoCEFrames() == 0 {
		return nil, fmt.Errorf("%s has no RoCE packet to compare with", name)
	}
	return k, nil
}
