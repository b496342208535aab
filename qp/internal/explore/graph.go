package explore

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// Kind says how a field counts in the fingerprint of a state.
type Kind uint8

// Kinds of field.
const (
	Plain   Kind = iota // its value
	Ignored             // not at all: counters, what only reports
	Instant             // a time in nanoseconds: how far it is from now; 0 is none
)

// Graph copies and fingerprints a graph of values of type W: everything that a *W reaches
// through pointers, slices, maps and interfaces, unexported fields included. Only Classify
// treats fields by name.
//
// A pointer or slice into the middle of something is followed as that, if what it points
// into was reached before it: buffers that others refer to must be first in W. Functions,
// strings and types of the package net/netip are shared by the copies. A time.Time counts
// as an Instant.
type Graph[W any] struct {
	// Classify says how a field of a struct counts. Nil: all are Plain.
	Classify func(t reflect.Type, field string) Kind

	plans   map[reflect.Type]*plan
	dynamic map[unsafe.Pointer]*plan // of interfaces, by their first word
	seed    maphash.Seed
	spans   []span
	buf     []byte
}

// span is a piece of memory that was reached, and its copy.
type span struct {
	src, dst unsafe.Pointer
	size     uintptr
}

// Copy is a graph of its own. Its memory is used again by the next CopyFrom.
type Copy[W any] struct {
	W      *W
	pieces []piece
}

// piece is memory that a Copy owns, in the order in which it was needed.
type piece struct {
	t    reflect.Type
	n    int
	mem  reflect.Value // slice of t, of n elements
	elem reflect.Value // the first of them
}

// plan is the list of steps by which values of a type are copied.
type plan struct {
	t     reflect.Type
	steps []step
	refs  bool // holds a pointer of any kind
}

type step struct {
	off, size uintptr
	what      what
	elem      *plan
	t         reflect.Type
}

type what uint8

const (
	bytesStep what = iota // plain bytes, without padding
	instantStep
	timeStep // an instant as a time.Time
	pointerStep
	sliceStep
	stringStep
	interfaceStep
	mapStep
)

func (g *Graph[W]) plan(t reflect.Type) *plan {
	if p := g.plans[t]; p != nil {
		return p
	}
	if g.plans == nil {
		g.plans, g.seed = map[reflect.Type]*plan{}, maphash.MakeSeed()
	}
	p := &plan{t: t}
	g.plans[t] = p
	g.take(p, t, 0, Plain)
	return p
}

// take adds the steps of a value of type t at off to p.
func (g *Graph[W]) take(p *plan, t reflect.Type, off uintptr, k Kind) {
	if t == reflect.TypeFor[time.Time]() { // its location is shared
		if k != Ignored {
			p.add(timeStep, off, t.Size(), nil, nil)
		}
		return
	}
	if t.PkgPath() == "net/netip" { // holds pointers that stand for what is equal
		if k == Plain {
			p.add(bytesStep, off, t.Size(), nil, nil)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			fk := k
			if fk == Plain && g.Classify != nil {
				fk = g.Classify(t, f.Name)
			}
			g.take(p, f.Type, off+f.Offset, fk)
		}
	case reflect.Array:
		for i := range t.Len() {
			if flat(t.Elem()) && k == Plain {
				p.add(bytesStep, off, t.Size(), nil, nil)
				break
			}
			g.take(p, t.Elem(), off+uintptr(i)*t.Elem().Size(), k)
		}
	case reflect.Pointer:
		p.refs = true
		p.add(pointerStep, off, 0, g.plan(t.Elem()), t)
	case reflect.Slice:
		p.refs = true
		p.add(sliceStep, off, 0, g.plan(t.Elem()), t)
	case reflect.Interface:
		p.refs = true
		p.add(interfaceStep, off, 0, nil, t)
	case reflect.String:
		if k == Plain {
			p.add(stringStep, off, 0, nil, nil)
		}
	case reflect.Func:
	case reflect.Map:
		p.refs = true
		if k == Plain {
			p.add(mapStep, off, 0, nil, t)
		}
	case reflect.Chan, reflect.UnsafePointer:
		panic(fmt.Sprintf("explore: %v is not followed", t))
	default:
		switch k {
		case Plain:
			p.add(bytesStep, off, t.Size(), nil, nil)
		case Instant:
			if t.Kind() != reflect.Int64 {
				panic(fmt.Sprintf("explore: %v as an instant, want int64", t))
			}
			p.add(instantStep, off, 8, nil, nil)
		}
	}
}

// flat reports whether t is plain bytes from end to end.
func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Uint8, reflect.Int16, reflect.Uint16, reflect.Int32, reflect.Uint32,
		reflect.Int64, reflect.Uint64, reflect.Int, reflect.Uint, reflect.Uintptr:
		return true
	case reflect.Array:
		return flat(t.Elem())
	}
	return false
}

