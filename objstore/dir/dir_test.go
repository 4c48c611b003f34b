package dir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"keyhole/objstore"
	"keyhole/objstore/dir"
	"keyhole/objstore/objstoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustOpen(t *testing.T, root string, o dir.Options) *dir.Bucket {
	t.Helper()
	b, err := dir.Open(root, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put(b objstore.Bucket, key, data string, cond objstore.Condition) (string, error) {
	return b.Put(context.Background(), key, strings.NewReader(data), int64(len(data)), cond)
}

func TestContract(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Bucket { return mustOpen(t, t.TempDir(), dir.Options{}) })
}

// TestCrash stops a sequence of writes at the k-th operation of the file
// system, for every k, loses what was not synced, wholly or in part, and opens
// the folder again: each object is its old or its new self, and what was
// answered is there.
func TestCrash(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	errCrash := errors.New("crashed")

	for k := 0; ; k++ {
		disk := vfs.NewCrashableMem()
		left := k
		failing := errorfs.Wrap(disk, errorfs.InjectorFunc(func(errorfs.Op) error {
			if left == 0 {
				return errCrash
			}
			left--
			return nil
		}))
		// want[key] are the states that may be found.
		want := map[string][]string{}
		finished := crashScript(failing, want)

		for _, percent := range []int{0, 50, 100} {
			after := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
			b := mustOpen(t, "/data/bucket", dir.Options{FS: after})
			for key, states := range want {
				data, _, err := b.Get(t.Context(), key, 1<<20)
				found := string(data)
				if errors.Is(err, objstore.ErrNotFound) {
					found = absent
				} else if err != nil {
					t.Fatalf("crash at %d, %d%% kept: %s: %v", k, percent, key, err)
				}
				ok := false
				for _, state := range states {
					ok = ok || state == found
				}
				if !ok {
					t.Fatalf("crash at %d, %d%% kept: %s is %q, possible are %q", k, percent, key, found, states)
				}
			}
			// The folder goes on working.
			if _, err := put(b, "a/b/new", "after", objstore.Condition{IfNoneMatch: true}); err != nil {
				t.Fatalf("crash at %d, %d%% kept: put: %v", k, percent, err)
			}
		}
		if finished {
			t.Logf("%d operations", k)
			if k < 30 {
				t.Error("too few operations: the test tests nothing")
			}
			return
		}
	}
}

const absent = "\x00absent"

// crashScript writes until something fails and notes in want, per key, what a
// reader may find afterwards. It reports whether nothing failed.
func crashScript(fs vfs.FS, want map[string][]string) bool {
	b, err := dir.Open("/data/bucket", dir.Options{FS: fs})
	if err != nil {
		return false
	}
	state := func(key string) string {
		if s := want[key]; s != nil {
			return s[len(s)-1]
		}
		return absent
	}
	step := func(key, to string, do func() error) bool {
		want[key] = []string{state(key), to} // while it runs
		if do() != nil {
			return false
		}
		want[key] = []string{to}
		return true
	}
	write := func(key, data string, cond objstore.Condition) bool {
		return step(key, data, func() error { _, err := put(b, key, data, cond); return err })
	}
	ok := write("a/b/segment", "segment", objstore.Condition{}) &&
		write("manifest", "one", objstore.Condition{IfNoneMatch: true})
	if !ok {
		return false
	}
	_, etag, err := b.Get(context.Background(), "manifest", 10)
	if err != nil {
		return false
	}
	return write("manifest", "two", objstore.Condition{IfMatch: etag}) &&
		write("a/b/segment", "other", objstore.Condition{}) &&
		step("a/b/segment", absent, func() error { return b.Delete(context.Background(), "a/b/segment") })
}

// A folder that vanishes, as an unmounted volume does, is not an empty bucket.
func TestVanishedFolder(t *testing.T) {
	root := filepath.Join(t.TempDir(), "bucket")
	b := mustOpen(t, root, dir.Options{})
	if _, err := put(b, "doc", "x", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	_, _, getErr := b.Get(t.Context(), "doc", 10)
	_, readErr := b.ReadRange(t.Context(), "doc", 0, 1)
	_, putErr := put(b, "doc", "x", objstore.Condition{IfNoneMatch: true})
	for op, err := range map[string]error{
		"get": getErr, "read": readErr, "put": putErr,
		"delete": b.Delete(t.Context(), "doc"),
		"list":   b.List(t.Context(), "", func(objstore.Object) error { return nil }),
	} {
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestErrorsAreClassed(t *testing.T) {
	root := t.TempDir()
	b := mustOpen(t, root, dir.Options{})
	if _, err := put(b, "a/b", "x", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "a/b/c", "~tmp/x", "~tmp", strings.Repeat("k", 300)} {
		for _, cond := range []objstore.Condition{{}, {IfNoneMatch: true}} {
			_, err := put(b, key, "y", cond)
			if !errors.Is(err, objstore.ErrInvalid) && !(key == "a" && errors.Is(err, objstore.ErrPrecondition)) {
				t.Errorf("put %.10s, %+v: %v", key, cond, err)
			}
		}
	}
	if data, _, err := b.Get(t.Context(), "a/b", 10); string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	names, err := os.ReadDir(filepath.Join(root, "~tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name.Name() != "lock" {
			t.Errorf("a failed put left %s", name.Name())
		}
	}
}

func TestAbandonedFilesGo(t *testing.T) {
	root := t.TempDir()
	mustOpen(t, root, dir.Options{})
	old, young := filepath.Join(root, "~tmp", "OLD"), filepath.Join(root, "~tmp", "YOUNG")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, root, dir.Options{})
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old file: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("young file, whose writer may live: %v", err)
	}
}

// counterEnv makes the test binary a writer process: see TestProcesses.
const counterEnv = "KEYHOLE_DIR_TEST_ROOT"

// TestProcesses: conditions hold among processes. Each one adds 20 to a
// counter by compare-and-swap.
func TestProcesses(t *testing.T) {
	const processes, each = 3, 20
	if root := os.Getenv(counterEnv); root != "" {
		b := mustOpen(t, root, dir.Options{})
		for done := 0; done < each; {
			data, etag, err := b.Get(t.Context(), "counter", 100)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			if _, err := fmt.Sscan(string(data), &n); err != nil {
				t.Fatal(err)
			}
			_, err = put(b, "counter", fmt.Sprint(n+1), objstore.Condition{IfMatch: etag})
			switch {
			case err == nil:
				done++
			case !errors.Is(err, objstore.ErrPrecondition):
				t.Fatal(err)
			}
		}
		return
	}
	root := t.TempDir()
	b := mustOpen(t, root, dir.Options{})
	if _, err := put(b, "counter", "0", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestProcesses$")
			cmd.Env = append(os.Environ(), counterEnv+"="+root)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	data, _, err := b.Get(t.Context(), "counter", 100)
	if want := fmt.Sprint(processes * each); err != nil || !bytes.Equal(data, []byte(want)) {
		t.Errorf("counter is %s, %v; want %s", data, err, want)
	}
}
