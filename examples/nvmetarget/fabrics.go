package main

import (
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
)

// fabrics does a Fabrics command. The first of a connection must be Connect.
func (q *queue) fabrics(s *slot) result {
	c := &s.cmd
	switch {
	case c.Opcode == nvme.Fabrics && c.FabricsType() == nvme.Connect:
		if q.ctrl != nil {
			return fail(nvme.SequenceError)
		}
		return q.connect(s)
	case q.ctrl == nil:
		return fail(nvme.SequenceError)
	case q.id == 0 && c.FabricsType() == nvme.PropertyGet:
		return q.ctrl.property(c)
	case q.id == 0 && c.FabricsType() == nvme.PropertySet:
		q.ctrl.seen.Store(s.began.UnixNano())
		if c.CDW10[0]&7 != 0 || c.CDW10[1] != nvme.PropertyCC {
			return fail(nvme.InvalidField)
		}
		if c.CDW10[2]&nvme.CCShutdown != 0 {
			if err := q.t.store.flush(); err != nil {
				q.t.log.Error("flush", "err", err)
			}
		}
		q.ctrl.setCC(c.CDW10[2])
		return result{}
	}
	return fail(nvme.InvalidOpcode)
}

// property reads a property. CAP alone has 8 bytes.
func (c *controller) property(cmd *nvme.Command) result {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch size := cmd.CDW10[0] & 7; {
	case size == 1 && cmd.CDW10[1] == nvme.PropertyCAP:
		// Ready within 7.5 s.
		return result{value: nvme.CAPNVM | 15<<24 | nvme.CAPContiguous | uint64(c.t.cfg.depth-1)}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyVS:
		return result{value: nvme.Version14}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyCC:
		return result{value: uint64(c.cc)}
	case size == 0 && cmd.CDW10[1] == nvme.PropertyCSTS:
		return result{value: uint64(c.csts)}
	}
	return fail(nvme.InvalidField)
}

// Where a parameter of Connect is wrong, the response says which: its offset in the
// data, or in the command.
func badData(offset uint64) result    { return wrong(1<<16 | offset) }
func badCommand(offset uint64) result { return wrong(offset) }
func wrong(v uint64) result {
	r := fail(nvme.ConnectInvalidParam)
	r.value = v
	return r
}

// connect takes the queue for a controller: a new one, or for an I/O queue that which
// the host names.
func (q *queue) connect(s *slot) result {
	c := &s.cmd
	recfmt, qid := uint16(c.CDW10[0]), uint16(c.CDW10[0]>>16)
	size, attr := uint16(c.CDW10[1]), uint8(c.CDW10[1]>>16)
	alive := time.Duration(c.CDW10[2]) * time.Millisecond
	switch {
	case recfmt != 0:
		return fail(nvme.ConnectFormat)
	case qid != q.id:
		return badCommand(42)
	case size == 0 || int(size)+1 > q.depth:
		return badCommand(44)
	}
	b, st := q.gather(s, nvme.ConnectDataSize, true)
	if st != nvme.Success {
		return result{status: st}
	}
	var d nvme.ConnectData
	_ = d.Decode(b)
	switch {
	case d.HostNQN == "":
		return badData(512)
	case d.SubNQN != q.t.cfg.nqn && d.SubNQN != nvme.DiscoveryNQN:
		return badData(256)
	}
	ctrl, err := q.t.find(d.CntlID), error(nil)
	switch {
	case q.id == 0 && d.CntlID != 0xffff:
		return badData(16)
	case q.id == 0:
		if ctrl, err = q.t.newController(&d, alive); err != nil {
			return result{status: nvme.InternalError}
		}
		q.t.log.Info("controller", "controller", ctrl.id, "host", d.HostNQN, "peer", q.peer, "subsystem", d.SubNQN, "keepalive", alive)
	case ctrl == nil || ctrl.discovery || d.SubNQN != ctrl.host.SubNQN:
		return badData(16)
	case d.HostNQN != ctrl.host.HostNQN || d.HostID != ctrl.host.HostID:
		return badData(512)
	case !ctrl.ready() || int(q.id) > ctrl.grantedQueues():
		return fail(nvme.SequenceError)
	}
	if !ctrl.add(q) {
		return fail(nvme.SequenceError)
	}
	q.ctrl, q.noSQ = ctrl, attr&4 != 0
	return result{value: uint64(ctrl.id)}
}

func (c *controller) grantedQueues() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}
