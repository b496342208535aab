package softnic

// flight holds the request packets of a QP that are not acknowledged, oldest first: when
// they were sent and how many bytes they have. Invariant: the entries from head to tail
// have ascending upTo, and bytes is the sum of their sizes.
type flight struct {
	ring       []inFlight // length a power of two; nil where congestion control does not need it
	head, tail uint64     // counts of entries
	bytes      int64
	selective  bool   // a retransmitted packet is still in flight
	doubt      uint64 // acknowledgements up to here may have been delayed by a lost packet
}

// inFlight is a packet in flight.
type inFlight struct {
	upTo  uint64 // unwrapped PSN that follows it
	at    int64  // when it was sent
	size  int32  // bytes of the frame
	timed bool   // its acknowledgement gives a round trip time
}

func newFlight(n int) flight {
	size := 1
	for size < n {
		size *= 2
	}
	return flight{ring: make([]inFlight, size)}
}

func (f *flight) at(i uint64) *inFlight { return &f.ring[i&uint64(len(f.ring)-1)] }

func (f *flight) full() bool { return f.tail-f.head == uint64(len(f.ring)) }

// sent adds a packet whose first PSN is psn. What was in flight from there on is being
// retransmitted.
func (f *flight) sent(psn uint64, p inFlight) {
	if f.selective && f.tail != f.head && f.at(f.tail-1).upTo > psn {
		return
	}
	f.cut(psn)
	if f.full() {
		return // a response that had to go first made the QP send beyond the limit
	}
	*f.at(f.tail) = p
	f.tail++
	f.bytes += int64(p.size)
}

// lost records that packets were lost; psn is the first to be retransmitted.
func (f *flight) lost(psn uint64) {
	if !f.selective {
		f.cut(psn)
	} else if f.tail != f.head {
		f.doubt = f.at(f.tail - 1).upTo
	}
}

// cut removes packets from psn on: they will be retransmitted.
func (f *flight) cut(psn uint64) {
	for f.tail != f.head && f.at(f.tail-1).upTo > psn {
		f.tail--
		f.bytes -= int64(f.at(f.tail).size)
	}
}

// acked removes the packets before una, adds their bytes to n, and returns the last of
// them, or the zero value.
func (f *flight) acked(una uint64, n *int64) (last inFlight) {
	for f.head != f.tail {
		e := f.at(f.head)
		if e.upTo > una {
			break
		}
		last = *e
		last.timed = e.timed && e.upTo > f.doubt
		f.head++
		f.bytes -= int64(e.size)
		*n += int64(e.size)
	}
	return last
}
