//go:build !linux

package main

import (
	"errors"
	"syscall"
)

var (
	errTooBig = errors.New("packet larger than the interface's MTU: choose a smaller path MTU with -mtu")
	errLinux  = errors.New("this wire needs Linux; -segment works everywhere")
)

func dontFragment(uintptr, bool) error { return errLinux }

func errnoOf(err error) (syscall.Errno, bool) {
	var errno syscall.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}

func openTAP(string) (wire, error)    { return nil, errLinux }
func openPacket(string) (wire, error) { return nil, errLinux }
