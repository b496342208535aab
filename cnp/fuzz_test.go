package cnp_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/fuzz/seeds"
)

func FuzzHeader(f *testing.F) {
	f.Add(k01Packet(f))
	f.Add([]byte{0x81})
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		if s.Frame.Packet.Opcode != bth.CNP {
			return nil
		}
		return []any{s.Frame.Transport}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		before := cnp.New(1, 2)
		h := before
		err := h.Decode(b)
		if !bytes.Equal(in, b) {
			t.Fatal("input changed")
		}
		if err != nil {
			if h != before {
				t.Fatal("receiver changed on error")
			}
			return
		}
		if err := h.Validate(); err != nil {
			t.Fatal(err)
		}
		if out := h.AppendTo(nil); !bytes.Equal(out, b[:cnp.Size]) {
			t.Fatalf("%x became %x", b[:cnp.Size], out)
		}
	})
}

// FuzzReactionPoint reads calls of 9 bytes each: what, how long after, how much.
func FuzzReactionPoint(f *testing.F) {
	f.Add(false, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xd6, 0xd8, 0, 0, 0, 0})
	f.Add(true, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xff, 0, 0, 0, 0})
	f.Add(true, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, nvidia bool, calls []byte) {
		p := cnp.Paper()
		if nvidia {
			p = cnp.NVIDIA()
		}
		port, err := cnp.NewReactionPort(p, 40*gig)
		if err != nil {
			t.Fatal(err)
		}
		r := port.ReactionPoint()
		now := t0
		for ; len(calls) >= 9; calls = calls[9:] {
			now = now.Add(time.Duration(int32(binary.BigEndian.Uint32(calls[1:]))) << (calls[0] >> 3))
			switch calls[0] & 7 {
			case 0, 3:
				ticked := r
				ticked.Tick(now)
				r.HandleCNP(now)
				if r.Rate() > ticked.Rate() {
					t.Fatal("a CNP raised the rate")
				}
			case 1, 4:
				r.HandleSent(now, int(int32(binary.BigEndian.Uint32(calls[5:])))<<(calls[0]>>4))
			default:
				r.Tick(now)
			}
			if r.Rate() < uint64(p.RpgMinRate)*1e6 || r.Rate() > r.TargetRate() ||
				r.TargetRate() > 40*gig || r.Alpha() > 1<<31 {
				t.Fatalf("out of bounds: %+v", r)
			}
		}
	})
}
