package nvme

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

// The bytes in this file that the kernel sent come from one capture: nvme-cli 2.3 and
// nvme-rdma of Linux 6.12.117 (rdma_rxe), "nvme connect" and "dd" against nvmetarget.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// commands as Linux sends them.
var commands = []struct {
	name, hex string
	want      Command
}{
	{"connect, data in the host's memory",
		"7f400000 01000000 0000000000000000 0000000000000000 244b5fed8effff00 0004 00e92400 004f 00000000 1f000000 88130000 000000000000000000000000",
		Command{Opcode: Fabrics, Flags: FlagsSGL, NSID: Connect, SGL: SGL{0xffff8eed5f4b24, 1024, 0x24e9, SGLKeyedInvalidate}, CDW10: [6]uint32{0, 31, 5000}}},
	{"connect of an I/O queue, data in the capsule",
		"7f400000 01000000 0000000000000000 0000000000000000 0000000000000000 00040000 00000001 00000100 7f000000 00000000 000000000000000000000000",
		Command{Opcode: Fabrics, Flags: FlagsSGL, NSID: Connect, SGL: SGL{0, 1024, 0, SGLOffset}, CDW10: [6]uint32{1 << 16, 127}}},
	{"property get CAP",
		"7f400100 04000000 0000000000000000 0000000000000000 0000000000000000 0000000000000040 01000000 0000000000000000000000000000000000000000",
		Command{Opcode: Fabrics, Flags: FlagsSGL, CID: 1, NSID: PropertyGet, SGL: SGL{Type: SGLKeyed}, CDW10: [6]uint32{1}}},
	{"property set CC",
		"7f400020 00000000 0000000000000000 0000000000000000 0000000000000000 0000000000000040 00000000 14000000 01004600 000000000000000000000000",
		Command{Opcode: Fabrics, Flags: FlagsSGL, CID: 0x2000, NSID: PropertySet, SGL: SGL{Type: SGLKeyed}, CDW10: [6]uint32{0, PropertyCC, CCEntrySizes | CCEnable}}},
	{"identify controller",
		"06401200 00000000 0000000000000000 0000000000000000 70625fed8effff00 001000ea2400004f 01000000 0000000000000000000000000000000000000000",
		Command{Opcode: Identify, Flags: FlagsSGL, CID: 0x12, SGL: SGL{0xffff8eed5f6270, 4096, 0x24ea, SGLKeyedInvalidate}, CDW10: [6]uint32{IdentifyControllerCNS}}},
	{"get log page effects",
		"02401300 00000000 0000000000000000 0000000000000000 70395fed8effff00 001000eb2400004f 0500ff03 0000000000000000000000000000000000000000",
		Command{Opcode: GetLogPage, Flags: FlagsSGL, CID: 0x13, SGL: SGL{0xffff8eed5f3970, 4096, 0x24eb, SGLKeyedInvalidate}, CDW10: [6]uint32{LogEffects | 1023<<16}}},
	{"read of 1 MiB",
		"02403400 01000000 0000000000000000 0000000000000000 90f041ed8effff00 000010484400004f 0000000000000000 ff070080 07000000 0000000000000000",
		Command{Opcode: Read, Flags: FlagsSGL, CID: 0x34, NSID: 1, SGL: SGL{0xffff8eed41f090, 1 << 20, 0x4448, SGLKeyedInvalidate}, CDW10: [6]uint32{2: 0x800007ff, 3: 7}}},
}

func TestCommand(t *testing.T) {
	for _, c := range commands {
		b := unhex(c.hex)
		require.Len(t, b, CommandSize, c.name)
		var got Command
		require.NoError(t, got.Decode(b), c.name)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, append([]byte{1}, b...), got.AppendTo([]byte{1}), c.name)
		require.ErrorIs(t, got.Decode(b[:63]), ErrShort)
		require.Equal(t, c.want, got, "unchanged")
	}
	require.Equal(t, uint64(0x1234567800000009), (&Command{CDW10: [6]uint32{9, 0x12345678}}).Cdw(10))
}

