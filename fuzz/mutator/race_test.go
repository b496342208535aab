//go:build race

package mutator_test

const raceEnabled = true
