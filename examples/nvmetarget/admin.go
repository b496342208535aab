package main

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
)

// admin executes a command of the admin queue.
func (q *queue) admin(s *slot) result {
	c := &s.cmd
	switch c.Opcode {
	case nvme.Identify:
		return q.identify(s)
	case nvme.GetLogPage:
		return q.logPage(s)
	case nvme.GetFeatures, nvme.SetFeatures:
		return q.features(s)
	case nvme.AsyncEvent:
		if !q.ctrl.park(s, min(eventLimit, q.depth-1)) {
			return fail(nvme.AsyncEventLimit)
		}
		q.ctrl.tell()
		return result{parked: true}
	case nvme.Abort:
		// Bit 0 of the result: not aborted. Only an Asynchronous Event Request can be
		// aborted.
		if uint16(c.CDW10[0]) == 0 {
			if p := q.ctrl.unpark(uint16(c.CDW10[0] >> 16)); p != nil {
				q.finish(p, result{status: nvme.AbortRequested})
				return result{}
			}
		}
		return result{value: 1}
	case nvme.KeepAlive:
		return result{}
	}
	return fail(nvme.InvalidOpcode)
}

// identify returns the data structure that Identify requests.
func (q *queue) identify(s *slot) result {
	b, st := q.place(s, nvme.IdentifySize, true)
	if st != nvme.Success {
		return result{status: st}
	}
	b = b[:0]
	nsid := s.cmd.NSID
	cns := uint8(s.cmd.CDW10[0])
	if q.ctrl.discovery && cns != nvme.IdentifyControllerCNS {
		return fail(nvme.InvalidField)
	}
	switch cns {
	case nvme.IdentifyControllerCNS:
		id := q.ctrl.identity()
		return result{data: id.AppendTo(b)}
	case nvme.IdentifyNamespaceCNS:
		if nsid != 1 {
			return fail(nvme.InvalidNamespace)
		}
		n := uint64(q.t.size.Load()) >> q.t.cfg.blockLog
		ns := nvme.Namespace{Blocks: n, Capacity: n, Allocated: n, BlockLog: q.t.cfg.blockLog, Deallocs: true, NGUID: q.t.nguid()}
		return result{data: ns.AppendTo(b)}
	case nvme.IdentifyNamespacesCNS:
		if nsid >= 0xfffffffe {
			return fail(nvme.InvalidNamespace)
		}
		b = b[:nvme.IdentifySize]
		if nsid == 0 {
			b[0] = 1
		}
		return result{data: b}
	case nvme.IdentifyDescriptorsCNS:
		if nsid != 1 {
			return fail(nvme.InvalidNamespace)
		}
		b = b[:nvme.IdentifySize]
		g := q.t.nguid()
		b[0], b[1] = 2, 16 // type NGUID, length
		copy(b[4:], g[:])
		return result{data: b}
	}
	return fail(nvme.InvalidField)
}

// nguid returns the namespace's identifier: the same for the same subsystem and serial
// number, so that a host finds its disk again. It has the form of a version 8 UUID.
func (t *target) nguid() [16]byte {
	sum := sha256.Sum256([]byte(t.cfg.nqn + "\x00" + t.cfg.serial))
	g := [16]byte(sum[:16])
	g[6], g[8] = g[6]&0x0f|0x80, g[8]&0x3f|0x80
	return g
}

// identity returns the Identify data of the controller.
func (c *controller) identity() nvme.Controller {
	cfg := &c.t.cfg
	id := nvme.Controller{Serial: cfg.serial, Model: "roce nvmetarget", Firmware: "1", MDTS: cfg.mdts, CntlID: c.id, Version: nvme.Version14,
		CTRATT: nvme.CTRATTTraffic, Type: 2, AERL: eventLimit - 1, ELPE: errorEntries - 1, LPA: nvme.LPAExtended, KAS: 10,
		MaxCmd: uint16(cfg.depth), SGLS: nvme.SGLSSupported | nvme.SGLSKeyed, SubNQN: nvme.DiscoveryNQN, CapsuleSize: nvme.CommandSize / 16}
	if c.discovery {
		id.OAES = nvme.OAESDiscovery
		return id
	}
	id.Type, id.SubNQN, id.NN = 1, cfg.nqn, 1
	id.OAES = nvme.OAESNamespace
	id.LPA |= nvme.LPAEffects
	id.ONCS = nvme.ONCSDataset | nvme.ONCSWriteZeroes
	id.VWC = 1 // there is a volatile write cache, which Flush writes back
	if cfg.inline != 0 {
		id.SGLS |= nvme.SGLSOffset
		id.CapsuleSize += uint32(cfg.inline) / 16
	}
	return id
}

