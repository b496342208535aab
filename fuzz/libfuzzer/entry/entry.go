// Package entry connects libFuzzer with a fuzz target: C code that calls Go.
package entry

// #include <stddef.h>
import "C"

import "unsafe"

// Run runs one input. The program that is built for a target sets it.
var Run func(input []byte)

//export LLVMFuzzerTestOneInput
func LLVMFuzzerTestOneInput(data *C.char, size C.size_t) C.int {
	Run(unsafe.Slice((*byte)(unsafe.Pointer(data)), int(size)))
	return 0
}
