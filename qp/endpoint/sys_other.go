//go:build !linux

package endpoint

import "errors"

// udpOptions: other systems have no way to make identifications known.
func udpOptions(uintptr, bool) error {
	return errors.New("a UDP wire needs Linux: no other system says what it puts into IP headers")
}

func forceReadBuffer(uintptr, int) {}
