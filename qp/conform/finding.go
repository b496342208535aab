package conform

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/cm"
)

// Severity says how much a finding matters.
type Severity uint8

// Severities, from the least to the worst.
const (
	// Event is something that a working network does too: a retransmission, a
	// NAK, a time-out, a duplicate.
	Event Severity = iota
	// Note is a deviation that does no harm to a peer that keeps the rules, or one that may
	// be due to frames that the capture lost.
	Note
	// Breach is a broken rule.
	Breach
)

// String returns "event", "note" or "breach", and any other value as a number.
func (s Severity) String() string {
	switch s {
	case Event:
		return "event"
	case Note:
		return "note"
	case Breach:
		return "breach"
	}
	return strconv.Itoa(int(s))
}

// Rule is what a finding is about: a rule of the transport ("RS-03"), one of the
// wire format ("ICRC"), or a kind of event ("TIMEOUT").
type Rule uint8

// Rules. Those of the form RQ-nn, RS-nn, UC-n, UD-n and XR-n are numbered as in
// the transport rules that package qp keeps; CA17-nn are compliance statements
// of Annex A17; the others have names of their own.
const (
	RuleNone Rule = iota

	// Wire format.
	RuleLength   // lengths of IP, UDP, opcode and payload agree
	RuleFragment // RoCE is never fragmented
	RuleOpcode   // the opcode is one that the service has
	RuleVersion  // TVer is 0
	RuleICRC     // the invariant CRC is right
	RuleReserved // reserved bits are sent as zero
	RulePKey     // RS-02: P_Keys of a connection match
	RuleIPv4     // DF, no options, header checksum
	RuleUDPSum   // the UDP checksum is 0 or right
	RuleDestQP   // QP 0 is not RoCE's; QP 1 is a datagram QP
	RuleAckReq   // only requests have AckReq
	RuleFECN     // FECN and BECN are not set in data
	RuleSyndrome // RQ-30: the syndrome is one that is defined
	RuleSPort    // the UDP source port of an ordered flow is fixed
	RuleCNP      // layout of a congestion notification packet
	RuleCNPGap   // the notification point's least gap
	RuleECN      // CA17-44: CNPs are sent for marked packets
	RuleCM01     // a message of connection management is sent again as it was
	RuleCM07     // a DREQ names the receiver's QP number
	RuleCM08     // a REJ refuses what the receiver sent
	RuleCM10     // transaction IDs
	RuleCM12     // the starting PSNs of REQ and REP are kept
	RuleCM17     // RDMA-CM's addressing header

	// Requester.
	RuleRQ01 // message sizes
	RuleRQ02 // a PSN for each packet, and for each READ response
	RuleRQ03 // pad
	RuleRQ06 // SE
	RuleRQ07 // outstanding READs and atomics
	RuleRQ10 // atomics
	RuleRQ15 // credits
	RuleRQ16 // a retransmission is the same
	RuleRQ22 // acknowledgement of what was never sent
	RuleRQ23 // go back to the NAK's PSN
	RuleRQ27 // resumed READ
	RuleRQ28 // RNR time

	// Responder.
	RuleRS03 // NAK sequence error
	RuleRS05 // order of opcodes
	RuleRS06 // payload sizes
	RuleRS07 // DMA length
	RuleRS09 // RNR NAK
	RuleRS10 // keys, rights and ranges
	RuleRS13 // MSN
	RuleRS14 // order of responses
	RuleRS15 // READ responses
	RuleRS18 // silence after an error
	RuleRS20 // duplicates
	RuleRS22 // duplicate atomics

	// Other services.
	RuleUC2 // no AckReq on UC and UD
	RuleUD1 // datagram size and Q_Key
	RuleUD4 // multicast
	RuleXR1 // XRC credits
	RuleXR2 // XRC SRQ numbers

	// Events.
	RuleGap
	RuleReadGap
	RuleRetransmit
	RuleTimeout
	RuleDuplicate
	RuleReorder
	RuleNAK
	RuleRNR
	RuleUnanswered
	RuleMissing
	RuleRestart
	RuleConnect
	RuleDisconnect
	RuleReject

	rules
)

