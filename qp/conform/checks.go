package conform

import "strconv"

// Check is one way to break a rule, or one kind of event; several may belong to
// one Rule. Its text is the sentence of a finding.
type Check uint8

// format says how a number of a finding is shown.
type format uint8

const (
	asNumber format = iota
	asTime
	asOpcode
	asSyndrome
	asHex
	asAttribute
	asRejected
)

// Checks. The names begin with what they look at.
const (
	CheckNone Check = iota

	LengthFrame
	LengthSliced
	LengthOpcode
	Fragment
	OpcodeUnknown
	OpcodeService
	VersionNotZero
	ICRCBad
	ReservedBTH
	ReservedExt
	PKeyZero
	PKeyMismatch
	IPv4Options
	IPv4NoDF
	IPv4Checksum
	UDPChecksum
	DestQPZero
	DestQPManagement
	AckReqInResponse
	FECNSet
	SyndromeReserved
	SPortChanged
	CNPPayload
	CNPFields
	CNPWithoutBECN
	CNPTooOften
	ECNUnanswered
	CMStartingPSN
	CMTransaction
	CMRepeats
	CMDisconnects
	CMRejected
	CMHeader

	SizeEmptyLast
	SizeAboveLimit
	AddressWraps
	PSNReused
	PSNSkipped
	PadAlignment
	PadNotZero
	SolicitedMisplaced
	ReadsAboveDepth
	AtomicMisaligned
	CreditsOverrun
	ResendDiffers
	AckNeverSent
	AckNeverSentDoubt
	GoBackTooFar
	GoBackBeyond
	NakIgnored
	ResumeDiffers
	RNRTooEarly
	NewDuringRNR

	NakRepeated
	NakAcknowledged
	NakNothingLost
	NakNeverSent
	NakThenAcked
	NakAfterFatal
	OrderInMessage
	OrderOutside
	OrderAtStart
	SizeNotMTU
	SizeOverMTU
	SizeNoMTU
	DMALengthOnly
	DMALengthLast
	DMALengthMiddle
	DMALengthFirst
	RNRAnswered
	RNROfRead
	RNROfWrite
	MSNWrong
	AckOfRead
	ResponseLate
	AckBehind
	ReadOutside
	ReadOpcode
	ReadSize
	ReadTooMany
	ReadUnanswered
	ReadResumedMiddle
	AtomicOutside
	DeadAnswers
	DuplicateAckBehind
	AtomicTwice

	UnreliableAckReq
	ManagementAckReq
	DatagramSize
	ManagementQKey
	DatagramQKey
	MulticastAddress
	MulticastQP
	XRCCredits
	XRCOtherSRQ

	SequenceGap
	ReadSequenceGap
	ResentNAK
	ResentRNR
	ResentImplied
	ResentTimeout
	ResentUnknown
	DuplicateRequest
	DuplicateResponse
	DuplicateCNP
	OutOfOrder
	NakSequence
	NakInvalid
	NakAccess
	NakOperational
	RNRNak
	Unanswered
	CaptureLost
	Restarted
	Connected
	Named
	Disconnected
	Rejected

	checkCount
)

type checkInfo struct {
	rule      Rule
	severity  Severity
	name      string
	text      string // {want}, {got} and {psn} stand for numbers of the finding
	want, got format
}

