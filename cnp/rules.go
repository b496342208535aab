package cnp

import _ "embed"

//go:embed RULES.md
var rules string

// Rules returns RULES.md, the rules of congestion notification and DCQCN by
// number: what comments cite as RP-2. Package qp/rules looks entries up.
func Rules() string { return rules }
