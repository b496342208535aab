//go:build purego || !(amd64 || arm64)

package crc

func sum(pkt []byte) uint32 { return sumGeneric(pkt) }

func update(r uint32, p []byte) uint32 { return updateGeneric(r, p) }

func copyUpdate(r uint32, dst, src []byte) uint32 { return copyGeneric(r, dst, src) }

func mulmod(a, b uint32) uint32 { return mulmodGeneric(a, b) }

// A kernel is a way to compute; there is one here.
type kernel uint8

const kernelGeneric kernel = 0

var kernelNames = [...]string{kernelGeneric: "generic"}

func kernels() []kernel { return []kernel{kernelGeneric} }

// use forces a kernel, in tests, and returns the one before.
func use(kernel) kernel { return kernelGeneric }
