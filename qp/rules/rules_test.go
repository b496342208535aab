package rules_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/rules"
)

var update = flag.Bool("update", false, "write the lines \"Held by\" of each RULES.md")

// root is the top of the module, as seen from here.
const root = "../.."

// prefixes are those of rules, whether or not there is an entry yet. A number
// with one of them is a citation.
var prefixes = []string{
	"PS", "RQ", "RS", "SR", "UC", "UD", "XR", "ST", "EE", "MR", "CM", "WI",
	"CN", "NP", "CP", "RP", "CA17",
}

var cited = regexp.MustCompile(`\b(?:` + strings.Join(prefixes, "|") + `)-[0-9]+[a-z]?\b`)

// entryLines are those lines of a RULES.md that are no citations.
var entryLines = regexp.MustCompile(`(?m)^(### |- Held by:).*$`)

// holds reports whether a file is a test or a script.
func holds(path string) bool {
	return strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".txt") && strings.Contains(path, "testdata/")
}

// tree returns where each rule is cited: number, file, times. The entries of the
// pages themselves, generated fuzz seeds and what git ignores are left out.
func tree(t *testing.T) map[string]map[string]int {
	t.Helper()
	found := map[string]map[string]int{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if d.IsDir() {
			if d.Name() == "fuzz" && strings.HasSuffix(name, "testdata/fuzz") || strings.HasPrefix(d.Name(), ".git") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".txt", ".md":
		default:
			return nil
		}
		if name == "CHANGELOG.md" || strings.HasPrefix(name, "fuzz/captures/") || name == "qp/rules/rules_test.go" || name == "examples/rocecheck/explain_test.go" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Base(name) == "RULES.md" {
			b = entryLines.ReplaceAll(b, nil)
		}
		for _, id := range cited.FindAllString(string(b), -1) {
			if found[id] == nil {
				found[id] = map[string]int{}
			}
			found[id][name]++
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, len(found), 70, "the walk has not seen the module")
	return found
}

// pages are the files with rules.
func pages(t *testing.T) []string {
	var out []string
	for _, pattern := range []string{"*/RULES.md", "*/*/RULES.md"} {
		m, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		out = append(out, m...)
	}
	require.GreaterOrEqual(t, len(out), 3)
	return out
}

// TestLaw holds that every rule that is cited has an entry, that every entry has
// a source and a test or script that names it, and that the entries say which.
// With -update it writes the last.
func TestLaw(t *testing.T) {
	where := tree(t)
	seen := map[string]string{}
	for _, page := range pages(t) {
		b, err := os.ReadFile(page)
		require.NoError(t, err)
		text := string(b)
		for _, r := range rules.Parse(text) {
			require.Empty(t, seen[r.ID], "%s: %s has a second entry", page, r.ID)
			seen[r.ID] = page
			require.Regexp(t, cited, r.ID, "%s: the prefix of %s is not in this test's list", page, r.ID)
			if !strings.Contains(r.Text, "- Source: ") {
				t.Errorf("%s: %s names no source", page, r.ID)
			}
			var by []string
			for file := range where[r.ID] {
				if holds(file) {
					by = append(by, file)
				}
			}
			if len(by) == 0 {
				t.Errorf("%s: no test or script names %s", page, r.ID)
				continue
			}
			slices.SortFunc(by, func(a, b string) int {
				if n := where[r.ID][b] - where[r.ID][a]; n != 0 {
					return n
				}
				return strings.Compare(a, b)
			})
			text = heldBy(t, text, r.ID, by)
		}
		if *update {
			require.NoError(t, os.WriteFile(page, []byte(text), 0o644))
		}
	}
	for id, files := range where {
		if seen[id] == "" {
			t.Errorf("no RULES.md has an entry for %s, cited in %v", id, files)
		}
	}
}

// heldBy checks the line "Held by" of an entry, or with -update writes it: the
// three files that name the rule most often.
func heldBy(t *testing.T, text, id string, by []string) string {
	line := regexp.MustCompile(`(?ms)^### ` + id + `: .*?^- Held by:([^\n]*)\n`)
	m := line.FindStringSubmatchIndex(text)
	if m == nil {
		t.Errorf("%s has no line \"- Held by:\"", id)
		return text
	}
	for _, file := range strings.Split(text[m[2]:m[3]], ",") {
		if slices.Contains(by, strings.TrimSpace(file)) {
			continue
		}
		if *update { // a line that is right is left as it is
			return text[:m[2]] + " " + strings.Join(by[:min(len(by), 3)], ", ") + text[m[3]:]
		}
		t.Errorf("%s is not held by %q; go test ./qp/rules -update writes the line", id, file)
	}
	return text
}

// TestFindings holds that the titles that findings carry are those of the rules.
func TestFindings(t *testing.T) {
	named := 0
	for i := range 256 {
		r := conform.Rule(i)
		if r.String() == fmt.Sprint(i) {
			continue // no such rule
		}
		require.NotEmpty(t, r.Title(), "%v has no title", r)
		if e, ok := rules.Find(r.String()); ok {
			named++
			require.Equal(t, e.Title, r.Title(), "%v", r)
		} else {
			require.NotRegexp(t, cited, r.String(), "a finding names a rule that has no entry")
		}
	}
	require.Greater(t, named, 25)
}

func TestFind(t *testing.T) {
	r, ok := rules.Find("rs-13")
	require.True(t, ok)
	require.Equal(t, "RS-13", r.ID)
	require.Contains(t, r.Text, "Duplicates never")
	require.NotContains(t, r.Text, "RS-14")
	_, ok = rules.Find("RS-99")
	require.False(t, ok)
	last := rules.All()[len(rules.All())-1]
	require.Equal(t, "CA17-44", last.ID)
	r, _ = rules.Find("RQ-16") // the last of its section
	require.NotContains(t, r.Text, "#")
}
