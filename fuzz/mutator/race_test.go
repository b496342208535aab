//go:build race

package mutator_test

func init() { raceEnabled = true }
