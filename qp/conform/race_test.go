//go:build race

package conform_test

func init() { raceEnabled = true }
