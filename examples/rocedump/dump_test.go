package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	realcaptures "github.com/roce-go/roce/fuzz/captures"
)

const captures = "../../fuzz/captures/"

// exec runs the program.
func exec(stdin []byte, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, bytes.NewReader(stdin), &o, &e)
	return code, o.String(), e.String()
}

// object is a JSON line with all keys of the contract in architecture order.
type object struct {
	File  string  `json:"file"`
	Frame int     `json:"frame"`
	Time  *string `json:"time"`
	Outer []struct {
		Kind string `json:"kind"`
		ID   *int   `json:"id"`
		VLAN []int  `json:"vlan"`
		Net  string `json:"net"`
		Src  string `json:"src"`
		Dst  string `json:"dst"`
	} `json:"outer"`
	IPChecksum string `json:"ip_checksum"`
	VLAN       []int  `json:"vlan"`
	Net        string `json:"net"`
	Src        string `json:"src"`
	Dst        string `json:"dst"`
	Sport      *int   `json:"sport"`
	DSCP       *int   `json:"dscp"`
	ECN        *int   `json:"ecn"`
	TTL        *int   `json:"ttl"`
	BTH        *struct {
		Opcode int    `json:"opcode"`
		Name   string `json:"name"`
		SE     *bool  `json:"se"`
		M      *bool  `json:"m"`
		Pad    *int   `json:"pad"`
		TVer   *int   `json:"tver"`
		PKey   string `json:"pkey"`
		FECN   *bool  `json:"fecn"`
		BECN   *bool  `json:"becn"`
		DestQP *int   `json:"dest_qp"`
		AckReq *bool  `json:"ack_req"`
		PSN    *int   `json:"psn"`
	} `json:"bth"`
	RETH *struct {
		VA     string `json:"va"`
		RKey   string `json:"rkey"`
		DMALen *int64 `json:"dma_len"`
	} `json:"reth"`
	AETH *struct {
		Syndrome *int   `json:"syndrome"`
		Kind     string `json:"kind"`
		Value    *int   `json:"value"`
		MSN      *int   `json:"msn"`
	} `json:"aeth"`
	AtomicETH *struct {
		VA      string `json:"va"`
		RKey    string `json:"rkey"`
		SwapAdd string `json:"swap_add"`
		Compare string `json:"compare"`
	} `json:"atomic_eth"`
	AtomicAck *string `json:"atomic_ack"`
	DETH      *struct {
		QKey  string `json:"qkey"`
		SrcQP *int   `json:"src_qp"`
	} `json:"deth"`
	RDETH *struct {
		EE *int `json:"ee"`
	} `json:"rdeth"`
	XRCETH *struct {
		SRQ *int `json:"srq"`
	} `json:"xrceth"`
	Imm  *string `json:"imm"`
	IETH *struct {
		RKey string `json:"rkey"`
	} `json:"ieth"`
	FETH *struct {
		Sel *int `json:"sel"`
		Plt *int `json:"plt"`
	} `json:"feth"`
	Payload   *int    `json:"payload"`
	ICRC      *string `json:"icrc"`
	ICRCState string  `json:"icrc_state"`

	Error   string `json:"error"`
	Skipped string `json:"skipped"`
	PFC     *struct {
		Src    string `json:"src"`
		Enable []int  `json:"enable"`
		Quanta []int  `json:"quanta"`
	} `json:"pfc"`
}

// objects parses JSON lines strictly.
func objects(t *testing.T, out string) []object {
	t.Helper()
	var all []object
	for line := range strings.Lines(out) {
		require.True(t, strings.HasSuffix(line, "}\n"), line)
		var o object
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&o), line)
		require.False(t, d.More(), line)
		all = append(all, o)
	}
	return all
}

// tsharkRow is a line of the independent dissector's table.
type tsharkRow map[string]string

