package cm

import "encoding/binary"

// REQPrivateDataSize is the room for private data in REQ, in bytes.
const REQPrivateDataSize = 92

// REQ requests a connection.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                    local communication ID                     |  0
//	+---------------+-----------------------------------------------+
//	|   reserved0   |                   vendor ID                   |  4
//	+---------------+-----------------------------------------------+
//	|                      service ID, 8 bytes                      |  8
//	+---------------------------------------------------------------+
//	|                    local CA GUID, 8 bytes                     | 16
//	+---------------------------------------------------------------+
//	|                           reserved1                           | 24
//	+---------------------------------------------------------------+
//	|                          local Q_Key                          | 28
//	+-----------------------------------------------+---------------+
//	|                   local QPN                   | responder res.| 32
//	+-----------------------------------------------+---------------+
//	|                  local EECN                   |initiator depth| 36
//	+-----------------------------------------------+---------+---+-+
//	|                  remote EECN                  |remote TO|svc|F| 40
//	+-----------------------------------------------+---------+---+-+
//	|                 starting PSN                  |local TO |retry| 44
//	+-------------------------------+-------+-+-----+-------+-+-----+
//	|         partition key         |  MTU  |R| RNR |retries|S| ext | 48
//	+-------------------------------+-------+-+-----+-------+-+-----+
//	|                    primary path, 44 bytes                     | 52
//	+---------------------------------------------------------------+
//	|                   alternate path, 44 bytes                    | 96
//	+---------------------------------------------------------------+
//	|                    private data, 92 bytes                     | 140
//	+---------------------------------------------------------------+
//
// TO are the CM response timeouts, svc the transport service type, F
// end-to-end flow control, R "RDC exists", retries the maximum CM retries, S
// SRQ, ext the extended transport type.
//
// InfiniBand Architecture Volume 1, table 106.
type REQ struct {
	LocalCommID        uint32 // chosen by the sender
	Reserved0          uint8
	VendorID           uint32 // 24 bits, of enhanced connection establishment; else 0
	ServiceID          ServiceID
	LocalCAGUID        uint64
	Reserved1          uint32
	LocalQKey          uint32 // datagram services only
	LocalQPN           uint32 // 24 bits, of the sender of REQ
	ResponderResources uint8  // RDMA READs and ATOMICs that the sender accepts at a time
	LocalEECN          uint32 // 24 bits, RD only
	InitiatorDepth     uint8  // RDMA READs and ATOMICs that the sender sends at a time
	RemoteEECN         uint32 // 24 bits, RD only
	// RemoteCMResponseTimeout is the time within which the receiver has to respond (5 bits,
	// see Timeout).
	RemoteCMResponseTimeout uint8
	TransportServiceType    TransportServiceType // 2 bits
	EndToEndFlowControl     bool
	// StartingPSN (24 bits) is the first PSN that the receiver of REQ is to
	// send: the sender's rq_psn, the receiver's sq_psn.
	StartingPSN uint32
	// LocalCMResponseTimeout is the time within which the sender has to respond to REP (5
	// bits, see Timeout).
	LocalCMResponseTimeout uint8
	RetryCount             uint8 // 3 bits
	PartitionKey           uint16
	PathPacketPayloadMTU   MTU // 4 bits
	RDCExists              bool
	RNRRetryCount          uint8 // 3 bits; 7 means no limit
	MaxCMRetries           uint8 // 4 bits
	SRQ                    bool
	ExtendedTransportType  uint8 // 3 bits
	Primary                Path
	Alternate              Path   // all zero when there is none
	PrivateData            []byte // REQPrivateDataSize bytes
}

