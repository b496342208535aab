//go:build !unix

package main

import "os/exec"

func stop(*exec.Cmd) {}