// add appends a step, joined to the one before where both are plain bytes side by
// side.
func (p *plan) add(w what, off, size uintptr, elem *plan, t reflect.Type) {
	if n := len(p.steps); w == bytesStep && n != 0 && p.steps[n-1].what == bytesStep && p.steps[n-1].off+p.steps[n-1].size == off {
		p.steps[n-1].size += size
		return
	}
	p.steps = append(p.steps, step{off, size, w, elem, t})
}

// find returns the span that p lies in.
func (g *Graph[W]) find(p unsafe.Pointer) int {
	for i := range g.spans {
		if s := &g.spans[i]; uintptr(p) >= uintptr(s.src) && uintptr(p) < uintptr(s.src)+s.size {
			return i
		}
	}
	return -1
}

func (g *Graph[W]) reach(src, dst unsafe.Pointer, size uintptr) {
	for _, s := range g.spans {
		if uintptr(s.src) < uintptr(src)+size && uintptr(src) < uintptr(s.src)+s.size {
			panic("explore: a part of a buffer was reached before the buffer: put the buffer first")
		}
	}
	g.spans = append(g.spans, span{src, dst, size})
}

// CopyFrom makes c a copy of w, which keeps nothing of w but what copies share.
func (g *Graph[W]) CopyFrom(c *Copy[W], w *W) {
	g.spans = g.spans[:0]
	p := g.plan(reflect.TypeFor[W]())
	at := 0
	c.W = (*W)(g.copyBlock(c, &at, unsafe.Pointer(w), p, 1))
}

// copyBlock copies n values of p at src into memory of c.
func (g *Graph[W]) copyBlock(c *Copy[W], at *int, src unsafe.Pointer, p *plan, n int) unsafe.Pointer {
	if *at == len(c.pieces) {
		c.pieces = append(c.pieces, piece{})
	}
	pc := &c.pieces[*at]
	*at++
	if pc.t != p.t || pc.n != n {
		mem := reflect.MakeSlice(reflect.SliceOf(p.t), n, n)
		*pc = piece{p.t, n, mem, mem.Index(0)}
	}
	dst := pc.mem.UnsafePointer()
	size := p.t.Size()
	g.reach(src, dst, size*uintptr(n))
	if !p.refs {
		copy(unsafe.Slice((*byte)(dst), size*uintptr(n)), unsafe.Slice((*byte)(src), size*uintptr(n)))
	} else {
		if n == 1 { // with what the garbage collector must know, and without an allocation
			pc.elem.Set(reflect.NewAt(p.t, src).Elem())
		} else {
			reflect.Copy(pc.mem, reflect.SliceAt(p.t, src, n))
		}
		for i := range uintptr(n) {
			g.copyRefs(c, at, unsafe.Add(src, i*size), unsafe.Add(dst, i*size), p)
		}
	}
	return dst
}

// copyRefs makes the pointers of a value that was copied to dst point to copies.
func (g *Graph[W]) copyRefs(c *Copy[W], at *int, src, dst unsafe.Pointer, p *plan) {
	for i := range p.steps {
		s := &p.steps[i]
		switch s.what {
		case pointerStep:
			q := *(*unsafe.Pointer)(unsafe.Add(src, s.off))
			if q != nil {
				*(*unsafe.Pointer)(unsafe.Add(dst, s.off)) = g.copyAt(c, at, q, s.elem, 1)
			}
		case sliceStep:
			h := (*[]byte)(unsafe.Add(src, s.off)) // of any element: only its header is looked at
			if n := cap(*h); n != 0 && s.elem.t.Size() != 0 {
				q := g.copyAt(c, at, unsafe.Pointer(unsafe.SliceData(*h)), s.elem, n)
				*(*unsafe.Pointer)(unsafe.Add(dst, s.off)) = q // the first word is the pointer
			}
		case interfaceStep:
			if q, p := g.behind(s.t, unsafe.Add(src, s.off)); q != nil {
				// Its second word is the pointer; the first, the type, was copied.
				*(*unsafe.Pointer)(unsafe.Add(dst, s.off+unsafe.Sizeof(uintptr(0)))) = g.copyAt(c, at, q, p, 1)
			}
		case mapStep:
			v := reflect.NewAt(s.t, unsafe.Add(src, s.off)).Elem()
			if v.IsNil() {
				continue
			}
			to := reflect.MakeMapWithSize(s.t, v.Len())
			for _, k := range sortedKeys(v) {
				e := v.MapIndex(k)
				if e.Kind() == reflect.Pointer && !e.IsNil() {
					e = reflect.NewAt(s.t.Elem().Elem(), g.copyAt(c, at, e.UnsafePointer(), g.plan(s.t.Elem().Elem()), 1))
				} else if g.plan(s.t.Elem()).refs {
					panic(fmt.Sprintf("explore: %v is not followed", s.t))
				}
				to.SetMapIndex(k, e)
			}
			reflect.NewAt(s.t, unsafe.Add(dst, s.off)).Elem().Set(to)
		}
	}
}

