// Package explore walks through all states that pure machines and the link between
// them can reach, for tests. The machines are the ones that ship: a state is a
// copy of them, made by reflection, and a move is a call of their methods.
package explore

import (
	"fmt"
	"slices"
)

// Move is something that may happen next: a number that the model gives a meaning.
type Move uint32

// Model is what is explored: machines, a link, and what an application does.
type Model[W any] struct {
	Graph Graph[W]
	// Start makes the first state.
	Start func() *W
	// Moves appends what may happen in w. None: the state is an end.
	Moves func(w *W, to []Move) []Move
	// Apply makes m happen. An error is a property that does not hold.
	Apply func(w *W, m Move) error
	// Finish lets w go on without faults until nothing happens any more, and says
	// what is wrong with how it ends. It is called for each state, on a copy.
	Finish func(w *W) error
	// Now is the time at which w stands, in nanoseconds of the machines' clock.
	Now func(w *W) int64
}

// Result says what was seen.
type Result struct {
	States, Moves, Depth int
	Whole                bool // all that can be reached, not only Limit states
}

func (r Result) String() string {
	s := fmt.Sprintf("%d states, %d moves, depth %d", r.States, r.Moves, r.Depth)
	if !r.Whole {
		s += ", not all"
	}
	return s
}

// Counterexample is how a property came not to hold.
type Counterexample struct {
	Moves []Move
	Err   error
}

// Error implements error.
func (c *Counterexample) Error() string {
	return fmt.Sprintf("after %d moves: %v", len(c.Moves), c.Err)
}

// Unwrap returns what did not hold.
func (c *Counterexample) Unwrap() error { return c.Err }

// frame is a state on the way from the first to the present one.
type frame[W any] struct {
	copy  Copy[W]
	moves []Move
	next  int
}

// Run goes through the states of m, depth first, each once, until limit are seen.
// The error is a *Counterexample, as short as leaving out moves makes it.
func Run[W any](m *Model[W], limit int) (Result, error) {
	var (
		r     Result
		seen  = newSet()
		stack []frame[W]
		trial Copy[W]
		depth int
	)
	// enter looks at the state in stack[depth], and reports whether it is new.
	enter := func() (bool, error) {
		f := &stack[depth]
		if !seen.add(m.Graph.Fingerprint(f.copy.W, m.Now(f.copy.W))) {
			return false, nil
		}
		r.States++
		r.Depth = max(r.Depth, depth)
		m.Graph.CopyFrom(&trial, f.copy.W)
		if err := m.Finish(trial.W); err != nil {
			return true, err
		}
		f.moves, f.next = m.Moves(f.copy.W, f.moves[:0]), 0
		return true, nil
	}
	fail := func(err error) error {
		c := &Counterexample{Err: err}
		for _, f := range stack[:depth] {
			c.Moves = append(c.Moves, f.moves[f.next-1])
		}
		return m.shorten(c)
	}
	stack = append(stack, frame[W]{})
	m.Graph.CopyFrom(&stack[0].copy, m.Start())
	if _, err := enter(); err != nil {
		return r, fail(err)
	}
	for depth >= 0 && r.States < limit {
		f := &stack[depth]
		if f.next == len(f.moves) {
			depth--
			continue
		}
		mv := f.moves[f.next]
		f.next++
		if depth+1 == len(stack) {
			stack = append(stack, frame[W]{})
			f = &stack[depth]
		}
		m.Graph.CopyFrom(&stack[depth+1].copy, f.copy.W)
		depth++
		r.Moves++
		if err := m.Apply(stack[depth].copy.W, mv); err != nil {
			return r, fail(err)
		}
		isNew, err := enter()
		if err != nil {
			return r, fail(err)
		}
		if !isNew {
			depth--
		}
	}
	r.Whole = depth < 0
	return r, nil
}

// Replay makes the moves from the first state, leaving out those that cannot
// happen, and returns those made and what did not hold then, at the latest after
// a fair end. each, if not nil, is called before each move.
func (m *Model[W]) Replay(moves []Move, each func(*W, Move)) (made []Move, err error) {
	w := m.Start()
	var can []Move
	for _, mv := range moves {
		if can = m.Moves(w, can[:0]); !slices.Contains(can, mv) {
			continue
		}
		if each != nil {
			each(w, mv)
		}
		made = append(made, mv)
		if err := m.Apply(w, mv); err != nil {
			return made, err
		}
	}
	return made, m.Finish(w)
}

// shorten leaves out what the counterexample does not need.
func (m *Model[W]) shorten(c *Counterexample) *Counterexample {
	if made, err := m.Replay(c.Moves, nil); err != nil {
		c = &Counterexample{made, err}
	}
	for size := max(1, len(c.Moves)/2); size > 0; {
		shorter := false
		for i := 0; i+size <= len(c.Moves); {
			made, err := m.Replay(slices.Delete(slices.Clone(c.Moves), i, i+size), nil)
			if err != nil && len(made) < len(c.Moves) {
				c, shorter = &Counterexample{made, err}, true
				continue
			}
			i++
		}
		if !shorter {
			size /= 2
		}
	}
	return c
}

// set is a set of fingerprints.
type set struct {
	slots []uint64
	n     int
}

func newSet() *set { return &set{slots: make([]uint64, 1<<16)} }

// add reports whether v is new.
func (s *set) add(v uint64) bool {
	if v == 0 {
		v = 1
	}
	if s.n*2 >= len(s.slots) {
		old := s.slots
		s.slots, s.n = make([]uint64, 2*len(old)), 0
		for _, o := range old {
			if o != 0 {
				s.add(o)
			}
		}
	}
	mask := uint64(len(s.slots) - 1)
	for i := v & mask; ; i = (i + 1) & mask {
		switch s.slots[i] {
		case v:
			return false
		case 0:
			s.slots[i] = v
			s.n++
			return true
		}
	}
}