func tsharkTable(t *testing.T, name string) []tsharkRow {
	text := realcaptures.Dissection(name)
	require.NotEmpty(t, text)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	var rows []tsharkRow
	for _, l := range lines[1:] {
		row := tsharkRow{}
		for i, v := range strings.Split(l, "\t") {
			row[names[i]] = v
		}
		rows = append(rows, row)
	}
	return rows
}

func (r tsharkRow) num64(t *testing.T, key string) int64 {
	n, err := strconv.ParseInt(r[key], 0, 64)
	require.NoError(t, err, "%s %q", key, r[key])
	return n
}

func (r tsharkRow) num(t *testing.T, key string) int { return int(r.num64(t, key)) }

func (r tsharkRow) bool(key string) bool { return r[key] == "1" || r[key] == "True" }

// hex gives a number of the table as our strings have it.
func (r tsharkRow) hex(t *testing.T, key string, digits int) string {
	n, err := strconv.ParseUint(r[key], 0, 64)
	require.NoError(t, err, "%s %q", key, r[key])
	return fmt.Sprintf("0x%0*x", digits, n)
}

func names(t *testing.T) []string {
	paths, err := filepath.Glob(captures + "*.pcap")
	require.NoError(t, err)
	require.Greater(t, len(paths), 40)
	var out []string
	for _, p := range paths {
		out = append(out, strings.TrimSuffix(filepath.Base(p), ".pcap"))
	}
	return out
}

// TestTshark compares each JSON object of all captures with tshark's table: the
// same frames, the same headers, the same values.
func TestTshark(t *testing.T) {
	packets, kinds := 0, map[string]int{}
	for _, name := range names(t) {
		file := captures + name + ".pcap"
		_, out, errs := exec(nil, "-json", file)
		require.Empty(t, errs)
		got := objects(t, out)
		for _, row := range tsharkTable(t, name) {
			if row["infiniband.bth.opcode"] == "" {
				continue
			}
			require.NotEmpty(t, got, "%s: missing frame %s", name, row["frame.number"])
			o := got[0]
			got = got[1:]
			where := fmt.Sprintf("%s, frame %d", name, o.Frame)
			require.Equal(t, row.num(t, "frame.number"), o.Frame, where)
			require.Equal(t, file, o.File, where)
			if opcode := row.num(t, "infiniband.bth.opcode"); opcode == 0x1f || row["infiniband.bth.tver"] != "0" {
				require.NotEmpty(t, o.Error, where)
				require.Nil(t, o.BTH, where)
				kinds["error"]++
				continue
			}
			packets++
			compare(t, where, row, &o, kinds)
		}
		require.Empty(t, got, "%s: more than tshark has", name)
	}
	require.Equal(t, 2, kinds["bad ICRC"], "one in each probe")
	require.Greater(t, packets, 1400)
	for _, k := range []string{"reth", "aeth", "atomic_eth", "atomic_ack", "deth", "imm", "ieth", "error", "ipv6",
		"nak", "rnr", "ack", "reserved", "ce", "no ICRC"} {
		require.NotZero(t, kinds[k], "no %s in any capture", k)
	}
}

