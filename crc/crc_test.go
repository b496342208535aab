package crc_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/fuzz/seeds"
)

// The header forms that a packet can have, as their first bytes.
var forms = []struct {
	name string
	set  func(p []byte)
}{
	{"IPv4", func(p []byte) { put(p, 0, 0x45) }},
	{"IPv6", func(p []byte) { put(p, 0, 0x60|at(p, 0)&15); put(p, 6, 17) }},
	{"GRH", func(p []byte) { put(p, 0, 0x60|at(p, 0)&15); put(p, 6, 0x1b) }},
	{"IPv4 options 24", func(p []byte) { put(p, 0, 0x46) }},
	{"IPv4 options 44", func(p []byte) { put(p, 0, 0x4b) }},
	{"IPv4 options 60", func(p []byte) { put(p, 0, 0x4f) }},
	{"IPv4 length 12", func(p []byte) { put(p, 0, 0x43) }},
	{"any", func(p []byte) {}},
}

func put(p []byte, i int, b byte) {
	if i < len(p) {
		p[i] = b
	}
}

func at(p []byte, i int) byte {
	if i < len(p) {
		return p[i]
	}
	return 0
}

func random(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

type vector struct {
	ID, Description, Origin string
	Hex                     string // network packet with its ICRC
	Good                    bool
	Wire                    string // the right ICRC, in wire order
}

func vectors(t testing.TB) []vector {
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v []vector
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// Rule WI-15.
func TestVectors(t *testing.T) { crc.EachKernel(t, testVectors) }

func testVectors(t *testing.T) {
	n := 0
	for _, v := range vectors(t) {
		pkt, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if got := crc.Check(pkt); got != v.Good {
			t.Errorf("%s (%s): Check = %v, want %v", v.ID, v.Description, got, v.Good)
		}
		want := pkt[len(pkt)-4:]
		if v.Wire != "" {
			if want, err = hex.DecodeString(v.Wire); err != nil {
				t.Fatal(err)
			}
		} else if !v.Good {
			continue
		}
		n++
		if got := crc.Append(pkt[:len(pkt)-4:len(pkt)-4], 0); !bytes.Equal(got[len(got)-4:], want) {
			t.Errorf("%s (%s): ICRC %x, want %x", v.ID, v.Description, got[len(got)-4:], want)
		}
	}
	if n < 20 {
		t.Errorf("only %d vectors with a known ICRC", n)
	}
}

// knownAnswer was computed with zlib's CRC over a masked copy and with Scapy 2.5,
// which agree: 192.0.2.1 to 192.0.2.2, TOS 2, DF, TTL 64, UDP 0xC001 to 4791, an
// RDMA WRITE First of 1024 bytes 00..FF four times.
func knownAnswer() (hdr, payload []byte, wire [4]byte) {
	hdr, _ = hex.DecodeString("4502" + "043c" + "0000" + "4000" + "4011" + "0000" + "c0000201" + "c0000202" +
		"c001" + "12b7" + "0428" + "0000" +
		"0640ffff" + "00000011" + "00fffff0" +
		"00007f0000000000" + "00001234" + "00001000")
	for i := range 1024 {
		payload = append(payload, byte(i))
	}
	return hdr, payload, [4]byte{0x29, 0xe8, 0x92, 0xc9}
}

// Rule WI-15.
func TestKnownAnswer(t *testing.T) { crc.EachKernel(t, testKnownAnswer) }

func testKnownAnswer(t *testing.T) {
	hdr, payload, want := knownAnswer()
	pkt := crc.Append(append(hdr, payload...), 0)
	if got := pkt[len(pkt)-4:]; !bytes.Equal(got, want[:]) {
		t.Errorf("Append: %x, want %x", got, want)
	}
	if !crc.Check(pkt) {
		t.Error("Check: false")
	}
	if got := crc.Stored(pkt); got != 0xc992e829 {
		t.Errorf("Stored: %08x", got)
	}
	if got := crc.AppendPayload(hdr, 0, payload, 0); !bytes.Equal(got, pkt) {
		t.Errorf("AppendPayload: %x", got[len(got)-4:])
	}
}

func TestSingleBits(t *testing.T) { crc.EachKernel(t, testSingleBits) }

func testSingleBits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, f := range forms[:6] {
		for _, n := range []int{80, 84, 91, 135, 300} {
			pkt := random(rnd, n)
			f.set(pkt)
			pkt = crc.Append(pkt, 0)
			ones := refMasked(pkt[:n])[8:]
			zero := bytes.Clone(pkt[:n])
			for i := range zero {
				zero[i] = ^zero[i]
			}
			zero[0] = pkt[0]&0xf0 | zero[0]&0x0f // the form must stay
			if pkt[0]>>4 == 4 {
				zero[0] = pkt[0]
			} else {
				zero[6] = pkt[6]
			}
			inv := refMasked(zero)[8:]
			for bit := range 8 * len(pkt) {
				i, m := bit/8, byte(1)<<(bit%8)
				// A bit is masked if it comes out one whatever it was.
				masked := i < n && ones[i]&m != 0 && inv[i]&m != 0 && (pkt[i]&m == 0 || zero[i]&m == 0)
				if i == 0 && !(pkt[0]>>4 == 6 && m < 16) || i == 6 && pkt[0]>>4 == 6 {
					continue // version, IHL, next header: another form
				}
				pkt[i] ^= m
				if got := crc.Check(pkt); got != masked {
					t.Errorf("%s, %d bytes: bit %d of byte %d flipped: Check %v, masked %v", f.name, n, bit%8, i, got, masked)
				}
				pkt[i] ^= m
			}
		}
	}
}

// The number of bits that each form masks, counted by hand from the headers.
func TestMaskedBitCount(t *testing.T) { crc.EachKernel(t, testMaskedBitCount) }

func testMaskedBitCount(t *testing.T) {
	want := map[string]int{"IPv4": 8 + 8 + 16 + 16 + 8, "IPv6": 8 + 20 + 8 + 16 + 8, "GRH": 8 + 20 + 8 + 8}
	for _, f := range forms[:3] {
		pkt := make([]byte, 100)
		f.set(pkt)
		sum, n := crc.Sum(pkt), 0
		for bit := range 8 * len(pkt) {
			if bit/8 == 0 && bit%8 >= 4 || bit/8 == 0 && f.name == "IPv4" || bit/8 == 6 && f.name != "IPv4" {
				continue
			}
			pkt[bit/8] ^= 1 << (bit % 8)
			if crc.Sum(pkt) == sum {
				n++
			}
			pkt[bit/8] ^= 1 << (bit % 8)
		}
		if n != want[f.name] {
			t.Errorf("%s: %d masked bits, want %d", f.name, n, want[f.name])
		}
	}
}

func TestAppendPayload(t *testing.T) { crc.EachKernel(t, testAppendPayload) }

func testAppendPayload(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, f := range forms {
		for i := range 1500 {
			hl, pl := rnd.IntN(140), rnd.IntN(700)
			if i%8 == 0 {
				pl = rnd.IntN(9217)
			}
			pre, pad := rnd.IntN(70), rnd.IntN(4)
			buf := random(rnd, pre+hl)
			f.set(buf[pre:])
			payload := random(rnd, pl)
			want := append(bytes.Clone(buf), payload...)
			want = append(want, make([]byte, pad)...)
			want = binary.LittleEndian.AppendUint32(want, refSum(want[pre:]))
			in := bytes.Clone(payload)
			if i%2 == 0 { // with room, and dirt in it
				buf = append(buf, bytes.Repeat([]byte{0xa5}, pl+40)...)[:pre+hl]
			}
			got := crc.AppendPayload(buf, pre, payload, pad)
			if !bytes.Equal(got, want) {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				t.Fatalf("%s, header %d, payload %d, pad %d: wrong from byte %d of %d", f.name, hl, pl, pad, i-pre, len(want)-pre)
			}
			if !bytes.Equal(in, payload) {
				t.Fatal("the payload was written to")
			}
			if rest := got[len(got):cap(got)]; i%2 == 0 {
				for j := range min(36-pad, len(rest)) {
					if rest[j] != 0xa5 {
						t.Fatalf("written %d bytes past the ICRC", j+1)
					}
				}
			}
		}
	}
}

func TestPatch(t *testing.T) { crc.EachKernel(t, testPatch) }

func testPatch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, f := range forms[:6] {
		for range 600 {
			n := 90 + rnd.IntN(1200)
			pkt := random(rnd, n)
			f.set(pkt)
			icrc := refSum(pkt)
			i := 73 + rnd.IntN(n-73) // behind every masked byte
			j := i + rnd.IntN(min(n-i, 40)+1)
			old := bytes.Clone(pkt[i:j])
			copy(pkt[i:j], random(rnd, j-i))
			if got, want := crc.Patch(icrc, n-j, old, pkt[i:j]), refSum(pkt); got != want {
				t.Fatalf("%s: bytes %d..%d of %d: %08x, want %08x", f.name, i, j, n, got, want)
			}
		}
	}
}

