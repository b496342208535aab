package mrc

// Halves says which half of a 32-bit entropy value is the UDP source port and
// which is in the low 16 bits of the IPv6 flow label, on which readers of the
// specification differ.
type Halves uint8

// Orders of the halves. The zero value fits what responders are said to report
// for IPv4, which has no flow label: the source port, and zeros above.
const (
	LowInPort  Halves = iota // the low half is the UDP source port
	HighInPort               // the high half is
)

// Entropy returns the entropy value of a packet from its UDP source port and
// flow label, 0 for IPv4. The upper four bits of the label do not count.
func (o Halves) Entropy(sport uint16, flowLabel uint32) uint32 {
	if o == HighInPort {
		return uint32(sport)<<16 | flowLabel&0xffff
	}
	return flowLabel&0xffff<<16 | uint32(sport)
}

// Split returns the UDP source port and the flow label of an entropy value.
func (o Halves) Split(ev uint32) (sport uint16, flowLabel uint32) {
	if o == HighInPort {
		return uint16(ev >> 16), ev & 0xffff
	}
	return uint16(ev), ev >> 16
}
