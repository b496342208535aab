// Package explore visits all states that pure machines and the link between them can reach,
// for tests. The machines are the real ones: a state is a copy of them, made by reflection,
// and a move is a call of their methods.
package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Move is something that may happen next: a number whose meaning the model defines.
type Move uint32

// Model is what is explored: machines, a link, and what an application does.
type Model[W any] struct {
	Graph Graph[W]
	// Start returns the first state.
	Start func() *W
	// Moves appends what may happen in w. None: the state is an end.
	Moves func(w *W, to []Move) []Move
	// Apply makes m happen. An error is a property that does not hold.
	Apply func(w *W, m Move) error
	// Finish runs w without faults until nothing happens any more, and returns what is
	// wrong at the end. It is called for each state, on a copy.
	Finish func(w *W) error
	// Now is the time at which w stands, in nanoseconds of the machines' clock.
	Now func(w *W) int64
}

// Result says what was explored.
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

// Counterexample is a sequence of moves after which a property does not hold.
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

// path is the way to a state: moves from the first one, then frames, each a move
// from the one before.
type path[W any] struct {
	before []Move
	frames []frame[W]
	n      int
}

// moves returns those that lead to the last frame.
func (p *path[W]) moves() []Move {
	to := slices.Clone(p.before)
	for _, f := range p.frames[:max(p.n-1, 0)] {
		to = append(to, f.moves[f.next-1])
	}
	return to
}

// push makes room for another frame and returns it.
func (p *path[W]) push() *frame[W] {
	if p.n == len(p.frames) {
		p.frames = append(p.frames, frame[W]{})
	}
	p.n++
	return &p.frames[p.n-1]
}

// left is a state with moves that were not made yet, as the path to it.
type left struct{ before, moves []Move }

// run is the state of a Run.
type run[W any] struct {
	m     *Model[W]
	r     Result
	seen  *set
	trial Copy[W]
	rng   *rand.Rand
	path  path[W]
	left  [][]left // by depth
}

// Run visits the states of m, each once, until limit are seen: depth first in a random
// order that is the same each time. From time to time it continues from the state nearest
// to the first one that has moves left, so that the states are spread where not all are
// visited. The error is a *Counterexample, as short as leaving out moves makes it.
func Run[W any](m *Model[W], limit int) (Result, error) {
	x := run[W]{m: m, seen: newSet(), rng: rand.New(rand.NewPCG(1, 2))}
	p := &x.path
	m.Graph.CopyFrom(&p.push().copy, m.Start())
	if err := x.enter(); err != nil {
		return x.r, err
	}
	quota := max(limit/2000, 20)
	for turn := quota; x.r.States < limit; {
		if p.n == 0 || x.r.States >= turn {
			turn = x.r.States + quota
			x.park()
			if !x.unpark() {
				x.r.Whole = true
				break
			}
		}
		f := &p.frames[p.n-1]
		if f.next == len(f.moves) {
			p.n--
			continue
		}
		f.next++
		mv, from := f.moves[f.next-1], f.copy.W
		to := p.push()
		m.Graph.CopyFrom(&to.copy, from)
		x.r.Moves++
		if err := m.Apply(to.copy.W, mv); err != nil {
			return x.r, x.fail(err)
		}
		if err := x.enter(); err != nil {
			return x.r, err
		}
	}
	return x.r, nil
}

// enter visits the last state of the path, and leaves it when it is not new.
func (x *run[W]) enter() error {
	m, p := x.m, &x.path
	f := &p.frames[p.n-1]
	if !x.seen.add(m.Graph.Fingerprint(f.copy.W, m.Now(f.copy.W))) {
		p.n--
		return nil
	}
	x.r.States++
	x.r.Depth = max(x.r.Depth, len(p.before)+p.n-1)
	m.Graph.CopyFrom(&x.trial, f.copy.W)
	if err := m.Finish(x.trial.W); err != nil {
		return x.fail(err)
	}
	f.moves, f.next = m.Moves(f.copy.W, f.moves[:0]), 0
	x.rng.Shuffle(len(f.moves), func(i, j int) { f.moves[i], f.moves[j] = f.moves[j], f.moves[i] })
	return nil
}

// park leaves the path, and stores the moves that are left on it.
func (x *run[W]) park() {
	p := &x.path
	way := p.moves()
	for i := range p.frames[:p.n] {
		f, depth := &p.frames[i], len(p.before)+i
		if f.next == len(f.moves) {
			continue
		}
		for len(x.left) <= depth {
			x.left = append(x.left, nil)
		}
		x.left[depth] = append(x.left[depth], left{way[:depth:depth], slices.Clone(f.moves[f.next:])})
	}
	p.n = 0
}

// unpark continues from the state nearest to the first one that has moves left, and reports
// false when there is none.
func (x *run[W]) unpark() bool {
	depth := slices.IndexFunc(x.left, func(l []left) bool { return len(l) != 0 })
	if depth < 0 {
		return false
	}
	l := x.left[depth][0]
	x.left[depth] = x.left[depth][1:]
	w := x.m.Start()
	for _, mv := range l.before {
		if err := x.m.Apply(w, mv); err != nil {
			panic(fmt.Sprintf("explore: moves that were possible are not: %v", err))
		}
	}
	x.path.before = l.before
	f := x.path.push()
	x.m.Graph.CopyFrom(&f.copy, w)
	f.moves, f.next = l.moves, 0
	return true
}

func (x *run[W]) fail(err error) error {
	return x.m.shorten(&Counterexample{Moves: x.path.moves(), Err: err})
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
