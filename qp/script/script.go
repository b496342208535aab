// Package script runs packet-level stories about one queue pair in virtual time.
//
// A script acts as the peer, the application and the clock of a QP: it posts work requests,
// hands packets in, advances the time, and states the expected output. **An output that no
// statement expects fails the script**: a packet, a completion, an event, or a verdict
// other than accepted. Scripts are written to be read in review.
//
//	# A lost acknowledgement: the SEND goes out again after the timeout.
//	qp rc sq_psn=20 timeout=14
//	        post SEND id=1 data=a[0:10]
//	        > SEND_ONLY 20 ackreq data=a[0:10]
//	60ms    -
//	67.108864ms > SEND_ONLY 20 ackreq retx
//	70ms    < ACK 20 msn=1
//	        done SEND id=1
//
// # Lines and time
//
// A line is one statement; # begins a comment. A line that begins with == ends the
// script and begins another, with a QP and a clock of its own. A line may begin with a time since
// the start, as Go writes durations (0, 10us, 163.94ms), or +D for a time after
// the present one. The clock runs to that time first, and deadlines of the QP before
// it fire. Before a statement that does something, every output so far must have
// been expected by a statement. Statements that expect a packet, completion or
// event may have a window T1..T2 instead of a time: the clock runs until there is
// an output, whose time must lie in the window. Without a time, the output must be
// there already.
//
// Numbers are decimal or 0x hexadecimal. DATA is 0x with hexadecimal digits, or
// P[i:j], bytes i to j-1 of the endless pattern that the letter P names; pattern 0
// is all zero bytes. Where it is given, len=N stands for a[0:N].
//
// # Setting up
//
//	qp TYPE FIELDS         rc, uc, ud, xrc_send or xrc_recv. First, and once.
//	srq NUM [size=N]       a shared receive queue, before qp. An xrc_recv QP sees
//	                       all of them; an rc QP the one that its field srq= names
//	region NAME addr=A DATA|len=N [access=LIST] [pd=N]    before or after qp
//	window NAME region=NAME addr=A len=N [access=LIST] [qpn=N]
//	deregister NAME
//
// LIST is some of write,read,atomic,flush,persist,bind,zero, or none; all but zero
// when left out. A region or window has the key that rkey=NAME stands for
// elsewhere, also when it is gone. Regions are in the QP's protection domain 1
// unless pd says otherwise. len=N fills a region with zero bytes.
//
// Fields of qp, with the values they have when left out:
//
//	state=RTS         brings the QP up to RESET, INIT, RTR or RTS, or also SQD
//	qpn=1 dest_qpn=2 pkey=0xffff qkey=0x11111111 access=LIST
//	mtu=1024 rq_psn=0 sq_psn=0
//	timeout=14 retry_cnt=7 rnr_retry=7 min_rnr_timer=12
//	max_rd_atomic=16 max_dest_rd_atomic=16
//	max_send=128 max_recv=128 max_inline=64 ack_every=64 window=8192
//	selective=0 reorder=0 few=0 rto_low=0s rto_high=0s     of qp.Selective
//	srq=NUM, and the flags signal_all no_credits not_migrated retry_forever ack_before_read
//
// # Doing
//
//	post OP [id=N] [DATA|len=N] [FIELDS] [error=TEXT]
//	    A work request. OP is named as qp.Op's String does: SEND, SEND_WITH_IMM,
//	    RDMA_READ... It is signaled unless the flag unsignaled stands there. Other
//	    flags: fence solicited inline region persist. Fields: va rkey imm add
//	    compare swap qpn qkey srq, and gather=N cuts the data into pieces of N
//	    bytes. RDMA_READ and atomics take len (8 for atomics) or none.
//	recv [id=N] len=N [srq=NUM] [scatter=N] [error=TEXT]
//	modify [state=S] [ATTR=V]... [error=TEXT]
//	    ATTR is one of the attribute fields of qp, path_mtu, dest_qp_num and ah=0.
//	fail STATUS            QP.FailSend
//	< OPCODE PSN [FIELDS] [=> VERDICT]
//	    Hands a packet in. OPCODE is named as bth.Opcode's String does, without the
//	    service's name, or ACK (syndrome 0x1f where none is given), NAK or CNP. The
//	    fields are below. DATA or len is the payload.
//	< raw 0x... [=> VERDICT]
//	hold                   stop fetching packets: each > fetches one
//	release                fetch them again at once
//	-                      no output up to here that was not expected
//
// error=TEXT wants the call to fail with an error that contains TEXT, where _
// stands for a space.
//
// # Expecting
//
//	> OPCODE PSN [FIELDS]     a packet; fields that are given are compared
//	> raw 0x...               all of its bytes except the ICRC
//	done OP [id=N] [status=S] [len=N] [imm=N] [FIELDS] [DATA]
//	    A completion; status is success unless given, in the lower-case names of
//	    ibv_wc_status (wr_flush_err). DATA is what lies in the memory of the
//	    request from its start, for a datagram after its GRH area. Fields: srq
//	    src_qp inv_rkey; flags: solicited. imm and inv_rkey must be given just
//	    where the completion has one.
//	event NAME
//	state S
//	counters NAME=N...        fields of qp.Counters
//	memory NAME addr=A DATA   what lies at an address of a region
//	posted NUM N              receives in a shared receive queue
//	deadline T|T1..T2|none    of the QP, since the start
//
// Packet fields: qpn pkey psn tver pad va rkey dmalen add swap compare orig
// syndrome msn imm inv_rkey qkey src_qp srq sel plt; flags: se m ackreq fecn becn,
// and for expected packets retx, a retransmission. A flag with ! before it must
// not be set.
package script

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Error says where a script failed.
type Error struct {
	Line int    // from 1
	Text string // the statement
	Msg  string // what was wrong: in the script, or what was expected and seen
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("line %d: %s: %s", e.Line, e.Text, e.Msg) }

// Run runs a script to its end. It fails with an *Error at the first statement
// that is wrong or does not hold.
func Run(text string) error { return RunTrace(io.Discard, text) }

// RunTrace is Run that also writes what happens, a line each with the time since
// the start.
func RunTrace(w io.Writer, text string) error {
	r, empty := newRunner(w), true
	for s := range strings.Lines(text) {
		r.line++
		s, _, _ = strings.Cut(s, "#")
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		empty = false
		if strings.HasPrefix(s, "==") {
			if err := r.end(); err != nil {
				return err
			}
			line := r.line
			r = newRunner(w)
			r.line = line
			continue
		}
		r.stmt = s
		if err := r.statement(s); err != nil {
			return r.wrap(err)
		}
	}
	if empty {
		return r.wrap(errors.New("no statements: an empty script would pass"))
	}
	return r.end()
}

// end ends a script: nothing may be left.
func (r *runner) end() error {
	r.stmt = "end"
	if err := r.nothingLeft(); err != nil {
		return r.wrap(err)
	}
	return nil
}

func (r *runner) wrap(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{r.line, r.stmt, err.Error()}
}