var checks = [checkCount]checkInfo{
	CheckNone: {RuleNone, Event, "none", "nothing", 0, 0},

	LengthFrame:      {RuleLength, Breach, "length-frame", "lengths of frame, IP or GRH, and UDP should agree; they do not", 0, 0},
	LengthSliced:     {RuleLength, Note, "length-sliced", "{got} frames are shorter than their headers say, up to {want} bytes: a switch or mirror port has cut them, or a sender writes wrong lengths", 0, 0},
	LengthOpcode:     {RuleLength, Breach, "length-opcode", "the transport packet of {got} bytes does not fit its opcode {want} (PSN {psn})", asOpcode, 0},
	Fragment:         {RuleFragment, Breach, "fragment", "a datagram to the RoCE port should never be an IPv4 fragment; this is one", 0, 0},
	OpcodeUnknown:    {RuleOpcode, Breach, "opcode-unknown", "opcode {got} has no defined layout (PSN {psn})", 0, asOpcode},
	OpcodeService:    {RuleOpcode, Breach, "opcode-service", "this QP's packets were of the service of {want}; this is a {got} (PSN {psn})", asOpcode, asOpcode},
	VersionNotZero:   {RuleVersion, Breach, "version", "TVer should be 0, is {got} (PSN {psn})", 0, 0},
	ICRCBad:          {RuleICRC, Breach, "icrc", "ICRC should be {want}, is {got} (PSN {psn})", asHex, asHex},
	ReservedBTH:      {RuleReserved, Note, "reserved-bth", "reserved bits of the BTH should be sent as zero; resv6 and resv7 are {got} (PSN {psn}; reported once a flow)", 0, asHex},
	ReservedExt:      {RuleReserved, Breach, "reserved-ext", "reserved bits of an extended header should be sent as zero; they are {got} (PSN {psn}; reported once a flow)", 0, asHex},
	PKeyZero:         {RulePKey, Breach, "pkey-zero", "a P_Key's low 15 bits should not be zero; it is {got} (PSN {psn})", 0, asHex},
	PKeyMismatch:     {RulePKey, Breach, "pkey-mismatch", "P_Key should match {want}, is {got} (PSN {psn})", asHex, asHex},
	IPv4Options:      {RuleIPv4, Breach, "ipv4-options", "the IPv4 header should be 20 bytes long, is {got} (PSN {psn})", 0, 0},
	IPv4NoDF:         {RuleIPv4, Breach, "ipv4-df", "don't fragment should be set, is not (PSN {psn}; reported once a flow)", 0, 0},
	IPv4Checksum:     {RuleIPv4, Breach, "ipv4-checksum", "IPv4 header checksum is wrong: the header sums to {got} instead of 0xffff (PSN {psn})", 0, asHex},
	UDPChecksum:      {RuleUDPSum, Breach, "udp-checksum", "the UDP checksum should be 0 or right, is {got} (PSN {psn})", 0, asHex},
	DestQPZero:       {RuleDestQP, Breach, "destqp-zero", "QP 0 does not exist in RoCE; this packet goes to it (PSN {psn})", 0, 0},
	DestQPManagement: {RuleDestQP, Breach, "destqp-management", "QP {want} accepts only datagrams; this is a {got} (PSN {psn})", asHex, asOpcode},
	AckReqInResponse: {RuleAckReq, Breach, "ackreq-response", "AckReq should be clear in a response; it is set in this {got} (PSN {psn})", 0, asOpcode},
	FECNSet:          {RuleFECN, Note, "fecn", "FECN and BECN are unused except in CNPs; this {got} has one set (PSN {psn}; reported once a flow)", 0, asOpcode},
	SyndromeReserved: {RuleSyndrome, Breach, "syndrome", "syndrome {got} is reserved (PSN {psn})", 0, asHex},
	SPortChanged:     {RuleSPort, Note, "sport", "the UDP source port of a flow should stay {want}, is {got} (PSN {psn})", 0, 0},
	CNPPayload:       {RuleCNP, Breach, "cnp-payload", "the 16 bytes after a CNP's BTH should be zero; they are not", 0, 0},
	CNPFields:        {RuleCNP, Breach, "cnp-fields", "SE, AckReq and PSN of a CNP should be 0; PSN is {psn}", 0, 0},
	CNPWithoutBECN:   {RuleCNP, Breach, "cnp-becn", "BECN should be set in a CNP; it is clear", 0, 0},
	CNPTooOften:      {RuleCNPGap, Breach, "cnp-gap", "CNPs of a flow should be at least {want} apart; this comes after {got}", asTime, asTime},
	ECNUnanswered:    {RuleECN, Note, "ecn-unanswered", "{got} packets were marked congestion experienced, and their receiver, which sent other packets, sent no CNP", 0, 0},
	CMStartingPSN:    {RuleCM12, Breach, "cm-psn", "connection management set the first PSN to {want}; this request's, {got}, comes before it", 0, 0},
	CMTransaction:    {RuleCM10, Breach, "cm-transaction", "a message of connection management should repeat the transaction ID {want} of what it responds to; it has {got}", asHex, asHex},
	CMRepeats:        {RuleCM01, Breach, "cm-repeats", "a message of connection management that is sent again should be the same; this {got} has other content", 0, asAttribute},
	CMDisconnects:    {RuleCM07, Breach, "cm-disconnect", "a DREQ should name its receiver's QP number, {want}; it names {got}", asHex, asHex},
	CMRejected:       {RuleCM08, Breach, "cm-rejected", "a REJ should refuse a message of its receiver; it says that it refuses the {got} that its sender sent", 0, asRejected},
	CMHeader:         {RuleCM17, Breach, "cm-header", "RDMA-CM's addressing header should begin with version 0 and IP version 4 or 6; it begins with {got}", 0, asHex},

	SizeEmptyLast:      {RuleRS06, Breach, "last-empty", "a Last packet should carry 1 byte or more; this carries none (PSN {psn})", 0, 0},
	SizeAboveLimit:     {RuleRQ01, Breach, "message-size", "a message should have at most {want} bytes; this has {got} (PSN {psn})", 0, 0},
	AddressWraps:       {RuleRS10, Breach, "address-wraps", "{got} bytes from address {want} on reach beyond 2^64 (PSN {psn})", asHex, 0},
	PSNReused:          {RuleRQ02, Breach, "psn-reused", "PSN {psn} belongs to the responses of a {want}; this {got} uses it again", asOpcode, asOpcode},
	PSNSkipped:         {RuleRQ02, Breach, "psn-skipped", "PSNs before {psn} were not sent: they were acknowledged, and the MSN counts none of the messages that they would have been", 0, 0},
	PadAlignment:       {RuleRQ03, Breach, "pad-alignment", "payload and pad should be a multiple of 4 bytes; they are {got} (PSN {psn})", 0, 0},
	PadNotZero:         {RuleRQ03, Breach, "pad-zero", "pad bytes should be zero; they are {got} (PSN {psn})", 0, asHex},
	SolicitedMisplaced: {RuleRQ06, Breach, "solicited", "SE belongs in the last packet of a SEND or WRITE with immediate; it is set in this {got} (PSN {psn})", 0, asOpcode},
	ReadsAboveDepth:    {RuleRQ07, Note, "read-depth", "at most {want} READs and atomics should be outstanding; with PSN {psn} there are {got}, if the capture has all responses", 0, 0},
	AtomicMisaligned:   {RuleRQ10, Breach, "atomic-aligned", "an atomic's address should be a multiple of 8; it is {got} (PSN {psn})", 0, asHex},
	CreditsOverrun:     {RuleRQ15, Breach, "credits", "credits allow messages up to {want} and one packet more; message {got} was sent (PSN {psn})", 0, 0},
	ResendDiffers:      {RuleRQ16, Breach, "resend-differs", "a retransmission should repeat what PSN {psn} was, a {want}; this {got} has other content", asOpcode, asOpcode},
	AckNeverSent:       {RuleRQ22, Breach, "ack-never-sent", "PSN {want} is the next to be sent; {psn} was acknowledged", 0, 0},
	AckNeverSentDoubt:  {RuleRQ22, Note, "ack-never-seen", "PSN {want} is the next to be sent; {psn} was acknowledged; or the capture lost requests", 0, 0},
	GoBackTooFar:       {RuleRQ23, Breach, "go-back", "the NAK for PSN {want} acknowledged all before it; retransmission began {got} PSNs earlier", 0, 0},
	GoBackBeyond:       {RuleRQ23, Breach, "go-back-beyond", "the NAK asks for PSN {want}; retransmission began {got} PSNs later", 0, 0},
	NakIgnored:         {RuleRQ23, Breach, "nak-ignored", "{want} NAK sequence errors were ignored: only the timer made the requester go back", 0, 0},
	ResumeDiffers:      {RuleRQ27, Breach, "resume-differs", "a READ resumed at PSN {psn} should continue where the responses stopped ({want} bytes left); this one requests {got}", 0, 0},
	RNRTooEarly:        {RuleRQ28, Breach, "rnr-early", "PSN {psn} should be retransmitted {want} or more after its RNR NAK; this is {got} after it", asTime, asTime},
	NewDuringRNR:       {RuleRQ28, Breach, "rnr-new", "nothing should be sent for {want} after an RNR NAK; PSN {psn} is sent after {got}", asTime, asTime},

	NakRepeated:        {RuleRS03, Breach, "nak-repeated", "one NAK sequence error per gap; PSN {psn} was refused before", 0, 0},
	NakAcknowledged:    {RuleRS03, Breach, "nak-acknowledged", "PSN {psn} was acknowledged before, and is refused with a NAK sequence error", 0, 0},
	NakNothingLost:     {RuleRS03, Breach, "nak-nothing-lost", "a NAK sequence error for PSN {psn} needs an earlier packet with a later PSN; none was seen", 0, 0},
	NakNeverSent:       {RuleRS03, Note, "nak-never-sent", "PSN {want} is the first that was seen sent; {psn} is refused", 0, 0},
	NakThenAcked:       {RuleRS03, Breach, "nak-then-acked", "PSN {want} was refused with a NAK sequence error and not retransmitted, and {psn} was acknowledged", 0, 0},
	NakAfterFatal:      {RuleRS18, Breach, "dead-naks", "after the {want} the responder should be silent; it sends it again (PSN {psn})", asSyndrome, 0},
	OrderInMessage:     {RuleRS05, Breach, "order-in-message", "after {want} should come a Middle or Last of the same kind; PSN {psn} is a {got}", asOpcode, asOpcode},
	OrderOutside:       {RuleRS05, Breach, "order-outside", "after {want} a new message should begin; PSN {psn} is a {got}", asOpcode, asOpcode},
	OrderAtStart:       {RuleRS05, Breach, "order-start", "the first request of a connection should begin a message; PSN {psn} is a {got}", 0, asOpcode},
	SizeNotMTU:         {RuleRS06, Breach, "size-not-mtu", "First and Middle packets should carry exactly {want} bytes; this carries {got} (PSN {psn})", 0, 0},
	SizeOverMTU:        {RuleRS06, Breach, "size-over-mtu", "a packet should carry at most {want} bytes; this carries {got} (PSN {psn})", 0, 0},
	SizeNoMTU:          {RuleRS06, Breach, "size-no-mtu", "First and Middle packets should carry 256, 512, 1024, 2048 or 4096 bytes; this carries {got} (PSN {psn})", 0, 0},
	DMALengthOnly:      {RuleRS07, Breach, "dma-only", "RETH's DMA length is {want}, and the only packet carries {got} bytes (PSN {psn})", 0, 0},
	DMALengthLast:      {RuleRS07, Breach, "dma-last", "{want} bytes of the WRITE's DMA length were left, and the last packet carries {got} (PSN {psn})", 0, 0},
	DMALengthMiddle:    {RuleRS07, Breach, "dma-middle", "{want} bytes of the WRITE's DMA length were left, so that a Last was due; this is a Middle of {got} bytes (PSN {psn})", 0, 0},
	DMALengthFirst:     {RuleRS07, Breach, "dma-first", "RETH's DMA length is {want}, and the first packet of several carries {got} bytes (PSN {psn})", 0, 0},
	RNRAnswered:        {RuleRS09, Breach, "rnr-answered", "PSN {psn} was responded to before, and is refused with an RNR NAK", 0, 0},
	RNROfRead:          {RuleRS09, Note, "rnr-read", "RNR NAKs are for SEND and WRITE with immediate; this one refuses a {want} (PSN {psn})", asOpcode, 0},
	RNROfWrite:         {RuleRS09, Breach, "rnr-write", "RNR NAKs are for requests that consume a receive; this one refuses a {want} (PSN {psn})", asOpcode, 0},
	MSNWrong:           {RuleRS13, Breach, "msn", "MSN should be {want}, or above if later messages were complete; it is {got} (PSN {psn})", 0, 0},
	AckOfRead:          {RuleRS14, Breach, "ack-of-read", "a {want} should get its own response; it got a plain acknowledgement (PSN {psn})", asOpcode, 0},
	ResponseLate:       {RuleRS14, Breach, "response-late", "PSN {want} was acknowledged before the earlier {got} of PSN {psn} was sent", 0, asOpcode},
	AckBehind:          {RuleRS14, Breach, "ack-behind", "PSN {want} was responded to before; an acknowledgement with a newer MSN has the older PSN {psn}", 0, 0},
	ReadOutside:        {RuleRS15, Breach, "read-outside", "PSN {psn} was a {want}; the response is a {got}", asOpcode, asOpcode},
	ReadOpcode:         {RuleRS15, Breach, "read-opcode", "the response at PSN {psn} should be {want}, is {got}", asOpcode, asOpcode},
	ReadSize:           {RuleRS15, Breach, "read-size", "the response at PSN {psn} should carry {want} bytes, carries {got}", 0, 0},
	ReadTooMany:        {RuleRS15, Breach, "read-too-many", "the last response to the READ has PSN {want}; one more follows, a {got} (PSN {psn})", 0, asOpcode},
	ReadUnanswered:     {RuleRS14, Breach, "read-unanswered", "a {want} before PSN {psn} was sent {got} times without a response, though later requests got one each time", asOpcode, 0},
	ReadResumedMiddle:  {RuleRQ27, Note, "read-resumed-middle", "the response to a resumed READ should begin with First or Only; at PSN {psn} it begins with {got}", 0, asOpcode},
	AtomicOutside:      {RuleRS15, Breach, "atomic-outside", "PSN {psn} was a {want}; the response is a {got}", asOpcode, asOpcode},
	DeadAnswers:        {RuleRS18, Breach, "dead-answers", "after the {want} the responder should be silent; it sends a {got} (PSN {psn})", asSyndrome, asOpcode},
	DuplicateAckBehind: {RuleRS20, Note, "duplicate-ack-behind", "an acknowledgement of a duplicate should have the newest PSN, {want}; it has that of the newest SEND or WRITE, {psn}", 0, 0},
	AtomicTwice:        {RuleRS22, Breach, "atomic-twice", "the response to the atomic at PSN {psn} was {want}; now it is {got}", asHex, asHex},

	UnreliableAckReq: {RuleUC2, Breach, "unreliable-ackreq", "AckReq should be clear on UC and UD; it is set in this {got} (PSN {psn})", 0, asOpcode},
	ManagementAckReq: {RuleUC2, Note, "management-ackreq", "AckReq should be clear on UD; a management datagram has it set (PSN {psn})", 0, 0},
	DatagramSize:     {RuleUD1, Breach, "datagram-size", "a datagram should carry at most {want} bytes; this carries {got} (PSN {psn})", 0, 0},
	ManagementQKey:   {RuleUD1, Breach, "management-qkey", "Q_Key of QP 1 should be {want}, is {got} (PSN {psn})", asHex, asHex},
	DatagramQKey:     {RuleUD1, Breach, "datagram-qkey", "connection management set the Q_Key to {want}; this datagram has {got} (PSN {psn})", asHex, asHex},
	MulticastAddress: {RuleUD4, Breach, "multicast", "QP 0xffffff is for multicast; the destination address is not a multicast address (PSN {psn})", 0, 0},
	MulticastQP:      {RuleUD4, Breach, "multicast-qp", "datagrams to a multicast address go to QP 0xffffff; this one goes to {got} (PSN {psn})", 0, asHex},
	XRCCredits:       {RuleXR1, Breach, "xrc-credits", "XRC responses carry credit code 31; this has {got} (PSN {psn})", 0, 0},
	XRCOtherSRQ:      {RuleXR2, Breach, "xrc-srq", "the message began for SRQ {want}; this packet of it names {got} (PSN {psn})", 0, 0},

	SequenceGap:       {RuleGap, Event, "gap", "PSN {want} was due, {psn} came: {got} lost or late, by the network or the capture", 0, 0},
	ReadSequenceGap:   {RuleReadGap, Event, "read-gap", "READ response {want} was due, {psn} came: {got} lost or late, by the network or the capture", 0, 0},
	ResentNAK:         {RuleRetransmit, Event, "resent-nak", "goes back to PSN {psn}, {want} after its NAK", asTime, 0},
	ResentRNR:         {RuleRetransmit, Event, "resent-rnr", "retransmits PSN {psn}, {want} after its RNR NAK", asTime, 0},
	ResentImplied:     {RuleRetransmit, Event, "resent-implied", "goes back to PSN {psn}, whose response is missing, {want} after the last response", asTime, 0},
	ResentTimeout:     {RuleTimeout, Event, "timeout", "goes back to PSN {psn} without a NAK, {want} after it was last sent", asTime, 0},
	ResentUnknown:     {RuleRetransmit, Event, "resent-unknown", "retransmits PSN {psn}, {want} after it was last sent; the capture does not show why", asTime, 0},
	DuplicateRequest:  {RuleDuplicate, Event, "duplicate-request", "PSN {psn} was received again as a copy, {want} later", asTime, 0},
	DuplicateResponse: {RuleDuplicate, Event, "duplicate-response", "PSN {psn} got a second response without a retransmission", 0, 0},
	DuplicateCNP:      {RuleDuplicate, Event, "duplicate-cnp", "a CNP was received again as a copy, {want} later", asTime, 0},
	OutOfOrder:        {RuleReorder, Event, "reorder", "PSN {psn} came late, after {want}", 0, 0},
	NakSequence:       {RuleNAK, Event, "nak-sequence", "NAK sequence error for PSN {psn}", 0, 0},
	NakInvalid:        {RuleNAK, Event, "nak-invalid", "NAK invalid request for PSN {psn}", 0, 0},
	NakAccess:         {RuleNAK, Event, "nak-access", "NAK remote access error for PSN {psn}", 0, 0},
	NakOperational:    {RuleNAK, Event, "nak-operational", "NAK remote operational error for PSN {psn}", 0, 0},
	RNRNak:            {RuleRNR, Event, "rnr", "RNR NAK for PSN {psn}, wait {want}", asTime, 0},
	Unanswered:        {RuleUnanswered, Note, "unanswered", "PSN {psn} requested an acknowledgement, was sent {got} times, and no response was seen", 0, 0},
	CaptureLost:       {RuleMissing, Note, "missing", "{got} PSNs up to {psn} were acknowledged and never seen: the capture lost them", 0, 0},
	Restarted:         {RuleRestart, Event, "restart", "PSN {psn} is far from {want}: a new connection uses the QP number", 0, 0},
	Connected:         {RuleConnect, Event, "connect", "connection management: QP {want} and QP {got} connected, first PSN {psn}", 0, 0},
	Named:             {RuleConnect, Event, "named", "connection management: the service is at QP {got}, with Q_Key {want}", asHex, 0},
	Disconnected:      {RuleDisconnect, Event, "disconnect", "connection management: disconnect of QP {got} requested", 0, 0},
	Rejected:          {RuleReject, Event, "reject", "connection management: rejected, reason {got}", 0, 0},
}

// Rule returns the rule that the check is of.
func (c Check) Rule() Rule {
	if c < checkCount {
		return checks[c].rule
	}
	return RuleNone
}

// Severity returns how much a finding of this check matters by itself. With
// [Config].Complete some notes become breaches.
func (c Check) Severity() Severity {
	if c < checkCount {
		return checks[c].severity
	}
	return Event
}

// String returns a short name, for example "nak-repeated".
func (c Check) String() string {
	if c < checkCount {
		return checks[c].name
	}
	return strconv.Itoa(int(c))
}

// Checks yields every check.
func Checks(yield func(Check) bool) {
	for c := CheckNone + 1; c < checkCount; c++ {
		if !yield(c) {
			return
		}
	}
}
