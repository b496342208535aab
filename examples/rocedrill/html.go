package main

import (
	_ "embed"
	"html/template"
	"io"
)

//go:embed card.html
var cardPage string

// html is the card as a page that needs nothing else.
func (c *card) html(w io.Writer) error {
	t, err := template.New("card").Funcs(template.FuncMap{
		"rules": ruleTitles,
		"known": func(r *result) bool { return c.known[r.s.id] },
	}).Parse(cardPage)
	if err != nil {
		return err
	}
	type row struct {
		Name, Rules, About, File, Stmt, Why, Verdict string
		Known                                        bool
		Line, First, Frame, Tries, Misses            int
		Notes, Trace                                 []string
		Lines                                        []statementRow
	}
	type groupRow struct {
		Name, Title                              string
		All, Follows, Deviates, Skipped, Missing int
		Rows                                     []row
	}
	page := struct {
		Title, Summary, Started, Pcap string
		Groups                        []groupRow
		Deviations, Unreached         []row
	}{Title: c.title, Summary: c.summary(), Started: c.started.UTC().Format("2006-01-02 15:04 UTC"), Pcap: c.pcap}
	for _, g := range c.groups() {
		gr := groupRow{Name: g.name, Title: g.title, All: g.all(), Follows: g.n[follows], Deviates: g.n[deviates], Skipped: g.n[notApplicable], Missing: g.n[notReached]}
		for _, r := range g.results {
			x := row{Name: r.s.id, Rules: ruleTitles(r.s), About: r.s.about, File: r.s.file, Stmt: r.stmt, Why: r.why, Verdict: r.verdict.String(),
				Known: r.verdict == deviates && c.known[r.s.id], Line: r.line, First: r.first, Frame: r.frame, Tries: r.tries, Misses: r.misses, Notes: r.notes, Trace: r.trace}
			if x.Stmt == "-" || x.Stmt == "end" {
				x.Stmt = "nothing more"
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
	return t.Execute(w, page)
}

type statementRow struct {
	Line int
	Text string
	Bad  bool
}
