//go:build !linux

package capture

import (
	"fmt"
	"runtime"
	"time"
)

// Live reads from a network interface, on Linux.
type Live struct{}

// OpenLive fails with ErrLive: interfaces can only be read on Linux.
func OpenLive(name string, cfg LiveConfig) (*Live, error) {
	return nil, fmt.Errorf("%w %s: not on %s; pipe another program's capture in instead: tcpdump -i %s -U -w - | ... -",
		ErrLive, name, runtime.GOOS, name)
}

// Next returns ErrLive.
func (l *Live) Next(rec *Record) error { return ErrLive }

// Buffered returns 0.
func (l *Live) Buffered() int { return 0 }

// Stats returns zero.
func (l *Live) Stats() (LiveStats, error) { return LiveStats{}, ErrLive }

// SetDeadline returns ErrLive.
func (l *Live) SetDeadline(t time.Time) error { return ErrLive }

// Close does nothing.
func (l *Live) Close() error { return nil }
