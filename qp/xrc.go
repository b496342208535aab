package qp

import "github.com/roce-go/roce/bth"

// findSRQ returns the SRQ of the message that p belongs to, and false when an XRC request
// names none or another than before (rules XR-2, XR-3).
//
// That a request of any kind must name an SRQ of the target's domain is our
// reading of Annex A14.
func (r *Responder) findSRQ(p *bth.Packet) (*SRQ, bool) {
	if r.msg.kind != noMessage && p.XRCETH.SRQ != r.msg.srq {
		return nil, false
	}
	r.msg.srq = p.XRCETH.SRQ
	srq := r.rq.xrc.SRQ(p.XRCETH.SRQ)
	if r.msg.pd = r.pd; srq != nil && srq.hasPD {
		r.msg.pd = srq.pd
	}
	return srq, srq != nil
}

// SRQLookup finds the SRQ that an XRC request names, or nil where there is none
// in the target's XRC domain.
type SRQLookup interface {
	SRQ(num uint32) *SRQ
}
