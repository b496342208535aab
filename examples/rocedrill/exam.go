package main

import (
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed exam/*.txt
var examFiles embed.FS

// group is a file of the exam: scripts about one subject.
type group struct {
	name, title string
	scripts     []*drill
}

// drill is a script of the exam: a sequence of packets and expectations that tests one rule
// or behaviour.
type drill struct {
	group *group
	file  string
	id    string // group/words-of-the-name
	name  string
	rules []string
	about string // what is expected and why, for -explain
	by    string // agent, cm, or a program that accepts connections
	needs []string
	lines []statement
	basis *regexp.Regexp // form of a statement: scripts with such a statement build on this script
	on    []*drill       // scripts that this one builds on: if one of them deviates, this one is not run
}

type statement struct {
	line int // of the file
	text string
}

// groupOrder is the order of the exam: groups that later ones build on come first, and those
// that may harm the device last.
var groupOrder = []string{"headers", "psn", "ack", "rnr", "read", "atomic", "write", "send", "errors", "timers", "uc", "ud", "xrc", "cm", "programs", "congestion", "robustness"}

// loadExam reads the embedded scripts.
func loadExam() ([]*group, error) {
	var gs []*group
	seen := map[string]string{}
	for _, name := range groupOrder {
		file := "exam/" + name + ".txt"
		b, err := examFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		g, err := parseGroup(name, file, string(b))
		if err != nil {
			return nil, err
		}
		for _, s := range g.scripts {
			if seen[s.id] != "" {
				return nil, fmt.Errorf("%s: two scripts are called %s", file, s.id)
			}
			seen[s.id] = file
		}
		gs = append(gs, g)
	}
	build(gs)
	return gs, nil
}

// build finds what each script builds on: scripts that test the form of one of its
// statements. So a deviation in such a form is reported only once.
func build(gs []*group) {
	var all []*drill
	for _, g := range gs {
		all = append(all, g.scripts...)
	}
	for i, base := range all {
		for j, s := range all {
			// If two scripts are each other's basis, the first one counts.
			if s != base && s.has(base.basis) && (i < j || !base.has(s.basis)) {
				s.on = append(s.on, base)
			}
		}
	}
}

// has reports whether a statement of the script has a form.
func (s *drill) has(form *regexp.Regexp) bool {
	return form != nil && slices.ContainsFunc(s.lines, func(l statement) bool { return form.MatchString(l.text) })
}

var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// parseGroup reads a file: its first comment is the group's title, a line with == starts a
// script, the comment after it describes what the device must do.
func parseGroup(name, file, text string) (*group, error) {
	g := &group{name: name}
	var s *drill
	n := 0
	for l := range strings.Lines(text) {
		n++
		code, comment, hasComment := strings.Cut(l, "#")
		code, comment = strings.TrimSpace(code), strings.TrimSpace(comment)
		switch {
		case strings.HasPrefix(code, "=="):
			title := strings.TrimSpace(strings.TrimPrefix(code, "=="))
			s = &drill{group: g, file: file, name: title, by: "agent",
				id: name + "/" + strings.Trim(notWord.ReplaceAllString(strings.ToLower(title), "-"), "-")}
			g.scripts = append(g.scripts, s)
		case s == nil:
			if g.title == "" && hasComment {
				g.title = comment
			}
			if code != "" {
				return nil, fmt.Errorf("%s:%d: a script begins with ==", file, n)
			}
		case code == "":
			if hasComment && len(s.lines) == 0 {
				s.about = strings.TrimSpace(s.about + " " + comment)
			}
		default:
			word, rest, _ := strings.Cut(code, " ")
			rest = strings.TrimSpace(rest)
			switch word {
			case "rule":
				s.rules = append(s.rules, strings.Fields(rest)...)
			case "by":
				s.by = rest
			case "basis":
				var err error
				if s.basis, err = regexp.Compile(rest); err != nil {
					return nil, fmt.Errorf("%s:%d: %w", file, n, err)
				}
			case "needs":
				s.needs = append(s.needs, strings.Fields(rest)...)
			default:
				s.lines = append(s.lines, statement{n, code})
			}
		}
	}
	for _, s := range g.scripts {
		switch {
		case len(s.rules) == 0:
			return nil, fmt.Errorf("%s: %q names no rule", file, s.name)
		case s.about == "":
			return nil, fmt.Errorf("%s: %q does not say what it expects", file, s.name)
		case len(s.lines) == 0:
			return nil, fmt.Errorf("%s: %q has no statements", file, s.name)
		}
	}
	return g, nil
}

// chosen reports whether -only selects a script: by a part of its id or name, or by a rule.
func (s *drill) chosen(only string) bool {
	if only == "" {
		return true
	}
	for want := range strings.SplitSeq(only, ",") {
		want = strings.TrimSpace(want)
		if want == s.group.name || !isGroup(want) && strings.Contains(s.id, want) || !isGroup(want) && strings.Contains(s.name, want) {
			return true
		}
		for _, r := range s.rules {
			if r == want {
				return true
			}
		}
	}
	return false
}

// isGroup reports whether a word is a group's name: it then selects the group, and no other
// scripts that have the word in their names.
func isGroup(word string) bool { return slices.Contains(groupOrder, word) }
