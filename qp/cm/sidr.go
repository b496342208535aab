package cm

import (
	"encoding/binary"
	"strconv"
)

// Room in SIDR_REQ and SIDR_REP, in bytes.
const (
	SIDRREQPrivateDataSize = 216
	SIDRREPPrivateDataSize = 136
	SIDRREPInfoSize        = 72 // additional information
)

// SIDRREQ (SIDR_REQ) requests the queue pair of an unconnected service.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                          request ID                           |  0
//	+-------------------------------+-------------------------------+
//	|         partition key         |           reserved            |  4
//	+-------------------------------+-------------------------------+
//	|                      service ID, 8 bytes                      |  8
//	+---------------------------------------------------------------+
//	|                    private data, 216 bytes                    | 16
//	+---------------------------------------------------------------+
//
// InfiniBand Architecture Volume 1, table 119.
type SIDRREQ struct {
	RequestID    uint32 // chosen by the sender
	PartitionKey uint16
	Reserved     uint16
	ServiceID    ServiceID
	PrivateData  []byte // SIDRREQPrivateDataSize bytes
}

// Decode reads a SIDR_REQ from the first DataSize bytes of b, the bytes behind
// the MAD header.
func (r *SIDRREQ) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.RequestID = binary.BigEndian.Uint32(b)
	r.PartitionKey = binary.BigEndian.Uint16(b[4:])
	r.Reserved = binary.BigEndian.Uint16(b[6:])
	r.ServiceID = ServiceID(binary.BigEndian.Uint64(b[8:]))
	r.PrivateData = b[16:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *SIDRREQ) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.RequestID)
	dst = binary.BigEndian.AppendUint16(dst, r.PartitionKey)
	dst = binary.BigEndian.AppendUint16(dst, r.Reserved)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.ServiceID))
	return appendData(dst, r.PrivateData, SIDRREQPrivateDataSize)
}

// Validate returns ErrTooLong when the private data exceed their room.
func (r *SIDRREQ) Validate() error {
	if len(r.PrivateData) > SIDRREQPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// CMA reads RDMA-CM's header from the private data; see [REQ.CMA].
func (r *SIDRREQ) CMA(h *CMAHeader) (consumer []byte, ok bool) {
	return cma(h, r.ServiceID, r.PrivateData)
}

// SIDRREP (SIDR_REP) is the response to SIDR_REQ.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                          request ID                           |  0
//	+---------------+---------------+-------------------------------+
//	|    status     |  info length  |        vendor ID, high        |  4
//	+---------------+---------------+---------------+---------------+
//	|                      QPN                      | vendor ID low |  8
//	+-----------------------------------------------+---------------+
//	|                      service ID, 8 bytes                      | 12
//	+---------------------------------------------------------------+
//	|                             Q_Key                             | 20
//	+---------------------------------------------------------------+
//	|               additional information, 72 bytes                | 24
//	+---------------------------------------------------------------+
//	|                    private data, 136 bytes                    | 96
//	+---------------------------------------------------------------+
//
// Older texts show the vendor ID as reserved.
//
// InfiniBand Architecture Volume 1, table 120.
type SIDRREP struct {
	RequestID                   uint32 // SIDR_REQ's
	Status                      SIDRStatus
	AdditionalInformationLength uint8  // bytes of AdditionalInformation that are valid
	VendorID                    uint32 // 24 bits, of enhanced connection establishment; else 0
	QPN                         uint32 // 24 bits, of the service
	ServiceID                   ServiceID
	QKey                        uint32 // of the queue pair
	AdditionalInformation       []byte // SIDRREPInfoSize bytes
	PrivateData                 []byte // SIDRREPPrivateDataSize bytes
}

// Decode reads a SIDR_REP from the first DataSize bytes of b, the bytes behind
// the MAD header.
func (r *SIDRREP) Decode(b []byte) error {
	if len(b) < DataSize {
		return ErrTruncated
	}
	b = b[:DataSize:DataSize]
	r.RequestID = binary.BigEndian.Uint32(b)
	r.Status = SIDRStatus(b[4])
	r.AdditionalInformationLength = b[5]
	r.VendorID = uint32(b[6])<<16 | uint32(b[7])<<8 | uint32(b[11])
	r.QPN = uint24(b[8:])
	r.ServiceID = ServiceID(binary.BigEndian.Uint64(b[12:]))
	r.QKey = binary.BigEndian.Uint32(b[20:])
	r.AdditionalInformation = b[24:96:96]
	r.PrivateData = b[96:DataSize:DataSize]
	return nil
}

// AppendTo appends the DataSize bytes of r to dst.
func (r *SIDRREP) AppendTo(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, r.RequestID)
	dst = append(dst, uint8(r.Status), r.AdditionalInformationLength, uint8(r.VendorID>>16), uint8(r.VendorID>>8))
	dst = append24(dst, r.QPN, uint8(r.VendorID))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.ServiceID))
	dst = binary.BigEndian.AppendUint32(dst, r.QKey)
	dst = appendData(dst, r.AdditionalInformation, SIDRREPInfoSize)
	return appendData(dst, r.PrivateData, SIDRREPPrivateDataSize)
}

// Validate returns ErrRange when a field exceeds its width, ErrTooLong when
// additional information or the private data exceed their room.
func (r *SIDRREP) Validate() error {
	if r.VendorID > max24 || r.QPN > max24 {
		return ErrRange
	}
	if len(r.AdditionalInformation) > SIDRREPInfoSize || len(r.PrivateData) > SIDRREPPrivateDataSize {
		return ErrTooLong
	}
	return nil
}

// SIDRStatus is the status of a SIDR_REP.
type SIDRStatus uint8

// Statuses of SIDR_REP.
const (
	SIDRValid              SIDRStatus = 0 // QPN and QKey are valid
	SIDRUnsupportedService SIDRStatus = 1
	SIDRRejected           SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrNames = [...]string{
	"valid", "service ID not supported", "rejected by service provider", "no QP available",
	"redirected", "version not supported",
}

// String returns the status in words, or its number.
func (s SIDRStatus) String() string {
	if int(s) < len(sidrNames) {
		return sidrNames[s]
	}
	return strconv.Itoa(int(s))
}
