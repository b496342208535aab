package main

const usage = `usage: rocecheck [-json] [-html FILE] [options] FILE...
       rocecheck -explain RULE

Judges the RoCE traffic in pcap and pcapng files, gzip'ed or not: which rules of
the transport and the wire format the devices broke, what happened (losses,
retransmissions, NAKs, RNR, time-outs, duplicates), and the key figures of every
connection. Each file is judged for itself. FILE - is standard input.

  -json          print JSON instead of text: one object a line (see below)
  -html FILE     also write a page with the time lines of the worst connections;
                 it needs nothing from the network
  -qp N[,N...]   report only these QP numbers, and show them on the page
  -host A[,A...] report only connections of these addresses
  -from T, -to T look only at packets from then, until then: such as
                 2026-01-31T12:00:00Z, or 1.5s after the first frame
  -write FILE    write the frames of breaches and notes, with what is said of them
                 as packet comments, to a pcapng file (with -all of events too)
  -baseline FILE leave out the kinds of findings that this capture shows too: what
                 is new since then, as when a device is fuzzed
  -i INTERFACE   read from a network interface (Linux; needs CAP_NET_RAW) until
                 Ctrl-C; implies -follow
  -follow        read on when a file ends, until Ctrl-C; print a line of figures
                 each second, and close flows that are silent for a minute
  -interval D    the time between these lines (default 1s)
  -metrics ADDR  serve the figures at http://ADDR/metrics in the OpenMetrics text
                 format, such as -metrics :9480
  -join          the files are parts of one capture, in the order given
  -columns N     fit the text into so many columns, 80 or more (default 120); only
                 Wireshark filters are never broken
  -all           list every event, not only the first of a kind
  -complete      the capture has every connection from its first packet, both
                 directions, and lost nothing: doubtful cases are breaches
  -port N        UDP destination port of RoCE v2 (default 4791)
  -rate R        link rate, such as 100G, that converts pause quanta to time
  -timeout D     shortest acknowledgement time-out in use (default 10ms);
                 earlier retransmissions were not caused by a timer
  -cnp-gap D     least time between CNPs of a flow (default 4us; below 0: any)
  -explain RULE  print what a rule says, where it comes from, how sure that is,
                 and what tests hold it, such as RS-13 or ICRC; no FILE is needed
  -mrc           judge MRC 1.0 packets (Multipath Reliable Connection) too, which
                 have opcodes 0xc6 to 0xde, any manufacturer's; experimental
  -mrc-trimmed N,...
                 DSCP values that the network gives to MRC packets that its
                 switches have trimmed
  -mrc-port-half low|high
                 which half of an MRC entropy value is the UDP source port
                 (default low)
  -h             this text

A breach is a broken rule. A note is a deviation that does no harm to a peer that
keeps the rules, or one that a loss by the capture would explain. An event also
happens in a working network.

A JSON line has a type. "finding": severity, rule, title (of the rule), check,
file, frame (0 for what only the end shows), earlier (a frame that it depends
on), time, src (for a breach, who broke the rule), dst, network (VLANs and
tunnel, where there are any), qp, peer_qp, psn, text, filter (for Wireshark).
"not_judged": rule, reason, cases. "interval", with -follow: time and what was
counted since the last. "flow", one for each direction: src, dst, network, qp,
peer_qp, service, mtu, and the metrics, durations in nanoseconds. "qp", one for
each QP: network, addr, qp, peer_addr, peer_qp, and what it sent (_tx) and
received (_rx). "pause": priority, frames, resume, time, and senders, which has
the same by src. "total": files, all_frames, roce_frames, breaches, notes,
events, flows, and the metrics of all flows. QP numbers are "0x..." strings.

With -mrc there are "mrc_flow" (requests of a QP and their responses: packets,
retransmitted, holes, ecn_ce, sacks, nacks by reason, probes, paths with their
share of congestion marks) and "mrc_total". Of MRC only that is judged which
independent readers of its specification agree on.

Metrics have the names of the Open Traffic Generator's RoCE v2 metrics where it
has one: data_frames, data_frames_retransmitted, frame_sequence_error, ack, nak,
cnp, ecn_ce, message_tx, message_complete, message_fail, min_latency,
avg_latency, max_latency. Retransmissions are counted by cause under the names of
the hardware counters: packet_seq_err, implied_nak_seq_err, local_ack_timeout_err,
and rnr_nak_retry. Of data_frames_retransmitted, responses_retransmitted are READ
responses and atomic acknowledgements: the rest is what the requester's counter
has. A data frame is any but Acknowledge and CNP. Latency is from a request (its
last packet that asked for an acknowledgement) to what acknowledges it;
completion time from the first packet of the message. Percentiles are at most
1/32 too long.

Exit code: 0 no rule is broken; 1 a rule is broken, or a file ends in the middle
of a record; 2 bad usage, unreadable input, or output that cannot be written; 3
there was nothing to judge: no RoCE packet was found, or none that -qp, -host,
-from and -to leave.

Examples:

  what is wrong in this network?
      rocecheck trace.pcapng
  for a person to look at
      rocecheck -html trace.html trace.pcap.gz
  a capture that tcpdump -C has cut in parts
      rocecheck -join trace.pcap trace.pcap1 trace.pcap2
  which rules were broken, with jq
      rocecheck -json trace.pcap | jq -c 'select(.severity == "breach")'
  live, from a mirror port, until Ctrl-C, with figures for Prometheus
      rocecheck -i eth0 -metrics :9480
  live, from elsewhere
      ssh host tcpdump -i eth0 -U -w - | rocecheck -follow -
  what a firmware update has made worse
      rocecheck -baseline before.pcap after.pcap
`
