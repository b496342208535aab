package bth_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/roce-go/roce"

// storeys says what is above what: a package depends on lower layers only. A
// pattern that ends in a slash is for all below that folder; the longest counts.
var storeys = map[string]int{
	"psn": 0, "crc": 0, "reth": 0, "aeth": 0, "cnp/pfc": 0, "qp/clock": 0, "qp/congestion": 0,
	"bth": 1, "bth/mrc": 2, "bth/frame": 3, "bth/frame/capture": 4, "bth/rocelayers": 4,
	"cnp": 4, "qp/cm": 4, "qp/congestion/": 4,
	"qp": 5, "qp/internal/": 6, "qp/internal/testenv": 0, "qp/conform/": 7, "qp/conform": 6, "qp/script": 6, "qp/rules": 6,
	"qp/softnic": 7, "qp/simnet": 8, "qp/endpoint": 8, "qp/simnet/": 9, "qp/": 9,
	"fuzz/captures": 0, "fuzz": 10, "fuzz/mutator": 10, "fuzz/internal/records": 11, "fuzz/seeds": 12, "fuzz/": 13,
	"examples/internal/": 10, "examples/": 11,
}

// never lists what a package must not depend on, though it is below: the judge of
// captures shares no code with the machines that it is to judge.
var never = map[string][]string{
	"qp/conform":     {"qp", "cnp"},
	"bth/rocelayers": {"cnp"},
}

func layer(pkg string) int {
	if n, ok := storeys[pkg]; ok {
		return n
	}
	for dir := pkg; dir != ""; {
		i := strings.LastIndexByte(dir, '/')
		if dir = dir[:max(i, 0)]; i < 0 {
			break
		}
		if n, ok := storeys[dir+"/"]; ok {
			return n
		}
	}
	return 100
}

// TestImports holds who may import what: codecs depend on the standard library
// and on each other only, gopacket is for those who ask for it, and imports run
// downwards.
func TestImports(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	// Broken packages (-e) are for others to report.
	cmd := exec.Command("go", "list", "-e", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	require.NoError(t, err)

	// What each codec package may depend on within the module.
	may := map[string][]string{
		"psn":               {},
		"crc":               {},
		"reth":              {},
		"aeth":              {},
		"cnp/pfc":           {},
		"bth":               {"psn", "reth", "aeth"},
		"bth/mrc":           {"bth", "psn", "reth", "aeth"},
		"bth/frame":         {"bth", "bth/mrc", "psn", "reth", "aeth", "crc"},
		"bth/frame/capture": {"bth/frame", "bth", "bth/mrc", "psn", "reth", "aeth", "crc"},
		"qp/clock":          {},
		"qp/congestion":     {},
		"cnp":               {"bth", "psn", "reth", "aeth", "qp/clock", "qp/congestion"},
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], module+"/")
		var own, foreign []string
		for _, d := range fields[1:] {
			if rel, ours := strings.CutPrefix(d, module+"/"); ours {
				own = append(own, rel)
			} else if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") {
				foreign = append(foreign, d) // the standard library has no dot there
			}
		}
		allowed, codec := may[pkg]
		switch {
		case codec:
			seen++
			require.Empty(t, foreign, "%s depends on other modules", pkg)
			require.Subset(t, allowed, own, "%s depends on more of ours than it may", pkg)
		case pkg == "bth/rocelayers", pkg == "fuzz/codectest", strings.HasPrefix(pkg, "examples/"): // the second is for tests
		default:
			require.Empty(t, foreign, "%s depends on other modules", pkg)
		}
		for _, d := range own {
			require.Less(t, layer(d), layer(pkg), "%s imports %s, which is not below it", pkg, d)
		}
		for _, d := range never[pkg] {
			require.NotContains(t, own, d, "%s is to be independent of it", pkg)
		}
	}
	require.Len(t, may, seen, "codec packages are missing")
}
