//go:build !race

package crc_test

const raceEnabled = false
