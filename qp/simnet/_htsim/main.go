// Command htsim measures simnet beside htsim, a packet simulator in C++ without
// transport machines, on the same work: an incast of 32 hosts to one, 20 MB each in
// packets of 4 KiB, over a three-tier fat tree of 128 hosts, 100 Gb/s and 1 us a link,
// with PFC and without rate control.
//
//	go run ./qp/simnet/_htsim [-htsim PATH] [-rounds N]
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/simnet/lab"
)

const senders, size = 32, 20_000_000

const howTo = `htsim is not measured: give -htsim the path of its program htsim_roce. To build it:

  git clone https://github.com/Broadcom/csg-htsim
  make -C csg-htsim/sim && make -C csg-htsim/sim/datacenter htsim_roce
  go run ./qp/simnet/_htsim -htsim csg-htsim/sim/datacenter/htsim_roce
`

func main() {
	htsim := flag.String("htsim", "", "path of `htsim_roce`; without it simnet is measured alone")
	rounds := flag.Int("rounds", 3, "how often each is run, in turn; the least time counts")
	one := flag.String("one", "", "run simnet with this carry, once (what the command does with itself)")
	flag.Parse()
	if *one != "" {
		if err := run(*one); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := measure(*htsim, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func sender(i int) int { return 4*i + 3 }

func run(carry string) error {
	c, ok := map[string]simnet.Carry{"bytes": simnet.Bytes, "decoded": simnet.Decoded, "shared": simnet.Shared}[carry]
	if !ok {
		return fmt.Errorf("-one %s: want bytes, decoded or shared", carry)
	}
	f, err := lab.Topology{
		Network: simnet.Config{Seed: 1, Carry: c},
		Switch:  simnet.SwitchConfig{Lossless: 1 << 3, XOFF: 15 * 4096, XON: 12 * 4096}, // as htsim
	}.FatTree(8)
	if err != nil {
		return err
	}
	var flows []*simnet.Flow
	for i := range senders {
		x, err := f.AddFlow(simnet.FlowConfig{
			From: f.Hosts()[sender(i)], To: f.Hosts()[0], Op: qp.OpWrite, Size: size, Count: 1,
			Conn: simnet.ConnConfig{DSCP: 26, RetryForever: true, Timeout: 20},
		})
		if err != nil {
			return err
		}
		flows = append(flows, x)
	}
	if _, err := f.RunUntilIdle(time.Second); err != nil {
		return err
	}
	for _, x := range flows {
		if !x.Done() {
			return fmt.Errorf("flow %s is not done", x.Name())
		}
	}
	fmt.Printf("%.3f %d\n", float64(f.Elapsed())/1e6, f.Hops())
	return nil
}

// cpu runs a command in a directory and returns its processor time and output.
func cpu(dir, name string, args ...string) (time.Duration, string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir // htsim leaves files there
	out, err := cmd.Output()
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", name, err)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), string(out), nil
}

func measure(htsim string, rounds int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "htsim")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	matrix := filepath.Join(dir, "incast.cm")
	var b strings.Builder
	fmt.Fprintf(&b, "Nodes 128\nConnections %d\n", senders)
	for i := range senders {
		fmt.Fprintf(&b, "%d->0 id %d start 0 size %d\n", sender(i), i+1, size)
	}
	if err := os.WriteFile(matrix, []byte(b.String()), 0o600); err != nil {
		return err
	}
	names := []string{"shared", "decoded", "bytes"}
	if htsim != "" {
		if htsim, err = filepath.Abs(htsim); err != nil {
			return err
		}
		names = append(names, "htsim")
	}
	least, virtual := make(map[string]time.Duration), make(map[string]string)
	for range rounds {
		for _, name := range names {
			var t time.Duration
			var out string
			if name == "htsim" {
				t, out, err = cpu(dir, htsim, "-nodes", "128", "-tiers", "3", "-tm", matrix, "-strat", "ecmp_host", "-paths", "64",
					"-linkspeed", "100000", "-mtu", "4096", "-hop_latency", "1", "-q", "200", "-end", "100000",
					"-o", filepath.Join(dir, "log"))
				if n := strings.Count(out, " finished at "); err == nil && n != senders {
					err = fmt.Errorf("htsim finished %d flows of %d", n, senders)
				}
				virtual[name] = lastFinish(out)
			} else {
				t, out, err = cpu(dir, self, "-one", name)
				virtual[name] = strings.Fields(out + " ?")[0]
			}
			if err != nil {
				return err
			}
			if least[name] == 0 || t < least[name] {
				least[name] = t
			}
		}
	}
	fmt.Printf("%-16s %12s %12s %10s\n", "", "processor s", "virtual ms", "of htsim")
	for _, name := range names {
		ratio := "-"
		if h := least["htsim"]; h != 0 {
			ratio = fmt.Sprintf("%.2f", float64(least[name])/float64(h))
		}
		label := "simnet " + name
		if name == "htsim" {
			label = name
		}
		fmt.Printf("%-16s %12.2f %12s %10s\n", label, least[name].Seconds(), virtual[name], ratio)
	}
	if htsim == "" {
		fmt.Print("\n", howTo)
	}
	return nil
}

// lastFinish returns when the last flow finished, in milliseconds.
func lastFinish(out string) string {
	last := 0.0
	for _, line := range strings.Split(out, "\n") {
		if _, at, ok := strings.Cut(line, " finished at "); ok {
			us := 0.0
			if _, err := fmt.Sscan(at, &us); err == nil && us > last {
				last = us
			}
		}
	}
	return fmt.Sprintf("%.3f", last/1000)
}
