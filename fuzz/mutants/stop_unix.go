//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// stop makes the end of a command also end the processes that it started: go test starts the
// test binary.
func stop(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
