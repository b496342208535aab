// Command echo shows qp/endpoint: a server that returns what it receives, and a client, each
// a RoCE v2 endpoint on its own UDP socket, without any privilege.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
)

const usage = `usage: echo [-server ADDRESS] [-client ADDRESS] [-to ADDRESS:PORT] [-n N]

Two RoCE v2 endpoints in one process, on UDP port 4791 of two loopback addresses: the
client connects by RDMA-CM, sends N messages which the server returns, writes to the
server's memory by RDMA WRITE, and reads it back by RDMA READ.

With -client "" only the server runs, until it is interrupted; with -server "" only the
client, towards -to. Both may then be on hosts of their own, and either may be another
program: any RDMA-CM client can talk to the server.

options:
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("echo", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	server := fs.String("server", "127.0.0.2", "IP `address` of the server's socket; empty: no server here")
	client := fs.String("client", "127.0.0.3", "IP `address` of the client's socket; empty: no client here")
	to := fs.String("to", "", "`address:port` that the client connects to; empty: the server here")
	n := fs.Int("n", 3, "`number` of messages, 1 or more")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	switch {
	case fs.NArg() != 0:
		fmt.Fprintln(stderr, "echo: there are no arguments beside the options; see -h")
		return 2
	case *n < 1:
		fmt.Fprintf(stderr, "echo: -n is %d, want 1 or more\n", *n)
		return 2
	case *client != "" && *server == "" && *to == "":
		fmt.Fprintln(stderr, "echo: -server is empty: say with -to where the client connects to")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := both(ctx, *server, *client, *to, *n, stdout); err != nil {
		fmt.Fprintln(stderr, "echo:", err)
		return 1
	}
	return 0
}

func both(ctx context.Context, server, client, to string, n int, stdout io.Writer) error {
	if server != "" {
		ep, err := endpoint.Open(endpoint.UDP(server))
		if err != nil {
			return err
		}
		defer ep.Close()
		l, err := ep.Listen(ctx, ":7174", nil)
		if err != nil {
			return err
		}
		mr, err := ep.Register(make([]byte, 4096), qp.RemoteRead|qp.RemoteWrite)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "server: %s port 7174\n", server)
		if client == "" {
			return serve(ctx, l, mr)
		}
		go serve(ctx, l, mr)
		if to == "" {
			to = server + ":7174"
		}
	}
	ep, err := endpoint.Open(endpoint.UDP(client))
	if err != nil {
		return err
	}
	defer ep.Close()
	return ask(ctx, ep, to, n, stdout)
}

// serve sends each client the address and key of the memory, and then returns what it
// receives.
func serve(ctx context.Context, l *endpoint.Listener, mr *endpoint.MR) error {
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			return nil // interrupted, or closed
		}
		go func() {
			defer c.Close()
			where, _ := mr.Remote().MarshalBinary()
			if c.Send(ctx, where) != nil {
				return
			}
			buf := make([]byte, 65536)
			for {
				n, err := c.Recv(ctx, buf)
				if err != nil || c.Send(ctx, buf[:n]) != nil {
					return
				}
			}
		}()
	}
}

func ask(ctx context.Context, ep *endpoint.Endpoint, to string, n int, stdout io.Writer) error {
	c, err := ep.Dial(ctx, to, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintf(stdout, "client: connected to %v, QP %#06x\n", c.RemoteAddr(), c.QP())
	buf := make([]byte, 65536)
	k, err := c.Recv(ctx, buf)
	if err != nil {
		return err
	}
	var remote endpoint.Remote
	if err := remote.UnmarshalBinary(buf[:k]); err != nil {
		return err
	}
	for i := range n {
		start := time.Now()
		if err := c.Send(ctx, fmt.Appendf(nil, "message %d", i+1)); err != nil {
			return err
		}
		k, err := c.Recv(ctx, buf)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "client: %q returned after %v\n", buf[:k], time.Since(start).Round(time.Microsecond))
	}
	data := []byte("written and read by RDMA")
	if err := c.WriteRemote(ctx, remote, data); err != nil {
		return err
	}
	if err := c.ReadRemote(ctx, buf[:len(data)], remote); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "client: %q\n", buf[:len(data)])
	return nil
}
