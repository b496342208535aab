package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
)

// state holds results between runs: a line of JSON each. A result is valid while the sources
// and tests of its package are unchanged.
type state struct {
	mu    sync.Mutex
	f     *os.File
	known map[string]outcome // by sum and id
}

type result struct {
	Sum     string  `json:"sum"`
	ID      string  `json:"id"`
	Outcome outcome `json:"outcome"`
}

func openState(name string) (*state, error) {
	s := &state{known: map[string]outcome{}}
	if name == "" {
		return s, nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	s.f = f
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r result
		if json.Unmarshal(lines.Bytes(), &r) == nil { // a run may have been stopped within a line
			s.known[r.Sum+r.ID] = r.Outcome
		}
	}
	return s, nil
}

func (s *state) get(sum, id string) (outcome, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.known[sum+id]
	return o, ok
}

func (s *state) put(sum, id string, o outcome) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[sum+id] = o
	if s.f == nil {
		return nil
	}
	b, err := json.Marshal(result{sum, id, o})
	if err != nil {
		return err
	}
	_, err = s.f.Write(append(b, '\n'))
	return err
}

// sumOf returns a checksum of all Go files of a package and of the files that its tests read.
func sumOf(root, pkg string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(filepath.Join(root, pkg), func(path string, d os.DirEntry, err error) error {
		if err != nil || path == filepath.Join(root, pkg) {
			return err
		}
		if d.IsDir() {
			if d.Name() != "testdata" && !strings.Contains(path, "testdata") {
				return filepath.SkipDir // another package
			}
			return nil
		}
		b, err := os.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n", strings.TrimPrefix(path, root), len(b))
		h.Write(b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

// accepted maps ids of listed survivors to the reason.
type accepted map[string]string

// readAccepted reads lines "id | reason".
func readAccepted(name string) (accepted, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	a := accepted{}
	for i, line := range strings.Split(string(b), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "# ") || line == "#" {
			continue
		}
		at := strings.LastIndex(line, " | ")
		if at < 0 || strings.TrimSpace(line[at+3:]) == "" {
			return nil, fmt.Errorf("%s, line %d: no reason; a line is an id, \" | \" and the reason", name, i+1)
		}
		a[line[:at]] = line[at+3:]
	}
	return a, nil
}

// stale returns the listed ids that are no longer mutants.
func (a accepted) stale(packages map[string]bool, ids map[string]bool) (out []string) {
	for id := range a {
		file, _, _ := strings.Cut(id, " ")
		if packages[filepath.ToSlash(filepath.Dir(file))] && !ids[id] {
			out = append(out, id)
		}
	}
	sort.Strings(out)
	return out
}
