package script_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/script"
)

const sendAndWait = `
qp rc sq_psn=20 timeout=14
        post SEND id=1 data=a[0:10]
        > SEND_ONLY 20 ackreq data=a[0:10]
60ms    -
67.108864ms > SEND_ONLY 20 ackreq retx
70ms    < ACK 20 msn=1
        done SEND id=1
`

func TestGood(t *testing.T) {
	var b strings.Builder
	require.NoError(t, script.RunTrace(&b, sendAndWait))
	require.Contains(t, b.String(), "67.108864ms    > SEND_ONLY 20 ackreq pad=2 payload 10 bytes")
}

// TestSections: a line of == starts a new section, and line numbers continue.
func TestSections(t *testing.T) {
	require.NoError(t, script.Run(sendAndWait+"== again\n"+sendAndWait))
	err := script.Run(sendAndWait + "== again\n" + strings.ReplaceAll(sendAndWait, "ACK 20", "ACK 21"))
	var e *script.Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, 16, e.Line)
}

// TestFailures: each script fails at the line and for the reason given. These are
// what a script that cannot fail would pass.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, text string
		line       int
		msg        string
	}{
		{"packet not stated", "qp rc\npost SEND id=1\npost SEND id=2", 2, "not expected: SEND_ONLY 0"},
		{"packet not stated at the end", "qp rc\npost SEND id=1\n", 2, "not expected: SEND_ONLY 0"},
		{"packet not stated before ==", "qp rc\npost SEND id=1\n==\nqp rc", 2, "not expected: SEND_ONLY 0"},
		{"packet on the way", "qp rc timeout=1\npost SEND id=1\n> SEND_ONLY 0\n1s -", 4, "at 8.192µs, not expected: SEND_ONLY 0"},
		{"completion not stated", "qp rc\npost SEND id=1\n> SEND_ONLY 0\n< ACK 0\n-", 4, "not expected: completion SEND id=1"},
		{"event not stated", "qp rc\nmodify state=SQD\n-", 2, "not expected: event SQ_DRAINED"},
		{"verdict", "qp rc\n< SEND_ONLY 5", 2, "want verdict accepted, got out of sequence"},
		{"other verdict", "qp rc\n< SEND_ONLY 5 => duplicate", 2, "want verdict duplicate, got out of sequence"},
		{"no packet", "qp rc\n> SEND_ONLY 0", 2, "no output"},
		{"no completion", "qp rc\ndone SEND", 2, "no output"},
		{"no event", "qp rc\nevent COMM_EST", 2, "no output"},
		{"something else", "qp rc\nmodify state=SQD\ndone SEND", 2, "not expected: event SQ_DRAINED"},
		{"opcode", "qp rc\npost SEND\n> SEND_FIRST 0", 3, "got SEND_ONLY 0"},
		{"psn", "qp rc\npost SEND\n> SEND_ONLY 1", 3, "want psn 1 (0x1), got SEND_ONLY 0"},
		{"flag", "qp rc\npost SEND\n> SEND_ONLY 0 se", 3, "want se 1"},
		{"no flag", "qp rc\npost SEND\n> SEND_ONLY 0 !ackreq", 3, "want ackreq 0"},
		{"field", "qp rc\npost RDMA_READ va=1 rkey=2 len=3\n> RDMA_READ_REQUEST 0 va=1 rkey=2 dmalen=4", 3, "want dmalen 4"},
		{"payload", "qp rc\npost SEND data=a[0:4]\n> SEND_ONLY 0 data=a[1:5]", 3, "payload: byte 0"},
		{"payload length", "qp rc\npost SEND data=a[0:4]\n> SEND_ONLY 0 data=a[0:5]", 3, "want 5 bytes, got 4"},
		{"retx", "qp rc\npost SEND\n> SEND_ONLY 0 retx", 3, "retransmission is false"},
		{"ACK is no NAK", "qp rc rq_psn=5\n< SEND_ONLY 4 => duplicate\n> NAK 4", 3, "got ACKNOWLEDGE 4"},
		{"NAK is no ACK", "qp rc\n< SEND_ONLY 4 => out of sequence\n> ACK 0", 3, "got ACKNOWLEDGE 0"},
		{"raw", "qp rc\npost SEND\n> raw 0x0440ffff0000000280000001 00000000", 3, "not understood"},
		{"raw bytes", "qp rc\npost SEND\n> raw 0x0440ffff000000028000000100000000", 3, "byte 11 is 0x00, want 0x01"},
		{"too early", "qp rc timeout=14\npost SEND\n> SEND_ONLY 0\n68ms..70ms > SEND_ONLY 0", 4, "output at 67.108864ms"},
		{"too late", "qp rc timeout=14\npost SEND\n> SEND_ONLY 0\n1ms..67ms > SEND_ONLY 0", 4, "no output until 67ms"},
		{"not at once", "qp rc\npost SEND\n1ms > SEND_ONLY 0", 3, "output at 0s"},
		{"status", "qp rc\npost SEND\n> SEND_ONLY 0\n< ACK 0\ndone SEND status=rem_op_err", 5, "want remote operation error"},
		{"id", "qp rc\npost SEND id=4\n> SEND_ONLY 0\n< ACK 0\ndone SEND id=5", 5, "want id 5, got 4"},
		{"immediate", "qp rc\nrecv len=9\n< SEND_ONLY_WITH_IMMEDIATE 0 imm=5\ndone RECV", 4, "it has one: true"},
		{"no immediate", "qp rc\nrecv len=9\n< SEND_ONLY 0\ndone RECV imm=0", 4, "it has one: false"},
		{"received data", "qp rc\nrecv len=9\n< SEND_ONLY 0 data=a[0:5]\ndone RECV data=b[0:5]", 4, "data: byte 0"},
		{"solicited", "qp rc\nrecv len=9\n< SEND_ONLY 0\ndone RECV solicited", 4, "solicited is false"},
		{"state", "qp rc\nstate SQD", 2, "got RTS"},
		{"counters", "qp rc\ncounters Invalid=1", 2, "Invalid is 0"},
		{"no counter", "qp rc\ncounters Nothing=1", 2, "not understood"},
		{"memory", "qp rc\nregion mr addr=0x10 data=a[0:8]\nmemory mr addr=0x11 a[0:1]", 3, "byte 0"},
		{"memory outside", "qp rc\nregion mr addr=0x10 data=a[0:8]\nmemory mr addr=0x11 a[1:9]", 3, "no such range"},
		{"deadline", "qp rc\npost SEND\n> SEND_ONLY 0\ndeadline 67ms", 4, "got 67.108864ms"},
		{"a deadline", "qp rc\npost SEND\n> SEND_ONLY 0\ndeadline none", 4, "there is a deadline"},
		{"no deadline", "qp rc\ndeadline 1s", 2, "there is a deadline: false"},
		{"no error", "qp rc\npost SEND error=full", 2, "no error"},
		{"other error", "qp rc\npost RDMA_READ len=8 inline error=full", 2, `got error "qp: too much inline data"`},
		{"error", "qp rc\npost RDMA_READ len=8 inline", 2, "too much inline data"},
		{"posted", "srq 4\nqp xrc_recv\nrecv srq=4 len=1\nposted 4 2", 4, "got 1"},

		{"statement", "qp rc\nrun", 2, `no statement "run"`},
		{"no QP", "post SEND", 1, "qp comes first"},
		{"two QPs", "qp rc\nqp rc", 2, "one already"},
		{"type", "qp rd", 1, "no such type"},
		{"state name", "qp rc state=UP", 1, "no QP begins in"},
		{"value", "qp rc mtu=1000", 1, "path_mtu"},
		{"word", "qp rc mtu=1024 fast", 1, `"fast" is not understood`},
		{"number", "qp rc sq_psn=1x", 1, "no number of 24 bits"},
		{"wide number", "qp rc sq_psn=0x1000000", 1, "no number of 24 bits"},
		{"opcode name", "qp rc\n< SEND_ONCE 1", 2, "no opcode"},
		{"opcode of others", "qp uc\n< ACK 1", 2, "no opcode"},
		{"no PSN", "qp rc\n< SEND_ONLY", 2, "the PSN is missing"},
		{"no such field", "qp rc\n< SEND_ONLY 1 va=4", 2, "has no va"},
		{"NAK without", "qp rc\n< NAK 1", 2, "NAK needs syndrome"},
		{"data", "qp rc\n< SEND_ONLY 0 data=a[4:2]", 2, "ends before it begins"},
		{"no data", "qp rc\n< SEND_ONLY 0 data=a", 2, "no data"},
		{"time", "qp rc\n1day -", 2, "is no time"},
		{"time back", "qp rc\n2ms -\n1ms -", 3, "time goes back"},
		{"window", "qp rc\n1ms..2ms -", 2, "a window is for"},
		{"window order", "qp rc\n2ms..1ms > SEND_ONLY 0", 2, "ends before it begins"},
		{"operation", "qp rc\npost SENT", 2, "no such operation"},
		{"status name", "qp rc\nfail bad", 2, "is no status"},
		{"right", "qp rc access=all", 1, "is no right"},
		{"SRQ", "qp rc srq=3", 1, "no such SRQ"},
		{"attribute", "qp rc\nmodify state=UP", 2, "no state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := script.Run(c.text)
			var e *script.Error
			require.True(t, errors.As(err, &e), "%v", err)
			require.Equal(t, c.line, e.Line, err)
			require.Contains(t, err.Error(), c.msg)
		})
	}
}

