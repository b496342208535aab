//go:build race

package congestion_test

func init() { raceEnabled = true }