func TestConnectRequest(t *testing.T) {
	for s, want := range map[string]ConnectRequest{
		"0000 0000 2000 1f00 0000": {0, 0, 32, 31, 0},
		"0000 0100 8000 7f00 0200": {0, 1, 128, 127, 2},
	} {
		b := append(unhex(s), make([]byte, 46)...)
		var r ConnectRequest
		require.NoError(t, r.Decode(b))
		require.Equal(t, want, r)
		require.Equal(t, b[:ConnectRequestSize], r.AppendTo(nil))
		require.ErrorIs(t, r.Decode(b[:31]), ErrShort)
	}
}

// The beginning of the Connect command's data, and the names in it.
func TestConnectData(t *testing.T) {
	b := make([]byte, ConnectDataSize)
	copy(b, unhex("6f1d2c3b4a594e6887768594a3b2c1d0 ffff"))
	copy(b[256:], "nqn.2014-08.org.nvmexpress.discovery")
	copy(b[512:], "nqn.2014-08.org.nvmexpress:uuid:6f1d2c3b-4a59-4e68-8776-8594a3b2c1d0")
	var d ConnectData
	require.NoError(t, d.Decode(b))
	require.Equal(t, ConnectData{[16]byte(b), 0xffff, DiscoveryNQN, "nqn.2014-08.org.nvmexpress:uuid:6f1d2c3b-4a59-4e68-8776-8594a3b2c1d0"}, d)
	require.Equal(t, b, d.AppendTo(nil))
	for i := range 256 {
		b[256+i] = 'x'
	}
	require.NoError(t, d.Decode(b))
	require.Empty(t, d.SubNQN, "a name that does not end")
	require.ErrorIs(t, d.Decode(b[:1023]), ErrShort)
}

// What is sent is what is received, for formats that have no bytes of the kernel's here.
func TestRoundTrips(t *testing.T) {
	c := Completion{0x1122334455667788, 3, 4, 0xffff, true, LBAOutOfRange | DNR}
	var c2 Completion
	require.NoError(t, c2.Decode(c.AppendTo(nil)))
	require.Equal(t, c, c2)
	require.Equal(t, "LBA out of range, do not retry", c2.Status.String())
	require.Equal(t, "status type 7 code 0x05", Status(0x705).String())
	rep, rej := ConnectReply{0, 128}, ConnectReject{0, InvalidCntlID}
	var rep2 ConnectReply
	var rej2 ConnectReject
	require.NoError(t, rep2.Decode(rep.AppendTo(nil)))
	require.NoError(t, rej2.Decode(rej.AppendTo(nil)))
	require.Equal(t, rep, rep2)
	require.Equal(t, rej, rej2)
	require.Equal(t, "no such controller", rej2.Status.String())
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		e := DiscoveryEntry{2, 7, "nqn", netip.MustParseAddr(a), "4420"}
		var e2 DiscoveryEntry
		require.NoError(t, e2.Decode(e.AppendTo(nil)))
		require.Equal(t, e, e2)
	}
	r := Range{1, 2, 3}
	var r2 Range
	require.NoError(t, r2.Decode(r.AppendTo(nil)))
	require.Equal(t, r, r2)
	n := Namespace{8, 9, true, [16]byte{1}, 7, 6}
	var n2 Namespace
	require.NoError(t, n2.Decode(n.AppendTo(nil)))
	require.Equal(t, n, n2)
}

// between is what nvme-rdma and nvmet-rdma of Linux 6.12.117 say to each other in two
// guests, with nvme-cli 2.4: discover, connect, a few commands, errors, disconnect.
// (go test -tags interop -run TestGolden ./examples/nvmetarget -golden FILE.)
type between struct {
	requests   []ConnectRequest
	replies    []ConnectReply
	commands   []Command
	controller Controller
	namespace  Namespace
	discovery  []DiscoveryEntry
	connects   []ConnectData
	ended      []ended
}

