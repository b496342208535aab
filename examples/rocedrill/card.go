package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp/rules"
)

// card holds the results of the exam.
type card struct {
	title   string
	started time.Time
	took    time.Duration
	results []*result
	planned int             // number of scripts to run
	known   map[string]bool // deviations that the baseline has
	pcap    string
}

func (c *card) count(v verdict) int {
	n := 0
	for _, r := range c.results {
		if r.verdict == v {
			n++
		}
	}
	return n
}

// news counts deviations that the baseline does not have.
func (c *card) news() int {
	n := 0
	for _, r := range c.results {
		if r.verdict == deviates && !c.known[r.s.id] {
			n++
		}
	}
	return n
}

// deaths counts scripts during which the device's host crashed.
func (c *card) deaths() int {
	n := 0
	for _, r := range c.results {
		if r.died {
			n++
		}
	}
	return n
}

// summary returns the card in one line.
func (c *card) summary() string {
	return fmt.Sprintf("%d scripts: %d follow, %d deviate (%d of them known), %d not applicable, %d not reached; %.1f s",
		len(c.results), c.count(follows), c.count(deviates), c.count(deviates)-c.news(), c.count(notApplicable), c.count(notReached), c.took.Seconds())
}

// readBaseline reads the names of known deviations: the first word of each line, where the
// second, if any, is "deviates".
func readBaseline(file string) (map[string]bool, error) {
	known := map[string]bool{}
	if file == "" {
		return known, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) == 0 || strings.HasPrefix(w[0], "#") {
			continue
		}
		if len(w) == 1 || strings.HasPrefix(w[1], "deviates") {
			known[w[0]] = true
		}
	}
	return known, nil
}

// table returns the verdict of every script, a line each, without anything that differs from
// run to run.
func (c *card) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", c.title)
	for _, r := range c.results {
		fmt.Fprintf(&b, "%-64s %s", r.s.id, r.verdict)
		switch {
		case r.verdict == deviates:
			fmt.Fprintf(&b, ": %s: %s", r.stmt, r.why)
		case r.verdict != follows:
			fmt.Fprintf(&b, ": %s", r.why)
		}
		b.WriteByte('\n')
		for _, k := range r.kernel {
			fmt.Fprintf(&b, "#   the kernel's log: %s\n", k)
		}
	}
	return b.String()
}

// write writes the card in all requested forms.
func (c *card) write(o *options, w io.Writer) error {
	var err error
	if o.json {
		err = c.json(w)
	} else {
		err = c.text(w)
	}
	for _, f := range []struct {
		name string
		make func(io.Writer) error
	}{{o.junit, c.junit}, {o.html, c.html}, {o.card, func(w io.Writer) error { _, err := io.WriteString(w, c.table()); return err }}} {
		if f.name == "" || err != nil {
			continue
		}
		var b bytes.Buffer
		if err = f.make(&b); err == nil {
			err = os.WriteFile(f.name, b.Bytes(), 0o666)
		}
	}
	return err
}

