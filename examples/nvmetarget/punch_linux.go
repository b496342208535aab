package main

import (
	"os"
	"syscall"
)

// punch makes a hole in a file (FALLOC_FL_PUNCH_HOLE and KEEP_SIZE of fallocate).
func punch(f *os.File, off, n int64) error {
	return syscall.Fallocate(int(f.Fd()), 2|1, off, n)
}
