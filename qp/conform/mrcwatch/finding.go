package mrcwatch

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// Check is one way to break a rule of MRC, or one kind of event.
type Check uint8

// Checks.
const (
	checkNone Check = iota

	Length         // lengths do not fit the opcode
	OpcodeUnknown  // an opcode of C0..DF that is not MRC's
	VersionNotZero // TVer
	ICRCBad        // by the rule of RoCE v2, of which it is not certain that it is MRC's

	// WRITEs.
	MessageOrder     // opcodes of neighbouring PSNs do not follow one another
	MSNChanged       // within a message
	RQMSNChanged     // within a WRITE with immediate
	RKeyChanged      // within a message
	DMALenChanged    // within a message
	AddressStep      // the address does not grow by the payload of the packet before
	PayloadUnequal   // First and Middle packets of a message differ in length
	MessageLength    // the end of the message is not where its DMA length says
	ResentDiffers    // a retransmission has other content
	ResentUnmarked   // a retransmission has no rtx bit
	Duplicate        // a copy by the network or the capture
	OutOfOrder       // a new packet after one with a higher PSN
	Gap              // PSNs left out
	Retransmission   // rtx
	TrimmedByNetwork // a switch cut it

	// SACKs.
	SACKSequence     // the PSN of the BTH is not cack_psn
	SACKContradicts  // the bitmap has the PSN after cack_psn
	SACKCauseMissing // the packet that caused it was not received, by its bitmap
	SACKCount        // more bits above cack_psn than ooo_count
	SACKVerdict      // m is 3
	SACKNeverSent    // it says that a PSN was received that was not seen
	SACKNoProbe      // it responds to a probe that was not seen
	ProbeUnanswered

	// NACKs and transport acknowledgements.
	NACKSequence  // the PSN of the BTH is not nack_psn
	NACKReason    // a reason that is not defined
	NACKType      // cc_type is not 2
	NACKNeverSent // of a PSN that was not seen
	NACKReceived  // a packet was refused
	AckCredits    // an ACK with credits, which MRC does not have
	AckRNR        // an RNR NAK, which MRC does not have
	AckReserved   // a syndrome that is not defined
	AckNeverSent  // of a PSN that was not seen
	AckNAK        // a transport NAK

	// Endpoint operations.
	EndpointQP         // the destination QP is not 2
	EndpointSequence   // bits 23..16 of the PSN are not 0
	EndpointNoRequest  // a response whose request was not seen
	EndpointUnanswered // a request without a response

	checks
)

// format says how a number of a finding is shown.
type format uint8

const (
	asNumber format = iota
	asHex
	asOpcode
	asReason
	asSyndrome
	asTime
)

type checkInfo struct {
	name     string
	severity conform.Severity
	want     format
	got      format
	text     string // with {want}, {got} and {psn}
}

