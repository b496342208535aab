//go:build race

package crc_test

func init() { raceEnabled = true }
