package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mutant is one change of one file: the bytes from:to are replaced by text.
type mutant struct {
	file     string // in the module
	line     int
	from, to int
	text     string
	// id identifies the mutant without its line, so that it stays the same when other parts
	// of the file change: file, function, old and new text, and a number if a function has
	// several such changes.
	id string
}

// apply returns the file with the change.
func (m *mutant) apply(src []byte) []byte {
	return append(append(append([]byte{}, src[:m.from]...), m.text...), src[m.to:]...)
}

// opposites lists the replacements of a binary operator. The opposite of an inequality is not
// listed, because conditions are also made always true and always false.
var opposites = map[token.Token][]string{
	token.LSS: {"<="}, token.LEQ: {"<"}, token.GTR: {">="}, token.GEQ: {">"},
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LAND: {"||"}, token.LOR: {"&&"},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.SHL: {">>"}, token.SHR: {"<<"}, token.AND: {"|"}, token.OR: {"&"}, token.XOR: {"&"}, token.AND_NOT: {"&"},
	token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="}, token.SHL_ASSIGN: {">>="}, token.SHR_ASSIGN: {"<<="},
	token.AND_ASSIGN: {"|="}, token.OR_ASSIGN: {"&="}, token.XOR_ASSIGN: {"|="}, token.AND_NOT_ASSIGN: {"&="},
}

// mutantsOf returns the mutants of a Go file, in the order of their positions.
func mutantsOf(root, file string) ([]mutant, []byte, error) {
	src, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments)
	if err != nil {
		return nil, nil, err
	}
	w := walker{file: file, src: src, fset: fset, seen: map[string]int{}}
	for _, d := range f.Decls {
		w.fn = "-"
		switch d := d.(type) {
		case *ast.FuncDecl:
			w.fn = d.Name.Name
			if d.Recv != nil && len(d.Recv.List) > 0 {
				w.fn = w.of(d.Recv.List[0].Type) + "." + w.fn
			}
			if d.Body == nil {
				continue
			}
			ast.Inspect(d.Body, w.visit)
		case *ast.GenDecl:
			if d.Tok == token.CONST || d.Tok == token.VAR {
				ast.Inspect(d, w.visit)
			}
		}
	}
	return w.out, src, nil
}

type walker struct {
	file, fn string
	src      []byte
	fset     *token.FileSet
	seen     map[string]int
	out      []mutant
}

func (w *walker) at(p token.Pos) int { return w.fset.Position(p).Offset }

// of returns the text of a node, on one line.
func (w *walker) of(n ast.Node) string {
	return strings.Join(strings.Fields(string(w.src[w.at(n.Pos()):w.at(n.End())])), " ")
}

// add adds the mutant in which from:to becomes text; its description shows n before and
// after.
func (w *walker) add(n ast.Node, from, to int, text string) {
	start, end := w.at(n.Pos()), w.at(n.End())
	was := short(w.src[start:end])
	is := short(bytes.Join([][]byte{w.src[start:from], []byte(text), w.src[to:end]}, nil))
	id := fmt.Sprintf("%s %s: %s => %s", w.file, w.fn, was, is)
	w.seen[id]++
	if k := w.seen[id]; k > 1 {
		id += " #" + strconv.Itoa(k)
	}
	w.out = append(w.out, mutant{w.file, w.fset.Position(w.fset.File(n.Pos()).Pos(from)).Line, from, to, text, id})
}

func short(b []byte) string {
	s := strings.Join(strings.Fields(string(b)), " ")
	if len(s) > 90 {
		s = s[:60] + "..." + s[len(s)-27:]
	}
	return s
}

func (w *walker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		at := w.at(n.OpPos)
		for _, o := range opposites[n.Op] {
			w.add(n, at, at+len(n.Op.String()), o)
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB || n.Op == token.XOR {
			at := w.at(n.OpPos)
			w.add(n, at, at+len(n.Op.String()), "")
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			from := w.at(n.Pos())
			text := "1"
			if v, err := strconv.ParseUint(n.Value, 0, 64); err == nil && v != 0 {
				text = "(" + n.Value + "+1)"
			}
			w.add(n, from, w.at(n.End()), text)
		}
	case *ast.Ident:
		if n.Name == "true" || n.Name == "false" {
			w.add(n, w.at(n.Pos()), w.at(n.End()), map[string]string{"true": "false", "false": "true"}[n.Name])
		}
	case *ast.ReturnStmt:
		return !besideError(n)
	case *ast.IfStmt:
		w.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil { // a loop whose condition is always true does not end
			w.add(n.Cond, w.at(n.Cond.Pos()), w.at(n.Cond.End()), "("+string(w.src[w.at(n.Cond.Pos()):w.at(n.Cond.End())])+") && false")
		}
	case *ast.CaseClause:
		for _, e := range n.List {
			switch e.(type) {
			case *ast.BinaryExpr, *ast.UnaryExpr, *ast.CallExpr, *ast.ParenExpr:
				if isCondition(e) {
					w.condition(e)
				}
			}
		}
	case *ast.BlockStmt:
		for _, s := range n.List {
			w.remove(s)
		}
	}
	if c, ok := n.(*ast.CaseClause); ok {
		for _, s := range c.Body {
			w.remove(s)
		}
	}
	return true
}

// besideError reports whether n returns an error other than the word nil, and beside it only
// numbers, which nobody is to look at then.
func besideError(n *ast.ReturnStmt) bool {
	for i, r := range n.Results {
		if i+1 < len(n.Results) {
			if _, ok := r.(*ast.BasicLit); !ok {
				return false
			}
			continue
		}
		if s, ok := r.(*ast.SelectorExpr); ok {
			r = s.Sel
		}
		id, ok := r.(*ast.Ident)
		return ok && strings.HasPrefix(strings.ToLower(id.Name), "err")
	}
	return false
}

// isCondition reports whether e is certainly a boolean.
func isCondition(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		switch e.Op {
		case token.LSS, token.LEQ, token.GTR, token.GEQ, token.EQL, token.NEQ, token.LAND, token.LOR:
			return true
		}
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	case *ast.ParenExpr:
		return isCondition(e.X)
	}
	return false
}

// condition makes e always true and always false.
func (w *walker) condition(e ast.Expr) {
	from, to := w.at(e.Pos()), w.at(e.End())
	s := string(w.src[from:to])
	w.add(e, from, to, "("+s+") || true")
	w.add(e, from, to, "("+s+") && false")
}

// remove drops a statement. Its expressions are still computed if that keeps variables and
// imports in use.
func (w *walker) remove(s ast.Stmt) {
	from, to := w.at(s.Pos()), w.at(s.End())
	switch s := s.(type) {
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt, *ast.DeferStmt:
		if b, ok := s.(*ast.BranchStmt); ok && b.Tok == token.FALLTHROUGH {
			return
		}
		w.add(s, from, to, "{}")
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return
		}
		if at := w.at(s.TokPos); s.Tok != token.ASSIGN {
			for _, o := range opposites[s.Tok] {
				w.add(s, at, at+len(s.Tok.String()), o)
			}
		}
		if id, ok := s.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
			return
		}
		if id, ok := s.Rhs[0].(*ast.Ident); ok && id.Name == "nil" {
			w.add(s, from, to, "{}") // nil has no type of its own
			return
		}
		left := strings.Repeat("_, ", len(s.Lhs)-1) + "_ = "
		w.add(s, from, to, left+string(w.src[w.at(s.Rhs[0].Pos()):to]))
	}
}
