package cm

import "encoding/binary"

// Room for private data, in bytes.
const (
	DREQPrivateDataSize = 220
	DREPPrivateDataSize = 224
)

// DREQ requests the end of a connection.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |
//	+-----------------------------------------------+---------------+
//	|              remote QPN or EECN               |   reserved    |
//	+-----------------------------------------------+---------------+
//	|                    private data, 220 bytes                    |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, table 112.
type DREQ struct {
	LocalCommID   uint32
	RemoteCommID  uint32
	RemoteQPNEECN uint32 // 24 bits, of the receiver of DREQ
	Reserved      uint8
	PrivateData   []byte // DREQPrivateDataSize bytes
}

// Decode reads a DREQ from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *DREQ) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.RemoteQPNEECN = uint24(b[8:])
	r.Reserved = b[11]
	r.PrivateData = b[12:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *DREQ) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = append24(dst, r.RemoteQPNEECN, r.Reserved)
	return appendData(dst, r.PrivateData, DREQPrivateDataSize)
}

// Validate returns ErrRange when the QPN exceeds 24 bits, ErrTooLong when the
// private data exceed their room.
func (r *DREQ) Validate() error {
	if r.RemoteQPNEECN > max24 {
		return ErrRange
	}
	if len(r.PrivateData) > DREQPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// DREP is the response to DREQ.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |
//	+---------------------------------------------------------------+
//	|                    private data, 224 bytes                    |
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, table 113.
type DREP struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  []byte // DREPPrivateDataSize bytes
}

// Decode reads a DREP from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *DREP) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.PrivateData = b[8:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *DREP) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	return appendData(dst, r.PrivateData, DREPPrivateDataSize)
}

// Validate returns ErrTooLong when the private data exceed their room.
func (r *DREP) Validate() error {
	if len(r.PrivateData) > DREPPrivateDataSize {
		return ErrTooLong
	}
	return nil
}
