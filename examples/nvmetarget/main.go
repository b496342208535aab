// Command nvmetarget is an NVMe over RDMA target in user space: a disk in memory or in a
// file, to which a Linux host connects like to any other target, over qp/endpoint.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

const usage = `usage: nvmetarget WIRE [option...]

An NVMe over RDMA target: one subsystem with one namespace, in memory or with -file in a
file, and the discovery subsystem, at port 4420. A Linux host uses it with
  modprobe nvme-rdma
  nvme discover -t rdma -a ADDRESS -s 4420
  nvme connect  -t rdma -a ADDRESS -s 4420 -n NQN
and finds a disk /dev/nvmeXn1. nvmehost, beside this program, is another host.

` + wire.Usage + `
With SIGHUP the program reads the file's size again: hosts are notified, and their disk
grows (truncate -s +1G disk.img; kill -HUP PID).
The program ends on an interrupt, after it has flushed the file, and says what it did.
On a terminal it shows every second what it receives.

options:
`

type options struct {
	config
	wire     wire.Flags
	file     string
	sizeText string
	portNum  int
	block    int
	picture  string
	dur      time.Duration
	verbose  bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("nvmetarget", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	o.wire.Register(fs)
	fs.StringVar(&o.nqn, "nqn", "nqn.2014-08.org.nvmexpress:uuid:0f0e0d0c-0b0a-4908-8706-050403020100", "the subsystem's `name`")
	fs.StringVar(&o.serial, "serial", "1", "the subsystem's serial `number`, 20 characters at most")
	fs.IntVar(&o.portNum, "port", nvme.Port, "`port` of RDMA-CM")
	fs.StringVar(&o.file, "file", "", "`file` that holds the namespace; empty: memory")
	fs.StringVar(&o.sizeText, "size", "", "`bytes` of the namespace, with K, M or G behind; empty: of the file, or 64M")
	fs.IntVar(&o.block, "block", 512, "`bytes` of a block: 512 or 4096")
	fs.IntVar(&o.queues, "queues", 8, "most I/O `queues` of a host, 1 to 128")
	fs.IntVar(&o.depth, "depth", 128, "most `entries` of an I/O queue, 2 to 1024")
	fs.IntVar(&o.inline, "inline", 8192, "`bytes` of data that a command may carry, a multiple of 16, 0 to 16384")
	fs.IntVar(&o.maxData, "maxdata", 1<<20, "most `bytes` of a read or write: 8192 to 1048576, a power of two")
	fs.IntVar(&o.conns, "conns", 256, "most `queues` of all hosts together, 1 to 4000")
	fs.StringVar(&o.picture, "svg", "", "`file` for a picture of commands, data and latency over time")
	fs.DurationVar(&o.dur, "for", 0, "`time` to serve; 0: until interrupted")
	fs.BoolVar(&o.verbose, "v", false, "say which hosts come and go, and what is refused")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() != 0 {
		fmt.Fprintln(stderr, "nvmetarget: there are no arguments beside the options; see -h")
		return 2
	}
	if err := o.check(); err != nil {
		fmt.Fprintln(stderr, "nvmetarget:", err)
		return 2
	}
	if err := o.serve(stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "nvmetarget:", err)
		return 1
	}
	return 0
}

// check finds wrong options before anything is opened.
func (o *options) check() error {
	for _, v := range []struct {
		flag           string
		is, least, max int
	}{{"-port", o.portNum, 1, 65535}, {"-queues", o.queues, 1, 128}, {"-depth", o.depth, 2, 1024}, {"-inline", o.inline, 0, 16384},
		{"-maxdata", o.maxData, 8192, 1 << 20}, {"-conns", o.conns, 1, 4000}, {"-serial", len(o.serial), 1, 20}, {"-nqn", len(o.nqn), 1, 223}} {
		if v.is < v.least || v.is > v.max {
			return fmt.Errorf("%s %d: want %d to %d", v.flag, v.is, v.least, v.max)
		}
	}
	switch {
	case o.inline%16 != 0:
		return fmt.Errorf("-inline %d is no multiple of 16", o.inline)
	case o.maxData&(o.maxData-1) != 0:
		return fmt.Errorf("-maxdata %d is no power of two", o.maxData)
	case o.block != 512 && o.block != 4096:
		return fmt.Errorf("-block %d: want 512 or 4096", o.block)
	case o.nqn == nvme.DiscoveryNQN:
		return errors.New("-nqn: that is the discovery subsystem's")
	}
	o.blockLog = 9
	if o.block == 4096 {
		o.blockLog = 12
	}
	for 4096<<o.mdts < o.maxData {
		o.mdts++
	}
	o.config.port, o.config.window, o.config.patience = uint16(o.portNum), o.wire.Window(), 10*time.Second
	var err error
	if o.sizeText != "" {
		if o.size, err = parseSize(o.sizeText); err != nil {
			return fmt.Errorf("-size: %w", err)
		}
	}
	return nil
}

// parseSize reads a number of bytes like 64M.
func parseSize(s string) (int64, error) {
	unit := int64(1)
	for i, u := range []string{"K", "M", "G"} {
		if t, ok := strings.CutSuffix(strings.ToUpper(s), u); ok {
			s, unit = t, 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > (1<<46)/unit {
		return 0, fmt.Errorf("%q is no size: want 1 to 64T bytes, like 64M", s)
	}
	return n * unit, nil
}

func (o *options) open() (store, error) {
	var st store
	if o.file == "" {
		if o.size == 0 {
			o.size = 64 << 20
		}
		if o.size > 1<<34 {
			return nil, fmt.Errorf("-size %d in memory: at most 16G; take -file", o.size)
		}
		st = &memory{b: make([]byte, o.size)}
	} else {
		f, n, err := openFile(o.file, o.size)
		if err != nil {
			return nil, err
		}
		st, o.size = f, n
	}
	if o.size%int64(o.block) != 0 {
		st.Close()
		return nil, fmt.Errorf("the size of %d bytes is no number of blocks of %d", o.size, o.block)
	}
	return st, nil
}

func (o *options) serve(stdout, stderr io.Writer) error {
	st, err := o.open()
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	ep, closing, err := o.wire.Open(endpoint.Config{Logger: log, CM: cm.Config{MaxCalls: max(1024, 2*o.conns)}})
	if err != nil {
		st.Close()
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.dur != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.dur)
		defer cancel()
	}
	t := newTarget(o.config, st, log)
	l, err := t.listen(ctx, ep)
	if err != nil {
		return errors.Join(err, closing(), st.Close())
	}
	where := "memory"
	if f, ok := st.(*file); ok {
		where = o.file
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, syscall.SIGHUP)
		defer func() { signal.Stop(hup); close(hup) }()
		go func() {
			for range hup {
				if info, err := f.Stat(); err != nil {
					log.Error("size", "err", err)
				} else {
					t.resize(info.Size())
				}
			}
		}()
	}
	fmt.Fprintf(stdout, "nvmetarget: %s, %d blocks of %d bytes in %s, at %v port %d\n", o.nqn, o.size>>o.blockLog, o.block, where, ep.Addrs(), o.portNum)
	done := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		var line io.Writer
		if term.Is(stderr) {
			line = stderr
		}
		t.watch(line, done)
	}()
	err = t.serve(ctx, l)
	close(done)
	<-watching
	err = errors.Join(err, closing(), st.flush(), st.Close())
	t.summary(stdout)
	if o.picture != "" {
		err = errors.Join(err, t.picture(o.picture))
	}
	return err
}