// FuzzRun: no text makes the runner panic.
func FuzzRun(f *testing.F) {
	f.Add(sendAndWait)
	f.Add("srq 4\nqp xrc_recv\nrecv srq=4 len=1\n< SEND_ONLY 0 srq=4 => accepted\ndone RECV srq=4")
	f.Add("qp ud\nrecv len=50\n< SEND_ONLY 0 data=a[0:4]\ndone RECV src_qp=0")
	f.Add("region mr addr=8 len=8 access=read\nwindow w region=mr\nqp rc\nderegister mr\nmemory mr 0x00\n= 1")
	// Found by the fuzzer: time passes before there is a queue pair.
	f.Add(string("4ms qp rc sq_psn=20\npost SEND data=a[0:10\t\t\t\tEN\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\x15\x15\x15\x15\x158864ms > SEND_ONLY 0 0 0 0 0 msn="))
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 {
			t.Skip()
		}
		_ = script.Run(text)
	})
}

func TestEmptyScriptFails(t *testing.T) {
	for _, text := range []string{"", "\n\n", "# only a comment\n"} {
		require.ErrorContains(t, script.Run(text), "no statements")
	}
}

// A script plays the peer and the clock, and says what must come out.
func ExampleRun() {
	err := script.Run(`
qp rc sq_psn=20 timeout=14
        post SEND id=1 data=a[0:10]
        > SEND_ONLY 20 ackreq data=a[0:10]
66ms    -
66ms..268ms > SEND_ONLY 20 retx            # the acknowledgement was lost
        < NAK 20 syndrome=0x63 => failed
        done SEND id=1 status=rem_op_err
        state RTS
`)
	fmt.Println(err)
	// Output:
	// line 9: state RTS: got ERR
}
