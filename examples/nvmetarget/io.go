package main

import (
	"github.com/roce-go/roce/examples/internal/nvme"
)

// Bits of command dword 12 of reads and writes, and of Dataset Management's dword 11.
const (
	forceUnitAccess = 1 << 30
	deallocate      = 1 << 2
)

// io executes a command of an I/O queue.
func (q *queue) io(s *slot) result {
	c, t := &s.cmd, q.t
	if c.Opcode == nvme.Flush && c.NSID == 0xffffffff {
		return q.stored(opFlush, t.store.flush())
	}
	if c.NSID != 1 {
		return fail(nvme.InvalidNamespace)
	}
	switch c.Opcode {
	case nvme.Flush:
		return q.stored(opFlush, t.store.flush())
	case nvme.Read:
		off, n, ok := t.span(c.Cdw(10), uint64(uint16(c.CDW10[2]))+1)
		if !ok {
			return fail(nvme.LBAOutOfRange)
		}
		b, st := q.place(s, int(n), true)
		if st != nvme.Success {
			return result{status: st}
		}
		_, err := t.store.ReadAt(b, off)
		r := q.stored(opRead, err)
		if err == nil {
			r.data = b
		}
		return r
	case nvme.Write:
		off, n, ok := t.span(c.Cdw(10), uint64(uint16(c.CDW10[2]))+1)
		if !ok {
			return fail(nvme.LBAOutOfRange)
		}
		b, st := q.gather(s, int(n), true)
		if st != nvme.Success {
			return result{status: st}
		}
		_, err := t.store.WriteAt(b, off)
		return q.written(opWrite, c, err)
	case nvme.WriteZeroes:
		off, n, ok := t.span(c.Cdw(10), uint64(uint16(c.CDW10[2]))+1)
		if !ok {
			return fail(nvme.LBAOutOfRange)
		}
		return q.written(opZero, c, t.store.zero(off, n))
	case nvme.DatasetManagement:
		return q.dataset(s)
	}
	return fail(nvme.InvalidOpcode)
}

// dataset deallocates ranges. Other hints are accepted and have no effect.
func (q *queue) dataset(s *slot) result {
	count := int(uint8(s.cmd.CDW10[0])) + 1
	// Linux always passes a page, whatever the number of ranges.
	b, st := q.gather(s, count*nvme.RangeSize, false)
	if st != nvme.Success {
		return result{status: st}
	}
	ranges := make([]nvme.Range, count)
	for i := range ranges {
		_ = ranges[i].Decode(b[i*nvme.RangeSize:])
		if _, _, ok := q.t.span(ranges[i].LBA, uint64(ranges[i].Blocks)); !ok {
			return fail(nvme.LBAOutOfRange)
		}
	}
	if s.cmd.CDW10[1]&deallocate == 0 {
		return result{}
	}
	for _, r := range ranges {
		off, n, _ := q.t.span(r.LBA, uint64(r.Blocks))
		if n == 0 {
			continue
		}
		if r := q.stored(opDeallocate, q.t.store.zero(off, n)); r.status != nvme.Success {
			return r
		}
	}
	return result{}
}

// span returns offset and length in bytes of n blocks, or false if they are not all in the
// namespace.
func (t *target) span(lba, n uint64) (off, bytes int64, ok bool) {
	blocks := uint64(t.size.Load()) >> t.cfg.blockLog
	if lba > blocks || n > blocks-lba {
		return 0, 0, false
	}
	return int64(lba << t.cfg.blockLog), int64(n << t.cfg.blockLog), true
}

// written returns the result of a write; with force unit access the data are flushed first.
func (q *queue) written(op operation, c *nvme.Command, err error) result {
	r := q.stored(op, err)
	if err == nil && c.CDW10[2]&forceUnitAccess != 0 {
		r = q.stored(opFlush, q.t.store.flush())
	}
	return r
}

// operation is an operation of the store: its name, its kind, and the status of a command for
// which it fails.
type operation struct {
	name string
	kind uint32
	bad  nvme.Status
}

// The kinds of operations; each may fail while the others do not.
const (
	reading uint32 = 1 << iota
	writing
	flushing
)

var (
	opRead       = operation{"read", reading, nvme.UnrecoveredReadError}
	opWrite      = operation{"write", writing, nvme.WriteFault}
	opZero       = operation{"write zeroes", writing, nvme.WriteFault}
	opDeallocate = operation{"deallocate", writing, nvme.WriteFault}
	opFlush      = operation{"flush", flushing, nvme.WriteFault}
)

// stored returns the result of an operation of the store.
func (q *queue) stored(op operation, err error) result {
	q.t.outcome(op.kind, err == nil)
	if err != nil {
		q.t.log.Error("store", "op", op.name, "err", err)
		return result{status: op.bad}
	}
	return result{}
}
