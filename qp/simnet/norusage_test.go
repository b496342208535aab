//go:build !unix

package simnet_test

import "time"

func cpuTime() time.Duration { return 0 }
