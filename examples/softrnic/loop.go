package main

import (
	"context"
	"errors"
	"time"

	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// loop is an endpoint for those who drive queue pairs of their own.
type loop struct {
	ep   *roce.Endpoint
	port *softnic.Port // with do and wait only
	err  error
}

func newLoop(ep *roce.Endpoint) *loop {
	l := &loop{ep: ep}
	ep.Do(func(_ time.Time, p *softnic.Port) { l.port = p })
	return l
}

// do runs fn with the port to itself, and sends what comes of it.
func (l *loop) do(fn func(now time.Time)) {
	l.ep.Do(func(now time.Time, _ *softnic.Port) { fn(now) })
}

// wake has those who wait look again.
func (l *loop) wake() { l.do(func(time.Time) {}) }

// wait runs done now and after every change, until it reports true. It reports false
// when the time is up or the wire has failed.
func (l *loop) wait(limit time.Duration, done func(now time.Time) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := l.ep.Wait(ctx, func(now time.Time, _ *softnic.Port) bool { return done(now) })
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		l.err = err
	}
	return err == nil
}

// stuck says why nothing happens any more: what is wrong with the wire, or that the
// peer is silent.
func (l *loop) stuck() error {
	if l.err != nil {
		return l.err
	}
	return errStuck
}

// close ends the loop. Closing it again does nothing.
func (l *loop) close() { l.ep.Close() }
