package entry

// #include <stddef.h>
import "C"

import "unsafe"

//export LLVMFuzzerTestOneInput
func LLVMFuzzerTestOneInput(data *C.char, size C.size_t) C.int {
	Run(unsafe.Slice((*byte)(unsafe.Pointer(data)), int(size)))
	return 0
}
