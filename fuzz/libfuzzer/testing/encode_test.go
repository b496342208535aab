package testing

import (
	"bytes"
	"reflect"
	std "testing"

	"github.com/stretchr/testify/require"
)

// TestEncode: what Add writes is what the target gets.
func TestEncode(t *std.T) {
	for _, args := range [][]any{
		{[]byte("a packet")},
		{uint16(1), []byte{1, 2}, -3, uint16(4)},
		{true, []byte("calls")},
		{uint64(1) << 60, []byte("work"), []byte("schedule")},
		{uint8(7), []byte{}, []byte("b")},
		{"text"},
		{[]byte("x"), uint64(2), byte(3)},
		{uint32(1), uint32(2), uint64(3)},
	} {
		var types []reflect.Type
		for _, a := range args {
			types = append(types, reflect.TypeOf(a))
		}
		var got []any
		for _, v := range decode(types, encode(args)) {
			got = append(got, v.Interface())
		}
		require.Equal(t, args, got)
		// Anything else gives arguments too.
		for n := range encode(args) {
			require.Len(t, decode(types, encode(args)[:n]), len(args))
		}
	}
	require.Equal(t, []byte("a packet"), encode([]any{[]byte("a packet")}))
}

// TestTarget: a target is set up once, run often, fails by a panic, and may skip.
func TestTarget(t *std.T) {
	set, ran := 0, 0
	target := func(f *F) {
		set++
		f.Add([]byte("one"))
		f.Add([]byte("two"))
		f.Fuzz(func(t *T, b []byte) {
			ran++
			if bytes.Equal(b, []byte("bad")) {
				t.Fatalf("%q", b)
			}
			t.Skip("enough")
		})
	}
	g := Prepare(target)
	g.Run([]byte("good"))
	g.Run(nil)
	require.Equal(t, 1, set)
	require.Equal(t, 2, ran)
	require.PanicsWithValue(t, `"bad"`, func() { g.Run([]byte("bad")) })
	require.Equal(t, 2, WriteSeeds(target, t.TempDir()))
}
