package main

const usage = `usage: congestion [-scenario LIST] [-control LIST] [-n N] [-mtu M] [-rate G] [-ms T]
                  [-kmin KB] [-kmax KB] [-pmax PERCENT] [-pfc=false] [-selective]
                  [-seed N] [-json] [-shard I/N] [-o FILE.svg]

Simulates congestion controls side by side, with RDMA messages over reliable
connections through switches, and prints rates, fairness, queues, message times, and
what it took.

  -scenario LIST  some of these, or all (default all)
      incast      N hosts send to one without end
      converge    two hosts share a link; the second comes later
      burst       one flow without end; N hosts send 64 KiB each to the same
                  receiver once in 5 ms
      parking     a long flow over three links in a row; each link carries a flow of
                  its own as well
      unfair      N hosts behind one link and one host beside the receiver send to
                  it: pauses hold back links, not flows
      victim      N hosts send to one behind another switch; a quarter of the run
                  later comes a flow that shares the link between the switches
                  with them, but goes to an idle host: it suffers from the pauses
      allreduce   N hosts in two racks, each neighbour in the other one, sum up 8 MiB
                  around a ring, over and over
      websearch   32 hosts in 4 racks send messages of the sizes of a web search
                  cluster to each other, at half of their links' rate
      mixed       54 hosts in a fat tree whose switches have 120 KB of buffer for
                  each port send messages of one packet up to 3 MB to each other,
                  at 70 % of their links' rate
  -control LIST   some of these, or all (default off,dcqcn,hpcc,swift,timely)
      off         no congestion control, only PFC
      dcqcn       DCQCN with the values of the SIGCOMM 2015 paper
      nvidia      DCQCN as ConnectX-5 and 6 Dx have it, with their defaults
      ns3         what the ns-3 code of HPCC calls DCQCN
      hpcc        HPCC: switches write their queues and rates into packets
      swift       Swift: a target for the round trip time
      timely      TIMELY: the gradient of the round trip time
  -n N            senders, 1 to 256 (default 8)
  -mtu M          path MTU, bytes (default 1024: the paper's thresholds are for
                  packets of 1 KB)
  -rate G         Gb/s of each host's link (default 40; allreduce, websearch 100)
  -ms T           virtual milliseconds (default: converge 200, allreduce 10,
                  websearch, mixed 8, others 60)
  -kmin, -kmax, -pmax   where a switch queue begins to mark, where it marks all, in
                  kilobytes, and the percentage at kmax (default up to 40 Gb/s 5, 200,
                  1; above 100 and 400 for each 25 Gb/s, 20)
  -pfc=false      let switches drop instead of pausing
  -selective      connections retransmit only what is lost, instead of going back
  -seed N         seed of the run: the same seed gives the same run (default 1)
  -json           a JSON object a line for each run instead of the tables
  -shard I/N      only runs I, I+N, I+2N ... of those that the options give, for many
                  machines: lines of all N shards put together are those of one
                  run without it (in the order of "point")
  -o FILE.svg     also draw it; with several scenarios FILE-incast.svg and so on
  -h              this text

Goodput, fairness and queue are those of the second half of the run; the counts
and message times of the whole of it. Jain's index is 1 when all flows get the
same; it is the mean over windows of a millisecond (burst: 5 ms). Queue lengths are
those of the congested output, sampled every 10 us. Message times go from post to
completion, for messages of 1 MiB (burst: 64 KiB). Goodput of allreduce is what a host
sends in a round over its time. A slowdown is the time of a message over what it would
take on an empty network.

Acknowledgements and CNPs have a priority of their own.

Exit code: 0 good; 1 a flow failed; 2 bad usage, or a file that cannot be written.
`
