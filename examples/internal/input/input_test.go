package input_test

import (
	"errors"
	"flag"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/examples/internal/input"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args, files []string
		v           bool
	}{
		{nil, nil, false},
		{[]string{"a", "-v", "b"}, []string{"a", "b"}, true},
		{[]string{"-v", "-", "a"}, []string{"-", "a"}, true},
		{[]string{"a", "--", "-v", "--"}, []string{"a", "-v", "--"}, false},
	} {
		set := flag.NewFlagSet("x", flag.ContinueOnError)
		v := set.Bool("v", false, "")
		files, err := input.Parse(set, c.args)
		require.NoError(t, err)
		require.Equal(t, c.files, files)
		require.Equal(t, c.v, *v)
	}
	set := flag.NewFlagSet("x", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	_, err := input.Parse(set, []string{"a", "-h"})
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestWords(t *testing.T) {
	require.Contains(t, input.Unopened(&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}), "check the path")
	require.Contains(t, input.Unopened(fs.ErrPermission), "root")
	require.Contains(t, input.Unopened(capture.ErrTruncated), "header")
	require.Equal(t, "fire", input.Unopened(errors.New("fire")))

	s, cut := input.Ended("x", io.EOF, 3)
	require.Equal(t, "", s)
	require.False(t, cut)
	s, cut = input.Ended("x", capture.ErrTruncated, 3)
	require.Contains(t, s, "after 3 whole ones")
	require.True(t, cut)
	s, cut = input.Ended("x", errors.New("fire"), 3)
	require.Equal(t, "x: fire; the 3 frames before it were read", s)
	require.False(t, cut)
}
