package qp_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/captures"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// replayCaptures are the captures of the Linux kernel's soft-RoCE driver.
const replayCaptures = "../fuzz/captures"

// A replay is a capture whose connections are played to our machines: the
// recorded requests to a responder, the recorded responses to a requester that is
// given the same work.
type replay struct {
	name  string
	sizes []int  // bytes of a message; a connection each
	words string // of the program that sent the packets, key=value; see replay_peer_test.go

	lostIn    int  // each so many-th request is lost behind the recorded wire, on its way into the responder
	lostBack  int  // each so many-th response is, on its way into the requester
	lostFirst bool // requests are lost before the recorded wire
	repeated  bool // requests are, where the link repeats them
	late      int  // the receives are posted before this request, counted from 1; 0: before all
	// Responses that crossed requests on the wire: by frame, how many requests left
	// before they arrived.
	crossed map[int]int

	// Where ours rightly differs, and why, which names the rule that decides.
	why         string
	noResponder bool                  // nothing to compare
	syndrome    map[int]aeth.Syndrome // by frame: what ours says instead
	extra       map[int]bool          // requests that ours does not send
	want        []string              // statuses of our completions
}

var replays = []replay{
	{name: "rc-send", sizes: []int{0, 1, 2, 3, 4, 63, 1023, 1024, 1025, 2048, 5000}, words: "op=send,send_imm"},
	{name: "rc-send-mtu256", sizes: []int{1, 256, 257, 1000}, words: "mtu=256 op=send,send_imm"},
	{name: "rc-send-mtu4096", sizes: []int{4096, 4097, 10003}, words: "mtu=4096 recv_size=16384 recvs=16 area=0x100000 op=send,send_imm"},
	{name: "rc-send-solicited", sizes: []int{2500}, words: "op=send,send_imm,write_imm solicited=1"},
	{name: "rc-send-inv", sizes: []int{64, 2500}, words: "mw=1 op=send_inv"},
	{name: "rc-srq", sizes: []int{1500}, words: "srq=1 op=send,send_imm count=3"},
	{name: "rc-write", sizes: []int{0, 1, 3, 64, 1024, 1025, 5000}, words: "op=write,write_imm"},
	{name: "rc-write-mtu256", sizes: []int{256, 257, 1001}, words: "mtu=256 op=write,write_imm"},
	{name: "rc-read", sizes: []int{0, 1, 3, 64, 1024, 1025, 2048, 5000}, words: "op=read"},
	{name: "rc-read-mtu256", sizes: []int{256, 257, 1001}, words: "mtu=256 op=read"},
	{name: "rc-read-mtu4096", sizes: []int{4096, 4097, 12288}, words: "mtu=4096 op=read"},
	{name: "rc-atomic", sizes: []int{64}, words: "op=fadd,cswap count=4"},
	{name: "rc-mixed", sizes: []int{3000}, words: "op=send,send_imm,write,write_imm,read,fadd,cswap count=2"},
	{name: "rc-burst", sizes: []int{2000}, words: "op=write count=32 burst=32"},
	{name: "rc-ecn", sizes: []int{2500}, words: "op=send,write,read count=2"},
	{name: "rc-ipv6", sizes: []int{1500}, words: "op=send,send_imm,write,write_imm,read,fadd,cswap"},
	{name: "rc-psn-wrap", sizes: []int{2500}, words: "op=send,write,read,fadd,write_imm count=2"},

	{name: "rc-dup-request", sizes: []int{2500}, words: "op=send,write,read,fadd count=3", repeated: true},
	{name: "rc-loss-ack", sizes: []int{2500}, words: "op=send,write,write_imm count=4", lostBack: 3},
	{name: "rc-loss-atomic", sizes: []int{64}, words: "op=fadd,cswap count=3", lostBack: 2},
	{name: "rc-loss-read-request", sizes: []int{2500}, words: "op=read,fadd count=3", lostIn: 2},
	{name: "rc-loss-request-ingress", sizes: []int{3000}, words: "op=send,write,write_imm count=3 burst=3", lostIn: 7,
		crossed: map[int]int{58: 1}},
	{name: "rc-loss-request", sizes: []int{6000}, words: "op=send,write,write_imm count=3 burst=3", lostFirst: true,
		crossed: map[int]int{63: 1}},
	{name: "rc-rnr", sizes: []int{100}, words: "op=send,write_imm min_rnr=18", late: 6,
		why: "the driver's acknowledgement timer runs on in the RNR wait: rule RQ-28", extra: map[int]bool{24: true}},
	{name: "rc-rnr-exceeded", sizes: []int{100}, words: "op=send min_rnr=14 rnr=2", late: 99},
	{name: "rc-timeout", sizes: []int{2500}, words: "op=write timeout=12 retry=3", lostIn: 1},

	{name: "rc-nak-qp-rights", sizes: []int{64}, words: "op=write qpaccess=ra"},
	{name: "rc-nak-rights", sizes: []int{64}, words: "op=write access=ra"},
	{name: "rc-nak-rkey-write", sizes: []int{2500}, words: "op=write rkey_xor=0x100"},
	{name: "rc-nak-rkey-read", sizes: []int{2500}, words: "op=read rkey_xor=0x100"},
	{name: "rc-nak-rkey-atomic", sizes: []int{64}, words: "op=fadd rkey_xor=0x100"},
	{name: "rc-nak-too-long", sizes: []int{2500}, words: "op=send recv_size=1500",
		why: "the driver says remote operational error: rule RS-08", syndrome: map[int]aeth.Syndrome{12: aeth.NakSyndrome(aeth.NakInvalidRequest)}},
	{name: "rc-nak-remote-op", sizes: []int{64}, words: "op=send",
		why: "the receive has a bad local key, which receives of Go memory can't have: rule RQ-11", noResponder: true},
	{name: "rc-window-stale", sizes: []int{100}, words: "mw=2 op=write,send_inv,write"},
	{name: "rc-local-drop-read", sizes: []int{5000}, words: "op=read count=4",
		why:         "the driver's sends fail, and it refuses READs in the middle of their responses; as a requester it accepts a Middle as a First and ends with wrong data: rule RQ-25",
		noResponder: true, want: []string{"0", "7"}},
}

