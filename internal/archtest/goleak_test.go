package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// Whoever starts a goroutine waits for it: the tests of every package that starts
// any look for some that are left over.
func TestGoleakWhereGoroutinesAre(t *testing.T) {
	starting := 0
	for _, p := range list(t) {
		if !startsGoroutines(t, p.Dir, p.GoFiles) {
			continue
		}
		starting++
		tests := append(append([]string{}, p.TestGoFiles...), p.XTestGoFiles...)
		if !usesGoleak(t, p.Dir, tests) {
			t.Errorf("%s starts goroutines, and no test of it asks goleak", p.ImportPath)
		}
	}
	if starting < 10 {
		t.Errorf("only %d packages with goroutines found: the test does not see them", starting)
	}
}

// startsGoroutines looks for go statements, for calls of a method Go (of a
// sync.WaitGroup or an errgroup.Group), and for timers that run a function.
func startsGoroutines(t *testing.T, dir string, files []string) bool {
	found := false
	inspect(t, dir, files, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr:
			if n.Sel.Name == "Go" || n.Sel.Name == "AfterFunc" {
				found = true
			}
		}
	})
	return found
}

func usesGoleak(t *testing.T, dir string, files []string) bool {
	found := false
	inspect(t, dir, files, func(n ast.Node) {
		call, ok := n.(*ast.SelectorExpr)
		if !ok {
			return
		}
		if x, ok := call.X.(*ast.Ident); ok && x.Name == "goleak" && (call.Sel.Name == "VerifyTestMain" || call.Sel.Name == "Find") {
			found = true
		}
	})
	return found
}

func inspect(t *testing.T, dir string, files []string, fn func(ast.Node)) {
	t.Helper()
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				fn(n)
			}
			return true
		})
	}
}
