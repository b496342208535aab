package bth_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/roce-go/roce"

// TestImports holds who may import what: codecs depend on the standard library
// and on each other alone, and gopacket is for those who ask for it.
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
	machines := map[string]bool{"qp": true, "qp/cm": true, "qp/script": true, "qp/softnic": true, "qp/simnet": true, "qp/conform": true, "qp/conform/mrcwatch": true}

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
		case pkg == "bth/rocelayers":
			for m := range machines {
				require.NotContains(t, own, m, pkg)
			}
		case strings.HasPrefix(pkg, "examples/"):
		default:
			require.NotContains(t, strings.Join(foreign, " "), "gopacket", "in %s", pkg)
			if machines[pkg] {
				require.Empty(t, foreign, "%s depends on other modules", pkg)
			}
		}
	}
	require.Len(t, may, seen, "codec packages are missing")
}