func TestReplay(t *testing.T) {
	for i := range replays {
		r := &replays[i]
		t.Run(r.name, func(t *testing.T) {
			for _, c := range r.load(t) {
				name := strconv.Itoa(c.size)
				t.Run(name+"/responder", func(t *testing.T) {
					if !r.noResponder {
						c.playResponder(t)
					}
				})
				t.Run(name+"/requester", c.playRequester)
			}
		})
	}
}

// replaySide is what one program printed about its QP.
type replaySide struct {
	qpn, psn, rkey, irkey uint32
	addr                  uint64
}

// replayConn is one connection of a capture.
type replayConn struct {
	*replay
	size           int
	server, client replaySide
	frames         []replayFrame
	outcome        []string // statuses of the client's completions, as the log has them
	results        []string // what its atomics returned
}

type replayFrame struct {
	n       int // in the capture, from 1
	at      time.Time
	request bool
	p       bth.Packet
}

func (f *replayFrame) String() string {
	return fmt.Sprintf("frame %d: %v PSN %v", f.n, f.p.Opcode, f.p.PSN)
}

func (r *replay) word(key, def string) string {
	for _, w := range strings.Fields(r.words) {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			return v
		}
	}
	return def
}

func (r *replay) num(key string, def uint64) uint64 {
	v := r.word(key, "")
	if v == "" {
		return def
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// load reads the log and the frames of a capture.
func (r *replay) load(t *testing.T) []*replayConn {
	t.Helper()
	text := captures.Console(r.name)
	require.NotEmpty(t, text)
	var sides [2][]replaySide
	outcomes := map[int][]string{}
	results := map[int][]string{}
	for line := range strings.Lines(text) {
		who, what, _ := strings.Cut(strings.TrimSpace(line), "| ")
		i := 0
		if who == "b" {
			i = 1
		}
		fields := strings.Fields(what)
		if len(fields) == 0 {
			continue
		}
		switch {
		case fields[0] == "LOCAL":
			var s replaySide
			_, err := fmt.Sscanf(what, "LOCAL qpn=0x%x psn=0x%x rkey=0x%x addr=0x%x irkey=0x%x", &s.qpn, &s.psn, &s.rkey, &s.addr, &s.irkey)
			require.NoError(t, err, what)
			sides[i] = append(sides[i], s)
		case fields[0] == "WC" && i == 1:
			k := len(sides[1]) - 1
			_, status, _ := strings.Cut(what, "status=")
			status, _, _ = strings.Cut(status, "(")
			outcomes[k] = append(outcomes[k], status)
		case fields[0] == "ATOMIC" && i == 1 && fields[2] == "got":
			k := len(sides[1]) - 1
			results[k] = append(results[k], fields[3])
		}
	}
	require.Len(t, sides[0], len(r.sizes))
	require.Len(t, sides[1], len(r.sizes))
	var conns []*replayConn
	for i, size := range r.sizes {
		conns = append(conns, &replayConn{replay: r, size: size, server: sides[0][i], client: sides[1][i], outcome: outcomes[i], results: results[i]})
	}

	recs, err := capture.ReadFile(filepath.Join(replayCaptures, r.name+".pcap"))
	require.NoError(t, err)
	for _, rec := range recs {
		var f frame.Frame
		if f.Decode(rec.Link, rec.Data) != nil || f.Packet.Opcode.Service() != bth.RC {
			continue
		}
		require.Equal(t, frame.ICRCGood, f.CheckICRC())
		fr := replayFrame{n: rec.Number, at: rec.Time, request: f.Packet.Opcode.Class() == bth.Request, p: f.Packet}
		found := 0
		for _, c := range conns {
			if fr.request && fr.p.DestQP == c.server.qpn || !fr.request && fr.p.DestQP == c.client.qpn {
				c.frames = append(c.frames, fr)
				found++
			}
		}
		require.Equal(t, 1, found, "frame %d belongs to one connection", rec.Number)
	}
	return conns
}

// rights are the access flags of the letters.
func rights(s string) (a qp.Access) {
	for _, c := range s {
		switch c {
		case 'r':
			a |= qp.RemoteRead
		case 'w':
			a |= qp.RemoteWrite
		case 'a':
			a |= qp.RemoteAtomic
		}
	}
	return a
}

// config and attr are those of the program.
func (c *replayConn) bringUp(t *testing.T, me, far *replaySide, mem qp.Memory, srq *qp.SRQ) *qp.QP {
	t.Helper()
	rd := int(c.num("rd_atomic", 4))
	q, err := qp.New(qp.Config{
		QPN: me.qpn, Memory: mem, MaxSendWR: 128, MaxRecvWR: 128, MaxRdAtomic: rd, MaxDestRdAtomic: rd, SRQ: srq,
		// The driver gives no credits, clears MigReq, asks for acknowledgements at
		// the end of messages only, and treats retry_cnt 7 as for ever.
		NoCredits: true, NotMigrated: true, AckEvery: 1 << 20, LinuxRetryForever: true,
	})
	require.NoError(t, err)
	a := qp.Attr{
		PKey: 0xffff, Access: rights(c.word("qpaccess", "rwa")), PathMTU: int(c.num("mtu", 1024)), DestQPN: far.qpn,
		RQPSN: psn.PSN(far.psn), MaxDestRdAtomic: rd, MinRNRTimer: aeth.RNRTimer(c.num("min_rnr", 12)),
		SQPSN: psn.PSN(me.psn), Timeout: uint8(c.num("timeout", 14)), RetryCnt: uint8(c.num("retry", 7)),
		RNRRetry: uint8(c.num("rnr", 7)), MaxRdAtomic: rd,
	}
	require.NoError(t, q.Connect(c.start(), &a))
	return q
}

func (c *replayConn) start() time.Time { return c.frames[0].at.Add(-time.Millisecond) }

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

// Frames that do not reach a QP: a wrong UDP checksum, and a QP that
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
