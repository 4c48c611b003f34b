package dir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/dir"
)

// tree gives what is below a folder.
func tree(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestReadOnlyChangesNothing(t *testing.T) {
	root := filepath.Join(t.TempDir(), "bucket")
	for _, missing := range []string{root, filepath.Join(root, "prefix")} {
		if _, err := dir.Open(missing, dir.Options{ReadOnly: true}); !errors.Is(err, objstore.ErrMisconfigured) || !strings.Contains(err.Error(), missing) {
			t.Errorf("missing: %v", err)
		}
	}
	if names := tree(t, filepath.Dir(root)); len(names) != 1 {
		t.Fatalf("it made %q", names)
	}

	w := mustOpen(t, root, dir.Options{})
	if _, err := put(w, "a/b", "data", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	// What a crashed writer left long ago is a writer's to remove.
	left := filepath.Join(root, "~tmp", "LEFT")
	if err := os.WriteFile(left, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(left, long, long); err != nil {
		t.Fatal(err)
	}
	before := tree(t, root)
	r := mustOpen(t, root, dir.Options{ReadOnly: true})
	if data, _, err := r.Get(t.Context(), "a/b", 100); err != nil || string(data) != "data" {
		t.Errorf("get: %q, %v", data, err)
	}
	if _, err := put(r, "a/c", "data", objstore.Condition{}); !errors.Is(err, objstore.ErrReadOnly) {
		t.Errorf("put: %v", err)
	}
	if err := r.Delete(t.Context(), "a/b"); !errors.Is(err, objstore.ErrReadOnly) {
		t.Errorf("delete: %v", err)
	}
	if after := tree(t, root); !slices.Equal(after, before) {
		t.Errorf("it left %q of %q", after, before)
	}
	mustOpen(t, root, dir.Options{})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a writer leaves %s: %v", left, err)
	}

	// A copy without what writers need is read too, until it goes.
	if err := os.RemoveAll(filepath.Join(root, "~tmp")); err != nil {
		t.Fatal(err)
	}
	r = mustOpen(t, root, dir.Options{ReadOnly: true})
	if _, _, err := r.Get(t.Context(), "a/none", 100); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("copy: %v", err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Get(t.Context(), "a/b", 100); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("gone: %v", err)
	}
}
