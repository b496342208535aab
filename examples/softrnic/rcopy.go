package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// rcopy's messages have a header: version, command, length, and numbers in the byte order of
// the host, here little-endian as on the peers.
const (
	rcopyOpen  = 1
	rcopyClose = 2
	rcopyWrite = 3
	rcopyResp  = 0x80
	rcopyHead  = 16
)

func rcopyMessage(cmd byte, data uint32, more []byte) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{0, cmd}, uint16(rcopyHead+len(more)))
	b = binary.LittleEndian.AppendUint32(b, data)
	return append(append(b, make([]byte, 8)...), more...)
}

// recvRcopy receives a message: its header, and the data after it.
func recvRcopy(s *rsock) (cmd byte, data uint32, more []byte, err error) {
	h := make([]byte, rcopyHead)
	if _, err = io.ReadFull(s, h); err != nil {
		return
	}
	n := int(binary.LittleEndian.Uint16(h[2:]))
	if h[0] != 0 || n < rcopyHead {
		return 0, 0, nil, fmt.Errorf("no message of rcopy: version %d, length %d", h[0], n)
	}
	more = make([]byte, n-rcopyHead)
	_, err = io.ReadFull(s, more)
	return h[1], binary.LittleEndian.Uint32(h[4:]), more, err
}

// rcopyClient sends a file.
func (t *cmTool) rcopyClient(s *rsock) error {
	from, to, ok := strings.Cut(t.o.file, ":")
	if !ok {
		to = from
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	path := append([]byte(to), make([]byte, 8-len(to)%8)...) // with a zero byte at the end
	ask := func(cmd byte, msg []byte) error {
		if _, err := s.Write(msg); err != nil {
			return err
		}
		got, status, _, err := recvRcopy(s)
		if err == nil && (got != cmd|rcopyResp || status != 0) {
			err = fmt.Errorf("the peer's response to command %d is %#x with error %d", cmd, got, status)
		}
		return err
	}
	if err := ask(rcopyOpen, rcopyMessage(rcopyOpen, 0o100644, path)); err != nil {
		return err
	}
	start := time.Now()
	msg := rcopyMessage(rcopyWrite, 0, binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	if err := ask(rcopyWrite, append(msg, data...)); err != nil {
		return err
	}
	t.rate(1, len(data), start, to)
	return ask(rcopyClose, rcopyMessage(rcopyClose, 0, nil))
}

// rcopyServer receives a file. The local name is given by an option, whatever name the client
// sends.
func (t *cmTool) rcopyServer(s *rsock) error {
	name, start := "", time.Now()
	for {
		cmd, _, more, err := recvRcopy(s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case cmd == rcopyOpen:
			name = strings.TrimRight(string(more), "\x00")
		case cmd == rcopyWrite && len(more) == 8:
			n := binary.LittleEndian.Uint64(more)
			if n > 1<<30 {
				return fmt.Errorf("the peer's file has %d bytes, more than 1 GiB", n)
			}
			data := make([]byte, n)
			if _, err := io.ReadFull(s, data); err != nil {
				return err
			}
			if err := os.WriteFile(t.o.file, data, 0o644); err != nil {
				return err
			}
			t.rate(1, len(data), start, name+" is in "+t.o.file)
		case cmd != rcopyClose:
			return fmt.Errorf("the peer's command %d is none of rcopy", cmd)
		}
		_, err = s.Write(rcopyMessage(cmd|rcopyResp, 0, nil))
		if cmd == rcopyClose && t.over(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
