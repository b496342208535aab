package qp

// Verdict is what became of a packet that was handed in. None is an error of the caller.
// Each fault has a counter.
type Verdict uint8

// Verdicts.
const (
	Accepted      Verdict = iota // new and executed
	Duplicate                    // seen before; responded to again, or dropped (rules RS-20 to RS-23)
	OutOfSequence                // ahead of what is expected
	NotReady                     // refused because there is no receive: RNR NAK
	Refused                      // a fault of the peer: NAK, or an error of its response; the QP is in Error
	Retried                      // the peer refused or lost something, which is retransmitted
	Failed                       // the peer refused for good: the QP is in Error
	Stale                        // a response to what is complete, dropped
	Unsent                       // a response to what was never sent, dropped
	Reserved                     // a reserved syndrome or NAK code, dropped
	WrongSide                    // a request to a requester, a response to a responder, dropped
	Invalid                      // opcode of another service, wrong P_Key, QP number or Q_Key, dropped
	Inactive                     // the QP is in a state that accepts no packets, dropped
	NoReceive                    // UC and UD: no receive posted or too small, dropped
)

var verdictNames = [...]string{"accepted", "duplicate", "out of sequence", "not ready", "refused",
	"retried", "failed", "stale", "unsent", "reserved", "wrong side", "invalid", "inactive",
	"no receive"}

// String returns the name of v.
func (v Verdict) String() string { return name(verdictNames[:], int(v)) }

// Counters count what happened, under the names of the RDMA hardware counters
// where there is one (Linux, /sys/class/infiniband/.../hw_counters).
type Counters struct {
	// Requester.
	PacketSeqErr            uint64 // packet_seq_err: NAK sequence errors received
	ImpliedNakSeqErr        uint64 // implied_nak_seq_err: responses that showed an earlier one lost
	LocalAckTimeoutErr      uint64 // local_ack_timeout_err: acknowledgement timers fired
	RNRNakReceived          uint64 // RNR NAKs received
	RNRNakRetryErr          uint64 // rnr_nak_retry_err: RNR retries exceeded
	RetryExceededErr        uint64 // transport retries exceeded
	ReqRemoteInvalidRequest uint64 // req_remote_invalid_request
	ReqRemoteAccessErrors   uint64 // req_remote_access_errors
	ReqRemoteOpErr          uint64 // NAK remote operational errors received
	BadRespErr              uint64 // responses of wrong opcode or length
	UnexpectedAck           uint64 // responses to PSNs never sent
	ReservedSyndrome        uint64 // responses with a reserved syndrome or NAK code
	Retransmitted           uint64 // request packets retransmitted

	// Responder.
	OutOfSequence          uint64 // out_of_sequence: packets ahead of the expected PSN
	DuplicateRequest       uint64 // duplicate_request
	OutOfBuffer            uint64 // out_of_buffer: no receive posted
	RespLocalLengthError   uint64 // resp_local_length_error
	RespRemoteAccessErrors uint64 // resp_remote_access_errors: R_Key refused
	RespInvalidRequest     uint64 // requests refused as invalid; on RC and XRC with a NAK
	RxWriteRequests        uint64 // rx_write_requests
	RxReadRequests         uint64 // rx_read_requests
	RxAtomicRequests       uint64 // rx_atomic_requests
	UCMessagesDropped      uint64 // UC messages dropped, for a gap, a fault or because there was no receive
	QKeyViolations         uint64 // UD: wrong Q_Key

	// Both.
	WrongSide uint64 // requests to a requester, responses to a responder
	Invalid   uint64 // opcode of another service, wrong P_Key or QP number
	Inactive  uint64 // packets in a state that accepts none
	TxPackets uint64 // packets built
	RxPackets uint64 // packets handed in
}
