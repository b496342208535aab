package qp_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/script"
)

var exploreFaults = flag.Bool("explorefaults", false, "TestExploreFindsFaults: build each fault and explore it (three minutes)")

// exFault is a fault that the machines had, or could have had, as a change of their
// source, and what of the explorer finds it.
type exFault struct {
	name    string
	file    string   // in the folder of this package
	changes []string // what stands there, and what the fault has instead, in turn
	pkg     string   // of the test, relative to this folder; with ! its packets are right, and only memory that scripts do not look at is wrong
	test    string
}

var exFaultTable = []exFault{
	{"responses always go first", "qp.go", []string{"case asks && (!owes || q.turns.ofRequests):", "case asks && !owes:"},
		".", "TestExplore$/the_peer_reads"},
	{"a late NAK after an RNR wait spends a retry", "requester_receive.go", []string{
		"if r.rnr.alone {", "if false {",
		"r.retry.left = r.attr.RetryCnt // the peer lives", ""},
		".", "TestExplore$/no_receives,_a_peer"},
	{"the credit limit is ignored after going back", "requester_send.go", []string{"if r.credit.on && r.limited(w, w.ssn) &&", "if r.win.next == r.win.sent && r.credit.on && r.limited(w, w.ssn) &&"},
		".", "TestExplore$/credits"},
	{"a QP that is held back sleeps", "softnic/sched.go", []string{"if q.readyPrio == prio {", "if true {"},
		"./softnic", "TestExplorePause"},
	{"two NAKs for one gap", "responder_receive.go", []string{"if !r.ack.quiet {", "if true {"},
		".", "TestExplore$/writes"},
	{"a duplicate ATOMIC is executed again", "responder_replay.go", []string{"a := &p.AtomicETH", "a := &p.AtomicETH\n\t\tif m, ok := r.remote(res.pd, res.rkey, res.va, 8, RemoteAtomic); ok {\n\t\t\tm[0]++\n\t\t}"},
		".", "TestExplore$/atomics"},
	{"a READ is taken up again at the PSN of its first response", "requester_send.go", []string{"w.again = w.again || i != 0", "w.again = w.again || i != 0\n\t\tp.PSN = w.first.PSN()"},
		".", "TestExplore$/reads"},
	{"progress does not restart the timer", "requester_receive.go", []string{"\tr.startTimer(t)\n}", "\tif r.retry.due == 0 {\n\t\tr.startTimer(t)\n\t}\n}"},
		".", "TestExplore$/timers"},
	{"an ACK of a PSN that was never sent counts", "requester_receive.go", []string{"if n >= r.win.sent {", "if false {"},
		".", "TestExplore$/forged$"},
	{"a duplicate advances the MSN", "responder_replay.go", []string{"if !responded(op) {", "if !responded(op) {\n\t\tr.count()"},
		".", "TestExplore$/sends"},
	{"SQD never drains", "requester_send.go", []string{"r.win.asked < r.win.next {", "r.win.asked < r.win.next && false {"},
		".", "TestExplore$/drain"},
	{"a message that is given up keeps its receive", "uc.go", []string{"r.counters.UCMessagesDropped++", "r.counters.UCMessagesDropped++\n\tr.rq.hasRecv = false"},
		".", "TestExplore$/UC"},
	{"a WRITE that comes twice is executed twice", "responder_replay.go", []string{"if !responded(op) {", "if m, ok := r.remote(r.pd, p.RETH.RKey, p.RETH.VA, uint32(len(p.Payload)), RemoteWrite); ok {\n\t\tcopy(m, p.Payload)\n\t}\n\tif !responded(op) {"},
		"!.", "TestExplore$/no_receives$"},
	{"a READ response may have any length", "requester_receive.go", []string{"uint32(len(p.Payload)) != size", "size > 1<<30"},
		".", "TestExplore$/forged,_of_every_kind"},
	{"Reset leaves the receives", "responder.go", []string{"func (r *Responder) reset() {\n\tr.rq.reset()\n", "func (r *Responder) reset() {\n"},
		".", "TestExplore$/Reset"},
	{"SQD ends with no word to the requester", "qp.go", []string{"case to == RTS:\n\t\tq.req.mode = running", "case to == RTS:"},
		".", "TestExplore$/SQD"},

	{"a pause of acknowledgements moves nobody", "softnic/pause.go", []string{"r.push(q, p.priorityOf(q))", "_ = q"},
		"./softnic", "TestExplorePair"},

	{"an RTU that was lost is not sent again", "cm/receive.go", []string{"m.again(c) // the RTU", ""},
		"./cm", "TestExploreMachines$/connect$"},
	{"a REQ that comes twice is another call", "cm/receive.go", []string{"if c := m.findRemote(r.LocalCAGUID, r.LocalCommID); c != nil {", "if c := m.findRemote(r.LocalCAGUID, r.LocalCommID); false {"},
		"./cm", "TestExploreMachines$/connect$"},
	{"a REJ is dropped while an event is to be polled", "cm/receive.go", []string{"\tto := Idle\n", "\tif m.busy(c) {\n\t\treturn\n\t}\n\tto := Idle\n"},
		"./cm", "TestExploreMachines$/owners_that_poll_late$"},
	{"a DREQ is dropped while an event is to be polled", "cm/receive.go", []string{"	case RepSent, MRARepReceived, Established:\n\t\tm.stop(c)", "	case RepSent, MRARepReceived, Established:\n\t\tif c.mail.pending != 0 {\n\t\t\treturn\n\t\t}\n\t\tm.stop(c)"},
		"./cm", "TestExploreMachines$/owners_that_poll_late,_and_loss$"},
	{"an MRA establishes a connection", "cm/receive.go", []string{"\t\tc.state = MRARepReceived\n\tdefault:", "\t\tm.established(c, nil)\n\t\treturn\n\tdefault:"},
		"./cm", "TestExploreMachines$/connect$"},
	{"a call that is forgotten stays half-open", "cm/send.go", []string{"m.stop(c)\n\tm.setHalf(c, false)", "m.stop(c)"},
		"./cm", "TestExploreMachines$/SIDR"},
	{"a DREQ is sent once", "cm/calls.go", []string{"m.expect(c, every, n)\n", "m.expect(c, every, n*0)\n"},
		"./cm", "TestExploreMachines$/data"},
}