// behind returns the pointer that an interface of type t at p holds, and what it
// points to; nil where it holds none.
func (g *Graph[W]) behind(t reflect.Type, p unsafe.Pointer) (unsafe.Pointer, *plan) {
	word := *(*unsafe.Pointer)(p)
	if word == nil {
		return nil, nil
	}
	to, ok := g.dynamic[word]
	if !ok {
		if e := reflect.NewAt(t, p).Elem().Elem(); e.Kind() == reflect.Pointer {
			to = g.plan(e.Type().Elem())
		}
		if g.dynamic == nil {
			g.dynamic = map[unsafe.Pointer]*plan{}
		}
		g.dynamic[word] = to
	}
	if to == nil {
		return nil, nil
	}
	return *(*unsafe.Pointer)(unsafe.Add(p, unsafe.Sizeof(word))), to
}

func (g *Graph[W]) copyAt(c *Copy[W], at *int, q unsafe.Pointer, p *plan, n int) unsafe.Pointer {
	if i := g.find(q); i >= 0 {
		s := g.spans[i]
		return unsafe.Add(s.dst, uintptr(q)-uintptr(s.src))
	}
	return g.copyBlock(c, at, q, p, n)
}

// Fingerprint returns 64 bits that are the same for states that differ only in what is
// Ignored and in the clock: now is the time of w.
func (g *Graph[W]) Fingerprint(w *W, now int64) uint64 {
	g.spans, g.buf = g.spans[:0], g.buf[:0]
	p := g.plan(reflect.TypeFor[W]())
	g.reach(unsafe.Pointer(w), nil, p.t.Size())
	g.hash(unsafe.Pointer(w), p, now)
	return maphash.Bytes(g.seed, g.buf)
}

func (g *Graph[W]) word(v uint64) {
	g.buf = append(g.buf, byte(v), byte(v>>8), byte(v>>16), byte(v>>24), byte(v>>32), byte(v>>40), byte(v>>48), byte(v>>56))
}

func (g *Graph[W]) hash(src unsafe.Pointer, p *plan, now int64) {
	for i := range p.steps {
		s := &p.steps[i]
		at := unsafe.Add(src, s.off)
		switch s.what {
		case bytesStep:
			g.buf = append(g.buf, unsafe.Slice((*byte)(at), s.size)...)
		case instantStep:
			v := *(*int64)(at)
			if v != 0 {
				v = v - now ^ -1<<63
			}
			g.word(uint64(v))
		case timeStep:
			if t := (*time.Time)(at); t.IsZero() {
				g.word(0)
			} else {
				g.word(uint64(t.UnixNano() - now ^ -1<<63))
			}
		case stringStep:
			v := *(*string)(at)
			g.word(uint64(len(v)))
			g.buf = append(g.buf, v...)
		case pointerStep:
			g.hashAt(*(*unsafe.Pointer)(at), s.elem, 1, now)
		case sliceStep:
			h := (*[]byte)(at)
			g.word(uint64(len(*h)))
			if cap(*h) != 0 {
				g.hashAt(unsafe.Pointer(unsafe.SliceData(*h)), s.elem, cap(*h), now)
			}
		case interfaceStep:
			if q, p := g.behind(s.t, at); q != nil {
				g.hashAt(q, p, 1, now)
			} else {
				g.word(0)
			}
		case mapStep:
			v := reflect.NewAt(s.t, at).Elem()
			g.word(uint64(v.Len()))
			for _, k := range sortedKeys(v) {
				g.buf = fmt.Append(g.buf, k)
				if e := v.MapIndex(k); e.Kind() == reflect.Pointer {
					g.hashAt(e.UnsafePointer(), g.plan(s.t.Elem().Elem()), 1, now)
				} else {
					g.buf = fmt.Append(g.buf, e)
				}
			}
		}
	}
}

// sortedKeys returns the keys of a map, in the order of what they print.
func sortedKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return keys
}

func (g *Graph[W]) hashAt(q unsafe.Pointer, p *plan, n int, now int64) {
	if q == nil {
		g.word(0)
		return
	}
	if i := g.find(q); i >= 0 {
		g.word(1 + uint64(i)<<32 + uint64(uintptr(q)-uintptr(g.spans[i].src)))
		return
	}
	size := p.t.Size()
	g.reach(q, nil, size*uintptr(n))
	if len(p.steps) == 1 && p.steps[0].what == bytesStep && p.steps[0].size == size { // plain from end to end
		g.buf = append(g.buf, unsafe.Slice((*byte)(q), size*uintptr(n))...)
		return
	}
	for i := range uintptr(n) {
		g.hash(unsafe.Add(q, i*size), p, now)
	}
}