func compare(t *testing.T, where string, row tsharkRow, o *object, kinds map[string]int) {
	t.Helper()
	eq := func(want, got any, what string) {
		t.Helper()
		require.Equal(t, want, got, "%s: %s", where, what)
	}
	has := func(column string, present bool, key string) bool {
		t.Helper()
		eq(row[column] != "", present, key)
		if present {
			kinds[key]++
		}
		return present
	}
	eq("", o.Error+o.Skipped, "error")
	eq(0, len(o.VLAN), "vlan")
	if row["ip.src"] != "" {
		eq("ipv4", o.Net, "net")
		eq(row["ip.src"], o.Src, "src")
		eq(row["ip.dst"], o.Dst, "dst")
		eq(row.num(t, "ip.dsfield"), *o.DSCP<<2|*o.ECN, "dscp, ecn")
		eq(row.num(t, "ip.ttl"), *o.TTL, "ttl")
	} else {
		eq("ipv6", o.Net, "net")
		eq(row["ipv6.src"], o.Src, "src")
		eq(row["ipv6.dst"], o.Dst, "dst")
		eq(row.num(t, "ipv6.tclass"), *o.DSCP<<2|*o.ECN, "dscp, ecn")
		eq(row.num(t, "ipv6.hlim"), *o.TTL, "ttl")
		kinds["ipv6"]++
	}
	if *o.ECN == 3 {
		kinds["ce"]++
	}
	eq(row.num(t, "udp.srcport"), *o.Sport, "sport")

	const b = "infiniband.bth."
	eq(row.num(t, b+"opcode"), o.BTH.Opcode, "opcode")
	require.NotEmpty(t, o.BTH.Name)
	eq(row.bool(b+"se"), *o.BTH.SE, "se")
	eq(row.bool(b+"m"), *o.BTH.M, "m")
	eq(row.num(t, b+"padcnt"), *o.BTH.Pad, "pad")
	eq(row.num(t, b+"tver"), *o.BTH.TVer, "tver")
	eq(row.hex(t, b+"p_key", 4), o.BTH.PKey, "pkey")
	eq(row.num(t, b+"destqp"), *o.BTH.DestQP, "dest_qp")
	eq(row.bool(b+"a"), *o.BTH.AckReq, "ack_req")
	eq(row.num(t, b+"psn"), *o.BTH.PSN, "psn")
	require.NotNil(t, o.BTH.FECN) // tshark's table has neither
	require.NotNil(t, o.BTH.BECN)

	length := row.num(t, "udp.length") - 8 - 12 - 4 - *o.BTH.Pad
	// tshark has the atomic header's address and key under reth.
	atomic := has("infiniband.atomiceth", o.AtomicETH != nil, "atomic_eth")
	if atomic {
		length -= 28
		eq(row.hex(t, "infiniband.reth.va", 16), o.AtomicETH.VA, "va")
		eq(row.hex(t, "infiniband.reth.r_key", 8), o.AtomicETH.RKey, "rkey")
		eq(row.hex(t, "infiniband.atomiceth.swapdt", 16), o.AtomicETH.SwapAdd, "swap_add")
		eq(row.hex(t, "infiniband.atomiceth.cmpdt", 16), o.AtomicETH.Compare, "compare")
		eq(true, o.RETH == nil, "reth beside atomic_eth")
	} else if has("infiniband.reth.va", o.RETH != nil, "reth") {
		length -= 16
		eq(row.hex(t, "infiniband.reth.va", 16), o.RETH.VA, "va")
		eq(row.hex(t, "infiniband.reth.r_key", 8), o.RETH.RKey, "rkey")
		eq(row.num64(t, "infiniband.reth.dmalen"), *o.RETH.DMALen, "dma_len")
	}
	if has("infiniband.aeth.msn", o.AETH != nil, "aeth") {
		length -= 4
		eq(row.num(t, "infiniband.aeth.syndrome"), *o.AETH.Syndrome, "syndrome")
		eq(row.num(t, "infiniband.aeth.msn"), *o.AETH.MSN, "msn")
		kind := row.num(t, "infiniband.aeth.syndrome.opcode")
		eq([]string{"ack", "rnr", "reserved", "nak"}[kind], o.AETH.Kind, "kind")
		kinds[o.AETH.Kind]++
		if column := [...]string{"credit_count", "timer", "", "error_code"}[kind]; column != "" {
			eq(row.num(t, "infiniband.aeth.syndrome."+column), *o.AETH.Value, "value")
		}
	}
	if has("infiniband.atomicacketh.origremdt", o.AtomicAck != nil, "atomic_ack") {
		length -= 8
		eq(row.hex(t, "infiniband.atomicacketh.origremdt", 16), *o.AtomicAck, "atomic_ack")
	}
	if has("infiniband.deth.q_key", o.DETH != nil, "deth") {
		length -= 8
		eq(row.hex(t, "infiniband.deth.q_key", 8), o.DETH.QKey, "qkey")
		eq(row.num(t, "infiniband.deth.srcqp"), *o.DETH.SrcQP, "src_qp")
	}
	// tshark has each of these twice, in hexadecimal.
	if has("infiniband.immdt", o.Imm != nil, "imm") {
		length -= 4
		v, _, _ := strings.Cut(row["infiniband.immdt"], ",")
		eq("0x"+v, *o.Imm, "imm")
	}
	if has("infiniband.ieth", o.IETH != nil, "ieth") {
		length -= 4
		v, _, _ := strings.Cut(row["infiniband.ieth"], ",")
		eq("0x"+v, o.IETH.RKey, "ieth")
	}
	eq(true, o.RDETH == nil && o.XRCETH == nil && o.FETH == nil, "headers of no opcode here")
	eq(length, *o.Payload, "payload")
	if icrc := row["infiniband.invariant.crc"]; icrc != "" {
		eq(strings.TrimPrefix(icrc, "0x"), *o.ICRC, "icrc")
	} else {
		kinds["no ICRC"]++
	}
	if o.ICRCState != "good" {
		eq("bad", o.ICRCState, "icrc_state")
		kinds["bad ICRC"]++
	}
}

