// Package entry is libFuzzer's way into a fuzz target: C code that calls Go.
package entry

// Run runs one input. The program that is built for a target sets it.
var Run func(input []byte)
