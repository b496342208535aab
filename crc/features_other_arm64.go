//go:build !purego && !linux

package crc

import "runtime"

// features: every Apple CPU that runs Go has both; of other systems nothing is known.
func features() (crc32, pmull bool) {
	apple := runtime.GOOS == "darwin"
	return apple, apple
}
