//go:build !linux

package endpoint

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// TAP and Packet need Linux.
func TAP(string, ...netip.Addr) Wire { return noWire{} }

// Packet needs Linux.
func Packet(string, ...netip.Addr) Wire { return noWire{} }

type noWire struct{}

func (noWire) open(*Config) (transport, error) {
	return nil, errors.New("TAP and packet wires need Linux")
}

// udpOptions fails: on other systems the identification that is sent is not known.
func udpOptions(uintptr, bool) error {
	return errors.New("a UDP wire needs Linux: other systems do not tell which IP identification they send")
}

func forceReadBuffer(uintptr, int) {}

// socketDrops: no other system says.
func socketDrops(syscall.Conn) uint64 { return 0 }

const (
	batchSize  = 1
	batchBytes = 1
)

// batch is not there: udpOptions refuses a UDP wire before one is made.
type batch struct {
	bufs  [batchSize][]byte
	split bool
	busy  time.Duration
}

func newUDPBatch(*net.UDPConn, netip.Addr, bool) (*batch, error) {
	return nil, errors.ErrUnsupported
}

func (*batch) recv() (int, error)                              { return 0, errors.ErrUnsupported }
func (*batch) get(i, room int) (b []byte, from netip.AddrPort) { return nil, from }
func (*batch) put(i, skip int, to netip.AddrPort, _ bool)      {}
func (*batch) send() error                                     { return errors.ErrUnsupported }
