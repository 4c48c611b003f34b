package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers are the components, the lowest first. A component may import what
// stands in a lower line; those of one line are siblings and know nothing of
// each other. A component is a folder with all that is below it.
var layers = [][]string{
	{"record", "partitioner", "config", "fsync"},
	{"recordjson", "objstore", "rewrite", "index", "cache", "manifest"},
	{"locallog", "tiered"},
	{"partition"},
	{"catalog"},
	{"check", "gateway"},
	{"cmd", "bench", "internal"},
}

// never are edges that the layers would allow. The cold tier must not lean on
// the local one: both are put together in partition.
var never = map[string][]string{
	"tiered": {"locallog", "index"},
	"record": {"partitioner", "config", "fsync"},
	// Bytes in, bytes out: where they come from is not its business.
	"rewrite": {"partitioner", "config", "fsync"},
	// The local tier knows nothing of the bucket, nor of the index.
	"locallog": {"recordjson", "objstore", "index", "cache", "manifest"},
}

// testSupport are packages for tests only; any test may import them.
var testSupport = []string{"objstore/objstoretest", "internal/s3test"}

// outside are components that see the product as a stranger does: they run its
// program and import nothing but test support.
var outside = []string{"e2e", "scripts"}

// drivers of the object store are chosen in one place.
const driverChooser = "objstore/open"

var drivers = []string{"objstore/dir", "objstore/s3aws", "objstore/s3minio"}

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Module       *struct{ Path string }
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func TestImports(t *testing.T) {
	packages := list(t)
	edges := 0
	for _, p := range packages {
		module := p.Module.Path + "/"
		from := strings.TrimPrefix(p.ImportPath, module)
		tests := slices.Concat(p.TestImports, p.XTestImports)
		for i, imported := range slices.Concat(p.Imports, tests) {
			to, ours := strings.CutPrefix(imported, module)
			if !ours || to == from {
				continue
			}
			edges++
			if problem := judge(from, to, i >= len(p.Imports)); problem != "" {
				t.Errorf("%s imports %s: %s", from, to, problem)
			}
		}
	}
	if edges < 20 {
		t.Errorf("only %d imports looked at: the test does not see the module", edges)
	}
}

// judge says what is wrong with an import, or nothing.
func judge(from, to string, inTest bool) string {
	if slices.Contains(testSupport, to) {
		if inTest || slices.Contains(testSupport, from) {
			return ""
		}
		return "it is for tests"
	}
	a, b := component(from), component(to)
	if slices.Contains(drivers, to) && from != driverChooser && !(inTest && a == "objstore") && from != to {
		return "the driver is chosen in " + driverChooser
	}
	switch low, high := layer(b), layer(a); {
	case slices.Contains(outside, a):
		return "it tests from outside"
	case a == b, slices.Contains(testSupport, from) && b == "objstore":
		return ""
	case low < 0:
		return b + " has no place among the layers"
	case high < 0:
		return a + " has no place among the layers"
	case low > high:
		return "the arrow points up"
	case low == high:
		return "they are siblings"
	case slices.Contains(never[a], b):
		return "they meet only above"
	}
	return ""
}

func component(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

func layer(component string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, component) })
}

// list asks the go command about every package of the module.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Module,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// TestJudge makes sure that the rules can fail.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		from, to string
		inTest   bool
		allowed  bool
	}{
		{"partition", "tiered", false, true},
		{"tiered", "partition", false, false},
		{"tiered", "index", false, false},
		{"index", "locallog", false, false},
		{"index", "locallog", true, false},
		{"locallog", "rewrite", false, true},
		{"tiered", "rewrite", false, true},
		{"tiered", "locallog", false, false},
		{"locallog", "manifest", false, false},
		{"rewrite", "fsync", false, false},
		{"record", "partitioner", false, false},
		{"gateway", "check", false, false},
		{"catalog", "objstore/s3aws", false, false},
		{"objstore/open", "objstore/s3aws", false, true},
		{"catalog", "objstore/objstoretest", true, true},
		{"catalog", "objstore/objstoretest", false, false},
		{"e2e", "partition", true, false},
		{"e2e", "internal/s3test", true, true},
		{"newcomer", "record", false, false},
		{"cmd/keyhole", "newcomer", false, false},
	} {
		if problem := judge(c.from, c.to, c.inTest); (problem == "") != c.allowed {
			t.Errorf("%s imports %s (test: %v): %q, allowed should be %v", c.from, c.to, c.inTest, problem, c.allowed)
		}
	}
}