var ruleNames = [rules]string{
	RuleNone: "NONE", RuleLength: "LENGTH", RuleFragment: "FRAGMENT", RuleOpcode: "OPCODE", RuleVersion: "VERSION",
	RuleICRC: "ICRC", RuleReserved: "RESERVED", RulePKey: "PKEY", RuleIPv4: "IPV4", RuleUDPSum: "UDPSUM",
	RuleDestQP: "DESTQP", RuleAckReq: "ACKREQ", RuleFECN: "FECN", RuleSyndrome: "RQ-30", RuleSPort: "SPORT",
	RuleCNP: "CNP", RuleCNPGap: "CNP-GAP", RuleECN: "CA17-44",
	RuleCM01: "CM-1", RuleCM07: "CM-7", RuleCM08: "CM-8", RuleCM10: "CM-10", RuleCM12: "CM-12", RuleCM17: "CM-17",
	RuleRQ01: "RQ-01", RuleRQ02: "RQ-02", RuleRQ03: "RQ-03", RuleRQ06: "RQ-06", RuleRQ07: "RQ-07", RuleRQ10: "RQ-10", RuleRQ15: "RQ-15",
	RuleRQ16: "RQ-16", RuleRQ22: "RQ-22", RuleRQ23: "RQ-23", RuleRQ27: "RQ-27", RuleRQ28: "RQ-28",
	RuleRS03: "RS-03", RuleRS05: "RS-05", RuleRS06: "RS-06", RuleRS07: "RS-07", RuleRS09: "RS-09", RuleRS10: "RS-10", RuleRS13: "RS-13",
	RuleRS14: "RS-14", RuleRS15: "RS-15", RuleRS18: "RS-18", RuleRS20: "RS-20", RuleRS22: "RS-22",
	RuleUC2: "UC-2", RuleUD1: "UD-1", RuleUD4: "UD-4", RuleXR1: "XR-1", RuleXR2: "XR-2",
	RuleGap: "GAP", RuleReadGap: "READ-GAP", RuleRetransmit: "RETRANSMIT", RuleTimeout: "TIMEOUT",
	RuleDuplicate: "DUPLICATE", RuleReorder: "REORDER", RuleNAK: "NAK", RuleRNR: "RNR",
	RuleUnanswered: "UNANSWERED", RuleMissing: "MISSING", RuleRestart: "RESTART",
	RuleConnect: "CONNECT", RuleDisconnect: "DISCONNECT", RuleReject: "REJECT",
}

// String returns the rule's id, for example "RS-03" or "ICRC".
func (r Rule) String() string {
	if r < rules {
		return ruleNames[r]
	}
	return strconv.Itoa(int(r))
}

// Finding is one thing that was seen. It holds only numbers, so that making one
// allocates nothing; String makes the sentence.
type Finding struct {
	Check    Check
	Severity Severity
	Frame    uint64 // the frame that shows it, from 1; 0 for what only the end shows
	Earlier  uint64 // an earlier frame that it depends on; 0 = none
	Time     time.Time
	Src, Dst netip.Addr    // of the flow; where a device broke a rule, Src is its address
	Segment  frame.Segment // of the flow
	QP       uint32        // destination QP of the frame
	PeerQP   uint32        // QP of the sender, where known; else 0
	PSN      psn.PSN
	Want     uint64 // what was expected; its meaning depends on Check
	Got      uint64 // what was seen
}

// Rule returns the rule that the finding is about.
func (f *Finding) Rule() Rule { return f.Check.Rule() }

// String returns a sentence that says what was expected and what was seen.
func (f *Finding) String() string {
	if int(f.Check) >= len(checks) {
		return "check " + strconv.Itoa(int(f.Check))
	}
	c := &checks[f.Check]
	b := make([]byte, 0, 160)
	for text := c.text; ; {
		before, after, ok := strings.Cut(text, "{")
		b = append(b, before...)
		if !ok {
			return string(b)
		}
		name, rest, _ := strings.Cut(after, "}")
		switch name {
		case "want":
			b = append(b, argument(c.want, f.Want)...)
		case "got":
			b = append(b, argument(c.got, f.Got)...)
		default:
			b = append(b, f.PSN.String()...)
		}
		text = rest
	}
}

// argument formats a number of a finding for its sentence.
func argument(as format, v uint64) string {
	switch as {
	case asTime:
		return time.Duration(v).String()
	case asAttribute:
		return cm.AttributeID(v).String()
	case asRejected:
		return cm.MessageRejected(v).String()
	case asOpcode:
		return bth.Opcode(v).String()
	case asSyndrome:
		return aeth.Syndrome(v).String()
	case asHex:
		return "0x" + strconv.FormatUint(v, 16)
	}
	return strconv.FormatUint(v, 10)
}