// ended is a command and its response.
type ended struct {
	Command
	Completion Completion
}

// readBetween decodes the capture. What it decodes it encodes, to the same bytes.
func readBetween(t *testing.T) (b between) {
	recs, err := capture.ReadFile("testdata/nvmet.pcap.gz")
	require.NoError(t, err)
	host := netip.MustParseAddr("192.0.2.2")
	data := map[uint64]Command{} // by address and key of the host's memory, the last
	key := func(va uint64, rkey uint32) uint64 { return va<<20 ^ uint64(rkey) }
	type id struct{ queue, cid uint16 }
	queues, open := map[uint32]uint16{}, map[id]Command{} // queues by the target's QP
	responses := map[string]bool{}                        // seen: one whose acknowledgement was lost comes twice
	again := func(got, want []byte) { t.Helper(); require.Equal(t, want, got) }
	for _, r := range recs {
		var f frame.Frame
		if f.Decode(frame.Ethernet, r.Data) != nil {
			continue
		}
		p := &f.Packet
		fromHost := f.Src == host
		switch op := p.Opcode; {
		case p.DestQP == 1:
			var m cm.Message
			require.NoError(t, m.Decode(p.Payload))
			switch m.Header.AttributeID {
			case cm.AttrREQ:
				var r ConnectRequest
				private := m.REQ.PrivateData[cm.CMAHeaderSize:]
				require.NoError(t, r.Decode(private))
				again(r.AppendTo(nil), private[:ConnectRequestSize])
				b.requests = append(b.requests, r)
			case cm.AttrREP:
				var r ConnectReply
				require.NoError(t, r.Decode(m.REP.PrivateData))
				again(r.AppendTo(nil), m.REP.PrivateData[:ConnectReplySize])
				b.replies = append(b.replies, r)
			}
		case op == bth.RCSendOnly && fromHost:
			var c Command
			require.NoError(t, c.Decode(p.Payload))
			again(c.AppendTo(nil), p.Payload[:CommandSize])
			b.commands = append(b.commands, c)
			data[key(c.SGL.Addr, c.SGL.Key)] = c
			if c.Opcode == Fabrics && c.FabricsType() == Connect {
				queues[p.DestQP] = uint16(c.CDW10[0] >> 16)
				if c.SGL.Type == SGLOffset {
					b.connect(t, p.Payload[CommandSize:])
				}
			}
			open[id{queues[p.DestQP], c.CID}] = c
		case op.Send() && !fromHost:
			at := fmt.Sprint(p.DestQP, p.PSN)
			if responses[at] {
				continue
			}
			responses[at] = true
			var c Completion
			require.Len(t, p.Payload, CompletionSize)
			require.NoError(t, c.Decode(p.Payload))
			again(c.AppendTo(nil), p.Payload)
			of, ok := open[id{c.SQID, c.CID}]
			require.True(t, ok, "a response to no command: %+v", c)
			delete(open, id{c.SQID, c.CID})
			require.Equal(t, op == bth.RCSendOnlyInv, of.SGL.Type == SGLKeyedInvalidate && of.SGL.Length != 0)
			if op == bth.RCSendOnlyInv {
				require.Equal(t, of.SGL.Key, p.IETH.RKey)
			}
			b.ended = append(b.ended, ended{of, c})
		case op == bth.RCReadResponseOnly && len(p.Payload) == ConnectDataSize:
			b.connect(t, p.Payload)
		case op == bth.RCWriteOnly && !fromHost:
			switch c := data[key(p.RETH.VA, p.RETH.RKey)]; {
			case c.Opcode == Identify && c.CDW10[0] == IdentifyControllerCNS && b.controller.SubNQN != nvmet:
				require.NoError(t, b.controller.Decode(p.Payload))
			case c.Opcode == Identify && c.CDW10[0] == IdentifyNamespaceCNS && c.NSID == 1:
				require.NoError(t, b.namespace.Decode(p.Payload))
			case c.Opcode == GetLogPage && uint8(c.CDW10[0]) == LogDiscovery && len(p.Payload) > DiscoverySize:
				for rest := p.Payload[DiscoverySize:]; len(rest) >= DiscoverySize; rest = rest[DiscoverySize:] {
					var e DiscoveryEntry
					require.NoError(t, e.Decode(rest))
					b.discovery = append(b.discovery, e)
				}
			}
		}
	}
	return b
}

