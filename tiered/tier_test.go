package tiered

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func TestCloseEndsWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		b.Before(func(ctx context.Context, _ objstoretest.Call) error { <-ctx.Done(); return ctx.Err() })
		var wg sync.WaitGroup
		src := newBuilder(t, 0).numbered(5)
		for range 2 { // one runs, one waits for its turn
			wg.Go(func() {
				if _, err := n.Upload(context.Background(), []Source{src}, 0); !errors.Is(err, ErrClosed) {
					t.Errorf("upload: %v", err)
				}
			})
		}
		wg.Go(func() {
			if _, err := n.RawManifest(context.Background()); !errors.Is(err, ErrClosed) {
				t.Errorf("raw manifest: %v", err)
			}
		})
		synctest.Wait()
		for range 2 {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		b.Before(nil)
		for name, err := range map[string]error{
			"claim":  func() error { _, err := n.Claim(t.Context(), false); return err }(),
			"upload": func() error { _, err := n.Upload(t.Context(), nil, 0); return err }(),
			"read":   func() error { _, _, err := n.read(t.Context(), 0); return err }(),
			"runs":   n.KeyRuns(t.Context(), 0, nil, nil),
			"raw":    func() error { _, err := n.RawManifest(t.Context()); return err }(),
		} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

func TestClosedCachesAreClosed(t *testing.T) {
	n := newNode(t, newBucket(), nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(5))
	if err := n.o.Shared.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.read(t.Context(), 2); !errors.Is(err, ErrClosed) {
		t.Errorf("read: %v", err)
	}
}

func TestRawManifest(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(5))
	raw, err := n.RawManifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := manifest.Decode("x", raw); err != nil || m.Generation != n.Snapshot().Generation {
		t.Errorf("decoded %+v, %v", m, err)
	}
	if err := b.Delete(t.Context(), ManifestKey(prefix)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RawManifest(t.Context()); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("manifest gone: %v", err)
	}
}

// cases 7-17, 7-18
func TestOlderWriterIsFenced(t *testing.T) {
	for _, unconditional := range []bool{false, true} {
		b, fs := newBucket(), vfs.NewMem()
		build := newBuilder(t, 0)
		first, tail := build.numbered(10), build.numbered(10)
		a := newNode(t, b, nodeOptions{fs: fs, writer: "a", unconditional: unconditional})
		a.upload(t, first)
		other := newNode(t, b, nodeOptions{writer: "b", unconditional: unconditional})
		theirs := newBuilder(t, 10).numbered(7)
		other.upload(t, theirs)
		for range 2 {
			if _, err := a.Upload(t.Context(), []Source{tail}, 0); !errors.Is(err, ErrFenced) {
				t.Fatalf("unconditional=%t: older writer: %v", unconditional, err)
			}
		}
		if _, err := a.Claim(t.Context(), true); !errors.Is(err, ErrFenced) || !a.Fenced() || other.Fenced() {
			t.Errorf("claim of a fenced writer: %v", err)
		}
		if a.SingleWriter() != unconditional {
			t.Errorf("single writer %t", a.SingleWriter())
		}
		restarted := newNode(t, b, nodeOptions{fs: fs, writer: "a", unconditional: unconditional, unclaimed: true})
		if _, err := restarted.Claim(t.Context(), false); !errors.Is(err, ErrSuperseded) {
			t.Errorf("claim with the old disk: %v", err)
		}
		if _, err := restarted.Upload(t.Context(), []Source{tail}, 0); !errors.Is(err, ErrNotClaimed) {
			t.Errorf("upload without a claim: %v", err)
		}
		m, _ := wantClean(t, b)
		wantRanges(t, m, "0-9 10-16")
		for _, r := range append(first.records, theirs.records...) {
			other.wantRecord(t, r)
		}
	}
}

// A node that uploads nothing learns by looking, at the cost of one request.
func TestLook(t *testing.T) { // case 7-18
	b := newBucket()
	a := newNode(t, b, nodeOptions{writer: "a"})
	a.upload(t, newBuilder(t, 0).numbered(10))
	before := len(b.Calls())
	if err := a.Look(t.Context()); err != nil {
		t.Fatalf("nothing has changed: %v", err)
	}
	calls := b.Calls()[before:]
	if len(calls) != 1 || calls[0].Op != objstoretest.OpGetIfChanged || calls[0].Key != ManifestKey(prefix) {
		t.Errorf("a look cost %+v, want one conditional read of the manifest", calls)
	}
	newNode(t, b, nodeOptions{writer: "b"})
	if err := a.Look(t.Context()); !errors.Is(err, ErrFenced) || !a.Fenced() {
		t.Errorf("a newer writer has it: %v", err)
	}
	a.Close()
	if err := a.Look(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// case 7-20
func TestUploadsOfOneProcessTakeTurns(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	var sources []*memSource
	for range 6 {
		sources = append(sources, build.numbered(5))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { n.upload(t, sources...) })
	}
	wg.Wait()
	m, orphans := wantClean(t, b)
	wantRanges(t, m, "0-4 5-9 10-14 15-19 20-24 25-29")
	if len(orphans) != 0 {
		t.Errorf("orphans %v", orphans)
	}
}
