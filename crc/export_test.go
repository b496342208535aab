package crc

import "testing"

// EachKernel runs f once with each kernel that this CPU has.
func EachKernel(t *testing.T, f func(t *testing.T)) {
	for _, k := range kernels() {
		t.Run(kernelNames[k], func(t *testing.T) {
			before := use(k)
			defer use(before)
			f(t)
		})
	}
}

// EachKernelBench is EachKernel for benchmarks.
func EachKernelBench(b *testing.B, f func(b *testing.B)) {
	for _, k := range kernels() {
		b.Run(kernelNames[k], func(b *testing.B) {
			before := use(k)
			defer use(before)
			f(b)
		})
	}
}

// CopyUpdate is the fused copy.
var CopyUpdate = copyUpdate

// Update is the running register.
var Update = update

// EachKernelAny is EachKernel without subtests; f receives the name.
func EachKernelAny(f func(kernel string)) {
	for _, k := range kernels() {
		func() {
			before := use(k)
			defer use(before)
			f(kernelNames[k])
		}()
	}
}
