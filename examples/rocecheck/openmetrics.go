package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/roce-go/roce/qp/conform"
)

// appendMetrics writes the current metrics in the OpenMetrics text format. Their names are
// stable; README.md lists them.
func (c *checker) appendMetrics(w io.Writer) {
	t := c.w.Total()
	counter := func(name, help string, v uint64) {
		fmt.Fprintf(w, "# TYPE %s counter\n# HELP %s %s\n%s_total %d\n", name, name, help, name, v)
	}
	counter("roce_captured_frames", "Frames captured, RoCE or not.", c.w.Frames())
	counter("roce_frames", "RoCE frames, copies included.", t.Frames)
	counter("roce_bytes", "Bytes of RoCE frames on the wire.", t.Bytes)
	counter("roce_data_frames", "Data frames, copies left out.", t.DataFrames)
	counter("roce_good_payload_bytes", "Payload that was not sent before.", t.GoodBytes)
	counter("roce_data_frames_retransmitted", "Data frames sent again.", t.Retransmitted)
	fmt.Fprint(w, "# TYPE roce_retransmissions counter\n# HELP roce_retransmissions Times that a requester went back, by cause.\n")
	for _, x := range []struct {
		cause string
		n     uint64
	}{{"nak", t.PacketSeqErr}, {"implied", t.ImpliedNakSeqErr}, {"rnr", t.RNRNakRetry}, {"timer", t.LocalAckTimeoutErr}, {"unknown", t.UnknownCause}} {
		fmt.Fprintf(w, "roce_retransmissions_total{cause=%q} %d\n", x.cause, x.n)
	}
	counter("roce_duplicates", "Copies, by the network or by the capture.", t.Duplicates)
	counter("roce_out_of_order", "Packets that arrived out of order.", t.OutOfOrder)
	counter("roce_sequence_gaps", "Jumps of the PSN.", t.SequenceError)
	counter("roce_acks", "Positive acknowledgements.", t.Acks)
	counter("roce_naks", "NAKs, RNR NAKs not counted.", t.Naks)
	counter("roce_rnr_naks", "RNR NAKs.", t.RNRs)
	fmt.Fprintf(w, "# TYPE roce_rnr_wait_seconds counter\n# UNIT roce_rnr_wait_seconds seconds\n# HELP roce_rnr_wait_seconds Time waited after RNR NAKs.\nroce_rnr_wait_seconds_total %g\n", t.RNRWait.Seconds())
	counter("roce_cnps", "Congestion notification packets.", t.CNPs)
	counter("roce_ecn_ce", "Data frames marked congestion experienced.", t.CE)
	fmt.Fprint(w, "# TYPE roce_messages counter\n# HELP roce_messages Messages, by what became of them.\n")
	fmt.Fprintf(w, "roce_messages_total{state=\"sent\"} %d\nroce_messages_total{state=\"complete\"} %d\nroce_messages_total{state=\"failed\"} %d\n", t.MessagesTx, t.MessagesDone, t.MessagesFail)
	counter("roce_icrc_bad", "Packets with a wrong ICRC.", t.ICRCBad)
	counter("roce_capture_lost", "PSNs that were acknowledged and never seen.", t.CaptureLost)
	if c.dropped != nil {
		counter("roce_capture_dropped", "Frames that the kernel dropped because they were not read in time.", c.dropped())
	}
	fmt.Fprint(w, "# TYPE roce_findings counter\n# HELP roce_findings Findings, by severity and rule.\n")
	type key struct {
		severity conform.Severity
		rule     conform.Rule
	}
	n := map[key]uint64{}
	for _, g := range c.order {
		n[key{g.severity, g.check.Rule()}] += g.n
	}
	keys := make([]key, 0, len(n))
	for k := range n {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return (int(a.severity)-int(b.severity))<<16 + int(a.rule) - int(b.rule) })
	for _, k := range keys {
		fmt.Fprintf(w, "roce_findings_total{severity=%q,rule=%q} %d\n", k.severity, k.rule, n[k])
	}
	open := 0
	c.w.Flows(func(*conform.Flow) bool { open++; return true })
	fmt.Fprintf(w, "# TYPE roce_flows gauge\n# HELP roce_flows Flows that are followed.\nroce_flows %d\n", open)
	fmt.Fprint(w, "# TYPE roce_latency_seconds summary\n# UNIT roce_latency_seconds seconds\n# HELP roce_latency_seconds From a request to what acknowledges it.\n")
	l := figuresOf(c.w.Latency())
	for _, q := range []struct {
		q string
		v float64
	}{{"0.5", l.p50.Seconds()}, {"0.99", l.p99.Seconds()}, {"0.999", l.p999.Seconds()}} {
		fmt.Fprintf(w, "roce_latency_seconds{quantile=%q} %g\n", q.q, q.v)
	}
	fmt.Fprintf(w, "roce_latency_seconds_count %d\nroce_latency_seconds_sum %g\n", l.n, l.mean.Seconds()*float64(l.n))
	fmt.Fprint(w, "# TYPE roce_pause_frames counter\n# HELP roce_pause_frames Pause frames that stop a priority.\n")
	for prio := range 8 {
		if p := c.w.Pauses(prio); p.Frames > 0 {
			fmt.Fprintf(w, "roce_pause_frames_total{priority=\"%d\"} %d\n", prio, p.Frames)
		}
	}
	fmt.Fprint(w, "# EOF\n")
}
