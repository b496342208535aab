//go:build !invariants

package qp

func (q *QP) invariants()        {}
func (r *Requester) invariants() {}
func (r *Responder) invariants() {}
