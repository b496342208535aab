package main

import (
	"bytes"
	"io"
	"testing"
)

// BenchmarkFile judges a capture of 96,000 frames of 800 bytes on average, from
// memory; sequential is for comparison, a copy of its bytes.
func BenchmarkFile(b *testing.B) {
	data, err := io.ReadAll(newEndless(b, 64<<20))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("judge", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if run([]string{"-json", "-"}, bytes.NewReader(data), io.Discard, io.Discard) != exitGood {
				b.Fatal("not good")
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		to := make([]byte, len(data))
		for b.Loop() {
			copy(to, data)
		}
	})
}