// TestGolden holds the bytes of some lines: order and form of the keys. Their
// values are those of tshark's table, by hand; the time is capinfos'.
func TestGolden(t *testing.T) {
	const file = captures + "rc-atomic.pcap"
	code, out, errs := exec(nil, "-json", file)
	require.Zero(t, code)
	require.Empty(t, errs)
	lines := strings.Split(out, "\n")
	require.Equal(t, `{"file":"`+file+`","frame":11,"time":"2026-11-29T15:44:14.482275000Z","net":"ipv4","src":"192.0.2.2","dst":"192.0.2.1",`+
		`"sport":49441,"dscp":0,"ecn":0,"ttl":64,"bth":{"opcode":20,"name":"RC_FETCH_ADD","se":false,"m":false,"pad":0,"tver":0,"pkey":"0xffff",`+
		`"fecn":false,"becn":false,"dest_qp":17,"ack_req":true,"psn":6636321},`+
		`"atomic_eth":{"va":"0x0000123456880000","rkey":"0x00000291","swap_add":"0x1000000000000001","compare":"0x0000000000000000"},`+
		`"payload":0,"icrc":"7f59a759","icrc_state":"good"}`, lines[0])
	require.Equal(t, `{"file":"`+file+`","frame":12,"time":"2026-11-29T15:44:14.489960000Z","net":"ipv4","src":"192.0.2.1","dst":"192.0.2.2",`+
		`"sport":49441,"dscp":0,"ecn":0,"ttl":64,"bth":{"opcode":18,"name":"RC_ATOMIC_ACKNOWLEDGE","se":false,"m":false,"pad":0,"tver":0,"pkey":"0xffff",`+
		`"fecn":false,"becn":false,"dest_qp":17,"ack_req":false,"psn":6636321},`+
		`"aeth":{"syndrome":31,"kind":"ack","value":31,"msn":1},"atomic_ack":"0x0102030405060708",`+
		`"payload":0,"icrc":"e39ef6cb","icrc_state":"good"}`, lines[1])

	_, out, _ = exec(nil, file)
	lines = strings.Split(out, "\n")
	require.Equal(t, "    11 15:44:14.482275000 192.0.2.2   > 192.0.2.1   RC_FETCH_ADD             qp 0x000011 psn  6636321 A---"+
		"     0 B icrc good va 0x0000123456880000 rkey 0x00000291 add 0x1000000000000001", lines[0])
	require.Equal(t, "    12 15:44:14.489960000 192.0.2.1   > 192.0.2.2   RC_ATOMIC_ACKNOWLEDGE    qp 0x000011 psn  6636321 ----"+
		"     0 B icrc good ack msn 1 orig 0x0102030405060708", lines[1])
}

