package qp

// runLocal executes the local operations at the head of the send queue: one starts
// when all before it are complete, and what is behind it starts when it is (rule
// RQ-36). They take no PSN.
func (r *Requester) runLocal() {
	for r.mode == running && r.sq.done == r.sq.started && r.sq.started != r.sq.tail {
		w := r.sq.at(r.sq.started)
		if !w.wr.Op.local() {
			return
		}
		r.sq.started++
		r.sq.cur = r.sq.started
		if !r.execute(&w.wr) {
			r.fail(w, MWBindErr)
			return
		}
		r.complete(w, Success)
	}
}

// execute performs a local operation, or returns false where the memory refuses it.
func (r *Requester) execute(wr *SendWR) bool {
	if wr.Op == OpLocalInv {
		return r.binder.InvalidateLocal(wr.RKey) == nil
	}
	_, err := r.binder.Bind(Binding{Window: wr.RKey, Region: wr.Region, VA: wr.RemoteAddr, Len: wr.Length, Access: wr.Access, QPN: r.qpn})
	return err == nil
}
