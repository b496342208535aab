package script

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/qp"
)

// Words are the words of a statement after its name: key=value, flags, and words whose
// meaning depends on their position. The methods that remove words return zero values after
// a fault; Done returns it.
type Words struct {
	words []string
	err   error // the first fault
}

// SplitWords cuts a statement into its words.
func SplitWords(s string) *Words { return &Words{words: strings.Fields(s)} }

// Rest returns the words that are left.
func (a *Words) Rest() []string { return a.words }

// peek returns the first word, and leaves it.
func (a *Words) peek() string {
	if len(a.words) == 0 {
		return ""
	}
	return a.words[0]
}

// Fail records a fault, unless there was one before.
func (a *Words) Fail(format string, v ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, v...)
	}
}

// Next removes the first word and returns it.
func (a *Words) Next(what string) string {
	if len(a.words) == 0 {
		a.Fail("%s is missing", what)
		return ""
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// take removes the i-th word and returns it.
func (a *Words) take(i int) string {
	w := a.words[i]
	a.words = append(append([]string{}, a.words[:i]...), a.words[i+1:]...)
	return w
}

// Str removes key=value and returns the value.
func (a *Words) Str(key string) (string, bool) {
	for i, w := range a.words {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			a.take(i)
			return v, true
		}
	}
	return "", false
}

// Flag removes a bare word and reports whether it was there.
func (a *Words) Flag(name string) bool {
	for i, w := range a.words {
		if w == name {
			a.take(i)
			return true
		}
	}
	return false
}

func (a *Words) number(s, what string, bits int) uint64 {
	n, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		a.Fail("%s: %q is no number of %d bits", what, s, bits)
	}
	return n
}

// Num removes key=number and returns the number, or def.
func (a *Words) Num(key string, bits int, def uint64) uint64 {
	if s, ok := a.Str(key); ok {
		return a.number(s, key, bits)
	}
	return def
}

// Int is Num for an int.
func (a *Words) Int(key string, def int) int { return int(a.Num(key, 31, uint64(def))) }

// Data removes a DATA word or len=N and returns its bytes, or nil where there is
// neither.
func (a *Words) Data() []byte {
	for i, w := range a.words {
		if b, ok := a.parseData(w); ok {
			a.take(i)
			return b
		}
	}
	if s, ok := a.Str("data"); ok {
		if b, ok := a.parseData(s); ok {
			return b
		}
		a.Fail("%q is no data", s)
	}
	if s, ok := a.Str("len"); ok {
		return Pattern('a', 0, a.number(s, "len", 24))
	}
	return nil
}

func (a *Words) parseData(w string) ([]byte, bool) {
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
		a.Fail("%q ends before it begins", w)
		j = i
	}
	return Pattern(w[0], i, j), true
}

// Pattern returns bytes i to j-1 of a pattern: no two offsets a multiple of 256
// apart, and no two letters, give the same bytes for long.
func Pattern(name byte, i, j uint64) []byte {
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

func (a *Words) access(def qp.Access) qp.Access {
	s, ok := a.Str("access")
	if !ok {
		return def
	}
	def = 0
	for w := range strings.SplitSeq(s, ",") {
		bit, ok := accessNames[w]
		if !ok {
			a.Fail("%q is no right", w)
		}
		def |= bit
	}
	return def
}

// Done fails where an unknown word is left.
func (a *Words) Done() error {
	if len(a.words) != 0 {
		a.Fail("%q is not understood", strings.Join(a.words, " "))
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

func (a *Words) status(s string) qp.Status {
	v, ok := statuses[s]
	if !ok {
		a.Fail("%q is no status", s)
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

// duration removes key=duration and returns it, or 0.
func (a *Words) duration(key string) time.Duration {
	s, ok := a.Str(key)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		a.Fail("%s: %q is no duration", key, s)
	}
	return d
}
