package endpoint

import (
	"context"
	"io"
)

// Stream returns a byte stream over a connection; both ends must use it. What is written is
// sent in messages of at most RecvSize bytes. Reads and writes end with ctx.
func (c *Conn) Stream(ctx context.Context) io.ReadWriteCloser {
	return &stream{c: c, ctx: ctx, buf: make([]byte, c.cfg.RecvSize)}
}

type stream struct {
	c    *Conn
	ctx  context.Context
	buf  []byte
	rest []byte // of the last message
}

func (s *stream) Read(b []byte) (int, error) {
	for len(s.rest) == 0 {
		if len(b) == 0 {
			return 0, nil
		}
		n, err := s.c.Recv(s.ctx, s.buf)
		if err != nil {
			return 0, err
		}
		s.rest = s.buf[:n]
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *stream) Write(b []byte) (n int, err error) {
	for len(b) != 0 {
		k := min(len(b), len(s.buf))
		if err := s.c.Send(s.ctx, b[:k]); err != nil {
			return n, err
		}
		n, b = n+k, b[k:]
	}
	return n, nil
}

func (s *stream) Close() error { return s.c.Close() }
