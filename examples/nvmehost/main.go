// Command nvmehost is an NVMe over RDMA host in user space: it connects to a target, such as
// Linux's nvmet-rdma or the nvmetarget example, prints what the target has, and writes, reads
// and compares, over qp/endpoint.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp/endpoint"
)

const usage = `usage: nvmehost WIRE -to ADDRESS:PORT [option...]

An NVMe over RDMA host. It asks the target's discovery subsystem what there is, connects
to the subsystem that -nqn names, or the first one, and says what disk it has. With
-verify it writes a part of the disk WITH DATA OF ITS OWN, in random pieces of 1 block to
-max bytes, -depth at once, reads each piece back some time later, and in the end all of
it, and compares: what was there is lost.

` + wire.Usage + `
Exit codes: 0 good, 1 something went wrong or data differ, 2 bad usage.

options:
`

type options struct {
	wire          wire.Flags
	to, nqn, host string
	verify        int64
	max, depth    int
	queues, n     int
	seed          uint64
	limit         time.Duration
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("nvmehost", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	o.wire.Register(fs)
	fs.StringVar(&o.to, "to", "", "the target's `address:port`; without a port, 4420")
	fs.StringVar(&o.nqn, "nqn", "", "the subsystem's `name`; empty: the first that discovery lists")
	fs.StringVar(&o.host, "hostnqn", "nqn.2014-08.org.nvmexpress:uuid:00112233-4455-4677-8899-aabbccddeeff", "this host's `name`")
	fs.Int64Var(&o.verify, "verify", 0, "write and compare so many `bytes` from the disk's beginning on")
	fs.IntVar(&o.max, "max", 131072, "most `bytes` of a command, 512 to 1048576")
	fs.IntVar(&o.depth, "depth", 16, "`commands` at once on a queue, 1 to 512")
	fs.IntVar(&o.queues, "queues", 1, "I/O `queues`, 1 to 64")
	fs.IntVar(&o.n, "n", 500, "`number` of commands with -verify")
	fs.Uint64Var(&o.seed, "data", 1, "`number` that data and pieces follow from")
	fs.DurationVar(&o.limit, "limit", 5*time.Minute, "longest `time` for all of it")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := o.check(fs.NArg()); err != nil {
		fmt.Fprintln(stderr, "nvmehost:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if err := o.do(ctx, stdout, stderr); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: it was not done in the time of -limit, %v; if nothing was received at all, is the address right, and is a target there?", err, o.limit)
		}
		fmt.Fprintln(stderr, "nvmehost:", err)
		return 1
	}
	return 0
}

func (o *options) check(args int) error {
	if args != 0 {
		return errors.New("there are no arguments beside the options; see -h")
	}
	if a, err := netip.ParseAddr(o.to); err == nil {
		o.to = netip.AddrPortFrom(a, nvme.Port).String()
	} else if _, err := netip.ParseAddrPort(o.to); err != nil {
		return fmt.Errorf("-to %q: want ADDRESS:PORT", o.to)
	}
	for _, v := range []struct {
		flag           string
		is, least, max int
	}{{"-max", o.max, 512, 1 << 20}, {"-depth", o.depth, 1, 512}, {"-queues", o.queues, 1, 64}, {"-n", o.n, 1, 1 << 30}} {
		if v.is < v.least || v.is > v.max {
			return fmt.Errorf("%s %d: want %d to %d", v.flag, v.is, v.least, v.max)
		}
	}
	if o.verify < 0 {
		return fmt.Errorf("-verify %d: want 0 or more", o.verify)
	}
	return nil
}

