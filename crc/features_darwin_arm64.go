//go:build !purego

package crc

// Every Apple CPU that runs Go has both.
func features() (crc32, pmull bool) { return true, true }
