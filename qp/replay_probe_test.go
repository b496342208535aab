package qp_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp"
)

// probeDiff is where our responder rightly responds to a probe otherwise than the
// driver.
type probeDiff struct {
	theirs int // responses of the driver, which are not compared
	ours   string
	rule   string
}

// By frame of the request. Responses are operation, PSN and syndrome in hexadecimal,
// MSN.
var probeDiffs = map[int]probeDiff{
	72:  {2, "RDMA_READ_RESPONSE_FIRST 100d 1f 13, RDMA_READ_RESPONSE_LAST 100e 1f 13", "RS-15: a response begins with First, also in the middle of a READ"},
	75:  {2, "RDMA_READ_RESPONSE_FIRST 100d 1f 13, RDMA_READ_RESPONSE_LAST 100e 1f 13", "RS-15"},
	78:  {0, "RDMA_READ_RESPONSE_FIRST 100c 1f 13, RDMA_READ_RESPONSE_MIDDLE 100d 00 0, RDMA_READ_RESPONSE_LAST 100e 1f 13", "RS-21: the whole READ is still remembered after a part of it was repeated"},
	105: {1, "ACKNOWLEDGE 101a 1f 25", "RS-20: the acknowledgement of a duplicate has PSN ePSN - 1, whatever came before it"},
	107: {1, "RDMA_READ_RESPONSE_ONLY 1017 1f 22", "RS-13: a READ's response has the count of its own request"},
	117: {1, "ACKNOWLEDGE 1000 61 0", "RS-06: a First carries exactly the path MTU"},
	119: {1, "", "RS-18: and that was the end"},
	135: {1, "ACKNOWLEDGE 1000 61 0", "RS-06: an Only carries at most the path MTU"},
	137: {1, "", "RS-18"},
	139: {1, "ACKNOWLEDGE 1000 61 0", "RS-07: a DMA length above 2^31 is an invalid request, before keys are looked at"},
}

// Frames that do not come as far as a QP: a wrong UDP checksum, and a QP that
// does not exist.
var probeSkipped = map[int]bool{48: true, 51: true}

// probeBadKey is the WRITE with a bad R_Key.
const probeBadKey = 121

// TestReplayProbe gives our responder what a script that misbehaves on purpose
// sent to the driver, and compares the responses: probe-responder.txt beside the
// capture says what each packet is. Each of the driver's QPs begins at PSN 0x1000.
func TestReplayProbe(t *testing.T) {
	recs, err := capture.ReadFile(replayCaptures + "/probe-responder.pcap")
	require.NoError(t, err)
	type conn struct {
		q    *qp.QP
		mem  *replayMemory
		ours []string // responses not yet compared
		due  int      // responses of the driver that are not compared
	}
	conns := map[uint32]*conn{}
	var c *conn
	var out qp.Outgoing
	compared, differ := 0, 0
	settle := func(n int) {
		if c != nil {
			require.Empty(t, c.ours, "before frame %d: ours sent more responses than the driver", n)
			require.Zero(t, c.due, "before frame %d: the driver did not respond as the table has it", n)
		}
	}
	at := time.Unix(2, 0)
	var before time.Time
	for _, rec := range recs {
		n, now := rec.Number, rec.Time
		var f frame.Frame
		if f.Decode(rec.Link, rec.Data) != nil || f.CheckICRC() != frame.ICRCGood || f.Packet.Opcode.Service() != bth.RC || probeSkipped[n] {
			continue
		}
		p := &f.Packet
		if p.Opcode.Class() == bth.Response {
			if c.due > 0 {
				c.due--
				continue
			}
			require.NotEmpty(t, c.ours, "frame %d: ours does not respond", n)
			require.Equal(t, describe(p), c.ours[0], "frame %d", n)
			c.ours = c.ours[1:]
			compared++
			continue
		}
		// The script waits a quarter of a second for responses, but for some packets
		// that it sends at once.
		if now.Sub(before) > 100*time.Millisecond {
			settle(n)
		}
		before = now
		if c = conns[p.DestQP]; c == nil {
			c = &conn{mem: &replayMemory{buf: make([]byte, 4*0x80000), addr: 0x123456780000, area: 0x80000, access: rights("rwa")}}
			replayFill(c.mem.buf[0x80000:2*0x80000], 1000)
			binary.LittleEndian.PutUint64(c.mem.buf[2*0x80000:], replayAtomic)
			r := &replayConn{replay: &replay{}, frames: []replayFrame{{at: at}}}
			c.q = r.bringUp(t, &replaySide{qpn: p.DestQP, psn: 0x123456}, &replaySide{qpn: 0x77, psn: 0x1000}, c.mem, nil)
			for k := range uint64(64) {
				require.NoError(t, c.q.PostRecv(&qp.RecvWR{ID: k, Local: make([]byte, 8192)}))
			}
			conns[p.DestQP] = c
		}
		if c.mem.rkey == 0 && n != probeBadKey {
			c.mem.rkey = p.RETH.RKey | p.AtomicETH.RKey // the driver's, by its first use
		}
		c.q.HandlePacket(at, p, nil)
		var short []string
		for c.q.NextPacket(at, &out) {
			o := &out.Packet
			short = append(short, fmt.Sprintf("%v %x %02x %d", strings.TrimPrefix(o.Opcode.String(), "RC_"), uint32(o.PSN), uint8(o.AETH.Syndrome), o.AETH.MSN))
			c.ours = append(c.ours, describe(o))
		}
		if d, ok := probeDiffs[n]; ok {
			require.Equal(t, d.ours, strings.Join(short, ", "), "frame %d, rule %s", n, d.rule)
			c.ours, c.due = nil, d.theirs
			differ++
		}
	}
	settle(len(recs) + 1)
	require.Greater(t, compared, 40)
	t.Logf("%d responses equal, %d requests responded to otherwise, as rules have it", compared, differ)
}