// Each frame of this file, of 43, has the same RoCE packet in another tunnel; two
// have only tags. The package frame holds it against tshark.
const tunnels = "../../bth/frame/testdata/tunnels.pcap"

// only returns a capture of the records of that file that are named by their
// places in it.
func only(t *testing.T, places ...int) *bytes.Reader {
	recs, err := capture.ReadFile(tunnels)
	require.NoError(t, err)
	var frames [][]byte
	for _, i := range places {
		frames = append(frames, recs[i].Data)
	}
	return bytes.NewReader(pcap(t, frame.Ethernet, frames...))
}

func TestTunnels(t *testing.T) {
	code, out, errs := exec(nil, "-json", tunnels)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	got := objects(t, out)
	require.Equal(t, 43, len(got))
	for _, o := range got {
		require.Equal(t, 100, *o.BTH.PSN)
		require.Equal(t, "good", o.ICRCState)
	}
	vx := got[3].Outer[0]
	require.Equal(t, "vxlan", vx.Kind)
	require.Equal(t, 0xabcdef, *vx.ID)
	require.Equal(t, []int{77}, vx.VLAN)
	require.Equal(t, []string{"ipv6", "2001:db8:ff::1", "2001:db8:ff::2"}, []string{vx.Net, vx.Src, vx.Dst})
	require.Equal(t, "192.0.2.1", got[3].Src)
	require.Nil(t, got[0].Outer[0].ID)
	require.Equal(t, 2, len(got[40].Outer))
	require.Empty(t, got[41].Outer)
	require.Equal(t, []int{100, 101, 102}, got[41].VLAN)

	_, out, _ = exec(nil, tunnels)
	lines := strings.Split(out, "\n")
	require.True(t, strings.HasSuffix(lines[40], " in vxlan 5004 203.0.113.1 > 203.0.113.2 in erspan2 1 198.51.100.1 > 198.51.100.2"), lines[40])

	_, out, _ = exec(nil, "-summary", tunnels)
	require.Contains(t, out, "in tunnels: vxlan 7, vxlan-gpe 2, geneve 4, gre 4, gretap 2, erspan1 1, erspan2 3, erspan3 2, mirror 2, mpls 7, ipip 5, srv6 3, ether-in-ip 1\n")
	_, out, _ = exec(nil, "-summary", "-json", tunnels)
	require.Equal(t, "vxlan", summaries(t, out)[0].Tunnels[0].Kind)
}

// TestNamed: what is not decoded is named, by itself and beside RoCE, in every
// form of output.
func TestNamed(t *testing.T) {
	file := func(places ...int) []byte {
		var b bytes.Buffer
		_, err := b.ReadFrom(only(t, places...))
		require.NoError(t, err)
		return b.Bytes()
	}
	// ERSPAN I and VXLAN; and with a frame that has only tags.
	code, out, errs := exec(file(0, 2), "-tunnels=false", "-")
	require.Zero(t, code)
	require.Empty(t, out)
	require.Contains(t, errs, "no RoCE packet among 2 frames")
	require.Contains(t, errs, "1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)")

	_, out, errs = exec(file(0, 2, 41), "-tunnels=false", "-")
	require.Equal(t, 1, strings.Count(out, "\n"))
	require.Contains(t, errs, "not decoded, and RoCE packets may be in it: 1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)")

	_, out, errs = exec(file(0, 2, 41), "-tunnels=false", "-summary", "-")
	require.Empty(t, errs)
	require.Contains(t, out, "other frames: 1 UDP 4789 (VXLAN), 1 GRE 0x88be (ERSPAN)\n")
	require.Contains(t, out, "RoCE packets may be in what was not decoded: 1 UDP 4789")
	_, out, _ = exec(file(0, 2, 41), "-tunnels=false", "-summary", "-json", "-")
	require.Equal(t, "UDP 4789 (VXLAN)", summaries(t, out)[0].Protocols[0].Protocol)

	_, out, _ = exec(file(0, 2), "-tunnels=false", "-json", "-all", "-")
	require.Equal(t, "frame: not RoCE: GRE 0x88be (ERSPAN)", objects(t, out)[0].Skipped)

	// VXLAN on another port, without and with the flag.
	vx := file(2)
	vx[24+16+36], vx[24+16+37] = 0x11, 0x5c // 4444
	_, out, errs = exec(vx, "-")
	require.Empty(t, out)
	require.Contains(t, errs, "UDP 4444")
	for _, flag := range []string{"-vxlan=4444", "-vxlan=1,4444"} {
		_, out, errs = exec(vx, flag, "-")
		require.Empty(t, errs)
		require.Contains(t, out, "in vxlan 5000")
	}
	for _, flag := range []string{"-vxlan=0", "-vxlan=x", "-vxlan=1,,2", "-vxlan=65536"} {
		code, _, errs = exec(vx, flag, "-")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "no UDP port")
	}
}

