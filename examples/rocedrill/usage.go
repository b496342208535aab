package main

import (
	"flag"
	"fmt"
	"io"
)

const help = `Rocedrill sits across the wire from a RoCE v2 device and asks it, rule by rule, whether it
follows the transport: packet scripts are played against it, and what it sends, completes
and remembers is compared with what the rules say. It prints a report card.

Three ways to reach a device:

  its own host runs drill-agent (one C file over libibverbs, see agent/drill-agent.c),
  which posts what it is told and says what completed. All groups but cm and programs:
      rocedrill -packet eth1 -ip 192.0.2.1 -dut 192.0.2.2 -agent 192.0.2.20:7175

  its own host runs a program of rdma-core that takes connections, unchanged: rping -s -P
  or rdma_server. The groups cm and programs:
      rocedrill -packet eth1 -ip 192.0.2.1 -dut 192.0.2.2 -cm 192.0.2.2:7174

  this module's own port in this process, in virtual time. All groups, in a second:
      rocedrill

-ip is an address that no host has: this program answers ARP for it itself. -list shows the
scripts, -explain NAME what one is about and what it says, -only chooses.

Verdicts: "follows"; "deviates", with the statement that did not hold and what came instead;
"not applicable", for want of something at the device or of a way to it; "not reached", where
the script could not be played. A deviation is tried three times, and counts when it is seen
at least twice.

Exit codes: 0 no deviation but those of -baseline, 1 a new deviation, 2 misuse, or nothing
could be run.

`

func usage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprint(w, help)
	fs.PrintDefaults()
}
