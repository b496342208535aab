package seeds_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
)

// collector is a target that keeps what it is given.
type collector struct {
	t     *testing.T
	seeds [][]any
}

func (c *collector) Add(args ...any)   { c.seeds = append(c.seeds, args) }
func (c *collector) Helper()           {}
func (c *collector) Fatal(args ...any) { c.t.Fatal(args...) }

func (c *collector) bytes() (n int) {
	for _, s := range c.seeds {
		for _, v := range s {
			if b, ok := v.([]byte); ok {
				n += len(b)
			}
		}
	}
	return n
}

// TestChosen: every opcode of the captures is among the chosen frames, each kind
// once, the shortest first, and the same ones every time.
func TestChosen(t *testing.T) {
	c, err := seeds.Captures()
	require.NoError(t, err)
	require.Greater(t, len(c.Files), 40)
	all, chosen := map[bth.Opcode]bool{}, map[bth.Opcode]bool{}
	for _, f := range c.Files {
		for i, s := range f.Frames {
			require.Equal(t, i+1, s.Number)
			if s.RoCE {
				all[s.Frame.Packet.Opcode] = true
			}
		}
	}
	last := 0
	for _, s := range c.Chosen {
		require.GreaterOrEqual(t, len(s.Data), last)
		last = len(s.Data)
		if s.RoCE {
			chosen[s.Frame.Packet.Opcode] = true
		}
	}
	require.Equal(t, all, chosen)
	again, err := seeds.Captures()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(names(c)), fmt.Sprint(names(again)))
}

func names(c *seeds.Corpus) (out []string) {
	for _, s := range c.Chosen {
		out = append(out, s.Name())
	}
	return out
}

// TestFeed: what a target gets is bounded, of its own, and each seed once.
func TestFeed(t *testing.T) {
	for name, feed := range map[string]func(f *seeds.Feeder){
		"Each":    func(f *seeds.Feeder) { f.Each(func(s *seeds.Frame) []any { return []any{s.Data} }) },
		"Packets": func(f *seeds.Feeder) { f.Packets(func(s *seeds.Frame) []any { return []any{s.Frame.Transport, 1} }) },
		"Headers": func(f *seeds.Feeder) { f.Headers(bth.HasAETH | bth.HasRETH) },
		"Starts":  func(f *seeds.Feeder) { f.Starts() },
		"Flows": func(f *seeds.Feeder) {
			f.Flows(func(i int) byte { return byte(i) }, func(b []byte) []any { return []any{b, "x"} })
		},
	} {
		c := &collector{t: t}
		feed(seeds.Into(c))
		require.Greater(t, len(c.seeds), 5, name)
		require.LessOrEqual(t, c.bytes(), seeds.Limit, name)
		seen := map[string]bool{}
		for _, s := range c.seeds {
			key := fmt.Sprint(s)
			require.False(t, seen[key], name)
			seen[key] = true
			clear(s[0].([]byte)) // a target may write to its input
		}
		again := &collector{t: t}
		feed(seeds.Into(again))
		require.Equal(t, c.bytes(), again.bytes(), name)
		for _, s := range again.seeds {
			require.NotEmpty(t, bytes.Trim(s[0].([]byte), "\x00"), name)
		}
	}
}

// TestMore: captures of the user's come in by the environment.
func TestMore(t *testing.T) {
	b, err := os.ReadFile("../captures/rc-mixed.pcap")
	require.NoError(t, err)
	b[20] = 101 // raw IP: frames of another kind
	mine := filepath.Join(t.TempDir(), "mine.pcap")
	require.NoError(t, os.WriteFile(mine, b, 0o666))
	t.Setenv(seeds.Env, mine)
	c, err := seeds.Captures()
	require.NoError(t, err)
	require.Contains(t, names(c), "mine-1")

	t.Setenv(seeds.Env, mine+"x")
	_, err = seeds.Captures()
	require.ErrorContains(t, err, seeds.Env)
}
