//go:build race || invariants

package qp_test

func init() { raceEnabled = true }
