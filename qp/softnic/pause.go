package softnic

// Priority returns the priority (0..7) that a frame has on the network: that of
// its VLAN tag, or the class selector, the first three bits of its DSCP, without
// one.
func Priority(trafficClass uint8, tagged bool, tci uint16) uint8 {
	if tagged {
		return uint8(tci >> 13)
	}
	return trafficClass >> 5
}

// SetPaused holds back packets of the priorities whose bits are set in mask, as
// PFC asks for, and lets those of the others go. Bit n is priority n.
func (p *Port) SetPaused(mask uint8) {
	if mask == p.paused {
		return
	}
	p.paused = mask
	p.release()
}

// release has all QPs that are held back looked at again.
func (p *Port) release() {
	for q := p.held.pop(); q != nil; q = p.held.pop() {
		p.ready.push(q)
	}
}

// holds reports whether q's next packet is of a paused priority.
func (p *Port) holds(q *QP) bool {
	_, ah := q.waitsFor()
	return p.paused>>Priority(ah.TrafficClass, ah.HasVLAN, ah.VLAN)&1 != 0
}

// nextCNP returns the first CNP that is not of a paused priority, which it puts at
// the head, or nil.
func (p *Port) nextCNP() *cnpDue {
	size := uint32(len(p.cnps))
	for i := p.cnpHead; i != p.cnpTail; i++ {
		if d := &p.cnps[i%size]; p.paused == 0 || !p.holdsCNP(d) {
			head := &p.cnps[p.cnpHead%size]
			*d, *head = *head, *d
			return head
		}
	}
	return nil
}

// holdsCNP reports whether a CNP is of a paused priority.
func (p *Port) holdsCNP(d *cnpDue) bool {
	c := p.cfg.DCQCN
	return p.paused>>Priority(c.CnpDscp<<2, d.hasVLAN, uint16(c.Cnp802pPrio)<<13)&1 != 0
}