// Decode reads a REQ from the first DataSize bytes of b, the bytes behind the
// MAD header.
func (r *REQ) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.LocalCommID = binary.BigEndian.Uint32(b)
	r.Reserved0 = b[4]
	r.VendorID = uint24(b[5:])
	r.ServiceID = ServiceID(binary.BigEndian.Uint64(b[8:]))
	r.LocalCAGUID = binary.BigEndian.Uint64(b[16:])
	r.Reserved1 = binary.BigEndian.Uint32(b[24:])
	r.LocalQKey = binary.BigEndian.Uint32(b[28:])
	r.LocalQPN = uint24(b[32:])
	r.ResponderResources = b[35]
	r.LocalEECN = uint24(b[36:])
	r.InitiatorDepth = b[39]
	r.RemoteEECN = uint24(b[40:])
	r.RemoteCMResponseTimeout = b[43] >> 3
	r.TransportServiceType = TransportServiceType(b[43] >> 1 & 3)
	r.EndToEndFlowControl = b[43]&1 != 0
	r.StartingPSN = uint24(b[44:])
	r.LocalCMResponseTimeout = b[47] >> 3
	r.RetryCount = b[47] & 7
	r.PartitionKey = binary.BigEndian.Uint16(b[48:])
	r.PathPacketPayloadMTU = MTU(b[50] >> 4)
	r.RDCExists = b[50]&8 != 0
	r.RNRRetryCount = b[50] & 7
	r.MaxCMRetries = b[51] >> 4
	r.SRQ = b[51]&8 != 0
	r.ExtendedTransportType = b[51] & 7
	r.Primary.decode(b[52:96])
	r.Alternate.decode(b[96:140])
	r.PrivateData = b[140:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *REQ) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.LocalCommID)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Reserved0)<<24|r.VendorID&max24)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.ServiceID))
	dst = binary.BigEndian.AppendUint64(dst, r.LocalCAGUID)
	dst = binary.BigEndian.AppendUint32(dst, r.Reserved1)
	dst = binary.BigEndian.AppendUint32(dst, r.LocalQKey)
	dst = append24(dst, r.LocalQPN, r.ResponderResources)
	dst = append24(dst, r.LocalEECN, r.InitiatorDepth)
	dst = append24(dst, r.RemoteEECN,
		r.RemoteCMResponseTimeout<<3|uint8(r.TransportServiceType&3)<<1|bit(r.EndToEndFlowControl, 0))
	dst = append24(dst, r.StartingPSN, r.LocalCMResponseTimeout<<3|r.RetryCount&7)
	dst = binary.BigEndian.AppendUint16(dst, r.PartitionKey)
	dst = append(dst,
		uint8(r.PathPacketPayloadMTU)<<4|bit(r.RDCExists, 3)|r.RNRRetryCount&7,
		r.MaxCMRetries<<4|bit(r.SRQ, 3)|r.ExtendedTransportType&7)
	dst = r.Primary.append(dst)
	dst = r.Alternate.append(dst)
	return appendData(dst, r.PrivateData, REQPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// the private data exceed their room.
func (r *REQ) Validate() error {
	if r.VendorID > max24 || r.LocalQPN > max24 || r.LocalEECN > max24 || r.RemoteEECN > max24 ||
		r.StartingPSN > max24 || r.RemoteCMResponseTimeout > 0x1f || r.TransportServiceType > 3 ||
		r.LocalCMResponseTimeout > 0x1f || r.RetryCount > 7 || r.PathPacketPayloadMTU > 0xf ||
		r.RNRRetryCount > 7 || r.MaxCMRetries > 0xf || r.ExtendedTransportType > 7 {
		return ErrRange
	}
	if err := r.Primary.Validate(); err != nil {
		return err
	}
	if err := r.Alternate.Validate(); err != nil {
		return err
	}
	if len(r.PrivateData) > REQPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// CMA reads RDMA-CM's header from the private data into h and returns what the
// consumer put behind it. Where there is none (the service ID is of another
// kind, the data are short, or the versions unknown) ok is false and h unchanged.
func (r *REQ) CMA(h *CMAHeader) (consumer []byte, ok bool) {
	return cma(h, r.ServiceID, r.PrivateData)
}
