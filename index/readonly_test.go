package index

import (
	"errors"
	"io/fs"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// snapshot is every file with its content.
func snapshot(t *testing.T, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := fsys.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		out[path] = string(readFile(t, fsys, path))
	}
	return out
}

func TestReadOnly(t *testing.T) {
	shared := NewShared(1<<20, 16)
	defer shared.Close()
	fsys, h := builtIndex(t, shared)
	if err := fsys.Remove("/db/LOCK"); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, fsys, "/db")
	o := Options{FS: fsys, Shared: shared, ReadOnly: true}
	x := mustOpen(t, "/db", o)
	state, ok := h.states[x.Applied()]
	if !ok {
		t.Fatalf("position %+v was never committed", x.Applied())
	}
	got, err := contents(x)
	if err != nil || !maps.Equal(got, state) {
		t.Fatalf("%d entries, want %d; %v", len(got), len(state), err)
	}
	b := x.NewBatch()
	b.Set([]byte("k"), 1)
	if err := b.Commit(Position{NextLog: 1, NextKafka: 1}); err == nil {
		t.Error("a commit was taken")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, x)
	if after := snapshot(t, fsys, "/db"); !maps.Equal(before, after) {
		t.Error("files have changed")
	}
	if _, err := Open("/nowhere", o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := fsys.Stat("/nowhere"); err == nil {
		t.Error("the directory was made")
	}
}
