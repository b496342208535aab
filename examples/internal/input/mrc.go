package input

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/roce-go/roce/bth/mrc"
)

// MRC holds what a program is told about MRC.
type MRC struct {
	On      bool       // -mrc
	Trimmed uint64     // -mrc-trimmed: bit n for DSCP n
	Halves  mrc.Halves // -mrc-port-half
}

// Flags adds the options to fs.
func (m *MRC) Flags(fs *flag.FlagSet) {
	fs.BoolVar(&m.On, "mrc", false, "")
	fs.Func("mrc-trimmed", "", func(s string) error {
		for _, part := range strings.Split(s, ",") {
			n, err := strconv.ParseUint(part, 0, 8)
			if err != nil || n > 63 {
				return fmt.Errorf("%q is no DSCP value; give 0 to 63", part)
			}
			m.Trimmed |= 1 << n
		}
		return nil
	})
	fs.Func("mrc-port-half", "", func(s string) error {
		switch s {
		case "low":
			m.Halves = mrc.LowInPort
		case "high":
			m.Halves = mrc.HighInPort
		default:
			return fmt.Errorf("%q is neither low nor high: which half of an entropy value is the UDP source port?", s)
		}
		return nil
	})
}
