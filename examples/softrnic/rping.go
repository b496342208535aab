package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
)

// rping: the client sends the address of its text; the server READs it and sends a message;
// the client sends the address for the text; the server WRITEs it there and sends a message.
// Each message is 16 bytes, big-endian: address, key, length.

func rpingMessage(r roce.Remote, n int) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

func recvRping(ctx context.Context, c *roce.Conn) (r roce.Remote, err error) {
	b := make([]byte, 256)
	n, err := c.Recv(ctx, b)
	if err != nil {
		return r, err
	}
	if n != 16 {
		return r, errRping
	}
	return roce.Remote{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: binary.BigEndian.Uint32(b[12:])}, nil
}

// rpingServer serves until the client ends the connection.
func (t *cmTool) rpingServer(ctx context.Context, c *roce.Conn) error {
	for i := 0; ; i++ {
		from, err := recvRping(ctx, c)
		if errors.Is(err, io.EOF) {
			fmt.Fprintf(t.out, "%d rounds\n", i)
			return nil
		}
		if err != nil {
			return err
		}
		if from.Len > 1<<20 {
			return fmt.Errorf("%w: %d bytes", errRping, from.Len)
		}
		text := make([]byte, from.Len)
		if err := c.ReadRemote(ctx, text, from); err != nil {
			return err
		}
		if err := c.Send(ctx, rpingMessage(roce.Remote{}, 0)); err != nil {
			return err
		}
		to, err := recvRping(ctx, c)
		if err != nil {
			return err
		}
		if err := c.WriteRemote(ctx, to, text[:min(len(text), int(to.Len))]); err != nil {
			return err
		}
		// The client may end the connection as soon as it has received this: the
		// acknowledgement that we wait for may be lost then.
		if err := c.Send(ctx, rpingMessage(roce.Remote{}, 0)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// rpingClient does -n rounds and verifies the data that the server WRITEs.
func (t *cmTool) rpingClient(ctx context.Context) error {
	cfg := t.config()
	c, err := t.ep.Dial(ctx, t.to, &cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	t.conns = append(t.conns, c)
	fmt.Fprintf(t.out, "connected: %v, QP %#06x\n", c.RemoteAddr().Addr(), c.QP())
	n := t.size()
	source, err := t.ep.Register(make([]byte, n), qp.RemoteRead)
	if err != nil {
		return err
	}
	sink, err := t.ep.Register(make([]byte, n), qp.RemoteWrite)
	if err != nil {
		return err
	}
	for i := range t.o.n {
		text := fmt.Appendf(nil, "rdma-ping-%d: ", i)
		for k := 0; len(text) < n; k++ {
			text = append(text, 'A'+byte((i+k)%58))
		}
		text = text[:n]
		text[n-1] = 0
		copy(source.Bytes(), text)
		for _, mr := range []*roce.MR{source, sink} {
			if err := c.Send(ctx, rpingMessage(mr.Remote(), n)); err != nil {
				return err
			}
			if _, err := recvRping(ctx, c); err != nil {
				return err
			}
		}
		if !bytes.Equal(sink.Bytes(), text) {
			return fmt.Errorf("round %d: the text returned changed: %.40q", i, sink.Bytes())
		}
	}
	fmt.Fprintf(t.out, "%d rounds of %d bytes, all returned unchanged\n", t.o.n, n)
	return nil
}