func TestPatchFar(t *testing.T) { crc.EachKernel(t, testPatchFar) }

func testPatchFar(t *testing.T) {
	// A change a long way from the end, against zeros pushed through one by one.
	var d [1 << 17]byte
	d[0] = 1
	for _, n := range []int{0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 4096, 65535, 65536, 1<<17 - 1} {
		want := refCRC(d[:n+1]) ^ refCRC(make([]byte, n+1))
		if got := crc.Patch(0, n, []byte{0}, []byte{1}); got != want {
			t.Errorf("tail %d: %08x, want %08x", n, got, want)
		}
	}
}

func TestPatchMisuse(t *testing.T) {
	panics := func(name string, f func()) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	panics("lengths", func() { crc.Patch(0, 0, []byte{1}, nil) })
	panics("lengths, other", func() { crc.Patch(0, 0, nil, []byte{1}) })
	panics("tail", func() { crc.Patch(0, -1, nil, nil) })
}

func TestShortInput(t *testing.T) { crc.EachKernel(t, testShortInput) }

func testShortInput(t *testing.T) {
	for n := range 5 {
		p := make([]byte, n)
		if crc.Check(p) {
			t.Errorf("%d zero bytes pass", n)
		}
		crc.Sum(p)
	}
}

// refCRC is CRC-32 a bit at a time, from the definition: polynomial 0x04C11DB7,
// bytes least significant bit first, initial value and final complement all ones.
func refCRC(p []byte) uint32 {
	r := ^uint32(0)
	for _, b := range p {
		r = refByte(r, b)
	}
	return ^r
}

