package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// A package is compiled once with many of its mutants in it; an environment variable selects
// one. That is ten times as fast as a build for each. Mutants of constants, and those that
// would compute an expression twice, are built one by one.

// helpers is a file that is added to the compiled package. Mutant numbers start at 1.
const helpers = `package %s

import "os"

var zzMutant = func() (n int) {
	for _, c := range os.Getenv("` + variable + `") {
		n = 10*n + int(c-'0')
	}
	return n
}()

type zzInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

type zzOrdered interface{ zzInteger | ~float32 | ~float64 | ~string }

func zzLess[T zzOrdered](id int, a, b T) bool {
	if zzMutant == id {
		return a <= b
	}
	return a < b
}

func zzLessEqual[T zzOrdered](id int, a, b T) bool {
	if zzMutant == id {
		return a < b
	}
	return a <= b
}

func zzPick[T any](id int, a, b T) T {
	if zzMutant == id {
		return b
	}
	return a
}

func zzNext[T zzInteger](id int, v T) T {
	if zzMutant == id {
		return v + 1
	}
	return v
}

func zzCond(yes, no int, c bool) bool { return zzMutant != no && (c || zzMutant == yes) }
`

const variable = "ROCE_MUTANT"

// edit replaces from:to of a file by the result of gen, which renders parts of it.
type edit struct {
	from, to int
	inner    bool // of two edits of the same range, the one inside the other
	gen      func(render func(from, to int) string) string
}

// schema builds the sources of a package with its mutants in them: files by name, and the
// number of each mutant that they contain.
func schema(root, pkg string, files []string, jobs []*job) (sources map[string]string, ids map[*job]int, err error) {
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		f, err := parser.ParseFile(fset, filepath.Join(root, pkg, name), nil, parser.ParseComments)
		if err != nil {
			return nil, nil, err
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil)}
	tp, err := conf.Check(pkg, fset, parsed, info)
	if err != nil {
		return nil, nil, err
	}
	sources, ids = map[string]string{}, map[*job]int{}
	for i, f := range parsed {
		name := filepath.Join(root, pkg, files[i])
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		s := schemer{src: src, fset: fset, info: info, pkg: tp, ids: ids, jobs: map[[2]int][]*job{}}
		for _, j := range jobs {
			if filepath.Join(root, j.file) == name {
				s.jobs[[2]int{j.from, j.to}] = append(s.jobs[[2]int{j.from, j.to}], j)
			}
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				s.walk(d.Body, nil)
			}
		}
		sources[name] = s.render()
	}
	sources[filepath.Join(root, pkg, "zz_mutants.go")] = fmt.Sprintf(helpers, parsed[0].Name.Name)
	return sources, ids, nil
}

type schemer struct {
	src   []byte
	fset  *token.FileSet
	info  *types.Info
	pkg   *types.Package
	jobs  map[[2]int][]*job
	ids   map[*job]int
	edits []edit
}

func (s *schemer) at(p token.Pos) int { return s.fset.Position(p).Offset }

// number assigns a number to the mutant that changes from:to to text, or returns 0.
func (s *schemer) number(from, to int, text string) int {
	for _, j := range s.jobs[[2]int{from, to}] {
		if j.text == text {
			if s.ids[j] == 0 {
				s.ids[j] = len(s.ids) + 1
			}
			return s.ids[j]
		}
	}
	return 0
}

func (s *schemer) add(n ast.Node, inner bool, gen func(render func(from, to int) string) string) {
	s.edits = append(s.edits, edit{s.at(n.Pos()), s.at(n.End()), inner, gen})
}

func (s *schemer) walk(n ast.Node, parent ast.Node) {
	ast.Inspect(n, func(c ast.Node) bool {
		if c == nil || c == n {
			return true
		}
		if s.visit(c, n) {
			s.walk(c, n)
		}
		return false
	})
	if b, ok := n.(*ast.BlockStmt); ok {
		for _, st := range b.List {
			s.statement(st)
		}
	}
	if b, ok := n.(*ast.CaseClause); ok {
		for _, st := range b.Body {
			s.statement(st)
		}
	}
	switch n := n.(type) {
	case *ast.IfStmt:
		s.condition(n.Cond)
	case *ast.CaseClause:
		for _, e := range n.List {
			if isCondition(e) {
				s.condition(e)
			}
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			from, to := s.at(n.Cond.Pos()), s.at(n.Cond.End())
			text := string(s.src[from:to])
			if id := s.number(from, to, "("+text+") && false"); id != 0 {
				s.add(n.Cond, false, func(r func(int, int) string) string { return fmt.Sprintf("(zzMutant != %d && (%s))", id, r(from, to)) })
			}
		}
	}
}

