package input

import (
	"fmt"
	"os"
	"os/signal"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// Live opens a network interface for what find finds. An interrupt (Ctrl-C) ends
// the input, as the end of a file does. stop has to be called in the end.
func Live(name string, find frame.Finder) (l *capture.Live, stop func(), err error) {
	l, err = capture.OpenLive(name, capture.LiveConfig{Finder: find})
	if err != nil {
		return nil, nil, err
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	done := make(chan struct{})
	go func() {
		select {
		case <-interrupts:
			l.Close()
		case <-done:
		}
	}()
	return l, func() {
		signal.Stop(interrupts)
		close(done)
		l.Close()
	}, nil
}

// Dropped says how many frames of an interface were lost, or nothing where none
// was.
func Dropped(name string, s capture.LiveStats) string {
	if s.Dropped == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %d of %d frames were dropped, since they came faster than they were read; write less (-summary), or save them with tcpdump first",
		name, s.Dropped, s.Received)
}
