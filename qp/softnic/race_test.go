//go:build race

package softnic_test

func init() { raceEnabled = true }
