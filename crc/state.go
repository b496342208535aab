package crc

// State is a running ICRC: a plain value, so that what many packets have in
// common is hashed once and copied. The zero State is not a start; use [Start].
type State struct{ r uint32 }

// Start returns the state after hdr, the first bytes of a network packet, masked
// as [Sum] masks them. hdr should reach up to the last masked byte, byte 4 of the
// BTH: bytes that are added later are not masked.
func Start(hdr []byte) State { return State{^sum(hdr)} }

// Update returns the state after the further covered bytes p.
func (s State) Update(p []byte) State { return State{update(s.r, p)} }

// Sum returns the ICRC of a packet that ends here.
func (s State) Sum() uint32 { return ^s.r }
