package main

import (
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/conform"
)

type jsonFinding struct {
	Type     string `json:"type"`
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	Title    string `json:"title"`
	Check    string `json:"check"`
	File     string `json:"file,omitempty"`
	Frame    uint64 `json:"frame"`
	Earlier  uint64 `json:"earlier,omitempty"`
	Time     string `json:"time"`
	Src      string `json:"src,omitempty"`
	Dst      string `json:"dst,omitempty"`
	Network  string `json:"network,omitempty"`
	QP       string `json:"qp,omitempty"`
	PeerQP   string `json:"peer_qp,omitempty"`
	PSN      uint32 `json:"psn"`
	Text     string `json:"text"`
	Filter   string `json:"filter,omitempty"`
}

type jsonMetrics struct {
	Frames        uint64        `json:"frames"`
	Bytes         uint64        `json:"bytes"`
	DataFrames    uint64        `json:"data_frames"`
	Retransmitted uint64        `json:"data_frames_retransmitted"`
	RepliedAgain  uint64        `json:"responses_retransmitted"`
	SequenceError uint64        `json:"frame_sequence_error"`
	Duplicates    uint64        `json:"duplicates"`
	OutOfOrder    uint64        `json:"out_of_order"`
	PayloadBytes  uint64        `json:"payload_bytes"`
	GoodBytes     uint64        `json:"good_bytes"`
	Acks          uint64        `json:"ack"`
	Naks          uint64        `json:"nak"`
	NakSequence   uint64        `json:"nak_sequence"`
	RNRs          uint64        `json:"rnr_nak"`
	RNRWait       int64         `json:"rnr_wait"`
	CNPs          uint64        `json:"cnp"`
	CE            uint64        `json:"ecn_ce"`
	MessagesTx    uint64        `json:"message_tx"`
	MessagesDone  uint64        `json:"message_complete"`
	MessagesFail  uint64        `json:"message_fail"`
	ICRCBad       uint64        `json:"icrc_bad"`
	ICRCUnchecked uint64        `json:"icrc_unchecked"`
	Invalid       uint64        `json:"invalid"`
	CaptureLost   uint64        `json:"capture_lost"`
	LostBehind    uint64        `json:"lost_behind_capture"`
	PacketSeqErr  uint64        `json:"packet_seq_err"`
	ImpliedNak    uint64        `json:"implied_nak_seq_err"`
	RNRRetry      uint64        `json:"rnr_nak_retry"`
	Timeouts      uint64        `json:"local_ack_timeout_err"`
	UnknownCause  uint64        `json:"unknown_cause"`
	First         string        `json:"first_timestamp,omitempty"`
	Last          string        `json:"last_timestamp,omitempty"`
	Goodput       float64       `json:"goodput_bps"`
	Efficiency    float64       `json:"payload_efficiency"`
	RetransShare  float64       `json:"retransmission_share"`
	OOOShare      float64       `json:"out_of_order_share"`
	CNPRate       float64       `json:"cnp_per_second"`
	Latency       jsonHistogram `json:"-"`
	Completion    jsonHistogram `json:"-"`
}

type jsonHistogram struct {
	Count               uint64
	Min, Avg, Max       int64
	P50, P90, P99, P999 int64
}

func (f *figures) json() jsonHistogram {
	return jsonHistogram{f.n, int64(f.min), int64(f.mean), int64(f.max), int64(f.p50), int64(f.p90), int64(f.p99), int64(f.p999)}
}

func metricsOf(c *conform.Counters, lat, fct *figures) jsonMetrics {
	m := jsonMetrics{
		Frames: c.Frames, Bytes: c.Bytes, DataFrames: c.DataFrames, Retransmitted: c.Retransmitted, RepliedAgain: c.RepliedAgain,
		SequenceError: c.SequenceError, Duplicates: c.Duplicates, OutOfOrder: c.OutOfOrder,
		PayloadBytes: c.PayloadBytes, GoodBytes: c.GoodBytes, Acks: c.Acks, Naks: c.Naks, NakSequence: c.NakSequence,
		RNRs: c.RNRs, RNRWait: int64(c.RNRWait), CNPs: c.CNPs, CE: c.CE, MessagesTx: c.MessagesTx,
		MessagesDone: c.MessagesDone, MessagesFail: c.MessagesFail, ICRCBad: c.ICRCBad, ICRCUnchecked: c.ICRCUnchecked,
		Invalid: c.Invalid, CaptureLost: c.CaptureLost, LostBehind: c.LostBehind, PacketSeqErr: c.PacketSeqErr, ImpliedNak: c.ImpliedNakSeqErr,
		RNRRetry: c.RNRNakRetry, Timeouts: c.LocalAckTimeoutErr, UnknownCause: c.UnknownCause,
		Goodput: c.Goodput(), Efficiency: c.PayloadEfficiency(), RetransShare: c.RetransmissionShare(),
		OOOShare: c.OutOfOrderShare(), CNPRate: c.CNPRate(),
		Latency: lat.json(), Completion: fct.json(),
	}
	if c.Frames != 0 {
		m.First, m.Last = stamp(time.Unix(0, c.First)), stamp(time.Unix(0, c.Last))
	}
	return m
}