// TestExploreFindsFaults holds that the explorer finds what random tests did not:
// each fault, put back alone, makes it fail. Without -explorefaults only the table is
// checked against the source.
func TestExploreFindsFaults(t *testing.T) {
	for i, f := range exFaultTable {
		pkg, hidden := strings.CutPrefix(f.pkg, "!")
		t.Run(f.name, func(t *testing.T) {
			src, err := os.ReadFile(filepath.FromSlash(f.file))
			require.NoError(t, err)
			text := string(src)
			for k := 0; k < len(f.changes); k += 2 {
				require.Equal(t, 1, strings.Count(text, f.changes[k]), "%q in %s", f.changes[k], f.file)
				text = strings.Replace(text, f.changes[k], f.changes[k+1], 1)
			}
			if !*exploreFaults {
				return
			}
			dir := t.TempDir()
			broken := filepath.Join(dir, "broken.go")
			require.NoError(t, os.WriteFile(broken, []byte(text), 0o600))
			here, err := filepath.Abs(filepath.FromSlash(f.file))
			require.NoError(t, err)
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: broken}})
			require.NoError(t, err)
			list := filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(list, overlay, 0o600))
			args := []string{"test", "-count=1", "-timeout", "5m", "-overlay", list, "-run", f.test, pkg, "-explore", "20000"}
			if pkg == "." {
				args = append(args, "-explorestories", dir)
			}
			out, err := exec.Command("go", args...).CombinedOutput()
			require.Error(t, err, "fault %d is not found", i)
			require.Contains(t, string(out), "Error Trace", "it fails by a property, not by itself: %s", out)
			stories, err := filepath.Glob(filepath.Join(dir, "*.txt"))
			require.NoError(t, err)
			told := false
			for _, name := range stories {
				story, err := os.ReadFile(name)
				require.NoError(t, err)
				require.Contains(t, string(out), "which replays")
				require.NotContains(t, string(out), "which does not replay", "the counterexample is a story of the machine with the fault")
				err = script.Run(string(story))
				if err != nil {
					t.Logf("the machine without it: %v", err)
				}
				told = told || err != nil
			}
			require.True(t, told || hidden || len(stories) == 0, "and not of the one without")
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "after ") && strings.Contains(line, "moves") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}