// Title returns what the rule says, in one line: the heading of its entry in the module's
// RULES.md, where it is one of those. It is "" for a value that is not a rule.
func (r Rule) Title() string {
	if r < rules {
		return ruleTitles[r]
	}
	return ""
}

var ruleTitles = [rules]string{
	RuleNone:       "no rule",
	RuleLength:     "the lengths of IP, UDP, opcode and payload agree",
	RuleFragment:   "RoCE is never fragmented",
	RuleOpcode:     "the opcode is one that the service has",
	RuleVersion:    "TVer is 0",
	RuleICRC:       "the invariant CRC is right",
	RuleReserved:   "reserved bits are sent as zero",
	RulePKey:       "the P_Keys of a connection match",
	RuleIPv4:       "IPv4 with DF, without options, with a right header checksum",
	RuleUDPSum:     "the UDP checksum is 0 or right",
	RuleDestQP:     "QP 0 is not used; QP 1 is a datagram QP",
	RuleAckReq:     "AckReq is set in requests only",
	RuleFECN:       "FECN and BECN are not set in data",
	RuleSyndrome:   "reserved syndromes are dropped",
	RuleSPort:      "the UDP source port of an ordered flow is fixed",
	RuleCNP:        "the layout of a congestion notification packet",
	RuleCNPGap:     "CNPs of a flow keep the least gap",
	RuleECN:        "CNPs are sent for marked packets",
	RuleCM01:       "times and repetitions",
	RuleCM07:       "DREQ",
	RuleCM08:       "REJ",
	RuleCM10:       "transaction IDs",
	RuleCM12:       "starting PSNs",
	RuleCM17:       "the addressing header",
	RuleRQ01:       "a message is cut at the path MTU",
	RuleRQ02:       "a request packet takes one PSN, a READ one for each response",
	RuleRQ03:       "payload is padded to four bytes",
	RuleRQ06:       "SE is set on the last packet of a message that consumes a receive",
	RuleRQ07:       "`max_rd_atomic` bounds outstanding READs and ATOMICs",
	RuleRQ10:       "atomics are 8 aligned bytes",
	RuleRQ15:       "credits limit requests that consume a receive",
	RuleRQ16:       "a retransmission is the same packet",
	RuleRQ22:       "an acknowledgement of what was never sent is dropped",
	RuleRQ23:       "NAK sequence error goes back to its PSN",
	RuleRQ27:       "a READ resumes at the first missing response",
	RuleRQ28:       "an RNR NAK silences the send queue for the time that it names",
	RuleRS03:       "one NAK for each gap",
	RuleRS05:       "opcode sequence",
	RuleRS06:       "payload length by position",
	RuleRS07:       "a WRITE is as long as its DMA length",
	RuleRS09:       "RNR NAK because there is no receive",
	RuleRS10:       "remote access needs a valid R_Key",
	RuleRS13:       "the MSN counts completed request messages",
	RuleRS14:       "responses leave in request order",
	RuleRS15:       "READ responses follow the PSNs of the request, each of the right size",
	RuleRS18:       "after a fatal NAK the QP is in Error",
	RuleRS20:       "a duplicate SEND or WRITE is acknowledged, not executed",
	RuleRS22:       "a duplicate ATOMIC returns the kept value",
	RuleUC2:        "AckReq does not exist outside reliable services",
	RuleUD1:        "one packet a message, with the right Q_Key",
	RuleUD4:        "multicast reaches every attached QP",
	RuleXR1:        "XRCETH is in requests",
	RuleXR2:        "the first packet names the SRQ",
	RuleGap:        "packets of a flow are missing",
	RuleReadGap:    "READ responses are missing",
	RuleRetransmit: "packets are retransmitted after a NAK",
	RuleTimeout:    "packets are retransmitted without a NAK",
	RuleDuplicate:  "the same packet again",
	RuleReorder:    "packets out of order",
	RuleNAK:        "a negative acknowledgement",
	RuleRNR:        "the receiver was not ready",
	RuleUnanswered: "requests without a response",
	RuleMissing:    "the capture lost packets",
	RuleRestart:    "a QP number is used by a new connection",
	RuleConnect:    "a connection is set up",
	RuleDisconnect: "a connection is closed",
	RuleReject:     "a connection is rejected",
}
