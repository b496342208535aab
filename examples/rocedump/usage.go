package main

const usage = `usage: rocedump [-json] [-all] [-summary] [-port N] [-vxlan N,...]
                [-tunnels=false] [-mrc] FILE... | -i INTERFACE

Decodes every RoCE packet in pcap and pcapng files, gzip'ed or not, checks its
ICRC, and prints a line for each. FILE - is standard input.

Packets in tunnels and in copies that switches send (VXLAN, Geneve, GRE, GRETAP,
ERSPAN, NVIDIA's GRE 0x8949, MPLS, IP in IP, SRv6) are found too; the tunnels
stand at the end of the line, innermost first. Frames that a switch has cut are
read as far as they go, as those that the capture has cut.

  -json      print a JSON object a line instead of text
  -all       also show frames that are not RoCE, and PFC and PAUSE frames
  -summary   count instead: packets by opcode, service, destination QP and ICRC
             state, undecodable frames by reason, other frames by protocol; with
             -json an object for each file
  -i NAME    read from a network interface (Linux, as root) until Ctrl-C. The
             kernel must see the packets: a RNIC's own pass it by, so listen at
             a switch's mirror port
  -port N    UDP destination port of RoCE v2 (default 4791)
  -tunnels=false
             look into no tunnel
  -vxlan N,...
             UDP destination ports of VXLAN beside 4789 and 8472
  -mrc       take opcodes 0xc0 to 0xdf, which are any manufacturer's, for those
             of MRC 1.0 (Multipath Reliable Connection); experimental
  -mrc-trimmed N,...
             DSCP values that the network gives to MRC packets that its switches
             have trimmed; they have no ICRC, and their lengths may disagree
  -mrc-port-half low|high
             which half of an MRC entropy value is the UDP source port; the rest
             is in the IPv6 flow label (default low)
  -h         this text

A line of text has: frame number, time of day (UTC), source and destination,
opcode (shortened: RDMA left out, IMM for immediate, INV for invalidate),
destination QP, PSN, flags (A acknowledge request, S solicited event,
C congestion experienced, B BECN), payload bytes, state of the ICRC, then what
the opcode has.

A JSON line has: file, frame (from 1), time (where the capture has one), outer
(the tunnels, outermost first, each with kind, id, vlan, net, src, dst), vlan,
net (ipv4, ipv6, grh), src, dst, sport, dscp, ecn, ttl, bth {...}, the headers
of its opcode by name, payload (bytes), icrc (wire order), icrc_state (good, bad
or, where less than the packet was captured, unchecked). Addresses, keys and
64-bit data are "0x..." strings. ip_checksum is "bad" if that of the IPv4 header
is wrong; 0 counts as computed by the adapter later. A frame that says it is
RoCE but cannot be decoded has file, frame, error.

With -mrc, a line of text has R among the flags for what was sent again, and
ends with the packet's entropy value (ev). A JSON line has rtx and ts in bth;
meth, tseth, seth, cc_state, neth, peth, erth and eeth with the fields of MRC's
tables; and trimmed where -mrc-trimmed says so. The op of an endpoint response
is its request's, where the capture has that. -summary counts what was sent
again, trimmed packets, verdicts of SACKs and reasons of NACKs besides.

Exit code: 0 all is well; 1 something is wrong: a bad ICRC or IPv4 header
checksum, a RoCE frame that cannot be decoded, or a file that ends in the middle
of a record (what came before is printed); 2 bad usage, unreadable input, or
output that cannot be written.

Examples:

  what is in a capture?
      rocedump -summary trace.pcapng
  the NAKs of a trace, with jq
      rocedump -json trace.pcap.gz | jq -c 'select(.aeth.kind == "nak")'
  live, at an interface of this host, and at one of another
      rocedump -i eth0
      ssh root@host tcpdump -i eth0 -U -w - udp port 4791 | rocedump -
  why did an MRC responder refuse packets?
      rocedump -mrc -json trace.pcap | jq -r '.neth.reason_name // empty'
  is any ICRC bad? the exit code tells
      rocedump -summary trace.pcap > /dev/null || echo look closer
`
