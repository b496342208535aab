package cm

import "encoding/binary"

// PathSize is the length in bytes of a path in REQ.
const PathSize = 44

// Path is one of the two paths, primary and alternate, of REQ. LIDs have no meaning in RoCE
// (Annex A17): RDMA-CM sends 0xFFFF in the primary path.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|        local port LID         |        remote port LID        |
//	+-------------------------------+-------------------------------+
//	|                   local port GID, 16 bytes                    |
//	+---------------------------------------------------------------+
//	|                   remote port GID, 16 bytes                   |
//	+---------------------------------------+-----------+-----------+
//	|              flow label               | reserved0 |packet rate|
//	+---------------+---------------+-------+-+-----+---+-----+-----+
//	| traffic class |   hop limit   |  SL   |S|rsvd1| ACK TO  |rsvd2|
//	+---------------+---------------+-------+-+-----+---------+-----+
//
// S is subnet local, ACK TO the local ACK timeout.
//
// InfiniBand Architecture Volume 1, table 106.
type Path struct {
	LocalPortLID  uint16
	RemotePortLID uint16
	LocalPortGID  GID // of the sender of the message
	RemotePortGID GID
	FlowLabel     uint32 // 20 bits
	Reserved0     uint8  // 6 bits
	PacketRate    uint8  // 6 bits, static rate code
	TrafficClass  uint8
	HopLimit      uint8
	SL            uint8 // 4 bits
	SubnetLocal   bool
	Reserved1     uint8 // 3 bits
	// LocalACKTimeout is the code (5 bits, see Timeout) that the receiver of
	// the message is to use for its queue pair; 0 means none.
	LocalACKTimeout uint8
	// Reserved2 is 3 bits. In the alternate path its high bit says that the
	// sender can suggest alternate paths.
	Reserved2 uint8
}

// decode reads the path from b, which has PathSize bytes.
func (p *Path) decode(b []byte) {
	_ = b[PathSize-1]
	p.decodeEnds(b)
	v := binary.BigEndian.Uint32(b[36:])
	p.FlowLabel = v >> 12
	p.Reserved0 = uint8(v>>6) & 0x3f
	p.PacketRate = uint8(v) & 0x3f
	p.TrafficClass = b[40]
	p.HopLimit = b[41]
	p.decodeTail(b[42:])
}

func (p *Path) append(dst []byte) []byte {
	dst = p.appendEnds(dst)
	dst = binary.BigEndian.AppendUint32(dst,
		p.FlowLabel<<12|uint32(p.Reserved0&0x3f)<<6|uint32(p.PacketRate&0x3f))
	return p.appendTail(append(dst, p.TrafficClass, p.HopLimit))
}

// decodeEnds and decodeTail read the parts that have the same layout in REQ and LAP: the
// first 36 bytes and the last 2.
func (p *Path) decodeEnds(b []byte) {
	p.LocalPortLID = binary.BigEndian.Uint16(b)
	p.RemotePortLID = binary.BigEndian.Uint16(b[2:])
	p.LocalPortGID = GID(b[4:20])
	p.RemotePortGID = GID(b[20:36])
}

func (p *Path) decodeTail(b []byte) {
	p.SL = b[0] >> 4
	p.SubnetLocal = b[0]&8 != 0
	p.Reserved1 = b[0] & 7
	p.LocalACKTimeout = b[1] >> 3
	p.Reserved2 = b[1] & 7
}

func (p *Path) appendEnds(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, p.LocalPortLID)
	dst = binary.BigEndian.AppendUint16(dst, p.RemotePortLID)
	dst = append(dst, p.LocalPortGID[:]...)
	return append(dst, p.RemotePortGID[:]...)
}

func (p *Path) appendTail(dst []byte) []byte {
	return append(dst, p.SL<<4|bit(p.SubnetLocal, 3)|p.Reserved1&7, p.LocalACKTimeout<<3|p.Reserved2&7)
}

// Validate returns ErrRange when a field exceeds its width.
func (p *Path) Validate() error {
	if p.FlowLabel > 1<<20-1 || p.Reserved0 > 0x3f || p.PacketRate > 0x3f || p.SL > 0xf ||
		p.Reserved1 > 7 || p.LocalACKTimeout > 0x1f || p.Reserved2 > 7 {
		return ErrRange
	}
	return nil
}
