package testing

import (
	"encoding/binary"
	"fmt"
	"reflect"
)

// encode packs the arguments of a fuzz target into the bytes of one libFuzzer input: numbers
// little-endian, bool and byte as a byte, int as eight bytes; []byte and string with two
// bytes of length before them, except the last of them, which is the rest. So the input of a
// target with one []byte is that slice.
func encode(args []any) []byte {
	last := lastBytes(len(args), func(i int) reflect.Kind { return reflect.TypeOf(args[i]).Kind() })
	var out, tail []byte
	for i, a := range args {
		v := reflect.ValueOf(a)
		switch v.Kind() {
		case reflect.Slice, reflect.String:
			b := []byte(v.Convert(reflect.TypeFor[[]byte]()).Bytes())
			if i == last {
				tail = b
				continue
			}
			b = b[:min(len(b), 0xffff)]
			out = binary.LittleEndian.AppendUint16(out, uint16(len(b)))
			out = append(out, b...)
		case reflect.Bool:
			n := byte(0)
			if v.Bool() {
				n = 1
			}
			out = append(out, n)
		default:
			var word [8]byte
			n, u := number(v)
			binary.LittleEndian.PutUint64(word[:], u)
			out = append(out, word[:n]...)
		}
	}
	return append(out, tail...)
}

// decode decodes the arguments of a function of the given types from an input. Missing bytes
// are zero.
func decode(types []reflect.Type, in []byte) []reflect.Value {
	last := lastBytes(len(types), func(i int) reflect.Kind { return types[i].Kind() })
	take := func(n int) []byte {
		n = min(n, len(in))
		b := in[:n:n]
		in = in[n:]
		return b
	}
	args := make([]reflect.Value, len(types))
	for i, t := range types {
		v := reflect.New(t).Elem()
		args[i] = v
		switch t.Kind() {
		case reflect.Slice, reflect.String:
			if i == last {
				continue
			}
			var size [2]byte
			copy(size[:], take(2))
			setBytes(v, take(int(binary.LittleEndian.Uint16(size[:]))))
		case reflect.Bool:
			b := take(1)
			v.SetBool(len(b) == 1 && b[0]&1 != 0)
		default:
			n, _ := number(v)
			var word [8]byte
			copy(word[:], take(n))
			u := binary.LittleEndian.Uint64(word[:])
			if v.CanInt() {
				v.SetInt(int64(u))
			} else {
				v.SetUint(u)
			}
		}
	}
	if last >= 0 {
		setBytes(args[last], in)
	}
	return args
}

func setBytes(v reflect.Value, b []byte) {
	b = append([]byte{}, b...) // a copy: the target must not use the fuzzer's memory
	v.Set(reflect.ValueOf(b).Convert(v.Type()))
}

// number returns the size in bytes and the value of an integer.
func number(v reflect.Value) (int, uint64) {
	switch {
	case v.Kind() == reflect.Int || v.Kind() == reflect.Uint:
		if v.CanInt() {
			return 8, uint64(v.Int())
		}
		return 8, v.Uint()
	case v.CanInt():
		return int(v.Type().Size()), uint64(v.Int())
	case v.CanUint():
		return int(v.Type().Size()), v.Uint()
	}
	panic(fmt.Sprintf("a fuzz target takes a %v, which has no encoding yet", v.Type()))
}

// lastBytes returns which of n arguments is the last slice or string, or -1.
func lastBytes(n int, kind func(int) reflect.Kind) int {
	for i := n - 1; i >= 0; i-- {
		if k := kind(i); k == reflect.Slice || k == reflect.String {
			return i
		}
	}
	return -1
}
