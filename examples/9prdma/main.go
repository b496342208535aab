// Command 9prdma serves a folder by 9P2000.L over RDMA, over qp/endpoint: Linux mounts it
// with trans=rdma. It is a module of its own, because it uses a 9P server of another project.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hugelgupf/p9/p9"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

const usage = `usage: 9prdma WIRE -root FOLDER [option...]

Serves a folder by 9P2000.L over RDMA, at port 5640. A Linux host mounts it with
  modprobe -a 9pnet_rdma 9p
  mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,msize=65536 ADDRESS /mnt
(IPv4 only: Linux's client of 9P over RDMA knows no other address.) Whoever reaches the
program may do with the folder what the program may, and with nothing outside of it:
nobody is authenticated. Folders that others are mounted on belong to it.

` + wire.Usage + `
options:
`

// tversion is the type of the first message of a session.
const tversion = 100

// port is 9P's in RDMA-CM's TCP port space.
const port = 5640

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("9prdma", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	var w wire.Flags
	w.Register(fs)
	srv := &server{patience: 10 * time.Second}
	root := fs.String("root", "", "`folder` to serve")
	fs.IntVar(&srv.most, "conns", 16, "most `mounts` at once, 1 to 1000; each has 32 messages of -msize bytes of memory")
	fs.IntVar(&srv.msize, "msize", 1<<20, "longest message in `bytes`, 4096 to 1048576; hosts that mount with more get so many")
	limit := fs.Duration("for", 0, "`time` to serve; 0: until interrupted")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	info, err := os.Stat(*root)
	if err != nil {
		err = fmt.Errorf("-root: %w", err)
	}
	switch {
	case fs.NArg() != 0:
		err = errors.New("there are no arguments beside the options; see -h")
	case *root == "":
		err = errors.New("-root: name a folder")
	case err == nil && !info.IsDir():
		err = fmt.Errorf("-root: %s is no folder", *root)
	case srv.msize < 4096 || srv.msize > 1<<20:
		err = fmt.Errorf("-msize %d: want 4096 to %d", srv.msize, 1<<20)
	case srv.most < 1 || srv.most > 1000:
		err = fmt.Errorf("-conns %d: want 1 to 1000", srv.most)
	}
	if err != nil {
		fmt.Fprintln(stderr, "9prdma:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *limit != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *limit)
		defer cancel()
	}
	ep, closing, err := w.Open(endpoint.Config{})
	if err == nil {
		syscall.Umask(0) // clients give the permissions of a new file
		fmt.Fprintf(stdout, "9prdma: %s at %v port %d\n", *root, ep.Addrs(), port)
		srv.window = w.Window()
		err = errors.Join(srv.serve(ctx, ep, *root), closing())
	}
	if err != nil {
		fmt.Fprintln(stderr, "9prdma:", err)
		return 1
	}
	return 0
}

// server holds what all connections share.
type server struct {
	most, msize, window int           // limits: connections, bytes of a message, packets in flight
	patience            time.Duration // interval at which a client is probed
	conns               atomic.Int64
}

// serve accepts connections until the context ends.
func (srv *server) serve(ctx context.Context, ep *endpoint.Endpoint, root string) error {
	folder, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer folder.Close()
	files := p9.NewServer(tree{folder})
	// Each side has requests outstanding, and posts receives for their responses in advance.
	l, err := ep.Listen(ctx, fmt.Sprintf(":%d", port), &endpoint.ListenConfig{ConnConfig: endpoint.ConnConfig{RecvDepth: requests, RecvSize: srv.msize, Window: srv.window},
		Backlog: srv.most, Decide: func(*endpoint.Request) error {
			if srv.conns.Load() >= int64(srv.most) {
				return &endpoint.RejectedError{Reason: cm.ReasonNoResources}
			}
			return nil
		}})
	if err != nil {
		return err
	}
	defer l.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if srv.conns.Add(1) > int64(srv.most) { // several requests at the same time may have passed Decide
			srv.conns.Add(-1)
			c.Close()
			continue
		}
		all.Add(1)
		go func() {
			defer func() { srv.conns.Add(-1); all.Done() }()
			go srv.lookAfter(c)
			s := &stream{ctx: ctx, conn: c, buf: make([]byte, srv.msize), asked: make(chan struct{}, requests)}
			_ = files.Handle(s, s)
		}()
	}
}

// lookAfter detects a client that is gone without a disconnect: it posts an empty WRITE now
// and then, which a client that is still there acknowledges.
func (srv *server) lookAfter(c *endpoint.Conn) {
	tick := time.NewTicker(srv.patience)
	defer tick.Stop()
	for {
		select {
		case <-c.Done():
			return
		case <-tick.C:
			_ = c.Post(qp.SendWR{Op: qp.OpWrite}, nil)
		}
	}
}

// requests is the maximum number of outstanding requests of a client.
const requests = 32

// stream is the byte stream of a connection, whose messages are one 9P message each.
type stream struct {
	ctx  context.Context
	conn *endpoint.Conn
	buf  []byte
	in   []byte // received and not read
	out  []byte // written, but not yet a whole message
	// asked has an element for each request without a response, at a server: if it is full,
	// no more requests are received.
	asked chan struct{}
}

// Read reads from the last message received, or from the next one.
func (s *stream) Read(b []byte) (int, error) {
	for len(s.in) == 0 {
		if s.asked != nil {
			select {
			case s.asked <- struct{}{}:
			case <-s.conn.Done():
				return 0, io.EOF
			}
		}
		n, err := s.conn.Recv(s.ctx, s.buf)
		if err != nil {
			return 0, err
		}
		s.in = s.buf[:n]
		// Tversion contains the maximum message size. It must not exceed the size of a
		// receive here.
		if n >= 11 && s.in[4] == tversion && binary.LittleEndian.Uint32(s.in[7:]) > uint32(len(s.buf)) {
			binary.LittleEndian.PutUint32(s.in[7:], uint32(len(s.buf)))
		}
	}
	n := copy(b, s.in)
	s.in = s.in[n:]
	return n, nil
}

// Write sends a message once it is complete: its first four bytes are its length.
func (s *stream) Write(b []byte) (int, error) {
	s.out = append(s.out, b...)
	for len(s.out) >= 4 {
		n := binary.LittleEndian.Uint32(s.out)
		if n < 7 || n > uint32(len(s.buf)) {
			return 0, fmt.Errorf("a message of %d bytes, want 7 to %d", n, len(s.buf))
		}
		if uint32(len(s.out)) < n {
			break
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		err := s.conn.Send(ctx, s.out[:n])
		cancel()
		if s.asked != nil {
			<-s.asked
		}
		if err != nil {
			s.conn.Close()
			return 0, err
		}
		s.out = append(s.out[:0], s.out[n:]...)
	}
	return len(b), nil
}

// Close ends the connection.
func (s *stream) Close() error { return s.conn.Close() }
