package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEcho(t *testing.T) {
	var out, errs bytes.Buffer
	code := run([]string{"-server", "127.77.1.1", "-client", "127.77.1.2", "-n", "2"}, &out, &errs)
	if strings.Contains(errs.String(), "not an address of this host") || strings.Contains(errs.String(), "needs Linux") {
		t.Skip(errs.String())
	}
	require.Zero(t, code, errs.String())
	want := `server: 127.77.1.1 port 7174
client: connected to 127.77.1.1:7174, QP 0x######
client: "message 1" returned after #
client: "message 2" returned after #
client: "written and read by RDMA"
`
	got := regexp.MustCompile(`QP 0x[0-9a-f]{4,6}`).ReplaceAllString(out.String(), "QP 0x######")
	got = regexp.MustCompile(`after .*`).ReplaceAllString(got, "after #")
	require.Equal(t, want, got)
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, 0, "usage"},
		{[]string{"x"}, 2, "no arguments"},
		{[]string{"-n", "0"}, 2, "want 1 or more"},
		{[]string{"-server", ""}, 2, "-to"},
		{[]string{"-server", "nowhere"}, 1, "no IP address"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, c.code, run(c.args, &out, &errs), c.args)
		require.Contains(t, errs.String(), c.want)
	}
}
