package cm

import (
	"encoding/binary"
	"strconv"
)

// MRAPrivateDataSize is the room for private data in MRA, in bytes.
const MRAPrivateDataSize = 222

// MRA says that a message was received and that the response to it will be late.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |
//	+---+-----------+---------+-----+-------------------------------+
//	|msg| reserved0 | timeout |rsvd1|    private data, 222 bytes    |
//	+---+-----------+---------+-----+-------------------------------+
//
// InfiniBand Architecture Volume 1, table 107.
type MRA struct {
	LocalCommID    uint32
	RemoteCommID   uint32
	MessageMRAed   MessageMRAed // 2 bits
	Reserved0      uint8        // 6 bits
	ServiceTimeout uint8        // 5 bits, see Timeout
	Reserved1      uint8        // 3 bits
	PrivateData    []byte       // MRAPrivateDataSize bytes
}

// Decode reads an MRA from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *MRA) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.MessageMRAed = MessageMRAed(b[8] >> 6)
	r.Reserved0 = b[8] & 0x3f
	r.ServiceTimeout = b[9] >> 3
	r.Reserved1 = b[9] & 7
	r.PrivateData = b[10:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *MRA) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = append(dst, uint8(r.MessageMRAed)<<6|r.Reserved0&0x3f, r.ServiceTimeout<<3|r.Reserved1&7)
	return appendData(dst, r.PrivateData, MRAPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// the private data exceed their room.
func (r *MRA) Validate() error {
	if r.MessageMRAed > 3 || r.Reserved0 > 0x3f || r.ServiceTimeout > 0x1f || r.Reserved1 > 7 {
		return ErrRange
	}
	if len(r.PrivateData) > MRAPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// MessageMRAed says which message an MRA acknowledges.
type MessageMRAed uint8

// Messages that can be acknowledged, 2 bits; 3 is reserved.
const (
	MRAedREQ MessageMRAed = 0
	MRAedREP MessageMRAed = 1
	MRAedLAP MessageMRAed = 2
)

// String returns the message's name, or the number of a reserved code.
func (m MessageMRAed) String() string {
	switch m {
	case MRAedREQ:
		return "REQ"
	case MRAedREP:
		return "REP"
	case MRAedLAP:
		return "LAP"
	}
	return strconv.Itoa(int(m))
}
