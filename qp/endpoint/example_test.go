package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
)

// ends opens the two ends of a wire in memory; a program has
// endpoint.Open(endpoint.UDP("192.0.2.10")) and the like.
func ends() (a, b *endpoint.Endpoint) {
	wa, wb := endpoint.Pair()
	a, _ = endpoint.Open(wa)
	b, _ = endpoint.Open(wb)
	return a, b
}

func ExampleEndpoint_Dial() {
	a, b := ends()
	defer a.Close()
	defer b.Close()
	ctx := context.Background()

	_, err := a.Dial(ctx, "192.0.2.2:7174", nil)
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED))

	l, _ := b.Listen(ctx, ":7174", nil)
	defer l.Close()
	c, err := a.Dial(ctx, "192.0.2.2:7174", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println("connected to", c.RemoteAddr())
	// Output:
	// true
	// connected to 192.0.2.2:7174
}

func ExampleEndpoint_Listen() {
	a, b := ends()
	defer a.Close()
	defer b.Close()
	ctx := context.Background()
	l, err := b.Listen(ctx, ":7174", &endpoint.ListenConfig{
		Decide: func(r *endpoint.Request) error { // optional
			if !r.Remote.Addr().IsPrivate() && r.Remote.Addr() != netip.MustParseAddr("192.0.2.1") {
				return errors.New("not from there")
			}
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		c, err := a.Dial(ctx, "192.0.2.2:7174", nil)
		if err == nil {
			_ = c.Send(ctx, []byte("hello"))
		}
	}()
	c, err := l.Accept(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 65536)
	n, err := c.Recv(ctx, buf)
	fmt.Printf("%q %v\n", buf[:n], err)
	// Output: "hello" <nil>
}

// Memory that the peer may reach: register it, and send the peer its key and address.
func ExampleEndpoint_Register() {
	_, b := ends()
	defer b.Close()
	mr, err := b.Register(make([]byte, 4096), qp.RemoteRead|qp.RemoteWrite)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer mr.Close()
	where, _ := mr.Remote().MarshalBinary() // for a message to the peer
	fmt.Println(len(where), "bytes")
	// Output: 16 bytes
}

func ExampleConn_WriteRemote() {
	a, b := ends()
	defer a.Close()
	defer b.Close()
	ctx := context.Background()
	mr, _ := b.Register(make([]byte, 4096), qp.RemoteRead|qp.RemoteWrite)
	_, _ = b.Listen(ctx, ":7174", nil)
	c, err := a.Dial(ctx, "192.0.2.2:7174", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	remote := mr.Remote() // a peer sends it in a message
	if err := c.WriteRemote(ctx, remote.At(100), []byte("hello")); err != nil {
		fmt.Println(err)
	}
	got := make([]byte, 5)
	if err := c.ReadRemote(ctx, got, remote.At(100)); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("%q\n", got)
	err = c.WriteRemote(ctx, remote.At(4090), []byte("too far out"))
	fmt.Println(errors.Is(err, syscall.EACCES))
	// Output:
	// "hello"
	// true
}
