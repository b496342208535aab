package wire

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/endpoint"
)

// Faults come as often as they are asked for, and every held frame comes after the next.
func TestFaults(t *testing.T) {
	file, err := os.Open("../../../fuzz/captures/rc-mixed.pcap")
	require.NoError(t, err)
	defer file.Close()
	r, err := capture.NewReader(file)
	require.NoError(t, err)
	var rec capture.Record
	var fr frame.Frame
	for (frame.Finder{}).Find(frame.Ethernet, rec.Data, len(rec.Data), &fr) != nil {
		require.NoError(t, r.Next(&rec))
	}
	roce := rec.Data
	f, err := ParseFaults("loss=10,duplicate=20,reorder=5", 3)
	require.NoError(t, err)
	out := 0
	const n = 20000
	for range n {
		out += len(f.Filter(true, roce))
	}
	require.InDelta(t, n*0.9*(1+0.2*0.95), out, n*0.01)
	require.Equal(t, [][]byte{{1, 2, 3}}, f.Filter(false, []byte{1, 2, 3}), "what is not RoCE passes")
	only, err := ParseFaults("reorder=100", 1)
	require.NoError(t, err)
	other := append([]byte(nil), roce...)
	require.Empty(t, only.Filter(true, roce))
	require.Equal(t, 2, len(only.Filter(true, other)))
	one, err := ParseFaults("received-loss=100,sent-duplicate=100", 1)
	require.NoError(t, err)
	require.Empty(t, one.Filter(false, roce))
	require.Len(t, one.Filter(true, roce), 2)
	for _, s := range []string{"", "loss", "loss=x", "loss=101", "delay=1", "loss=NaN", "lost-loss=1", "sent-=1", "sent-sent-loss=1"} {
		_, err := ParseFaults(s, 1)
		require.Error(t, err, s)
	}
}

// Flags that fit nothing are refused before anything is opened; a capture is a file.
func TestOpen(t *testing.T) {
	open := func(args ...string) error {
		var f Flags
		fs := flag.NewFlagSet("", flag.ContinueOnError)
		f.Register(fs)
		require.NoError(t, fs.Parse(args))
		ep, closing, err := f.Open(endpoint.Config{})
		if err == nil {
			_, lerr := ep.Listen(context.Background(), ":1", nil)
			err = errors.Join(lerr, closing())
		}
		return err
	}
	for _, args := range [][]string{
		{}, {"-udp", "127.0.0.1", "-tap", "x"}, {"-segment", "127.0.0.1:1"}, {"-segment", "a,b", "-ip", "x"},
		{"-segment", "a,b", "-mac", "x"}, {"-segment", "127.0.0.1:0,127.0.0.1:1", "-faults", "x=1"},
		{"-udp", "127.0.0.1", "-faults", "loss=1"}, {"-udp", "name.that.is.none.invalid"}, {"-segment", "127.0.0.1:0,127.0.0.1:1", "-window", "0"},
	} {
		require.Error(t, open(args...), args)
	}
	file := filepath.Join(t.TempDir(), "x.pcap")
	require.NoError(t, open("-segment", "127.0.0.1:0,127.0.0.1:1", "-faults", "loss=1", "-capture", file))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 24, info.Size())
}
