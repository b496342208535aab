package script

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/qp"
)

// args are the words of a statement after its name: key=value, flags, and
// words whose place says what they are.
type args struct {
	words []string
	err   error // the first fault
}

func (a *args) fail(format string, v ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, v...)
	}
}

// next removes the first word and returns it.
func (a *args) next(what string) string {
	if len(a.words) == 0 {
		a.fail("%s is missing", what)
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// take removes the i-th word and returns it.
func (a *args) take(i int) string {
	w := a.words[i]
	a.words = append(append([]string{}, a.words[:i]...), a.words[i+1:]...)
	return w
}

// str removes key=value and returns the value.
func (a *args) str(key string) (string, bool) {
	for i, w := range a.words {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			a.take(i)
			return v, true
		}
	}
	return "", false
}

// flag removes a bare word and reports whether it was there.
func (a *args) flag(name string) bool {
	for i, w := range a.words {
		if w == name {
			a.take(i)
			return true
		}
	}
	return false
}

func (a *args) number(s, what string, bits int) uint64 {
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		a.fail("%s: %q is no number of %d bits", what, s, bits)
	}
	return n
}

// num removes key=number and returns the number, or def.
func (a *args) num(key string, bits int, def uint64) uint64 {
	if s, ok := a.str(key); ok {
		return a.number(s, key, bits)
	}
	return def
}

func (a *args) int(key string, def int) int { return int(a.num(key, 31, uint64(def))) }

// data removes a DATA word or len=N and returns its bytes, or nil where there is
// neither.
func (a *args) data() []byte {
	for i, w := range a.words {
		if b, ok := a.parseData(w); ok {
			a.take(i)
			return b
		}
	}
	if s, ok := a.str("data"); ok {
		if b, ok := a.parseData(s); ok {
			return b
		}
		a.fail("%q is no data", s)
	}
	if s, ok := a.str("len"); ok {
		return pattern('a', 0, a.number(s, "len", 24))
	}
	return nil
}

func (a *args) parseData(w string) ([]byte, bool) {
	if h, ok := strings.CutPrefix(w, "0x"); ok {
		b, err := hex.DecodeString(h)
		return b, err == nil
	}
	if len(w) < 6 || w[1] != '[' || w[len(w)-1] != ']' {
		return nil, false
	}
	from, to, ok := strings.Cut(w[2:len(w)-1], ":")
	if !ok {
		return nil, false
	}
	i, j := a.number(from, "data", 24), a.number(to, "data", 24)
	if j < i {
		a.fail("%q ends before it begins", w)
		j = i
	}
	return pattern(w[0], i, j), true
}

// pattern returns bytes i to j-1 of a pattern: no two offsets a multiple of 256
// apart, and no two letters, give the same bytes for long.
func pattern(name byte, i, j uint64) []byte {
	b := make([]byte, j-i)
	if name == '0' {
		return b
	}
	for k := range b {
		n := uint32(i) + uint32(k)
		b[k] = byte((n*0x9e3779b1 + uint32(name)*0x85ebca6b) >> 13)
	}
	return b
}

var accessNames = map[string]qp.Access{
	"write": qp.RemoteWrite, "read": qp.RemoteRead, "atomic": qp.RemoteAtomic, "flush": qp.FlushGlobal,
	"persist": qp.FlushPersistent, "bind": qp.MWBind, "zero": qp.ZeroBased, "none": 0,
}

const allAccess = qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic | qp.FlushGlobal | qp.FlushPersistent | qp.MWBind

func (a *args) access(def qp.Access) qp.Access {
	s, ok := a.str("access")
	if !ok {
		return def
	}
	def = 0
	for w := range strings.SplitSeq(s, ",") {
		bit, ok := accessNames[w]
		if !ok {
			a.fail("%q is no right", w)
		}
		def |= bit
	}
	return def
}

// done fails where an unknown word is left.
func (a *args) done() error {
	if len(a.words) != 0 {
		a.fail("%q is not understood", strings.Join(a.words, " "))
	}
	return a.err
}

// lookup finds the value whose name is s in any case.
func lookup[T interface {
	~uint8
	String() string
}](s string) (T, bool) {
	for i := range 256 {
		n := T(i).String()
		if n == strconv.Itoa(i) {
			break // past the last one
		}
		if strings.EqualFold(n, s) {
			return T(i), true
		}
	}
	return 0, false
}

var statuses = map[string]qp.Status{
	"success": qp.Success, "loc_len_err": qp.LocalLengthErr, "loc_qp_op_err": qp.LocalQPOpErr,
	"loc_prot_err": qp.LocalProtErr, "loc_access_err": qp.LocalAccessErr, "wr_flush_err": qp.WRFlushErr, "bad_resp_err": qp.BadRespErr,
	"rem_inv_req_err": qp.RemoteInvalidReqErr, "rem_access_err": qp.RemoteAccessErr,
	"rem_op_err": qp.RemoteOpErr, "retry_exc_err": qp.RetryExcErr, "rnr_retry_exc_err": qp.RNRRetryExcErr,
}

func (a *args) status(s string) qp.Status {
	v, ok := statuses[s]
	if !ok {
		a.fail("%q is no status", s)
	}
	return v
}

// window parses T, +T, T1..T2 or +T1..+T2.
func window(s string, now time.Duration) (from, to time.Duration, err error) {
	lo, hi, ranged := strings.Cut(s, "..")
	if from, err = moment(lo, now); err != nil {
		return 0, 0, err
	}
	to = from
	if ranged {
		if to, err = moment(hi, now); err == nil && to < from {
			err = fmt.Errorf("window %s ends before it begins", s)
		}
	}
	return from, to, err
}

func moment(s string, now time.Duration) (time.Duration, error) {
	t, relative := strings.CutPrefix(s, "+")
	d, err := time.ParseDuration(t)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no time", s)
	}
	if relative {
		d += now
	}
	return d, nil
}