// MarshalJSON writes the histograms as flat members, named as the Open Traffic
// Generator names them.
func (m jsonMetrics) MarshalJSON() ([]byte, error) {
	type plain jsonMetrics
	type flat struct {
		plain
		LCount uint64 `json:"latency_count"`
		LMin   int64  `json:"min_latency"`
		LAvg   int64  `json:"avg_latency"`
		LMax   int64  `json:"max_latency"`
		LP50   int64  `json:"latency_p50"`
		LP90   int64  `json:"latency_p90"`
		LP99   int64  `json:"latency_p99"`
		LP999  int64  `json:"latency_p999"`
		CMin   int64  `json:"flow_completion_time_minimum"`
		CAvg   int64  `json:"flow_completion_time_average"`
		CMax   int64  `json:"flow_completion_time_maximum"`
		CP50   int64  `json:"flow_completion_time_p50"`
		CP99   int64  `json:"flow_completion_time_p99"`
		CP999  int64  `json:"flow_completion_time_p999"`
	}
	l, c := m.Latency, m.Completion
	return json.Marshal(flat{plain: plain(m), LCount: l.Count, LMin: l.Min, LAvg: l.Avg, LMax: l.Max, LP50: l.P50, LP90: l.P90,
		LP99: l.P99, LP999: l.P999, CMin: c.Min, CAvg: c.Avg, CMax: c.Max, CP50: c.P50, CP99: c.P99, CP999: c.P999})
}

// emit writes the members of all parts as one JSON object on one line.
func (c *checker) emit(parts ...any) {
	c.out.WriteByte('{')
	first := true
	for _, p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			panic(err) // cannot happen: structs of numbers and strings
		}
		if b = b[1 : len(b)-1]; len(b) == 0 {
			continue
		}
		if !first {
			c.out.WriteByte(',')
		}
		first = false
		c.out.Write(b)
	}
	_, c.werr = c.out.WriteString("}\n")
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000000Z") }

func hex(v uint32) string { return fmt.Sprintf("0x%06x", v) }

func (c *checker) writeFinding(f *conform.Finding) {
	j := jsonFinding{Type: "finding", Severity: f.Severity.String(), Rule: f.Rule().String(), Title: f.Rule().Title(), Check: f.Check.String(),
		Time: stamp(f.Time), PSN: uint32(f.PSN), Text: f.String(), Filter: displayFilter(f)}
	j.File, j.Frame = c.place(f.Frame)
	_, j.Earlier = c.place(f.Earlier)
	if f.Src.IsValid() {
		j.Src, j.Dst, j.Network, j.QP = f.Src.String(), f.Dst.String(), f.Segment.String(), hex(f.QP)
		if f.PeerQP != 0 {
			j.PeerQP = hex(f.PeerQP)
		}
	}
	b, err := json.Marshal(&j)
	if err != nil {
		panic(err) // cannot happen: numbers and strings
	}
	c.out.Write(b)
	c.werr = c.out.WriteByte('\n')
}

