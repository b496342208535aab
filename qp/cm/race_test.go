//go:build race

package cm_test

func init() { raceEnabled = true }
