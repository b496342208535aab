package qp_test

var raceEnabled bool // set where the race detector is on, which allocates
