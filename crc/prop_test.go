package crc_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/seeds"
)

// lengths are near block sizes and MTUs.
func lengths() *rapid.Generator[int] {
	return rapid.OneOf(
		rapid.IntRange(0, 200),
		rapid.Map(rapid.IntRange(0, 9*1024*2), func(n int) int { return n / 2 }),
		rapid.Custom(func(t *rapid.T) int {
			base := rapid.SampledFrom([]int{64, 128, 256, 1008, 1024, 1048, 2048, 4096}).Draw(t, "base")
			return base + rapid.IntRange(-20, 90).Draw(t, "off")
		}),
	)
}

func drawPacket(t *rapid.T) []byte {
	n := lengths().Draw(t, "length")
	seed := rapid.SliceOfN(rapid.Byte(), 1, 120).Draw(t, "bytes")
	p := make([]byte, n)
	for i := range p {
		p[i] = seed[i%len(seed)] ^ byte(i/len(seed))
	}
	forms[rapid.IntRange(0, len(forms)-1).Draw(t, "form")].set(p)
	return p
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPacket(t)
		in := bytes.Clone(p)
		want := refSum(p)
		crc.EachKernelAny(func(kernel string) {
			if got := crc.Sum(p); got != want {
				t.Fatalf("%s: Sum %08x, want %08x", kernel, got, want)
			}
			pkt := crc.Append(p[:len(p):len(p)], 0)
			if !crc.Check(pkt) || crc.Stored(pkt) != want {
				t.Fatalf("%s: Append then Check fails", kernel)
			}
			// Up to four wrong bytes in a row are a burst that CRC-32 cannot miss.
			if len(p) > maxReach {
				i := maxReach + int(want>>1)%(len(pkt)-maxReach)
				pkt[i] ^= byte(want>>8) | 1
				if crc.Check(pkt) {
					t.Fatalf("%s: byte %d of %d may be anything", kernel, i, len(pkt))
				}
			}
		})
		if !bytes.Equal(p, in) {
			t.Fatal("the packet was written to")
		}
	})
}

// Patching there and back is the identity; two patches in either order are one.
func TestPatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Byte(), len(a), len(a)).Draw(t, "b")
		c := rapid.SliceOfN(rapid.Byte(), len(a), len(a)).Draw(t, "c")
		tail := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, math.MaxInt)).Draw(t, "tail")
		icrc := rapid.Uint32().Draw(t, "icrc")
		crc.EachKernelAny(func(kernel string) {
			there := crc.Patch(icrc, tail, a, b)
			if back := crc.Patch(there, tail, b, a); back != icrc {
				t.Fatalf("%s: there and back gives %08x, not %08x", kernel, back, icrc)
			}
			if two, one := crc.Patch(there, tail, b, c), crc.Patch(icrc, tail, a, c); two != one {
				t.Fatalf("%s: two patches give %08x, one %08x", kernel, two, one)
			}
			// The same change, said with bytes behind it that stay.
			d := append(bytes.Clone(a), c...)
			e := append(bytes.Clone(b), c...)
			if got := crc.Patch(icrc, max(tail-len(c), 0), d, e); tail >= len(c) && got != there {
				t.Fatalf("%s: with unchanged bytes %08x, without %08x", kernel, got, there)
			}
		})
	})
}

// maxReach is behind every masked byte.
const maxReach = 60 + 8 + 5

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
