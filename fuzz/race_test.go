//go:build race

package fuzz_test

func init() { raceEnabled = true }
