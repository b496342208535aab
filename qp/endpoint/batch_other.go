//go:build !linux || !(amd64 || arm64)

package endpoint

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

const (
	batchSize = 1
	maxJoined = 0
)

// batch receives and sends one datagram a call.
type batch struct {
	c    *net.UDPConn
	bufs [1][]byte
	zone string
	n    int
	from netip.AddrPort
	to   netip.AddrPort
	out  []byte

	split bool // never
}

func newBatch(c *net.UDPConn, local netip.Addr, _ bool) (*batch, error) {
	b := &batch{c: c, zone: local.Zone()}
	b.bufs[0] = make([]byte, 1<<16)
	return b, nil
}

func (b *batch) recv() (n int, err error) {
	b.n, b.from, err = b.c.ReadFromUDPAddrPort(b.bufs[0])
	return 1, err
}

func (b *batch) get(int) ([]byte, netip.AddrPort) {
	return b.bufs[0][:b.n], netip.AddrPortFrom(b.from.Addr().Unmap().WithZone(""), b.from.Port())
}

func (b *batch) put(i, skip int, to netip.AddrPort, _ bool) {
	if a := to.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		to = netip.AddrPortFrom(a.WithZone(b.zone), to.Port())
	}
	b.out, b.to = b.bufs[i][skip:], to
}

func (b *batch) send() error {
	if _, err := b.c.WriteToUDPAddrPort(b.out, b.to); errors.Is(err, syscall.EMSGSIZE) {
		return errTooBig
	}
	return nil
}
