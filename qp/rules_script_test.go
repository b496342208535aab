package qp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-go/roce/qp/script"
)

// TestScripts runs the scripts of testdata, each part between "==" lines by
// itself. The parts name the rules and the sequences of public fault reports that
// they hold.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts(string(b)) {
			t.Run(filepath.Base(file)+"/"+part.name, func(t *testing.T) {
				var trace bytes.Buffer
				if err := script.RunTrace(&trace, part.text); err != nil {
					t.Errorf("%s: %v\n%s", file, err, trace.String())
				}
			})
		}
	}
}

type part struct{ name, text string }

// parts cuts a file at its "==" lines, with empty lines before each part, so that
// line numbers stay those of the file.
func parts(s string) []part {
	var ps []part
	line := 0
	for l := range strings.Lines(s) {
		line++
		if name, ok := strings.CutPrefix(l, "=="); ok {
			ps = append(ps, part{strings.TrimSpace(name), strings.Repeat("\n", line)})
			continue
		}
		if len(ps) != 0 {
			ps[len(ps)-1].text += l
		}
	}
	return ps
}
