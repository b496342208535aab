package qp

import _ "embed"

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of the transport by number: what comments
// cite as RQ-27. Package qp/rules looks entries up.
func Rules() string { return rules }
