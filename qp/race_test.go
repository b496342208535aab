//go:build race

package qp_test

func init() { raceEnabled = true }
