package main

const defaultLosses = "0,0.001,0.003,0.01,0.02,0.05,0.1,0.2,0.5,1,2,3,5,7.5,10"

const usage = `usage: lossy [-mtu LIST] [-size LIST] [-loss LIST] [-timeout N] [-packets N]
             [-seed N] [-json] [-o FILE.svg]

Measures the goodput of RDMA WRITEs over a reliable connection on a virtual link
of 100 Gb/s and 2 us each way that loses packets in both directions. Prints a
table, the same by a model, and where each curve falls to half.

Connections go back to the lost packet, as RoCE has it; one curve for each MTU
retransmits only what is lost (selective repeat, rules SR-1 to SR-6).

  -mtu LIST     path MTUs, bytes (default 256,1024,4096)
  -size LIST    message sizes, bytes, K and M for binary thousands and millions
                (default 512,16K,1M)
  -loss LIST    percent of packets lost, 0 to 10
                (default ` + defaultLosses + `)
  -timeout N    acknowledgement timeout code: 4.096 us x 2^N
                (default 14, 67 ms, as the perftest tools have it)
  -packets N    packets of data to deliver for a point (default 100000); from
                0.02 % loss on up to 8 times as many, until there were 30
                timeouts or the goodput is known to 10 %: timeouts are rare and
                long, and a point with few of them is not reliable. It has
                a ? in the table, and its bounds in -json
  -seed N       seed of the run: the same seed gives the same run (default 1)
  -json         a JSON object a line for each point instead of the table
  -o FILE.svg   also draw the curves
  -h            this text

Goodput is message bytes delivered in order over virtual time, in Gb/s.

Exit code: 0 all transfers went through; 1 one failed; 2 bad usage, or a file that
cannot be written.
`
