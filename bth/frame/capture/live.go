package capture

import (
	"errors"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// Source is a source of records: a Reader, a File or a Live.
type Source interface {
	// Next reads the next record into rec. Its Data is valid until the next call.
	Next(rec *Record) error
	// Buffered returns 0 if the next call of Next may have to wait.
	Buffered() int
}

var (
	_ Source = (*Reader)(nil)
	_ Source = (*File)(nil)
	_ Source = (*Live)(nil)
)

// ErrLive means that an interface cannot be read from here.
var ErrLive = errors.New("capture: cannot read from the interface")

// LiveConfig says what to read from an interface. The zero value reads all RoCE,
// PFC and PAUSE frames.
type LiveConfig struct {
	// Finder says what is RoCE, as for decoding: its port, and whether tunnels are
	// wanted as well. The kernel passes on only what this Finder may find, PFC and
	// PAUSE frames.
	Finder frame.Finder
	// All passes on every frame.
	All bool
	// SnapLen is the most that is kept of a frame, in bytes; 0 means all.
	SnapLen int
	// Buffer is the size in bytes of the memory that the kernel writes frames to;
	// 0 means 8 MiB. Frames that arrive while it is full are dropped and counted.
	Buffer int
	// Delay is how long the kernel may keep a frame to hand it over with others; 0
	// means 50 ms.
	Delay time.Duration
	// NoPromiscuous leaves out frames that are sent to other hosts' addresses.
	NoPromiscuous bool
}

// LiveStats counts the frames that the filter accepted, since OpenLive.
type LiveStats struct {
	Received uint64 // those dropped included
	Dropped  uint64 // because the buffer was full
}
