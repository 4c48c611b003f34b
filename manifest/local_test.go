package manifest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/fsync"
	"keyhole/manifest"
)

// Whatever is lost with the power, the copy on disk is a whole one, and not
// older than what the last Commit that returned has promised.
func TestLocalCopySurvivesPowerLoss(t *testing.T) { // case 7-29
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := vfs.NewCrashableMem()
	if err := fs.MkdirAll("p", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := fsync.Dir(fs, ""); err != nil {
		t.Fatal(err)
	}
	s := &memStore{conditional: true}
	var promised int64
	check := func(when string) {
		t.Helper()
		for _, keep := range []int{0, 50, 100} {
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng})
			m := manifest.Open(options(s, crashed, "a")).Current()
			if m.Generation < promised {
				t.Fatalf("%s, %d%% of unsynced data kept: local copy %+v, promised generation %d", when, keep, m, promised)
			}
		}
	}
	// The clone is taken before each operation on the file system.
	hooked := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		check(fmt.Sprintf("before %v %s", op.Kind, op.Path))
		return nil
	}))
	h := manifest.Open(options(s, hooked, "a"))
	if _, err := h.Claim(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	promised = h.Current().Generation
	for i := range int64(4) {
		if err := h.Commit(t.Context(), adding(segment(i*10, i*10+9, fmt.Sprint("u", i)))); err != nil {
			t.Fatal(err)
		}
		promised = h.Current().Generation
		check("after a commit")
	}
}

// Every operation on the disk fails once: Commit reports it, the bucket's
// manifest stays in force, and the repetition brings the copy up to date.
func TestFailingDiskIsReportedAndMadeUpFor(t *testing.T) {
	failures := 0
	for k := 0; ; k++ {
		fs := newFS(t)
		left := -1 // operations before the one that fails; below 0: none fails
		inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || left < 0 {
				return nil
			}
			left--
			if left == -1 {
				return errorfs.ErrInjected
			}
			return nil
		})
		s := &memStore{conditional: true}
		h := manifest.Open(options(s, errorfs.Wrap(fs, inj), "a"))
		if _, err := h.Claim(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		left = k
		err := h.Commit(t.Context(), adding(segment(0, 9, "x")))
		if left >= 0 {
			break // there are no more than k operations
		}
		failures++
		if !errors.Is(err, errorfs.ErrInjected) {
			t.Errorf("operation %d: %v", k, err)
		}
		wantRanges(t, h.Current(), [2]int64{0, 9})
		replaces := s.replaces
		if err := h.Commit(t.Context(), adding(segment(0, 9, "x"))); err != nil {
			t.Fatalf("operation %d, again: %v", k, err)
		}
		if s.replaces != replaces {
			t.Errorf("operation %d: the bucket was written twice", k)
		}
		wantRanges(t, manifest.Open(options(s, fs, "a")).Current(), [2]int64{0, 9})
	}
	if failures < 4 { // create, write, sync, rename at least
		t.Fatalf("only %d operations failed", failures)
	}
}