// writeTotals writes flows, pauses and the total.
func (c *checker) writeTotals() {
	for i := range c.flows {
		f := &c.flows[i]
		head := struct {
			Type    string `json:"type"`
			Src     string `json:"src"`
			Dst     string `json:"dst"`
			Network string `json:"network,omitempty"`
			QP      string `json:"qp"`
			PeerQP  string `json:"peer_qp,omitempty"`
			Service string `json:"service"`
			MTU     int    `json:"mtu,omitempty"`
		}{"flow", f.src.String(), f.dst.String(), f.network.String(), hex(f.qp), "", f.service.String(), f.mtu}
		if f.peerQP != 0 {
			head.PeerQP = hex(f.peerQP)
		}
		c.emit(head, metricsOf(&f.counters, &f.latency, &f.completion))
	}
	c.writeQPs()
	c.w.NotJudged(func(r conform.Rule, why conform.Reason, n uint64) bool {
		c.emit(struct {
			Type   string `json:"type"`
			Rule   string `json:"rule"`
			Reason string `json:"reason"`
			Cases  uint64 `json:"cases"`
		}{"not_judged", r.String(), why.String(), n})
		return true
	})
	type pauses struct {
		Src    string `json:"src,omitempty"`
		Frames uint64 `json:"frames"`
		Resume uint64 `json:"resume"`
		Time   int64  `json:"time"`
	}
	var senders [8][]pauses
	c.w.PausesBy(func(mac frame.MAC, prio int, p conform.Pauses) bool {
		senders[prio] = append(senders[prio], pauses{net.HardwareAddr(mac[:]).String(), p.Frames, p.Resume, int64(p.Time)})
		return true
	})
	for prio := range 8 {
		if p := c.w.Pauses(prio); p.Frames+p.Resume > 0 {
			c.emit(struct {
				Type     string `json:"type"`
				Priority int    `json:"priority"`
				pauses
				Senders []pauses `json:"senders"`
			}{"pause", prio, pauses{"", p.Frames, p.Resume, int64(p.Time)}, senders[prio]})
		}
	}
	total := c.w.Total()
	lat, fct := figuresOf(c.w.Latency()), figuresOf(c.w.Completion())
	c.emit(struct {
		Type     string   `json:"type"`
		Files    []string `json:"files"`
		All      uint64   `json:"all_frames"`
		RoCE     uint64   `json:"roce_frames"`
		Breaches uint64   `json:"breaches"`
		Notes    uint64   `json:"notes"`
		Events   uint64   `json:"events"`
		Flows    int      `json:"flows"`
	}{"total", c.options.files, c.w.Frames(), c.w.RoCEFrames(), c.breaches, c.notes, c.events, len(c.flows) + c.moreFlows},
		metricsOf(&total, &lat, &fct))
}

// writeQPs writes the counts of each queue pair.
func (c *checker) writeQPs() {
	type head struct {
		Type     string `json:"type"`
		Network  string `json:"network,omitempty"`
		Addr     string `json:"addr"`
		QP       string `json:"qp"`
		PeerAddr string `json:"peer_addr"`
		PeerQP   string `json:"peer_qp,omitempty"`
	}
	type counts struct {
		DataTx      uint64 `json:"data_frames_tx"`
		DataRx      uint64 `json:"data_frames_rx"`
		Resent      uint64 `json:"data_frames_retransmitted"`
		Sequence    uint64 `json:"frame_sequence_error"`
		CNPTx       uint64 `json:"cnp_tx"`
		CNPRx       uint64 `json:"cnp_rx"`
		AckTx       uint64 `json:"ack_tx"`
		AckRx       uint64 `json:"ack_rx"`
		NakTx       uint64 `json:"nak_tx"`
		NakRx       uint64 `json:"nak_rx"`
		RNRTx       uint64 `json:"rnr_nak_tx"`
		RNRRx       uint64 `json:"rnr_nak_rx"`
		CERx        uint64 `json:"ecn_ce_rx"`
		MessageTx   uint64 `json:"message_tx"`
		MessageRx   uint64 `json:"message_complete_rx"`
		MessageFail uint64 `json:"message_fail"`
		LatencyMin  int64  `json:"min_latency"`
		LatencyAvg  int64  `json:"avg_latency"`
		LatencyMax  int64  `json:"max_latency"`
		First       string `json:"first_timestamp"`
		Last        string `json:"last_timestamp"`
	}
	for i := range c.flows {
		rx := &c.flows[i]
		h := head{"qp", rx.network.String(), rx.dst.String(), hex(rx.qp), rx.src.String(), ""}
		var tx *flowRow
		if rx.peerQP != 0 {
			h.PeerQP = hex(rx.peerQP)
			tx = c.other(i)
		}
		var lat figures
		var sent *conform.Counters
		if tx != nil {
			sent, lat = &tx.counters, tx.latency
		}
		q := conform.QPOf(&rx.counters, sent)
		c.emit(h, counts{q.DataFramesTx, q.DataFramesRx, q.DataFramesRetransmitted, q.FrameSequenceError, q.CNPTx, q.CNPRx,
			q.AckTx, q.AckRx, q.NakTx, q.NakRx, q.RNRTx, q.RNRRx, q.ECNCERx, q.MessageTx, q.MessageCompleteRx, q.MessageFail,
			int64(lat.min), int64(lat.mean), int64(lat.max), stamp(time.Unix(0, q.First)), stamp(time.Unix(0, q.Last))})
	}
}

// other returns the other direction of flow i, or nil.
func (c *checker) other(i int) *flowRow {
	if c.flows[i].other == 0 {
		return nil
	}
	return &c.flows[i+c.flows[i].other]
}