// table describes each check. A breach is what three sources of the specification forbid,
// whatever a capture may have lost.
var table = [checks]checkInfo{
	checkNone:      {name: "none"},
	Length:         {"MRC-LENGTH", conform.Breach, asOpcode, asNumber, "{want} of {got} bytes from BTH to ICRC: the length does not fit"},
	OpcodeUnknown:  {"MRC-OPCODE", conform.Note, asNumber, asHex, "opcode {got} is not one of MRC's"},
	VersionNotZero: {"MRC-VERSION", conform.Breach, asNumber, asNumber, "transport version {got}, which has to be 0"},
	ICRCBad:        {"MRC-ICRC", conform.Note, asNumber, asNumber, "the ICRC is wrong by the rule of RoCE v2"},

	MessageOrder:     {"MRC-ORDER", conform.Breach, asOpcode, asOpcode, "PSN {psn} is a {got}, after a {want}"},
	MSNChanged:       {"MRC-MSN", conform.Breach, asNumber, asNumber, "MSN {got} in a message that has {want}"},
	RQMSNChanged:     {"MRC-RQMSN", conform.Breach, asNumber, asNumber, "RQMSN {got} in a WRITE with immediate that has {want}"},
	RKeyChanged:      {"MRC-RKEY", conform.Breach, asHex, asHex, "R_Key {got} in a message that has {want}"},
	DMALenChanged:    {"MRC-DMALEN", conform.Breach, asNumber, asNumber, "DMA length {got} in a message that has {want}"},
	AddressStep:      {"MRC-ADDRESS", conform.Breach, asHex, asHex, "virtual address {got}, where the packets of the message lead to {want}"},
	PayloadUnequal:   {"MRC-MTU", conform.Breach, asNumber, asNumber, "{got} bytes of payload in a message whose packets have {want}"},
	MessageLength:    {"MRC-MESSAGE", conform.Breach, asHex, asHex, "the message ends at {got}, by its DMA length at {want}"},
	ResentDiffers:    {"MRC-RESENT", conform.Breach, asHex, asHex, "PSN {psn} is retransmitted as another packet: its headers changed"},
	ResentUnmarked:   {"MRC-RTX", conform.Breach, asNumber, asNumber, "PSN {psn} is retransmitted without the rtx bit"},
	Duplicate:        {"MRC-COPY", conform.Event, asNumber, asNumber, "a copy of PSN {psn}"},
	OutOfOrder:       {"MRC-REORDER", conform.Event, asNumber, asNumber, "PSN {psn} comes after {want}"},
	Gap:              {"MRC-GAP", conform.Event, asNumber, asNumber, "PSN {psn} where {want} was next: {got} left out"},
	Retransmission:   {"MRC-RETRANSMIT", conform.Event, asNumber, asNumber, "PSN {psn} is retransmitted"},
	TrimmedByNetwork: {"MRC-TRIMMED", conform.Event, asNumber, asNumber, "PSN {psn} was trimmed by a switch"},

	SACKSequence:     {"MRC-SACK-PSN", conform.Breach, asNumber, asNumber, "a SACK with PSN {got} in its BTH and cack_psn {want}"},
	SACKContradicts:  {"MRC-SACK-CACK", conform.Note, asNumber, asNumber, "a SACK says that all was received up to PSN {want}, and also {got}, the next one"},
	SACKCauseMissing: {"MRC-SACK-CAUSE", conform.Note, asNumber, asNumber, "a SACK caused by PSN {got}, which by its bitmap was not received"},
	SACKCount:        {"MRC-SACK-COUNT", conform.Note, asNumber, asNumber, "a SACK with {got} bits set above cack_psn, and ooo_count {want}"},
	SACKVerdict:      {"MRC-SACK-M", conform.Note, asNumber, asNumber, "a SACK whose verdict m is {got}, which is not defined"},
	SACKNeverSent:    {"MRC-SACK-UNSENT", conform.Note, asNumber, asNumber, "a SACK says that PSN {got} was received; {want} is the highest that was seen"},
	SACKNoProbe:      {"MRC-PROBE-NONE", conform.Note, asNumber, asNumber, "a SACK responds to probe {got}, which was not seen"},
	ProbeUnanswered:  {"MRC-PROBE", conform.Event, asNumber, asNumber, "probe {got} got no response"},

	NACKSequence:  {"MRC-NACK-PSN", conform.Breach, asNumber, asNumber, "a NACK with PSN {got} in its BTH and nack_psn {want}"},
	NACKReason:    {"MRC-NACK-REASON", conform.Note, asNumber, asHex, "a NACK of PSN {psn} with reason {got}, which is not defined"},
	NACKType:      {"MRC-NACK-TYPE", conform.Note, asNumber, asNumber, "a NACK with cc_type {got}, which has to be 2"},
	NACKNeverSent: {"MRC-NACK-UNSENT", conform.Note, asNumber, asNumber, "a NACK of PSN {got}; {want} is the highest that was seen"},
	NACKReceived:  {"MRC-NACK", conform.Event, asNumber, asReason, "a NACK of PSN {psn}: {got}"},
	AckCredits:    {"MRC-ACK-CREDITS", conform.Note, asNumber, asSyndrome, "an ACK with syndrome {got}: MRC has no credits"},
	AckRNR:        {"MRC-ACK-RNR", conform.Breach, asNumber, asSyndrome, "an RNR NAK ({got}), which MRC does not have"},
	AckReserved:   {"MRC-ACK-SYNDROME", conform.Note, asNumber, asSyndrome, "a transport ACK with syndrome {got}, which is not defined"},
	AckNeverSent:  {"MRC-ACK-UNSENT", conform.Note, asNumber, asNumber, "an ACK of PSN {got}; {want} is the highest that was seen"},
	AckNAK:        {"MRC-NAK", conform.Event, asNumber, asSyndrome, "PSN {psn} got a transport NAK: {got}"},

	EndpointQP:         {"MRC-ENDPOINT-QP", conform.Breach, asNumber, asHex, "an endpoint operation for QP {got}, which has to be 2"},
	EndpointSequence:   {"MRC-ENDPOINT-PSN", conform.Note, asNumber, asHex, "an endpoint operation whose PSN {got} has more than the 16 bits of an id"},
	EndpointNoRequest:  {"MRC-ENDPOINT-NONE", conform.Note, asNumber, asHex, "an endpoint response with id {got}, whose request was not seen"},
	EndpointUnanswered: {"MRC-ENDPOINT", conform.Event, asNumber, asHex, "the endpoint request with id {got} got no response"},
}

// String returns the id of c, for example "MRC-SACK-PSN".
func (c Check) String() string {
	if c < checks {
		return table[c].name
	}
	return strconv.Itoa(int(c))
}

// Finding is one thing that was seen. It holds only numbers; String makes the sentence.
type Finding struct {
	Check    Check
	Severity conform.Severity
	Frame    uint64 // the frame that shows it; 0 for what only the end shows
	Earlier  uint64 // an earlier frame that it depends on; 0 = none
	Time     time.Time
	Src, Dst netip.Addr
	QP       uint32 // destination QP of the frame
	PSN      psn.PSN
	Want     uint64 // what was expected; its meaning depends on Check
	Got      uint64 // what was seen
}

// String returns a sentence that says what was expected and what was seen.
func (f *Finding) String() string {
	if f.Check >= checks {
		return "check " + f.Check.String()
	}
	c := &table[f.Check]
	return strings.NewReplacer("{want}", argument(c.want, f.Want), "{got}", argument(c.got, f.Got), "{psn}", f.PSN.String()).Replace(c.text)
}

func argument(as format, v uint64) string {
	switch as {
	case asHex:
		return "0x" + strconv.FormatUint(v, 16)
	case asOpcode:
		return mrc.Name(bth.Opcode(v))
	case asReason:
		return mrc.Reason(v).String()
	case asSyndrome:
		return aeth.Syndrome(v).String()
	case asTime:
		return time.Duration(v).String()
	}
	return strconv.FormatUint(v, 10)
}
