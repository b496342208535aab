package softnic_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
)

// FuzzHandleFrame feeds a port with QPs of every kind two frames, whose ICRCs are
// made right where the first byte asks for it.
func FuzzHandleFrame(f *testing.F) {
	for i, b := range allCaptures(f) {
		if i%40 == 0 {
			f.Add(uint8(i), b, b)
		}
	}
	f.Fuzz(func(t *testing.T, how uint8, a, b []byte) {
		v := newVictim(t)
		v.buf = make([]byte, 0, 1<<16)
		for i, b := range [][]byte{a, b} {
			b = append([]byte(nil), b...)
			var fr frame.Frame
			if how>>i&1 == 0 && (frame.Finder{}).Find(frame.Ethernet, b, len(b), &fr) == nil && !fr.Truncated() && len(fr.NetPacket) > 24 {
				if how>>2&1 == 0 {
					copy(b, []byte{0x52, 0x54, 0, 0, 0, 1})
					binary.BigEndian.PutUint32(fr.Transport[4:], v.qps[int(how>>3)%len(v.qps)].Num())
				}
				n := len(fr.NetPacket) - crc.Size
				binary.LittleEndian.PutUint32(fr.NetPacket[n:], crc.Sum(fr.NetPacket[:n]))
			}
			v.port.HandleFrame(v.now, b)
			v.settle()
			v.now = v.now.Add(time.Millisecond)
		}
		for range 50 {
			d, ok := v.port.Deadline()
			if !ok {
				break
			}
			v.now = d
			v.port.Tick(v.now)
			if d, ok := v.port.Deadline(); ok && !d.After(v.now) {
				t.Fatal("after Tick the deadline is not later than now")
			}
			v.settle()
		}
		v.check()
	})
}
