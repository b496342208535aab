package bth

import _ "embed"

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of the wire by number: what comments cite as
// WI-9. Package qp/rules looks entries up.
func Rules() string { return rules }
