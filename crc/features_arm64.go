//go:build !purego && !linux && !darwin

package crc

// features knows nothing about this system.
func features() (crc32, pmull bool) { return false, false }
