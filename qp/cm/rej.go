package cm

import (
	"encoding/binary"
	"strconv"
)

// Room in REJ, in bytes.
const (
	REJPrivateDataSize = 148
	REJARISize         = 72 // additional rejection information
)

// REJ refuses a connection.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |  0
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |  4
//	+---+-----------+-------------+-+-------------------------------+
//	|msg| reserved0 | info length |r|            reason             |  8
//	+---+-----------+-------------+-+-------------------------------+
//	|         additional rejection information, 72 bytes            | 12
//	+---------------------------------------------------------------+
//	|                    private data, 148 bytes                    | 84
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, table 108.
type REJ struct {
	LocalCommID      uint32          // 0 when the sender has not chosen one
	RemoteCommID     uint32          // 0 when the receiver's is not known
	MessageRejected  MessageRejected // 2 bits
	Reserved0        uint8           // 6 bits
	RejectInfoLength uint8           // 7 bits, bytes of ARI that count
	Reserved1        uint8           // 1 bit
	Reason           Reason
	ARI              []byte // additional rejection information, REJARISize bytes
	PrivateData      []byte // REJPrivateDataSize bytes
}

// Decode reads a REJ from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *REJ) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.MessageRejected = MessageRejected(b[8] >> 6)
	r.Reserved0 = b[8] & 0x3f
	r.RejectInfoLength = b[9] >> 1
	r.Reserved1 = b[9] & 1
	r.Reason = Reason(binary.BigEndian.Uint16(b[10:]))
	r.ARI = b[12:84:84]
	r.PrivateData = b[84:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *REJ) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = append(dst, uint8(r.MessageRejected)<<6|r.Reserved0&0x3f, r.RejectInfoLength<<1|r.Reserved1&1)
	dst = binary.BigEndian.AppendUint16(dst, uint16(r.Reason))
	dst = appendData(dst, r.ARI, REJARISize)
	return appendData(dst, r.PrivateData, REJPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// ARI or the private data exceed their room.
func (r *REJ) Validate() error {
	if r.MessageRejected > 3 || r.Reserved0 > 0x3f || r.RejectInfoLength > 0x7f || r.Reserved1 > 1 {
		return ErrRange
	}
	if len(r.ARI) > REJARISize || len(r.PrivateData) > REJPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// MessageRejected says which message a REJ refuses.
type MessageRejected uint8

// Messages that can be refused, 2 bits; 3 is reserved.
const (
	RejectedREQ   MessageRejected = 0
	RejectedREP   MessageRejected = 1
	RejectedOther MessageRejected = 2 // no message, or another one
)

// String returns the message's name, or the number of a reserved code.
func (m MessageRejected) String() string {
	switch m {
	case RejectedREQ:
		return "REQ"
	case RejectedREP:
		return "REP"
	case RejectedOther:
		return "other"
	}
	return strconv.Itoa(int(m))
}

// Reason is the reason of a REJ.
type Reason uint16

// Reasons of REJ (InfiniBand Architecture Volume 1, table 109).
const (
	ReasonNoQP                           Reason = 1
	ReasonNoEEC                          Reason = 2
	ReasonNoResources                    Reason = 3
	ReasonTimeout                        Reason = 4
	ReasonUnsupportedRequest             Reason = 5
	ReasonInvalidCommID                  Reason = 6
	ReasonInvalidCommInstance            Reason = 7
	ReasonInvalidServiceID               Reason = 8 // no listener
	ReasonInvalidTransportServiceType    Reason = 9
	ReasonStaleConnection                Reason = 10
	ReasonRDCDoesNotExist                Reason = 11
	ReasonInvalidPrimaryRemotePortGID    Reason = 12
	ReasonInvalidPrimaryRemotePortLID    Reason = 13
	ReasonInvalidPrimarySL               Reason = 14
	ReasonInvalidPrimaryTrafficClass     Reason = 15
	ReasonInvalidPrimaryHopLimit         Reason = 16
	ReasonInvalidPrimaryPacketRate       Reason = 17
	ReasonInvalidAlternateRemotePortGID  Reason = 18
	ReasonInvalidAlternateRemotePortLID  Reason = 19
	ReasonInvalidAlternateSL             Reason = 20
	ReasonInvalidAlternateTrafficClass   Reason = 21
	ReasonInvalidAlternateHopLimit       Reason = 22
	ReasonInvalidAlternatePacketRate     Reason = 23
	ReasonPortCMRedirection              Reason = 24
	ReasonPortRedirection                Reason = 25
	ReasonInvalidPathMTU                 Reason = 26
	ReasonInsufficientResponderResources Reason = 27
	ReasonConsumer                       Reason = 28 // refused by the application
	ReasonRNRRetryCount                  Reason = 29
	ReasonDuplicateLocalCommID           Reason = 30
	ReasonInvalidClassVersion            Reason = 31
	ReasonInvalidPrimaryFlowLabel        Reason = 32
	ReasonInvalidAlternateFlowLabel      Reason = 33
	ReasonVendorOptionNotSupported       Reason = 35
)

var reasonNames = [...]string{
	ReasonNoQP:                           "no QP available",
	ReasonNoEEC:                          "no EE context available",
	ReasonNoResources:                    "no resources available",
	ReasonTimeout:                        "timeout",
	ReasonUnsupportedRequest:             "unsupported request",
	ReasonInvalidCommID:                  "invalid communication ID",
	ReasonInvalidCommInstance:            "invalid communication instance",
	ReasonInvalidServiceID:               "invalid service ID",
	ReasonInvalidTransportServiceType:    "invalid transport service type",
	ReasonStaleConnection:                "stale connection",
	ReasonRDCDoesNotExist:                "RDC does not exist",
	ReasonInvalidPrimaryRemotePortGID:    "primary remote port GID rejected",
	ReasonInvalidPrimaryRemotePortLID:    "primary remote port LID rejected",
	ReasonInvalidPrimarySL:               "invalid primary SL",
	ReasonInvalidPrimaryTrafficClass:     "invalid primary traffic class",
	ReasonInvalidPrimaryHopLimit:         "invalid primary hop limit",
	ReasonInvalidPrimaryPacketRate:       "invalid primary packet rate",
	ReasonInvalidAlternateRemotePortGID:  "alternate remote port GID rejected",
	ReasonInvalidAlternateRemotePortLID:  "alternate remote port LID rejected",
	ReasonInvalidAlternateSL:             "invalid alternate SL",
	ReasonInvalidAlternateTrafficClass:   "invalid alternate traffic class",
	ReasonInvalidAlternateHopLimit:       "invalid alternate hop limit",
	ReasonInvalidAlternatePacketRate:     "invalid alternate packet rate",
	ReasonPortCMRedirection:              "port and CM redirection",
	ReasonPortRedirection:                "port redirection",
	ReasonInvalidPathMTU:                 "invalid path MTU",
	ReasonInsufficientResponderResources: "insufficient responder resources",
	ReasonConsumer:                       "consumer reject",
	ReasonRNRRetryCount:                  "RNR retry count rejected",
	ReasonDuplicateLocalCommID:           "duplicate local communication ID",
	ReasonInvalidClassVersion:            "invalid class version",
	ReasonInvalidPrimaryFlowLabel:        "invalid primary flow label",
	ReasonInvalidAlternateFlowLabel:      "invalid alternate flow label",
	ReasonVendorOptionNotSupported:       "vendor option not supported",
}

// String returns the reason in words, or its number.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && reasonNames[r] != "" {
		return reasonNames[r]
	}
	return strconv.Itoa(int(r))
}

