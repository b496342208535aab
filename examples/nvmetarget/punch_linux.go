package main

import (
	"os"
	"syscall"
)

func init() {
	// FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE of fallocate.
	punch = func(f *os.File, off, n int64) error { return syscall.Fallocate(int(f.Fd()), 2|1, off, n) }
}
