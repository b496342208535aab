package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// BenchmarkDump reads a capture of 1000 packets of 1 KiB from memory, checks
// every ICRC, and prints. The reference is a copy of the file.
// compare-tshark measures the whole program beside tshark.
func BenchmarkDump(b *testing.B) {
	_, one := build(bth.RCWriteOnly, frame.IPv4, make([]byte, 1024))
	frames := make([][]byte, 1000)
	for i := range frames {
		frames[i] = one
	}
	file := pcap(b, frame.Ethernet, frames...)
	for _, c := range []struct{ name, option string }{
		{"summary", "-summary"}, {"json", "-json"}, {"text", "-all"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(file)))
			b.ReportAllocs()
			for b.Loop() {
				if run([]string{c.option, "-"}, bytes.NewReader(file), io.Discard, io.Discard) != 0 {
					b.Fatal("failed")
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		buf := make([]byte, len(file))
		for b.Loop() {
			copy(buf, file)
		}
	})
}