var reasonSentences = map[Reason]string{
	ReasonNoQP:                           "the peer has no queue pair left",
	ReasonNoEEC:                          "the peer has no EE context left",
	ReasonNoResources:                    "the peer lacks resources for the connection",
	ReasonTimeout:                        "the peer got no response in time and gave up",
	ReasonUnsupportedRequest:             "the peer does not support the request",
	ReasonInvalidCommID:                  "the peer has no call with this communication ID",
	ReasonInvalidCommInstance:            "the peer's call has another pair of communication IDs",
	ReasonInvalidServiceID:               "the peer has no listener there: check address, port and port space",
	ReasonInvalidTransportServiceType:    "the peer does not serve this kind of queue pair",
	ReasonStaleConnection:                "the peer still has a connection with this queue pair: try again in a moment",
	ReasonRDCDoesNotExist:                "there is no reliable datagram channel",
	ReasonInvalidPrimaryRemotePortGID:    "the requested GID does not belong to the peer's port",
	ReasonInvalidPrimaryRemotePortLID:    "the requested LID does not belong to the peer's port",
	ReasonInvalidPrimarySL:               "the peer refuses the service level",
	ReasonInvalidPrimaryTrafficClass:     "the peer refuses the traffic class",
	ReasonInvalidPrimaryHopLimit:         "the peer refuses the hop limit",
	ReasonInvalidPrimaryPacketRate:       "the peer cannot keep the packet rate",
	ReasonInvalidAlternateRemotePortGID:  "the alternate GID does not belong to the peer's port",
	ReasonInvalidAlternateRemotePortLID:  "the alternate LID does not belong to the peer's port",
	ReasonInvalidAlternateSL:             "the peer refuses the alternate service level",
	ReasonInvalidAlternateTrafficClass:   "the peer refuses the alternate traffic class",
	ReasonInvalidAlternateHopLimit:       "the peer refuses the alternate hop limit",
	ReasonInvalidAlternatePacketRate:     "the peer cannot keep the alternate packet rate",
	ReasonPortCMRedirection:              "the service is at another port, which the additional information names",
	ReasonPortRedirection:                "the service is at another port of the peer, which the additional information names",
	ReasonInvalidPathMTU:                 "the peer refuses the path MTU; the additional information may name one that it accepts",
	ReasonInsufficientResponderResources: "the peer accepts fewer READs and ATOMICs at a time",
	ReasonConsumer:                       "the program at the peer refused; the private data may say why",
	ReasonRNRRetryCount:                  "the peer refuses the RNR retry count",
	ReasonDuplicateLocalCommID:           "the peer has a call with this communication ID already",
	ReasonInvalidClassVersion:            "the peer uses another version of connection management",
	ReasonInvalidPrimaryFlowLabel:        "the peer refuses the flow label",
	ReasonInvalidAlternateFlowLabel:      "the peer refuses the alternate flow label",
	ReasonVendorOptionNotSupported:       "the peer does not support the vendor's options",
}

// Sentence returns what the reason means and what to do, for a person to read.
func (r Reason) Sentence() string {
	if s := reasonSentences[r]; s != "" {
		return s
	}
	return "the peer gave a reason without a name"
}