// constant reports whether e is a constant or must be one.
func (s *schemer) constant(e ast.Expr) bool { return s.info.Types[e].Value != nil }

// visit creates the edits of a node, and reports whether its children may have more.
func (s *schemer) visit(n, parent ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.ArrayType, *ast.StructType, *ast.FuncType, *ast.InterfaceType:
		return false
	case *ast.KeyValueExpr:
		s.walk(&ast.ExprStmt{X: n.Value}, parent)
		return false
	case *ast.BinaryExpr:
		if s.constant(n) {
			return false
		}
		s.binary(n)
	case *ast.UnaryExpr:
		if n.Op != token.NOT {
			return true
		}
		at := s.at(n.OpPos)
		if id := s.number(at, at+len(n.Op.String()), ""); id != 0 {
			from, to := s.at(n.X.Pos()), s.at(n.X.End())
			s.add(n, true, func(r func(int, int) string) string {
				return fmt.Sprintf("((%s) == (zzMutant == %d))", r(from, to), id)
			})
		}
	case *ast.BasicLit:
		typ, ok := s.integer(n)
		if _, isCase := parent.(*ast.CaseClause); n.Kind != token.INT || !ok || isCase {
			return true
		}
		from, to := s.at(n.Pos()), s.at(n.End())
		for _, j := range s.jobs[[2]int{from, to}] {
			id := s.number(from, to, j.text)
			s.add(n, true, func(func(int, int) string) string { return fmt.Sprintf("zzNext[%s](%d, %s)", typ, id, n.Value) })
		}
	}
	return true
}

// integer returns the name of e's type, and false if it is no integer, or is a type of
// another package, which the file may not import.
func (s *schemer) integer(e ast.Expr) (string, bool) {
	t := s.info.Types[e].Type
	basic, ok := t.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsInteger == 0 || basic.Info()&types.IsUntyped != 0 {
		return "", false
	}
	if named, ok := t.(*types.Named); ok && named.Obj().Pkg() != s.pkg {
		return "", false
	}
	return types.TypeString(t, types.RelativeTo(s.pkg)), true
}

func (s *schemer) binary(n *ast.BinaryExpr) {
	at := s.at(n.OpPos)
	for _, o := range opposites[n.Op] {
		x, y := [2]int{s.at(n.X.Pos()), s.at(n.X.End())}, [2]int{s.at(n.Y.Pos()), s.at(n.Y.End())}
		form := ""
		switch n.Op {
		case token.LSS:
			form = "zzLess(%d, %s, %s)"
		case token.LEQ:
			form = "zzLessEqual(%d, %s, %s)"
		case token.GTR:
			form, x, y = "zzLess(%d, %s, %s)", y, x
		case token.GEQ:
			form, x, y = "zzLessEqual(%d, %s, %s)", y, x
		case token.EQL, token.NEQ:
			form = "((zzMutant == %d) != (%s " + n.Op.String() + " %s))"
		case token.LAND, token.LOR:
			form = "((((%[2]s) != (zzMutant == %[1]d)) " + n.Op.String() + " ((%[3]s) != (zzMutant == %[1]d))) != (zzMutant == %[1]d))"
		case token.MUL:
			continue // the quotient might panic
		default:
			typ, ok := s.integer(n)
			if !ok || s.calls(n) {
				continue
			}
			op := strings.ReplaceAll(n.Op.String(), "%", "%%")
			form = "zzPick[" + typ + "](%[1]d, (%[2]s) " + op + " (%[3]s), (%[2]s) " + o + " (%[3]s))"
		}
		if n.Op == token.GTR || n.Op == token.GEQ || n.Op == token.LSS || n.Op == token.LEQ {
			if s.constant(n.X) && s.constant(n.Y) {
				continue
			}
		}
		id := s.number(at, at+len(n.Op.String()), o)
		if id == 0 {
			continue
		}
		s.add(n, true, func(r func(int, int) string) string {
			return fmt.Sprintf(form, id, r(x[0], x[1]), r(y[0], y[1]))
		})
	}
}

