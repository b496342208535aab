//go:build race

package simnet_test

func init() { raceEnabled = true }
