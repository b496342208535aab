package cm_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/qp/cm"
)

// codec is what all messages have.
type codec interface {
	Decode([]byte) error
	AppendTo([]byte) []byte
	Validate() error
}

// codecs holds each codec's constructor and length.
var codecs = map[string]struct {
	make func() codec
	size int
}{
	"REQ":       {func() codec { return new(cm.REQ) }, cm.DataSize},
	"MRA":       {func() codec { return new(cm.MRA) }, cm.DataSize},
	"REJ":       {func() codec { return new(cm.REJ) }, cm.DataSize},
	"REP":       {func() codec { return new(cm.REP) }, cm.DataSize},
	"RTU":       {func() codec { return new(cm.RTU) }, cm.DataSize},
	"DREQ":      {func() codec { return new(cm.DREQ) }, cm.DataSize},
	"DREP":      {func() codec { return new(cm.DREP) }, cm.DataSize},
	"SIDR_REQ":  {func() codec { return new(cm.SIDRREQ) }, cm.DataSize},
	"SIDR_REP":  {func() codec { return new(cm.SIDRREP) }, cm.DataSize},
	"LAP":       {func() codec { return new(cm.LAP) }, cm.DataSize},
	"APR":       {func() codec { return new(cm.APR) }, cm.DataSize},
	"CMAHeader": {func() codec { return new(cm.CMAHeader) }, cm.CMAHeaderSize},
}

func drawBytes(t *rapid.T, n int, label string) []byte {
	switch rapid.IntRange(0, 9).Draw(t, label+" kind") {
	case 0:
		return make([]byte, n)
	case 1:
		return bytes.Repeat([]byte{0xff}, n)
	}
	return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, label)
}

// drawMAD draws a datagram of a random message: any bytes otherwise.
func drawMAD(t *rapid.T) []byte {
	b := drawBytes(t, cm.Size, "mad")
	b[1] = byte(cm.ClassCM)
	b[16], b[17] = 0, byte(rapid.IntRange(int(cm.AttrREQ), int(cm.AttrAPR)).Draw(t, "attribute"))
	return b
}

// Bytes to fields to bytes is the identity, whatever the bytes, into whatever
// buffer.
func TestPropBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawMAD(t)
		orig := bytes.Clone(in)
		var m cm.Message
		if err := m.Decode(in); err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("decoded but not valid: %v", err)
		}
		if got := m.AppendTo(nil); !bytes.Equal(got, orig) {
			t.Fatalf("got  %x\nwant %x", got, orig)
		}
		prefix := rapid.SliceOf(rapid.Byte()).Draw(t, "prefix")
		dirty := append(bytes.Clone(prefix), bytes.Repeat([]byte{0xa5}, 2*cm.Size)...)
		got := m.AppendTo(dirty[:len(prefix)])
		if !bytes.Equal(got[:len(prefix)], prefix) || !bytes.Equal(got[len(prefix):], orig) {
			t.Fatal("into a dirty buffer")
		}
		if rest := dirty[len(prefix)+cm.Size:]; !bytes.Equal(rest, bytes.Repeat([]byte{0xa5}, cm.Size)) {
			t.Fatal("wrote behind the datagram")
		}
		if got := m.AppendTo(in[:0]); !bytes.Equal(got, orig) {
			t.Fatal("over the bytes decoded from")
		}
	})
}

// A shorter input fails and changes nothing.
func TestPropTruncated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m cm.Message
		if err := m.Decode(drawMAD(t)); err != nil {
			t.Fatal(err)
		}
		before := m
		short := drawMAD(t)[:rapid.IntRange(0, cm.Size-1).Draw(t, "length")]
		if err := m.Decode(short); err != cm.ErrTruncated || !reflect.DeepEqual(m, before) {
			t.Fatalf("%d bytes: %v", len(short), err)
		}
		for name, c := range codecs {
			v, want := c.make(), c.make()
			full := drawBytes(t, c.size, name)
			if v.Decode(full) != nil || want.Decode(full) != nil {
				t.Fatal(name)
			}
			n := rapid.IntRange(0, c.size-1).Draw(t, "length")
			if err := v.Decode(drawBytes(t, n, "short")); err != cm.ErrTruncated || !reflect.DeepEqual(v, want) {
				t.Fatalf("%s, %d bytes: %v", name, n, err)
			}
		}
	})
}

// fill sets every field of s, a part of the message v, to a drawn value: one
// that Validate accepts, or with wide any that the Go type holds.
func fill(t *rapid.T, v codec, s reflect.Value, wide bool) {
	for i := range s.NumField() {
		f, name := s.Field(i), s.Type().Field(i).Name
		switch f.Kind() {
		case reflect.Struct:
			fill(t, v, f, wide)
		case reflect.Bool:
			f.SetBool(rapid.Bool().Draw(t, name))
		case reflect.Slice:
			f.SetBytes(rapid.SliceOfN(rapid.Byte(), 0, cm.REJARISize).Draw(t, name))
		case reflect.Array:
			for j := range f.Len() {
				f.Index(j).SetUint(uint64(rapid.Byte().Draw(t, name)))
			}
		default:
			bits := f.Type().Bits()
			ones := func() uint64 { return 1<<bits - 1 }
			for f.SetUint(ones()); !wide && v.Validate() != nil; f.SetUint(ones()) {
				bits--
			}
			f.SetUint(rapid.Uint64().Draw(t, name) & ones())
		}
	}
}

// pad fills up the slices of v with zeros to the length of those of like.
func pad(v, like reflect.Value) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			b := make([]byte, like.Field(i).Len())
			copy(b, f.Bytes())
			f.SetBytes(b)
		}
	}
}

