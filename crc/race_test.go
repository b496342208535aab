//go:build race

package crc_test

const raceEnabled = true
