package frame

import "encoding/binary"

// OnesSum adds b to sum as the checksums of the Internet do, RFC 1071: 16-bit words
// in ones' complement, an odd last byte being the upper half of a word. A message
// may be added in parts of even length. The checksum of a message is the complement
// of its sum; with its checksum in place the sum is 0xffff.
func OnesSum(sum uint16, b []byte) uint16 {
	s := uint64(sum)
	for ; len(b) >= 8; b = b[8:] {
		v := binary.BigEndian.Uint64(b)
		s += v>>32 + v&0xffffffff
	}
	if len(b) >= 4 {
		s += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// ChecksumState is the outcome of a check of an IPv4 header or UDP checksum.
type ChecksumState uint8

// Outcomes.
const (
	// ChecksumUnchecked: the frame has no such checksum (another network header, a UDP
	// checksum of 0), or the bytes that it covers were not captured.
	ChecksumUnchecked ChecksumState = iota
	ChecksumGood
	ChecksumBad
	// ChecksumOffloaded: the checksum is wrong, and has the value that a host writes
	// when its adapter computes the checksum: 0 in an IPv4 header, the sum of only the
	// pseudo-header in UDP. Captures taken at the sender contain such packets. In a
	// packet received from the wire it means the same as ChecksumBad.
	ChecksumOffloaded
)

// String returns "unchecked", "good", "bad" or "offloaded".
func (s ChecksumState) String() string {
	switch s {
	case ChecksumGood:
		return "good"
	case ChecksumBad:
		return "bad"
	case ChecksumOffloaded:
		return "offloaded"
	}
	return "unchecked"
}

// CheckIPv4 checks the header checksum of a frame that Decode or Find filled. The ICRC does
// not cover the type of service, in which a flipped ECN bit reduces the sender's rate, nor
// the time to live.
func (f *Frame) CheckIPv4() ChecksumState {
	n := len(f.NetPacket) - len(f.Transport) - udpSize
	switch {
	case f.Net != IPv4 || n < ipv4Size:
		return ChecksumUnchecked
	case OnesSum(0, f.NetPacket[:n]) == 0xffff:
		return ChecksumGood
	case f.NetPacket[10]|f.NetPacket[11] == 0:
		return ChecksumOffloaded
	}
	return ChecksumBad
}

// CheckUDP checks the UDP checksum of a frame that Decode or Find filled.
func (f *Frame) CheckUDP() ChecksumState {
	u := len(f.NetPacket) - len(f.Transport) - udpSize
	if f.Net == GRH || u < ipv4Size || f.UDPChecksum == 0 || f.Truncated() {
		return ChecksumUnchecked
	}
	pseudo := f.pseudoSum()
	switch {
	case OnesSum(pseudo, f.NetPacket[u:]) == 0xffff:
		return ChecksumGood
	case f.UDPChecksum == pseudo:
		return ChecksumOffloaded
	}
	return ChecksumBad
}

// pseudoSum returns the sum of the pseudo-header of UDP.
func (f *Frame) pseudoSum() uint16 {
	addresses := f.NetPacket[8:40]
	if f.Net == IPv4 {
		addresses = f.NetPacket[12:20]
	}
	var rest [4]byte
	binary.BigEndian.PutUint16(rest[:], protocolUDP)
	binary.BigEndian.PutUint16(rest[2:], uint16(udpSize+len(f.Transport)))
	return OnesSum(OnesSum(0, addresses), rest[:])
}
