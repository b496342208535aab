package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/rules"
)

// explain prints the entry of a rule, or for a finding that is no numbered rule
// what it means and what to look at.
func explain(w io.Writer, o *options, id string) error {
	o.explained = true
	if r, ok := rules.Find(id); ok {
		_, err := fmt.Fprintf(w, "%s: %s\n\n%s\n", r.ID, r.Title, r.Text)
		return err
	}
	for r := conform.RuleNone + 1; r.Title() != ""; r++ {
		if !strings.EqualFold(r.String(), id) {
			continue
		}
		fmt.Fprintf(w, "%s: %s\n", r, r.Title())
		if h, ok := hints[r]; ok {
			fmt.Fprintf(w, "\n%s\n", h.text)
		}
		return nil
	}
	return fmt.Errorf("there is no such rule; qp/RULES.md, bth/RULES.md and cnp/RULES.md list the numbers")
}
