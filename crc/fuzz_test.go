package crc_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/seeds"
)

// FuzzKernels holds every kernel against the bitwise reference, at the alignment
// and the cuts that the fuzzer picks.
func FuzzKernels(f *testing.F) {
	for _, v := range vectors(f) {
		pkt, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(pkt, uint16(len(pkt)/2), byte(3), uint32(1))
	}
	f.Add(packet(1100), uint16(40), byte(63), ^uint32(0))
	f.Add([]byte{0x60, 0, 0, 0, 0, 0, 0x1b}, uint16(7), byte(0), uint32(0))
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		n := len(s.Frame.NetPacket) - crc.Size
		return []any{s.Frame.NetPacket[:n], uint16(n / 2), byte(n % 64), uint32(n)}
	})
	f.Fuzz(func(t *testing.T, data []byte, cut uint16, align byte, r uint32) {
		buf := append(make([]byte, align%64, len(data)+128), data...)[align%64:]
		n := min(int(cut), len(buf))
		want := refSum(buf)
		reg := r
		for _, b := range buf[n:] {
			reg = refByte(reg, b)
		}
		payload := append(bytes.Clone(buf[:n]), data[n:]...)
		payload = append(payload, make([]byte, align&3)...)
		wantFrame := refSum(payload)
		crc.EachKernelAny(func(kernel string) {
			if got := crc.Sum(buf); got != want {
				t.Errorf("%s: Sum %08x, want %08x", kernel, got, want)
			}
			if got := crc.Update(r, buf[n:]); got != reg {
				t.Errorf("%s: update %08x, want %08x", kernel, got, reg)
			}
			frame := crc.AppendPayload(bytes.Clone(buf[:n]), 0, data[n:], int(align&3))
			if got := crc.Stored(frame); got != wantFrame {
				t.Errorf("%s: AppendPayload %08x, want %08x", kernel, got, wantFrame)
			}
			if !crc.Check(frame) || !bytes.Equal(frame[:len(frame)-4], payload) {
				t.Errorf("%s: AppendPayload made %x of %x", kernel, frame, payload)
			}
		})
		if !bytes.Equal(buf, data) {
			t.Error("the packet was written to")
		}
	})
}
