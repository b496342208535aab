package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// store holds the bytes of a namespace. Its methods may be called from any goroutine;
// overlapping reads and writes are done one after the other in memory, and as the operating
// system orders them in a file. The caller has checked ranges.
type store interface {
	ReadAt(b []byte, off int64) (int, error)
	WriteAt(b []byte, off int64) (int, error)
	// zero sets n bytes to zero, and frees their storage if it can.
	zero(off, n int64) error
	// flush makes earlier writes durable.
	flush() error
	Close() error
}

// memory is a namespace that is lost when the program ends.
type memory struct {
	mu sync.RWMutex
	b  []byte
}

func (m *memory) ReadAt(b []byte, off int64) (int, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return copy(b, m.b[off:]), nil
}

func (m *memory) WriteAt(b []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.b[off:], b), nil
}

func (m *memory) zero(off, n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.b[off : off+n])
	return nil
}

func (m *memory) flush() error { return nil }
func (m *memory) Close() error { return nil }

// file is a namespace in a file. A flush syncs the file: writes that were acknowledged before
// it survive a crash of the machine.
type file struct{ *os.File }

// openFile opens a file and makes it size bytes long; 0 leaves its size unchanged.
func openFile(name string, size int64) (*file, int64, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", name)
	case size == 0 && info.Size() == 0:
		err = fmt.Errorf("%s is empty: say its size with -size", name)
	case size == 0:
		size = info.Size()
	case info.Size() > size:
		err = fmt.Errorf("%s has %d bytes: a size of %d would cut it; leave -size away", name, info.Size(), size)
	case info.Size() < size:
		err = f.Truncate(size)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return &file{f}, size, nil
}

func (f *file) zero(off, n int64) error {
	if err := punch(f.File, off, n); err == nil || !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		m := min(n, int64(len(zeros)))
		if _, err := f.WriteAt(zeros[:m], off); err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}

// punch makes a hole in a file, if the system can.
var punch = func(*os.File, int64, int64) error { return errors.ErrUnsupported }

func (f *file) flush() error { return f.Sync() }