func (b *between) connect(t *testing.T, data []byte) {
	var d ConnectData
	require.NoError(t, d.Decode(data))
	require.Equal(t, data[:ConnectDataSize], d.AppendTo(nil))
	b.connects = append(b.connects, d)
}

const nvmet = "nqn.2014-08.org.nvmexpress:nvmet"

// The formats against Linux on both sides: what was asked of nvme-cli, and how nvmet was
// configured, is what the bytes say.
func TestBetweenGuests(t *testing.T) {
	b := readBetween(t)
	has := func(what string, ok bool) { t.Helper(); require.True(t, ok, what) }
	// Discovery, the subsystem with an I/O queue of 16 entries, one that is not there.
	for i, want := range []ConnectRequest{{0, 0, 32, 31, 0}, {0, 0, 32, 31, 0}, {0, 1, 16, 15, b.controller.CntlID}} {
		require.Equal(t, want, b.requests[i])
		require.EqualValues(t, want.HSQSize+1, b.replies[i].CRQSize)
	}
	require.Equal(t, "Linux", b.controller.Model)
	require.Equal(t, "6.12.117", b.controller.Firmware)
	require.Equal(t, nvmet, b.controller.SubNQN)
	require.Equal(t, 16384, b.controller.inline(), "param_inline_data_size")
	has("keyed SGLs, offsets", b.controller.SGLS&(SGLSKeyed|SGLSOffset) == SGLSKeyed|SGLSOffset)
	require.EqualValues(t, 1<<30>>9, b.namespace.Blocks, "null_blk with gb=1")
	require.EqualValues(t, 9, b.namespace.BlockLog)
	has("the subsystem in the discovery log", slices.ContainsFunc(b.discovery, func(e DiscoveryEntry) bool {
		return e.Type == 2 && e.NQN == nvmet && e.Addr == netip.MustParseAddr("192.0.2.1") && e.Port == "4420"
	}))
	for i, nqn := range []string{DiscoveryNQN, nvmet, nvmet, "nqn.2014-08.org.nvmexpress:none"} {
		require.Equal(t, nqn, b.connects[i].SubNQN)
		require.Equal(t, "nqn.2014-08.org.nvmexpress:uuid:6f1d2c3b-4a59-4e68-8776-8594a3b2c1d0", b.connects[i].HostNQN)
	}
	for _, c := range []struct {
		what   string
		is     func(c *Command) bool
		status Status
		result uint64
	}{
		{"Connect of the I/O queue, of which the result is the controller",
			func(c *Command) bool { return c.Opcode == Fabrics && c.FabricsType() == Connect && c.CDW10[0] == 1<<16 }, Success, uint64(b.controller.CntlID)},
		{"Connect with a subsystem's name, at 256 in the data, that is not there",
			func(c *Command) bool { return c.Opcode == Fabrics && c.FabricsType() == Connect && c.CDW10[0] == 0 }, ConnectInvalidParam | DNR, 1<<16 | 256},
		{"CAP: 128 entries of a queue, ready within 7.5 s, the NVM command set and others (bit 6 of CSS)",
			func(c *Command) bool {
				return c.Opcode == Fabrics && c.FabricsType() == PropertyGet && c.CDW10[1] == PropertyCAP
			}, Success,
			CAPNVM | 1<<43 | 15<<24 | 127},
		{"CSTS after the shutdown", func(c *Command) bool {
			return c.Opcode == Fabrics && c.FabricsType() == PropertyGet && c.CDW10[1] == PropertyCSTS
		}, Success, CSTSShutdown},
		{"128 I/O queues", func(c *Command) bool { return c.Opcode == GetFeatures && c.CDW10[0] == FeatureQueues }, Success, 127<<16 | 127},
		{"Write", func(c *Command) bool { return c.Opcode == Write }, Success, 0},
		{"null_blk discards nothing", func(c *Command) bool { return c.Opcode == DatasetManagement && c.NSID == 1 }, InvalidOpcode | DNR, 0},
		{"an admin command that is not there", func(c *Command) bool { return c.Opcode == 0xc1 }, InvalidOpcode | DNR, 0},
	} {
		i := len(b.ended) - 1 // the last of them
		for i >= 0 && !c.is(&b.ended[i].Command) {
			i--
		}
		require.GreaterOrEqual(t, i, 0, c.what)
		const more = 1 << 13 // in the error log
		require.Equal(t, c.status, b.ended[i].Completion.Status&^more, c.what)
		require.Equal(t, c.result, b.ended[i].Completion.Result, c.what)
	}
	for _, op := range []Opcode{Write, Read, Flush, WriteZeroes, DatasetManagement} {
		has("I/O command", slices.ContainsFunc(b.commands, func(c Command) bool { return c.Opcode == op && c.NSID == 1 }))
	}
}

