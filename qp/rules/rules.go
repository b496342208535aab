// Package rules looks up the numbered rules that this module keeps: those of the
// transport (qp/RULES.md), of the wire (bth/RULES.md) and of congestion
// notification (cnp/RULES.md). Code, tests, scripts and the findings of
// qp/conform cite them by number.
package rules

import (
	"regexp"
	"strings"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp"
)

// Rule is one entry of a RULES.md.
type Rule struct {
	ID    string // "RS-13"
	Title string // one line, without a full stop
	Text  string // the entry below its heading, in Markdown
}

var heading = regexp.MustCompile(`^### ([A-Z][A-Z0-9]*-[0-9]+[a-z]?): (.+)$`)

// Parse returns the entries of a RULES.md in its order.
func Parse(markdown string) []Rule {
	var out []Rule
	inside := false
	for line := range strings.Lines(markdown) {
		if m := heading.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			out = append(out, Rule{ID: m[1], Title: m[2]})
			inside = true
		} else if strings.HasPrefix(line, "#") {
			inside = false // a section between entries
		} else if inside {
			out[len(out)-1].Text += line
		}
	}
	for i := range out {
		out[i].Text = strings.TrimSpace(out[i].Text)
	}
	return out
}

// All returns every rule of the module: transport, wire, congestion notification.
func All() []Rule { return Parse(qp.Rules() + "\n" + bth.Rules() + "\n" + cnp.Rules()) }

// Find returns the rule with the given number, in capitals or not.
func Find(id string) (Rule, bool) {
	for _, r := range All() {
		if strings.EqualFold(r.ID, id) {
			return r, true
		}
	}
	return Rule{}, false
}
