package cm

import (
	"encoding/binary"
	"strconv"
)

// Room in LAP and APR, in bytes.
const (
	LAPPrivateDataSize = 168
	APRPrivateDataSize = 148
	APRInfoSize        = 72 // additional information
)

// LAP requests to load an alternate path.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |  0
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |  4
//	+---------------------------------------------------------------+
//	|                           reserved0                           |  8
//	+-----------------------------------------------+---------+-----+
//	|              remote QPN or EECN               |remote TO|rsvd1| 12
//	+-----------------------------------------------+---------+-----+
//	|                           reserved2                           | 16
//	+-------------------------------+-------------------------------+
//	|        local port LID         |        remote port LID        | 20
//	+-------------------------------+-------------------------------+
//	|                   local port GID, 16 bytes                    | 24
//	+---------------------------------------------------------------+
//	|                   remote port GID, 16 bytes                   | 40
//	+---------------------------------------+-------+---------------+
//	|              flow label               |rsv 5-2| traffic class | 56
//	+---------------+---+-----------+-------+-+-----+---------+-----+
//	|   hop limit   |1-0|packet rate|  SL   |S|rsvd | ACK TO  |rsvd | 60
//	+---------------+---+-----------+-------+-+-----+---------+-----+
//	|                    private data, 168 bytes                    | 64
//	+---------------------------------------------------------------+
//
// The path has the fields of REQ's in another order. Its six reserved bits are in two
// places: bits 5 to 2 of Alternate.Reserved0 after the flow label, bits 1 and 0 before the
// packet rate.
//
// InfiniBand Architecture Volume 1, table 115.
type LAP struct {
	LocalCommID             uint32
	RemoteCommID            uint32
	Reserved0               uint32
	RemoteQPNEECN           uint32 // 24 bits, of the receiver of LAP
	RemoteCMResponseTimeout uint8  // 5 bits, see Timeout
	Reserved1               uint8  // 3 bits
	Reserved2               uint32
	Alternate               Path
	PrivateData             []byte // LAPPrivateDataSize bytes
}

// Decode reads a LAP from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *LAP) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.Reserved0 = binary.BigEndian.Uint32(b[8:])
	r.RemoteQPNEECN = uint24(b[12:])
	r.RemoteCMResponseTimeout = b[15] >> 3
	r.Reserved1 = b[15] & 7
	r.Reserved2 = binary.BigEndian.Uint32(b[16:])
	p := &r.Alternate
	p.decodeEnds(b[20:])
	p.FlowLabel = binary.BigEndian.Uint32(b[56:]) >> 12
	p.Reserved0 = b[58]&0xf<<2 | b[61]>>6
	p.TrafficClass = b[59]
	p.HopLimit = b[60]
	p.PacketRate = b[61] & 0x3f
	p.decodeTail(b[62:])
	r.PrivateData = b[64:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *LAP) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.Reserved0)
	dst = append24(dst, r.RemoteQPNEECN, r.RemoteCMResponseTimeout<<3|r.Reserved1&7)
	dst = binary.BigEndian.AppendUint32(dst, r.Reserved2)
	p := &r.Alternate
	dst = p.appendEnds(dst)
	dst = binary.BigEndian.AppendUint32(dst,
		p.FlowLabel<<12|uint32(p.Reserved0>>2&0xf)<<8|uint32(p.TrafficClass))
	dst = append(dst, p.HopLimit, p.Reserved0<<6|p.PacketRate&0x3f)
	dst = p.appendTail(dst)
	return appendData(dst, r.PrivateData, LAPPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// the private data exceed their room.
func (r *LAP) Validate() error {
	if r.RemoteQPNEECN > max24 || r.RemoteCMResponseTimeout > 0x1f || r.Reserved1 > 7 {
		return ErrRange
	}
	if err := r.Alternate.Validate(); err != nil {
		return err
	}
	if len(r.PrivateData) > LAPPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// APR is the response to LAP.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |  0
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |  4
//	+---------------+---------------+-------------------------------+
//	|  info length  |   AP status   |           reserved            |  8
//	+---------------+---------------+-------------------------------+
//	|               additional information, 72 bytes                | 12
//	+---------------------------------------------------------------+
//	|                    private data, 148 bytes                    | 84
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, table 116.
type APR struct {
	LocalCommID                 uint32
	RemoteCommID                uint32
	AdditionalInformationLength uint8 // bytes of AdditionalInformation that are valid
	APStatus                    APStatus
	Reserved                    uint16
	AdditionalInformation       []byte // APRInfoSize bytes
	PrivateData                 []byte // APRPrivateDataSize bytes
}

// Decode reads an APR from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *APR) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.AdditionalInformationLength = b[8]
	r.APStatus = APStatus(b[9])
	r.Reserved = binary.BigEndian.Uint16(b[10:])
	r.AdditionalInformation = b[12:84:84]
	r.PrivateData = b[84:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *APR) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = append(dst, r.AdditionalInformationLength, uint8(r.APStatus))
	dst = binary.BigEndian.AppendUint16(dst, r.Reserved)
	dst = appendData(dst, r.AdditionalInformation, APRInfoSize)
	return appendData(dst, r.PrivateData, APRPrivateDataSize)
}

// Validate returns ErrTooLong when additional information or the private data
// exceed their room.
func (r *APR) Validate() error {
	if len(r.AdditionalInformation) > APRInfoSize || len(r.PrivateData) > APRPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// APStatus is the status of an APR.
type APStatus uint8

// Statuses of APR.
const (
	APLoaded              APStatus = 0
	APInvalidCommID       APStatus = 1
	APUnsupported         APStatus = 2
	APRejected            APStatus = 3
	APRedirect            APStatus = 4
	APIsCurrentPath       APStatus = 5
	APInvalidQPNEECN      APStatus = 6
	APInvalidLID          APStatus = 7
	APInvalidGID          APStatus = 8
	APInvalidFlowLabel    APStatus = 9
	APInvalidTrafficClass APStatus = 10
	APInvalidHopLimit     APStatus = 11
	APInvalidPacketRate   APStatus = 12
	APInvalidSL           APStatus = 13
)

var apNames = [...]string{
	"loaded", "invalid communication ID", "alternate paths not supported", "rejected", "redirected",
	"is the current path", "invalid QPN or EECN", "invalid LID", "invalid GID", "invalid flow label",
	"invalid traffic class", "invalid hop limit", "invalid packet rate", "invalid SL",
}

// String returns the status in words, or its number.
func (s APStatus) String() string {
	if int(s) < len(apNames) {
		return apNames[s]
	}
	return strconv.Itoa(int(s))
}