// calls reports whether e calls a function, which must not be called twice.
func (s *schemer) calls(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if tv := s.info.Types[c.Fun]; !tv.IsType() && !tv.IsBuiltin() {
				found = true
			}
		}
		return !found
	})
	return found
}

func (s *schemer) condition(e ast.Expr) {
	from, to := s.at(e.Pos()), s.at(e.End())
	text := string(s.src[from:to])
	yes, no := s.number(from, to, "("+text+") || true"), s.number(from, to, "("+text+") && false")
	if yes == 0 && no == 0 {
		return
	}
	for _, id := range []*int{&yes, &no} {
		if *id == 0 { // this mutant is not in the list of jobs
			*id = -1
		}
	}
	s.add(e, false, func(r func(int, int) string) string { return fmt.Sprintf("zzCond(%d, %d, %s)", yes, no, r(from, to)) })
}

func (s *schemer) statement(st ast.Stmt) {
	from, to := s.at(st.Pos()), s.at(st.End())
	switch st := st.(type) {
	case *ast.ExprStmt:
		if c, ok := st.X.(*ast.CallExpr); ok {
			if f, ok := c.Fun.(*ast.Ident); ok && f.Name == "panic" {
				return // the code after it is never reached, and the compiler relies on that
			}
		}
	case *ast.IncDecStmt, *ast.BranchStmt:
	case *ast.AssignStmt:
		s.assignment(st)
		return
	default:
		return
	}
	if id := s.number(from, to, "{}"); id != 0 {
		s.add(st, false, func(r func(int, int) string) string { return fmt.Sprintf("if zzMutant != %d { %s }", id, r(from, to)) })
	}
}

func (s *schemer) assignment(st *ast.AssignStmt) {
	if st.Tok == token.DEFINE {
		return
	}
	from, to := s.at(st.Pos()), s.at(st.End())
	at := s.at(st.TokPos)
	left, right := [2]int{from, s.at(st.Lhs[len(st.Lhs)-1].End())}, [2]int{s.at(st.Rhs[0].Pos()), to}
	blank := strings.Repeat("_, ", len(st.Lhs)-1) + "_ = "
	drop := s.number(from, to, "{}")
	if drop != 0 {
		s.add(st, false, func(r func(int, int) string) string {
			return fmt.Sprintf("if zzMutant != %d { %s }", drop, r(from, to))
		})
		return
	}
	if v := s.info.Types[st.Rhs[0]].Value; v == nil || v.Kind() != constant.Int || constant.Compare(v, token.LEQ, constant.MakeInt64(math.MaxInt32)) {
		// A larger constant cannot be assigned to the blank identifier, where it would be an
		// int.
		drop = s.number(from, to, blank+string(s.src[right[0]:right[1]]))
	}
	other, op := 0, ""
	for _, o := range opposites[st.Tok] {
		other, op = s.number(at, at+len(st.Tok.String()), o), o
	}
	if drop == 0 && other == 0 {
		return
	}
	s.add(st, true, func(r func(int, int) string) string {
		l, v := r(left[0], left[1]), r(right[0], right[1])
		out := ""
		if drop != 0 {
			out += fmt.Sprintf("if zzMutant == %d { %s%s } else ", drop, blank, v)
		}
		if other != 0 {
			out += fmt.Sprintf("if zzMutant == %d { %s %s %s } else ", other, l, op, v)
		}
		return out + fmt.Sprintf("{ %s %s %s }", l, st.Tok, v)
	})
}

// render returns the file with all edits.
func (s *schemer) render() string {
	sort.SliceStable(s.edits, func(i, j int) bool {
		a, b := &s.edits[i], &s.edits[j]
		switch {
		case a.from != b.from:
			return a.from < b.from
		case a.to != b.to:
			return a.to > b.to
		}
		return !a.inner && b.inner
	})
	return s.part(0, len(s.src), s.edits)
}

// part renders from:to with the edits inside it.
func (s *schemer) part(from, to int, edits []edit) string {
	var b strings.Builder
	at := from
	for i := 0; i < len(edits); {
		e := &edits[i]
		if e.from < at || e.to > to {
			i++
			continue
		}
		end := i + 1
		for end < len(edits) && edits[end].from < e.to {
			end++
		}
		inside := slices.Clone(edits[i+1 : end])
		b.Write(s.src[at:e.from])
		b.WriteString(e.gen(func(f, t int) string { return s.part(f, t, inside) }))
		at = e.to
		i = end
	}
	b.Write(s.src[at:to])
	return b.String()
}