func (o *options) do(ctx context.Context, stdout, stderr io.Writer) (err error) {
	ep, closing, err := o.wire.Open(endpoint.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()
	cfg := nvme.HostConfig{NQN: o.nqn, HostNQN: o.host, HostID: [16]byte([]byte("nvmehost of roce")), Queues: o.queues, Depth: o.depth + 1,
		Alive: 10 * time.Second, Conn: endpoint.ConnConfig{Window: o.wire.Window()}}
	if cfg.NQN == "" {
		entries, err := nvme.Discover(ctx, ep, o.to, cfg)
		if err != nil {
			return err
		}
		for _, e := range entries {
			fmt.Fprintf(stdout, "discovery: %s at %v port %s\n", e.NQN, e.Addr, e.Port)
			if e.Type == 2 && cfg.NQN == "" {
				cfg.NQN = e.NQN
			}
		}
		if cfg.NQN == "" {
			return errors.New("the discovery log has no subsystem")
		}
	}
	h, err := nvme.Dial(ctx, ep, o.to, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	c := &h.Controller
	fmt.Fprintf(stdout, "controller %d: %s, serial %s, firmware %s, NVMe %d.%d, %d I/O queues of %d entries, up to %d bytes a command\n",
		c.CntlID, c.Model, c.Serial, c.Firmware, c.Version>>16, c.Version>>8&0xff, h.Queues(), cfg.Depth, h.MaxData())
	if h.NSID == 0 {
		return errors.New("the subsystem has no namespace")
	}
	fmt.Fprintf(stdout, "namespace %d: %d blocks of %d bytes\n", h.NSID, h.Namespace.Blocks, 1<<h.Namespace.BlockLog)
	if o.verify == 0 {
		return nil
	}
	return o.compare(ctx, h, stdout, stderr)
}

// disk holds the expected content of the part of the disk that is used: for each block the
// number of the write that wrote it last, 0 for none. Only one command at a time uses a
// block.
type disk struct {
	mu   sync.Mutex
	free sync.Cond
	gen  []uint64
	held []bool
}

// take waits until no block of a range is in use, and marks them as in use.
func (d *disk) take(at, n int) []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for slices.Contains(d.held[at:at+n], true) {
		d.free.Wait()
	}
	for i := range n {
		d.held[at+i] = true
	}
	return d.gen[at : at+n]
}

func (d *disk) give(at, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.held[at : at+n])
	d.free.Broadcast()
}

// fill fills a block with the data of write gen.
func fill(b []byte, seed, gen uint64, block int) {
	if gen == 0 {
		clear(b)
		return
	}
	r := rand.NewPCG(seed^gen, uint64(block))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

// compare writes and reads random ranges, and at the end reads everything.
func (o *options) compare(ctx context.Context, h *nvme.Host, stdout, stderr io.Writer) error {
	size := 1 << h.Namespace.BlockLog
	blocks := int(min(uint64(o.verify)>>h.Namespace.BlockLog, h.Namespace.Blocks))
	most := min(o.max, h.MaxData()) / size
	if blocks == 0 || most == 0 {
		return fmt.Errorf("-verify %d or -max %d are less than a block of %d bytes", o.verify, o.max, size)
	}
	most = min(most, blocks)
	d := &disk{gen: make([]uint64, blocks), held: make([]bool, blocks)}
	d.free.L = &d.mu
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var p *term.Progress
	if term.Is(stderr) {
		p = term.NewProgress(stderr, nil)
		defer p.Clear()
	}
	var next, moved, wrote atomic.Int64
	var progress sync.Mutex
	one := func(at, n int, write bool, number uint64) error {
		gens := d.take(at, n)
		defer d.give(at, n)
		want := make([]byte, n*size)
		for i := range gens {
			if write {
				gens[i] = number
			}
			fill(want[i*size:][:size], o.seed, gens[i], at+i)
		}
		moved.Add(int64(len(want)))
		if write {
			wrote.Add(1)
			return h.Write(ctx, uint64(at), want)
		}
		got := make([]byte, len(want))
		if err := h.Read(ctx, uint64(at), got); err != nil {
			return err
		}
		for i, g := range gens {
			if a, b := got[i*size:][:size], want[i*size:][:size]; !bytes.Equal(a, b) && g != 0 {
				return fmt.Errorf("block %d does not hold what write %d put there", at+i, g)
			}
		}
		return nil
	}
	start := time.Now()
	var wg sync.WaitGroup
	for range o.depth * h.Queues() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := next.Add(1)
				if i > int64(o.n) || ctx.Err() != nil {
					return
				}
				r := rand.New(rand.NewPCG(o.seed, uint64(i)))
				n := 1 + r.IntN(most)
				if err := one(r.IntN(blocks-n+1), n, r.IntN(2) == 0, uint64(i)); err != nil {
					cancel(err)
					return
				}
				progress.Lock()
				p.Update("verify", i, int64(o.n), int(wrote.Load()), "writes")
				progress.Unlock()
			}
		}()
	}
	wg.Wait()
	if ctx.Err() == nil {
		if err := h.Flush(ctx); err != nil {
			return err
		}
	}
	for at := 0; at < blocks && ctx.Err() == nil; at += most {
		if err := one(at, min(most, blocks-at), false, 0); err != nil {
			cancel(err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	took := time.Since(start)
	fmt.Fprintf(stdout, "verified: %d commands, %d of them writes, and all of %d blocks; %.1f MB in %v, %.2f MB/s\n",
		o.n, wrote.Load(), blocks, float64(moved.Load())/1e6, took.Round(time.Millisecond), float64(moved.Load())/1e6/took.Seconds())
	return nil
}
