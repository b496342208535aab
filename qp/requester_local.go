package qp

// runLocal executes the local operations at the head of the send queue: one starts
// when all before it are complete, and what is behind it starts when it is (rule
// RQ-36). They take no PSN.
func (r *Requester) runLocal() {
	if r.sq.done != r.sq.tail && (r.mode == running || r.mode == draining) && r.sq.at(r.sq.done).status != Success {
		r.failHead(r.sq.at(r.sq.done).status)
		return
	}
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
	binder := r.mem.(Binder) // checked when it was posted
	if wr.Op == OpLocalInv {
		return binder.InvalidateLocal(wr.RKey) == nil
	}
	_, err := binder.Bind(Binding{Window: wr.RKey, Region: wr.Region, VA: wr.RemoteAddr, Len: wr.Length, Access: wr.Access, QPN: r.qpn, NewRKey: wr.NewRKey})
	return err == nil
}

// refuseLocal has w, the entry at cur, fail with LocalProtErr when all before it are
// complete, for its memory refuses an SGE. What was sent before it is sent again, so
// that the last of it asks for an acknowledgement.
func (r *Requester) refuseLocal(w *wqe) {
	w.status = LocalProtErr
	if r.sq.cur == r.sq.done {
		r.failHead(LocalProtErr)
		return
	}
	r.again()
}

// postFailed takes w, the newest entry, which is to end with its Fail.
func (r *Requester) postFailed(w *wqe) {
	w.status = w.wr.Fail
	switch {
	case r.mode == broken || r.mode == stopped:
		w.status = WRFlushErr
		r.sq.done, r.sq.cur, r.sq.started = r.sq.tail, r.sq.tail, r.sq.tail
	case r.sq.done == r.sq.tail-1:
		r.runLocal()
	case r.sq.cur == r.sq.tail-1 && r.win.asked < r.win.next:
		r.again() // what is before it is to be acknowledged
	}
}

// failHead ends the entry at done with s. UC and UD QPs go to SQE, others to Error; what
// else is queued completes flushed.
func (r *Requester) failHead(s Status) {
	r.fail(r.sq.at(r.sq.done), s)
	if r.typ == UC || r.typ == UD {
		r.mode = stopped
		r.attr.State = SQE
	}
}