func refByte(r uint32, b byte) uint32 {
	for i := range 8 {
		in := uint32(b) >> i & 1
		out := r & 1
		r >>= 1
		if in != out {
			r ^= 0xedb88320
		}
	}
	return r
}

// refMasked returns what the ICRC of pkt covers: eight bytes of ones and a masked
// copy, fields taken from the header layouts one by one.
func refMasked(pkt []byte) []byte {
	m := append(bytes.Repeat([]byte{0xff}, 8), pkt...)
	p := m[8:]
	set := func(i int, bits byte) {
		if i < len(p) {
			p[i] |= bits
		}
	}
	if len(p) == 0 {
		return m
	}
	v6, grh := p[0]>>4 == 6 && len(p) >= 7, false
	bth := 0
	if v6 {
		grh = p[6] == 0x1b
		set(0, 0x0f) // traffic class, high half
		set(1, 0xff) // traffic class, low half; flow label
		set(2, 0xff)
		set(3, 0xff)
		set(7, 0xff) // hop limit
		bth = 40
	} else {
		bth = max(int(p[0]&15)*4, 20)
		set(1, 0xff)  // type of service
		set(8, 0xff)  // time to live
		set(10, 0xff) // header checksum
		set(11, 0xff)
	}
	if !grh {
		set(bth+6, 0xff) // UDP checksum
		set(bth+7, 0xff)
		bth += 8
	}
	set(bth+4, 0xff) // FECN, BECN, reserved
	return m
}

func refSum(pkt []byte) uint32 { return refCRC(refMasked(pkt)) }

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
				t.Errorf("%s: AppendPayload built %x from %x", kernel, frame, payload)
			}
		})
		if !bytes.Equal(buf, data) {
			t.Error("the packet was written to")
		}
	})
}