// Fields to bytes to fields is the identity on the values that Validate
// accepts, data filled up with zeros, and on no others.
func TestPropValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for name, c := range codecs {
			wide := rapid.Bool().Draw(t, "wide")
			v, got := c.make(), c.make()
			fill(t, v, reflect.ValueOf(v).Elem(), wide)
			fits := v.Validate() == nil
			if !fits && !wide {
				t.Fatalf("%s: not filled to be valid: %+v", name, v)
			}
			b := v.AppendTo(nil)
			if len(b) != c.size {
				t.Fatalf("%s: %d bytes", name, len(b))
			}
			if err := got.Decode(b); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := got.Validate(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			pad(reflect.ValueOf(v).Elem(), reflect.ValueOf(got).Elem())
			if same := reflect.DeepEqual(v, got); same != fits {
				t.Fatalf("%s: valid %t, round trip %t\ngot  %+v\nwant %+v", name, fits, same, got, v)
			}
		}
	})
}

// Validate accepts of each field, set by itself, exactly what decoding returns:
// of numbers all around each power of two, of data all lengths.
func TestEachFieldFits(t *testing.T) {
	for name, c := range codecs {
		var each func(path []int, s reflect.Type)
		each = func(path []int, s reflect.Type) {
			for i := range s.NumField() {
				f, at := s.Field(i), append(slices.Clip(path), i)
				set := func(what any, to func(reflect.Value)) {
					v, got := c.make(), c.make()
					to(reflect.ValueOf(v).Elem().FieldByIndex(at))
					fits := v.Validate() == nil
					if err := got.Decode(v.AppendTo(nil)); err != nil {
						t.Fatal(name, err)
					}
					long := reflect.ValueOf(v).Elem().FieldByIndex(at)
					if long.Kind() == reflect.Slice && long.Len() > reflect.ValueOf(got).Elem().FieldByIndex(at).Len() {
						if fits {
							t.Fatalf("%s.%s of %v bytes is valid", name, f.Name, what)
						}
						return
					}
					pad(reflect.ValueOf(v).Elem(), reflect.ValueOf(got).Elem())
					if same := reflect.DeepEqual(v, got); same != fits {
						t.Fatalf("%s.%s of %v: valid %t, round trip %t", name, f.Name, what, fits, same)
					}
				}
				switch f.Type.Kind() {
				case reflect.Struct:
					each(at, f.Type)
				case reflect.Bool:
					set(true, func(v reflect.Value) { v.SetBool(true) })
				case reflect.Slice:
					for n := range cm.Size {
						set(n, func(v reflect.Value) { v.SetBytes(bytes.Repeat([]byte{1}, n)) })
					}
				case reflect.Array:
					for j := range f.Type.Len() {
						set(j, func(v reflect.Value) { v.Index(j).SetUint(255) })
					}
				default:
					for k := range f.Type.Bits() {
						set(uint64(1)<<k, func(v reflect.Value) { v.SetUint(1 << k) })
						set(uint64(2)<<k-1, func(v reflect.Value) { v.SetUint(2<<k - 1) })
					}
				}
			}
		}
		each(nil, reflect.TypeOf(c.make()).Elem())
	}
}

// Slices that Decode hands out cannot be appended to into the input.
func TestPropAliases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for name, c := range codecs {
			v := c.make()
			in := drawBytes(t, c.size+8, name)
			if err := v.Decode(in); err != nil {
				t.Fatal(err)
			}
			s := reflect.ValueOf(v).Elem()
			for i := range s.NumField() {
				f := s.Field(i)
				if f.Kind() != reflect.Slice {
					continue
				}
				b := f.Bytes()
				if len(b) != cap(b) {
					t.Fatalf("%s.%s: capacity %d beyond length %d", name, s.Type().Field(i).Name, cap(b), len(b))
				}
				b[0] ^= 0xff
				if again := c.make(); again.Decode(in) != nil || !reflect.DeepEqual(v, again) {
					t.Fatalf("%s.%s is not the input", name, s.Type().Field(i).Name)
				}
			}
		}
	})
}

// Any input: no panic, no change on error, the same bytes again, and no String
// that fails.
func FuzzMessage(f *testing.F) {
	for _, d := range captured(f) {
		f.Add(d.mad)
		f.Add(d.mad[:cm.Size-1])
		for id := cm.AttrREQ - 1; id <= cm.AttrAPR+1; id++ {
			b := bytes.Clone(d.mad)
			b[17] = byte(id)
			f.Add(b)
		}
	}
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		if p := &s.Frame.Packet; p.DestQP == 1 && len(p.Payload) == cm.Size {
			return []any{p.Payload}
		}
		return nil
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := cm.Message{Header: cm.NewHeader(cm.AttrREQ, 0x0123456789abcdef)}
		in := bytes.Clone(b)
		if err := m.Decode(b); err != nil {
			if m.Header != cm.NewHeader(cm.AttrREQ, 0x0123456789abcdef) {
				t.Fatal("header changed on error")
			}
			if len(b) >= cm.Size && cm.Class(b[1]) == cm.ClassCM && b[16] == 0 && b[17] >= 0x10 && b[17] <= 0x1a {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		got, err := m.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, in[:cm.Size]) {
			t.Fatalf("got  %x\nwant %x", got, in[:cm.Size])
		}
		var h cm.CMAHeader
		if consumer, ok := m.REQ.CMA(&h); ok {
			if again := append(h.AppendTo(nil), consumer...); !bytes.Equal(again, m.REQ.PrivateData) {
				t.Fatal("CMA header")
			}
			if !h.Src().IsValid() || !h.Dst().IsValid() {
				t.Fatal("CMA addresses")
			}
		}
		_ = fmt.Sprint(m)
	})
}
