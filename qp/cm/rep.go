package cm

import "encoding/binary"

// REPPrivateDataSize is the room for private data in REP, in bytes.
const REPPrivateDataSize = 196

// REP accepts a connection.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |  0
//	+---------------------------------------------------------------+
//	|                    remote communication ID                    |  4
//	+---------------------------------------------------------------+
//	|                          local Q_Key                          |  8
//	+-----------------------------------------------+---------------+
//	|                   local QPN                   | vendor ID high| 12
//	+-----------------------------------------------+---------------+
//	|                     local EECN                | vendor ID mid | 16
//	+-----------------------------------------------+---------------+
//	|                 starting PSN                  | vendor ID low | 20
//	+---------------+---------------+---------+---+-+-----+-+-------+
//	| responder res.|initiator depth|ACK delay|fo |F| RNR |S|reservd| 24
//	+---------------+---------------+---------+---+-+-----+-+-------+
//	|                    local CA GUID, 8 bytes                     | 28
//	+---------------------------------------------------------------+
//	|                    private data, 196 bytes                    | 36
//	+---------------------------------------------------------------+
//
// fo is failover accepted, F end-to-end flow control, S SRQ. Older texts and
// dissectors show the vendor ID as three reserved bytes.
//
// InfiniBand Architecture Volume 1, table 110.
type REP struct {
	LocalCommID  uint32 // chosen by the sender of REP
	RemoteCommID uint32 // REQ's LocalCommID
	LocalQKey    uint32 // datagram services only
	LocalQPN     uint32 // 24 bits, of the sender of REP
	LocalEECN    uint32 // 24 bits, RD only
	// StartingPSN (24 bits) is the first PSN that the receiver of REP is to
	// send: the rq_psn of REP's sender, the sq_psn of REQ's.
	StartingPSN         uint32
	VendorID            uint32 // 24 bits, of enhanced connection establishment; else 0
	ResponderResources  uint8  // RDMA READs and ATOMICs that the sender accepts at a time
	InitiatorDepth      uint8  // RDMA READs and ATOMICs that the sender sends at a time
	TargetACKDelay      uint8  // 5 bits, see Timeout
	FailoverAccepted    uint8  // 2 bits; 0 accepted, 1 not supported, 2 rejected
	EndToEndFlowControl bool
	RNRRetryCount       uint8 // 3 bits; 7 means no limit
	SRQ                 bool
	Reserved            uint8 // 4 bits
	LocalCAGUID         uint64
	PrivateData         []byte // REPPrivateDataSize bytes
}

// Decode reads a REP from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *REP) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.RemoteCommID = binary.BigEndian.Uint32(b[4:])
	r.LocalQKey = binary.BigEndian.Uint32(b[8:])
	r.LocalQPN = uint24(b[12:])
	r.LocalEECN = uint24(b[16:])
	r.StartingPSN = uint24(b[20:])
	r.VendorID = uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23])
	r.ResponderResources = b[24]
	r.InitiatorDepth = b[25]
	r.TargetACKDelay = b[26] >> 3
	r.FailoverAccepted = b[26] >> 1 & 3
	r.EndToEndFlowControl = b[26]&1 != 0
	r.RNRRetryCount = b[27] >> 5
	r.SRQ = b[27]&0x10 != 0
	r.Reserved = b[27] & 0xf
	r.LocalCAGUID = binary.BigEndian.Uint64(b[28:])
	r.PrivateData = b[36:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *REP) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.LocalQKey)
	dst = append24(dst, r.LocalQPN, uint8(r.VendorID>>16))
	dst = append24(dst, r.LocalEECN, uint8(r.VendorID>>8))
	dst = append24(dst, r.StartingPSN, uint8(r.VendorID))
	dst = append(dst, r.ResponderResources, r.InitiatorDepth,
		r.TargetACKDelay<<3|r.FailoverAccepted&3<<1|bit(r.EndToEndFlowControl, 0),
		r.RNRRetryCount<<5|bit(r.SRQ, 4)|r.Reserved&0xf)
	dst = binary.BigEndian.AppendUint64(dst, r.LocalCAGUID)
	return appendData(dst, r.PrivateData, REPPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// the private data exceed their room.
func (r *REP) Validate() error {
	if r.LocalQPN > max24 || r.LocalEECN > max24 || r.StartingPSN > max24 || r.VendorID > max24 ||
		r.TargetACKDelay > 0x1f || r.FailoverAccepted > 3 || r.RNRRetryCount > 7 || r.Reserved > 0xf {
		return ErrRange
	}
	if len(r.PrivateData) > REPPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// RTUPrivateDataSize is the room for private data in RTU, in bytes.
const RTUPrivateDataSize = 224

// RTU says that the sender of REQ has received REP and is ready to use the connection.
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
// InfiniBand Architecture Volume 1, table 111.
type RTU struct {
	LocalCommID  uint32
	RemoteCommID uint32
	PrivateData  []byte // RTUPrivateDataSize bytes
}

// Decode reads an RTU from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *RTU) Decode(b []byte) error {
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
func (r *RTU) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, r.RemoteCommID)
	return appendData(dst, r.PrivateData, RTUPrivateDataSize)
}

// Validate returns ErrTooLong when the private data exceed their room.
func (r *RTU) Validate() error {
	if len(r.PrivateData) > RTUPrivateDataSize {
		return ErrTooLong
	}
	return nil
}