// TestW3 is a frame that a switch cut: read as far as it goes, and no error.
func TestW3(t *testing.T) {
	_, b := build(0x06, frame.IPv4, make([]byte, 1024))
	code, out, errs := exec(pcap(t, frame.Ethernet, b[:96]), "-json", "-")
	require.Zero(t, code, errs)
	o := objects(t, out)[0]
	require.Equal(t, "unchecked", o.ICRCState)
	require.Equal(t, 1024, *o.Payload)
}

// TestHeaderChecksum: a bit that the ICRC does not cover, in the type of service.
func TestHeaderChecksum(t *testing.T) {
	_, b := build(0x04, frame.IPv4, make([]byte, 8))
	b[15] ^= 1
	code, out, errs := exec(pcap(t, frame.Ethernet, b), "-json", "-")
	require.Equal(t, exitWrong, code, errs)
	o := objects(t, out)[0]
	require.Equal(t, []string{"good", "bad"}, []string{o.ICRCState, o.IPChecksum})
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-")
	require.Contains(t, out, "IPv4 header checksum bad")
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-summary", "-")
	require.Contains(t, out, "IPv4 header checksum bad 1\n")
	_, out, _ = exec(pcap(t, frame.Ethernet, b), "-summary", "-json", "-")
	require.Equal(t, 1, summaries(t, out)[0].BadSums)
	b[24], b[25] = 0, 0
	code, out, _ = exec(pcap(t, frame.Ethernet, b), "-json", "-")
	require.Zero(t, code)
	require.Empty(t, objects(t, out)[0].IPChecksum)
}

// TestSegments: the same address and QP number of two tenants, or in two VLANs, are
// different QPs; a mirrored copy is of the same.
func TestSegments(t *testing.T) {
	_, out, _ := exec(nil, "-summary", "-json", tunnels, tunnels)
	all := summaries(t, out)
	require.Len(t, all, 2)
	at := map[string]int{}
	for _, q := range all[0].QPs {
		at[fmt.Sprintf("%s %v %s %d %v", q.Dst, q.VLAN, q.Tunnel, q.ID, q.Ends)] = q.Packets
	}
	require.Equal(t, 7, at["192.0.2.2 []  0 []"], "copies")
	require.Equal(t, 1, at["192.0.2.2 [] vxlan 5000 []"])
	require.Equal(t, 1, at["192.0.2.2 [100 101 102] vxlan 5001 []"])
	require.Equal(t, 1, at["192.0.2.2 [100 101 102]  0 []"])
	require.Equal(t, 1, at["192.0.2.2 [] ipip 0 [198.51.100.1 198.51.100.2]"])
	_, out, _ = exec(nil, "-summary", tunnels, tunnels)
	require.Contains(t, out, "192.0.2.2 0x000012 vlan 100 vlan 101 vlan 102 vxlan 5001\n")
	require.Contains(t, out, "2  "+strings.Repeat(" ", 11)+"32  192.0.2.2 0x000012 vxlan 5000\n", "the sum of both files")
}
