package main

const usage = `usage: dcqcn [-scenario LIST] [-preset LIST] [-n N] [-rate G] [-ms T] [-kmin KB]
             [-kmax KB] [-pmax PERCENT] [-pfc=false] [-seed N] [-json] [-o FILE.svg]

Simulates DCQCN and PFC with RDMA WRITEs over reliable connections, 4 KiB packets,
through switches, and prints rates, fairness, queues, and what it took.

  -scenario LIST  some of these, or all (default all)
      incast      N hosts send to one without end
      converge    two hosts share a link; the second comes later
      burst       one flow without end; N hosts send 64 KiB each to the same
                  receiver once in 5 ms
      victim      N hosts send to one behind another switch; a quarter of the run
                  later comes a flow that shares the link between the switches
                  with them, but goes to an idle host: it suffers from the pauses
  -preset LIST    some of these, or all (default all)
      off         no congestion control, PFC alone
      paper       DCQCN with the values of the SIGCOMM 2015 paper
      nvidia      DCQCN as ConnectX cards have it, with their defaults
  -n N            senders, 1 to 256 (default 8)
  -rate G         Gb/s of each host's link (default 40)
  -ms T           virtual milliseconds (default: incast 60, converge 200, burst 60,
                  victim 60)
  -kmin, -kmax, -pmax   where a switch queue begins to mark, where it marks all, in
                  kilobytes, and the percentage at kmax (default 5, 200, 1)
  -pfc=false      let switches drop instead of pausing
  -seed N         another seed, another run; the same seed, the same (default 1)
  -json           a JSON object a line for each run instead of the tables
  -o FILE.svg     also draw rates and queue over time; with several scenarios
                  FILE-incast.svg and so on
  -h              this text

Goodput, fairness and queue are those of the second half of the run; the counts
and message times of the whole of it. Jain's index is 1 when all flows get the
same; it is the mean over windows of a millisecond (burst: 5 ms). Queue lengths are
those of the congested output, sampled every 10 us. Message times go from post to
completion, for messages of 1 MiB (burst: 64 KiB).

Exit code: 0 good; 1 a flow failed; 2 bad usage, or a file that cannot be written.
`