// features gets or sets a feature. No feature can be saved.
func (q *queue) features(s *slot) result {
	ctrl, c := q.ctrl, &s.cmd
	set := c.Opcode == nvme.SetFeatures
	fid, v := uint8(c.CDW10[0]), c.CDW10[1]
	if set && c.CDW10[0]>>31 != 0 {
		return fail(nvme.FeatureNotSaveable)
	}
	if fid == nvme.FeatureKeepAlive && set {
		ctrl.setAlive(time.Duration(v) * time.Millisecond)
		return result{}
	}
	if fid == nvme.FeatureTemperature && set {
		defer func() {
			if ctrl.warm() {
				ctrl.raise(tooWarm)
			}
		}()
	}
	if fid == nvme.FeatureHostID && !set && v&1 != 0 {
		b, st := q.place(s, 16, true)
		copy(b, ctrl.host.HostID[:])
		return result{status: st, data: b}
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	switch {
	case fid == nvme.FeatureKeepAlive:
		return result{value: uint64(ctrl.alive.Milliseconds())}
	case fid == nvme.FeatureAsyncEvents:
		if set {
			ctrl.events.wanted = v
		}
		return result{value: uint64(ctrl.events.wanted)}
	case ctrl.discovery:
		return fail(nvme.InvalidField)
	case fid == nvme.FeatureQueues:
		if set {
			// Numbers are zero-based; 65535 of either, which means 65536, is not allowed.
			if uint16(v) == 0xffff || uint16(v>>16) == 0xffff {
				return fail(nvme.InvalidField)
			}
			ctrl.granted = min(int(uint16(v)), int(uint16(v>>16)), q.t.cfg.queues-1) + 1
		}
		n := uint64(ctrl.granted - 1)
		return result{value: n<<16 | n}
	case fid == nvme.FeatureTemperature:
		// Bits 16 to 19: which sensor, 0 is the one of the health log; 20 and 21: over,
		// under.
		which := v >> 16 & 0x3f
		if which != 0 && which != 1<<4 {
			return fail(nvme.InvalidField)
		}
		if set {
			ctrl.thresholds[which>>4] = uint16(v)
		}
		return result{value: uint64(ctrl.thresholds[which>>4])}
	case fid == nvme.FeatureWriteCache && set && v&1 == 0:
		return fail(nvme.FeatureNotChangeable) // the cache cannot be turned off
	case fid == nvme.FeatureWriteCache:
		return result{value: 1}
	case fid == nvme.FeatureArbitration, fid == nvme.FeaturePower, fid == nvme.FeatureErrorRecovery:
		if set && v != 0 {
			return fail(nvme.FeatureNotChangeable)
		}
		return result{}
	}
	return fail(nvme.InvalidField)
}

// logPage returns a part of a log page. Bytes beyond its end are zero.
func (q *queue) logPage(s *slot) result {
	c := &s.cmd
	n := int64(c.CDW10[0]>>16|c.CDW10[1]<<16)*4 + 4
	offset := c.Cdw(12)
	if n > int64(q.t.cfg.maxData) || offset&3 != 0 {
		return fail(nvme.InvalidField)
	}
	id := uint8(c.CDW10[0])
	retain := c.CDW10[0]>>15&1 != 0
	page := q.page(id, retain)
	if page == nil {
		return fail(nvme.InvalidLogPage)
	}
	if offset > uint64(len(page)) {
		return fail(nvme.InvalidField)
	}
	b, st := q.place(s, int(n), false)
	copy(b, page[min(offset, uint64(len(page))):])
	if st == nvme.Success && !retain {
		q.ctrl.read(id)
	}
	return result{status: st, data: b}
}

// page returns a log page, or nil.
func (q *queue) page(id uint8, retain bool) []byte {
	if q.ctrl.discovery {
		if id != nvme.LogDiscovery {
			return nil
		}
		return nvme.AppendDiscovery(nil, 1, q.t.entries(q.local))
	}
	switch id {
	case nvme.LogErrors:
		return q.t.errs.page()
	case nvme.LogSMART:
		return q.ctrl.smart()
	case nvme.LogFirmware:
		b := make([]byte, 512)
		b[0] = 1 // firmware slot 1 is active
		copy(b[8:16], "1       ")
		return b
	case nvme.LogNamespaces:
		b := make([]byte, 4096)
		q.ctrl.mu.Lock()
		defer q.ctrl.mu.Unlock()
		if q.ctrl.changed {
			b[0] = 1
			q.ctrl.changed = retain
		}
		return b
	case nvme.LogEffects:
		return effects()
	}
	return nil
}

// effects is the log of commands supported and their effects: bit 0 supported, bit 1
// changes content.
func effects() []byte {
	b := make([]byte, 4096)
	for _, op := range []nvme.Opcode{nvme.GetLogPage, nvme.Identify, nvme.Abort, nvme.SetFeatures, nvme.GetFeatures, nvme.AsyncEvent, nvme.KeepAlive} {
		b[4*int(op)] = 1
	}
	for _, op := range []nvme.Opcode{nvme.Flush, nvme.Read} {
		b[1024+4*int(op)] = 1
	}
	for _, op := range []nvme.Opcode{nvme.Write, nvme.WriteZeroes, nvme.DatasetManagement} {
		b[1024+4*int(op)] = 3
	}
	return b
}

// temperature is the value in the health log, in kelvins: a program has no sensor.
const temperature = 300

// warm reports whether the temperature is beyond a threshold that the host has set.
func (c *controller) warm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return temperature >= c.thresholds[0] || temperature <= c.thresholds[1]
}

// smart returns the health log: blocks read and written, how long the program has been
// running, and warnings.
func (c *controller) smart() []byte {
	t := c.t
	b := make([]byte, 512)
	if c.warm() {
		b[0] |= 1 << 1
	}
	if t.failing.Load() != 0 {
		b[0] |= 1 << 2
	}
	le := binary.LittleEndian
	le.PutUint16(b[1:], temperature)
	b[3], b[4] = 100, 10 // spare percent, and its threshold
	v := t.stats.sum()
	le.PutUint64(b[32:], (v.readBytes+511999)/512000)
	le.PutUint64(b[48:], (v.writeBytes+511999)/512000)
	le.PutUint64(b[64:], v.reads)
	le.PutUint64(b[80:], v.writes)
	le.PutUint64(b[128:], uint64(time.Since(t.start).Hours()))
	le.PutUint64(b[160:], t.failures.Load())
	le.PutUint64(b[176:], t.errs.count())
	return b
}