// A response that has come is the command's, though the connection ended meanwhile.
func TestResponseAndEnd(t *testing.T) {
	q := &queue{receiver: make(chan struct{})}
	close(q.receiver)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	s := &slot{done: make(chan response, 1)}
	for range 100 {
		s.done <- response{Completion: Completion{CID: 7}}
		r, err := q.response(over, s)
		require.NoError(t, err)
		require.EqualValues(t, 7, r.CID)
	}
}

// A controller that responds to a command twice, or to none, loses its connection: the
// second response is not that of the next command.
func TestResponseToNoCommand(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a, b := endpoint.Pair()
	host, err := endpoint.Open(a)
	require.NoError(t, err)
	defer host.Close()
	ctrl, err := endpoint.Open(b)
	require.NoError(t, err)
	defer ctrl.Close()
	l, err := ctrl.Listen(ctx, ":4420", nil)
	require.NoError(t, err)
	defer l.Close()
	at := netip.AddrPortFrom(ctrl.Addrs()[0], Port).String()
	for _, cids := range [][]uint16{{0, 0}, {0, 9}, {0, 0xffff}} {
		go func() {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			if _, err := c.Recv(ctx, make([]byte, CommandSize)); err != nil { // Connect
				return
			}
			for _, cid := range cids {
				_ = c.Send(ctx, (&Completion{Result: 1, CID: cid}).AppendTo(nil))
			}
		}()
		_, err = Dial(ctx, host, at, HostConfig{NQN: "nqn", HostNQN: "host"})
		require.ErrorContains(t, err, "a response to no command")
	}
}

// FuzzFormats: no bytes panic; what a format accepts is encoded to the same bytes.
func FuzzFormats(f *testing.F) {
	for _, c := range commands {
		f.Add(unhex(c.hex))
	}
	f.Add(make([]byte, IdentifySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		var cmd Command
		if cmd.Decode(b) == nil {
			require.Equal(t, b[:CommandSize], cmd.AppendTo(nil))
		}
		var c Completion
		if c.Decode(b) == nil {
			require.Equal(t, b[:CompletionSize], c.AppendTo(nil))
		}
		_ = cmd.SGL.Type.Keyed()
		_, _ = c.Status.String(), c.Status.Is(Success)
		for _, d := range []interface{ Decode([]byte) error }{new(ConnectRequest), new(ConnectReply), new(ConnectReject), new(ConnectData),
			new(Controller), new(Namespace), new(DiscoveryEntry), new(Range)} {
			_ = d.Decode(b)
		}
	})
}
