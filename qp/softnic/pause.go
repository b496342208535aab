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
	r := &p.ready
	if mask == r.paused {
		return
	}
	r.paused = mask
	if p.cfg.Ack == nil {
		return
	}
	// Which of its packets a QP sends next may depend on the pause. A QP that is moved to a
	// later list is visited twice, with the same result.
	for i := range r.list {
		for q := r.list[i].head; q != nil; {
			next := q.next
			r.push(q, p.priorityOf(q))
			q = next
		}
	}
}

// nextCNP returns the first CNP that is not of a paused priority, which it puts at
// the head, or nil.
func (p *Port) nextCNP() *cnpDue {
	size := uint32(len(p.cnps))
	for i := p.cnpHead; i != p.cnpTail; i++ {
		if d := &p.cnps[i%size]; p.ready.paused == 0 || !p.holdsCNP(d) {
			head := &p.cnps[p.cnpHead%size]
			*d, *head = *head, *d
			return head
		}
	}
	return nil
}

// holdsCNP reports whether a CNP is of a paused priority.
func (p *Port) holdsCNP(d *cnpDue) bool {
	c := p.cc.cnp
	return p.ready.paused>>Priority(c.DSCP<<2, d.hasVLAN, uint16(c.Priority)<<13)&1 != 0
}
