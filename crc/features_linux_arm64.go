//go:build !purego

package crc

import (
	"encoding/binary"
	"syscall"
)

// features asks the kernel, which passes AT_HWCAP in the auxiliary vector. The
// CPU's own identification registers cannot be relied on in user space. Where
// /proc is missing the feature counts as absent.
func features() (crc32, pmull bool) {
	const (
		atHWCAP = 16
		hwPMULL = 1 << 4
		hwCRC32 = 1 << 7
	)
	fd, err := syscall.Open("/proc/self/auxv", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false, false
	}
	defer syscall.Close(fd)
	var buf [1024]byte
	n, _ := syscall.Read(fd, buf[:])
	for v := buf[:max(n, 0)]; len(v) >= 16; v = v[16:] {
		if binary.LittleEndian.Uint64(v) == atHWCAP {
			caps := binary.LittleEndian.Uint64(v[8:])
			return caps&hwCRC32 != 0, caps&hwPMULL != 0
		}
	}
	return false, false
}
