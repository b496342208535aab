package softnic

// flight is the request packets of a QP that are not acknowledged, oldest first:
// when they left and how many bytes they are. Invariant: the entries from head to
// tail have ascending upTo, and bytes is the sum of their sizes.
type flight struct {
	ring       []inFlight // of a power of two; nil where nobody asks
	head, tail uint64     // counts of entries
	bytes      int64
	selective  bool   // what is sent again is still in flight
	doubt      uint64 // acknowledgements up to here may have waited for what was lost
}

// inFlight is a packet in flight.
type inFlight struct {
	upTo  uint64 // unwrapped PSN that follows it
	at    int64  // when it left
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

// sent adds a packet whose first PSN is psn. What was in flight from there on is
// sent again.
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

// lost takes note that packets were lost, of which psn is the first to be sent again.
func (f *flight) lost(psn uint64) {
	if !f.selective {
		f.cut(psn)
	} else if f.tail != f.head {
		f.doubt = f.at(f.tail - 1).upTo
	}
}

// cut forgets packets from psn on: they are going to be sent again.
func (f *flight) cut(psn uint64) {
	for f.tail != f.head && f.at(f.tail-1).upTo > psn {
		f.tail--
		f.bytes -= int64(f.at(f.tail).size)
	}
}

// acked takes off what lies before una, adds its bytes to n, and returns the last
// packet of it, or the zero value.
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
