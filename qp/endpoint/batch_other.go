//go:build !linux

package endpoint

import (
	"errors"
	"net"
	"net/netip"
)

const (
	batchSize = 1
	maxJoined = 0
)

// batch is empty: udpOptions refuses a UDP wire before one is created.
type batch struct {
	bufs  [batchSize][]byte
	split bool
}

func newBatch(*net.UDPConn, netip.Addr, bool) (*batch, error) {
	return nil, errors.ErrUnsupported
}

func (*batch) recv() (int, error)                         { return 0, errors.ErrUnsupported }
func (*batch) get(int) (b []byte, from netip.AddrPort)    { return nil, from }
func (*batch) put(i, skip int, to netip.AddrPort, _ bool) {}
func (*batch) send() error                                { return errors.ErrUnsupported }