// text writes the card for a terminal: groups, then deviations with their evidence.
func (c *card) text(w io.Writer) error {
	paint := func(colour, s string) string {
		if term.Colour(w) {
			return colour + s + term.Reset
		}
		return s
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%s\n\n", c.title, c.summary())
	if n := c.deaths(); n != 0 {
		fmt.Fprintf(&b, "  %s\n\n", paint(term.Red, fmt.Sprintf("the device's host died in %d of them", n)))
	}
	for _, g := range c.groups() {
		v := paint(term.Green, "follows")
		switch {
		case g.n[deviates] != 0:
			v = paint(term.Red, fmt.Sprintf("deviates in %d", g.n[deviates]))
		case g.n[follows] == 0:
			v = paint(term.Yellow, "not examined")
		}
		fmt.Fprintf(&b, "  %-11s %3d of %3d follow  %s\n", g.name, g.n[follows], g.all(), v)
	}
	for _, want := range []verdict{deviates, notReached} {
		for _, r := range c.results {
			if r.verdict != want {
				continue
			}
			mark := paint(term.Red, want.String())
			if c.known[r.s.id] {
				mark = paint(term.Yellow, "deviates, as known")
			}
			fmt.Fprintf(&b, "\n%s  %s  (%s)\n", r.s.id, mark, ruleTitles(r.s))
			fmt.Fprintf(&b, "    the rule:  %s\n", r.s.about)
			fmt.Fprintf(&b, "    %s line %d:  %s\n    instead:   %s\n", r.s.file, r.line, r.stmt, r.why)
			if c.pcap != "" && r.frame != 0 {
				fmt.Fprintf(&b, "    frames:    %d to %d of %s\n", r.first, r.frame, c.pcap)
			}
			for _, k := range r.kernel {
				fmt.Fprintf(&b, "    kernel:    %s\n", k)
			}
			if r.misses > 1 && r.misses < r.tries {
				fmt.Fprintf(&b, "    unsteady:  in %d of %d tries\n", r.misses, r.tries)
			}
		}
	}
	first := true
	for _, r := range c.results {
		for _, n := range r.notes {
			if first {
				b.WriteString("\nnotes\n")
				first = false
			}
			fmt.Fprintf(&b, "  %s: %s\n", r.s.id, n)
		}
	}
	reasons := map[string]int{}
	for _, r := range c.results {
		if r.verdict == notApplicable {
			reasons[r.why]++
		}
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "\nnot applicable: %d scripts: %s", reasons[why], why)
	}
	if len(reasons) != 0 {
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// ruleTitles returns the titles of a script's rules.
func ruleTitles(s *drill) string {
	var out []string
	for _, id := range s.rules {
		if r, ok := rules.Find(id); ok {
			out = append(out, id+": "+r.Title)
		} else {
			out = append(out, id)
		}
	}
	return strings.Join(out, "; ")
}

type groupCount struct {
	*group
	n       [4]int
	results []*result
}

func (g *groupCount) all() int { return g.n[0] + g.n[1] + g.n[2] + g.n[3] }

// groups counts the verdicts of each group, in the order of the exam.
func (c *card) groups() (gs []*groupCount) {
	for _, r := range c.results {
		if len(gs) == 0 || gs[len(gs)-1].group != r.s.group {
			gs = append(gs, &groupCount{group: r.s.group})
		}
		g := gs[len(gs)-1]
		g.n[r.verdict]++
		g.results = append(g.results, r)
	}
	return gs
}

// json writes the card as JSON.
func (c *card) json(w io.Writer) error {
	type row struct {
		Name    string   `json:"name"`
		Group   string   `json:"group"`
		Rules   []string `json:"rules"`
		Verdict string   `json:"verdict"`
		Known   bool     `json:"known,omitempty"`
		File    string   `json:"file"`
		Line    int      `json:"line,omitempty"`
		Want    string   `json:"statement,omitempty"`
		Got     string   `json:"instead,omitempty"`
		First   int      `json:"first_frame,omitempty"`
		Frame   int      `json:"frame,omitempty"`
		Tries   int      `json:"tries"`
		Misses  int      `json:"misses,omitempty"`
		Notes   []string `json:"notes,omitempty"`
		Kernel  []string `json:"kernel_log,omitempty"`
		Died    bool     `json:"host_died,omitempty"`
		Seconds float64  `json:"seconds"`
	}
	out := struct {
		Device  string    `json:"device"`
		Started time.Time `json:"started"`
		Seconds float64   `json:"seconds"`
		Capture string    `json:"capture,omitempty"`
		Results []row     `json:"results"`
	}{c.title, c.started.UTC(), c.took.Seconds(), c.pcap, nil}
	for _, r := range c.results {
		x := row{Name: r.s.id, Group: r.s.group.name, Rules: r.s.rules, Verdict: r.verdict.String(), File: r.s.file, Line: r.line,
			Want: r.stmt, Got: r.why, Tries: r.tries, Misses: r.misses, Notes: r.notes, Kernel: r.kernel, Died: r.died, Seconds: r.took.Seconds(),
			Known: r.verdict == deviates && c.known[r.s.id]}
		if c.pcap != "" {
			x.First, x.Frame = r.first, r.frame
		}
		out.Results = append(out.Results, x)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// junit writes the card as JUnit XML, for continuous integration: known deviations are
// skipped, not failed.
func (c *card) junit(w io.Writer) error {
	type message struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testcase struct {
		Name    string   `xml:"name,attr"`
		Class   string   `xml:"classname,attr"`
		Time    string   `xml:"time,attr"`
		Failure *message `xml:"failure,omitempty"`
		Error   *message `xml:"error,omitempty"`
		Skipped *message `xml:"skipped,omitempty"`
	}
	type suite struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Cases    []testcase `xml:"testcase"`
	}
	var suites []suite
	for _, g := range c.groups() {
		s := suite{Name: g.name, Tests: g.all(), Errors: g.n[notReached], Skipped: g.n[notApplicable]}
		for _, r := range g.results {
			t := testcase{Name: r.s.id, Class: "rocedrill." + g.name, Time: fmt.Sprintf("%.3f", r.took.Seconds())}
			m := &message{r.why, fmt.Sprintf("%s\n%s line %d: %s\ninstead: %s\n", r.s.about, r.s.file, r.line, r.stmt, r.why) + strings.Join(r.kernel, "\n")}
			switch {
			case r.verdict == deviates && c.known[r.s.id]:
				m.Message = "known: " + m.Message
				t.Skipped = m
				s.Skipped++
			case r.verdict == deviates:
				t.Failure = m
				s.Failures++
			case r.verdict == notReached:
				t.Error = m
			case r.verdict == notApplicable:
				t.Skipped = m
			}
			s.Cases = append(s.Cases, t)
		}
		suites = append(suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", " ")
	return e.Encode(struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []suite
	}{Suites: suites})
}

// shownFrames is how many frames of a deviation are shown at first; those before them are
// folded.
const shownFrames = 8

//go:embed card.html
var cardPage string

// html writes the card as a self-contained page.
func (c *card) html(w io.Writer) error {
	t, err := template.New("card").Funcs(template.FuncMap{
		"rules": ruleTitles,
		"known": func(r *result) bool { return c.known[r.s.id] },
	}).Parse(cardPage)
	if err != nil {
		return err
	}
	type row struct {
		Name, Title, Rules, About, File, Stmt, Why, Verdict string
		Known, Died                                         bool
		Line, First, Frame, Tries, Misses                   int
		Notes, Kernel                                       []string
		Trace, Before                                       []traced
		Lines                                               []statementRow
	}
	type groupRow struct {
		Name, Title                              string
		All, Follows, Deviates, Skipped, Missing int
		Rows                                     []row
	}
	page := struct {
		Title, Summary, Started, Pcap string
		Deaths                        int
		Groups                        []groupRow
		Deviations, Unreached         []row
	}{Title: c.title, Summary: c.summary(), Started: c.started.UTC().Format("2006-01-02 15:04 UTC"), Pcap: c.pcap, Deaths: c.deaths()}
	for _, g := range c.groups() {
		gr := groupRow{Name: g.name, Title: g.title, All: g.all(), Follows: g.n[follows], Deviates: g.n[deviates], Skipped: g.n[notApplicable], Missing: g.n[notReached]}
		for _, r := range g.results {
			x := row{Name: r.s.id, Title: r.s.name, Died: r.died, Rules: ruleTitles(r.s), About: r.s.about, File: r.s.file, Stmt: r.stmt, Why: r.why, Verdict: r.verdict.String(),
				Known: r.verdict == deviates && c.known[r.s.id], Line: r.line, First: r.first, Frame: r.frame, Tries: r.tries, Misses: r.misses, Notes: r.notes, Kernel: r.kernel, Trace: r.trace}
			if x.Stmt == "-" || x.Stmt == "end" {
				x.Stmt = "nothing more"
			}
			if n := len(x.Trace) - shownFrames; n > 1 {
				x.Before, x.Trace = x.Trace[:n], x.Trace[n:]
			}
			for _, l := range r.s.lines {
				x.Lines = append(x.Lines, statementRow{l.line, l.text, l.line == r.line && r.verdict == deviates})
			}
			gr.Rows = append(gr.Rows, x)
			switch r.verdict {
			case deviates:
				page.Deviations = append(page.Deviations, x)
			case notReached:
				page.Unreached = append(page.Unreached, x)
			}
		}
		page.Groups = append(page.Groups, gr)
	}
	// Crashes of the device's host come first.
	slices.SortStableFunc(page.Deviations, func(a, b row) int {
		switch {
		case a.Died == b.Died:
			return 0
		case a.Died:
			return -1
		}
		return 1
	})
	return t.Execute(w, page)
}

type statementRow struct {
	Line int
	Text string
	Bad  bool
}
