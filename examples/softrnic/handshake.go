package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// handshakeConn opens the TCP connection over which the tools exchange their numbers: to a
// server at addr, or if addr is empty it accepts one client, and waits for it no longer than
// wait. Each read and write on the connection has a limit.
func handshakeConn(addr string, port int, wait, patience time.Duration) (net.Conn, error) {
	if addr != "" {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(addr, strconv.Itoa(port)), 10*time.Second)
		if err != nil {
			return nil, fmt.Errorf("no server at TCP port %d of %s: %w", port, addr, err)
		}
		return limited{c, patience}, nil
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(wait))
	c, err := l.Accept()
	if err != nil {
		return nil, fmt.Errorf("no client connected to TCP port %d in %v (-wait): %w", port, wait, err)
	}
	return limited{c, patience}, nil
}

// limited is a connection whose reads and writes wait no longer than patience.
type limited struct {
	net.Conn
	patience time.Duration
}

func (c limited) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(c.patience))
	n, err := c.Conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("nothing was received from the peer over TCP for %v (-patience): it may have other options, such as another -q: %w", c.patience, err)
	}
	return n, err
}

func (c limited) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.patience))
	return c.Conn.Write(b)
}

// whole explains an EOF in the middle of a message.
func whole(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("handshake: the peer has closed its connection: it was ended, or it found our options unlike its own")
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	return nil
}

// exchange sends a message and receives one of the same length: the client sends first.
func exchange(c io.ReadWriter, server bool, msg []byte) ([]byte, error) {
	got := make([]byte, len(msg))
	if !server {
		// Where the peer ended the connection before it acknowledged the message, its own
		// message, which came first, says that it has received ours.
		if _, err := c.Write(msg); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if _, err := io.ReadFull(c, got); err != nil {
		return nil, whole(err)
	}
	if server {
		if _, err := c.Write(msg); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// hexFields parses n hexadecimal numbers, each followed by a colon.
func hexFields(s string, n int) ([]uint64, string, error) {
	v := make([]uint64, n)
	for i := range v {
		field, rest, _ := strings.Cut(s, ":")
		x, err := strconv.ParseUint(field, 16, 64)
		if err != nil {
			return nil, "", fmt.Errorf("handshake: %q is no line of the peer's numbers", s)
		}
		v[i], s = x, rest
	}
	return v, s, nil
}

// The line of the ibv_*_pingpong tools: LID, QPN, PSN and GID in hexadecimal, and a zero
// byte.
func pingpongLine(p *peer) []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", 0, p.qpn, p.psn&0xffffff, p.gid)
}

func parsePingpong(b []byte) (*peer, error) {
	v, gid, err := hexFields(strings.TrimRight(string(b), "\x00"), 3)
	if err != nil {
		return nil, err
	}
	p := &peer{qpn: uint32(v[1]), psn: uint32(v[2])}
	if g, err := hex.DecodeString(gid); err != nil || copy(p.gid[:], g) != 16 {
		return nil, fmt.Errorf("handshake: %q is no GID", gid)
	}
	if p.gid == [16]byte{} {
		return nil, fmt.Errorf("handshake: the peer sends no GID; start it with -g INDEX")
	}
	return p, nil
}

// perftest's line: LID, outstanding READs, QPN, PSN, R_Key, address, the GID's bytes and an
// SRQ, each followed by a colon, and a zero byte.
func perftestLine(p *peer) []byte {
	b := fmt.Appendf(nil, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, p.reads, p.qpn, p.psn&0xffffff, p.rkey, p.va)
	for _, x := range p.gid {
		b = fmt.Appendf(b, "%02x:", x)
	}
	return fmt.Appendf(b, "%08x:\x00", 0)
}

func parsePerftest(b []byte) (*peer, error) {
	v, _, err := hexFields(string(b), 6+16)
	if err != nil {
		return nil, err
	}
	p := &peer{reads: int(v[1]), qpn: uint32(v[2]), psn: uint32(v[3]), rkey: uint32(v[4]), va: v[5]}
	for i := range p.gid {
		p.gid[i] = byte(v[6+i])
	}
	return p, nil
}

// perftestOpening exchanges what perftest sends before the queue pairs: version, page size,
// cache line, path MTU. It returns the lesser of both MTUs.
func perftestOpening(c io.ReadWriter, server bool, mtu int) (int, error) {
	version := make([]byte, 16)
	copy(version, "6.06")
	if _, err := exchange(c, server, version); err != nil {
		return 0, err
	}
	for _, n := range []uint32{4096, 64} {
		if _, err := exchange(c, server, binary.BigEndian.AppendUint32(nil, n)); err != nil {
			return 0, err
		}
	}
	// As in enum ibv_mtu: 1 is 256.
	code := 1
	for m := 256; m < mtu; m *= 2 {
		code++
	}
	got, err := exchange(c, server, []byte{byte('0' + code), 0})
	if err != nil {
		return 0, err
	}
	if theirs := int(got[0]) - '0'; theirs >= 1 && theirs < code {
		mtu = 128 << theirs
	}
	return mtu, nil
}
