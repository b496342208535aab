package cm

import (
	"encoding/binary"
	"strconv"
)

// HeaderSize is the length of the common MAD header in bytes.
const HeaderSize = 24

// Values of the header's versions in the datagrams of this package.
const (
	BaseVersion  = 1
	ClassVersion = 2
)

// Header is the header common to all management datagrams.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+---------------+---------------+
//	| base version  |  mgmt class   | class version |R|   method    |
//	+---------------+---------------+---------------+---------------+
//	|            status             |        class specific         |
//	+-------------------------------+-------------------------------+
//	|                      transaction ID, high                     |
//	+---------------------------------------------------------------+
//	|                      transaction ID, low                      |
//	+-------------------------------+-------------------------------+
//	|         attribute ID          |           reserved            |
//	+-------------------------------+-------------------------------+
//	|                       attribute modifier                      |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, clause 13.4.3.
type Header struct {
	BaseVersion   uint8 // 1
	MgmtClass     Class
	ClassVersion  uint8  // 2 for communication management
	Method        Method // with the response bit R
	Status        uint16
	ClassSpecific uint16
	// TransactionID is chosen by the sender of REQ or SIDR_REQ and repeated in
	// the messages that follow it.
	TransactionID uint64
	AttributeID   AttributeID // which message this is
	Reserved      uint16
	// AttributeModifier is 0, or in REQ, REP and SIDR_REP the vendor's
	// enhanced connection establishment options.
	AttributeModifier uint32
}

// NewHeader returns the header of a communication management message with this
// attribute ID and transaction ID: method Send, nothing else set.
func NewHeader(id AttributeID, transactionID uint64) Header {
	return Header{
		BaseVersion: BaseVersion, MgmtClass: ClassCM, ClassVersion: ClassVersion, Method: MethodSend,
		TransactionID: transactionID, AttributeID: id,
	}
}

// Decode reads a header from the first HeaderSize bytes of b, of whatever class.
func (h *Header) Decode(b []byte) error {
	if len(b) < HeaderSize {
		return ErrTruncated
	}
	*h = Header{
		BaseVersion:       b[0],
		MgmtClass:         Class(b[1]),
		ClassVersion:      b[2],
		Method:            Method(b[3]),
		Status:            binary.BigEndian.Uint16(b[4:]),
		ClassSpecific:     binary.BigEndian.Uint16(b[6:]),
		TransactionID:     binary.BigEndian.Uint64(b[8:]),
		AttributeID:       AttributeID(binary.BigEndian.Uint16(b[16:])),
		Reserved:          binary.BigEndian.Uint16(b[18:]),
		AttributeModifier: binary.BigEndian.Uint32(b[20:]),
	}
	return nil
}

// AppendTo appends the HeaderSize bytes of h to dst. Every value of every field
// fits its width, so a Header needs no Validate.
func (h *Header) AppendTo(dst []byte) []byte {
	dst = append(dst, h.BaseVersion, byte(h.MgmtClass), h.ClassVersion, byte(h.Method))
	dst = binary.BigEndian.AppendUint16(dst, h.Status)
	dst = binary.BigEndian.AppendUint16(dst, h.ClassSpecific)
	dst = binary.BigEndian.AppendUint64(dst, h.TransactionID)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.AttributeID))
	dst = binary.BigEndian.AppendUint16(dst, h.Reserved)
	return binary.BigEndian.AppendUint32(dst, h.AttributeModifier)
}

// Class is a management class.
type Class uint8

// ClassCM is communication management.
const ClassCM Class = 0x07

// String returns "CM", or the number of another class.
func (c Class) String() string {
	if c == ClassCM {
		return "CM"
	}
	return hex(uint64(c), 2)
}

// Method is a management method; bit 7 marks a response.
type Method uint8

// Methods of communication management. All messages of this package have method Send; Get
// and GetResp are for the class's port information.
const (
	MethodGet     Method = 0x01
	MethodSet     Method = 0x02
	MethodSend    Method = 0x03
	MethodGetResp Method = 0x81
)

// String returns the method's name, or its number.
func (m Method) String() string {
	switch m {
	case MethodGet:
		return "Get"
	case MethodSet:
		return "Set"
	case MethodSend:
		return "Send"
	case MethodGetResp:
		return "GetResp"
	}
	return hex(uint64(m), 2)
}

// AttributeID says which message a datagram is.
type AttributeID uint16

// Attribute IDs of communication management.
const (
	AttrREQ     AttributeID = 0x0010 // ConnectRequest
	AttrMRA     AttributeID = 0x0011 // MsgRcptAck
	AttrREJ     AttributeID = 0x0012 // ConnectReject
	AttrREP     AttributeID = 0x0013 // ConnectReply
	AttrRTU     AttributeID = 0x0014 // ReadyToUse
	AttrDREQ    AttributeID = 0x0015 // DisconnectRequest
	AttrDREP    AttributeID = 0x0016 // DisconnectReply
	AttrSIDRREQ AttributeID = 0x0017 // ServiceIDResReq
	AttrSIDRREP AttributeID = 0x0018 // ServiceIDResReqResp
	AttrLAP     AttributeID = 0x0019 // LoadAlternatePath
	AttrAPR     AttributeID = 0x001A // AlternatePathResponse
)

var attributeNames = [...]string{
	"REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR",
}

// String returns the message's short name, or the attribute's number.
func (a AttributeID) String() string {
	if a >= AttrREQ && a <= AttrAPR {
		return attributeNames[a-AttrREQ]
	}
	return hex(uint64(a), 4)
}

// hex returns v in at least n hexadecimal digits, for values without a name.
func hex(v uint64, n int) string {
	s := strconv.FormatUint(v, 16)
	for len(s) < n {
		s = "0" + s
	}
	return "0x" + s
}
