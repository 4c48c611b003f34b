package tiered

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// A Put that seemed to fail may take effect later. So a repetition of an upload with
// other bytes, because the segment was compacted in between, takes another name, also
// if nothing is known to have arrived under the first one.
func TestLatePutOfASegmentThatWasCompacted(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	whole := newBuilder(t, 0).numbered(6)
	half := newBuilder(t, 0)
	for range 3 {
		half.skip(1)
		half.add(record.None, kv(0, "k", "v"))
	}
	compacted := half.done()
	b.FailNext(objstoretest.OpPut, 1, objstore.ErrUnavailable)
	if _, err := n.Upload(t.Context(), []Source{whole}, 0); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	n.upload(t, whole) // the same bytes may take the same name …
	var names []string
	for _, c := range b.Calls() {
		if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".log") {
			names = append(names, c.Key)
		}
	}
	if len(names) != 2 || names[0] != names[1] {
		t.Errorf("the same bytes went to %v", names)
	}

	b = newBucket()
	n = newNode(t, b, nodeOptions{})
	b.FailNext(objstoretest.OpPut, 1, objstore.ErrUnavailable)
	if _, err := n.Upload(t.Context(), []Source{whole}, 0); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	late := b.Calls()[len(b.Calls())-1].Key
	n.upload(t, compacted) // … and others must not
	put(t, b, late, whole.file)
	wantClean(t, b)
	for _, r := range compacted.records {
		n.wantRecord(t, r)
	}
}

// The objects of a Rewrite that failed and is not repeated go once no manifest can
// come to name them any more, and a repetition after that takes other names.
func TestObjectsOfAnAbandonedRewriteGo(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	w := newRewriteWorld(t, n, newRand(t))
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			return objstore.ErrUnavailable
		}
		return nil
	})
	if err := w.rewrite(t, n); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	b.Before(nil)
	in := func(d time.Duration, dry bool) Collected {
		return collected(t, n, CollectOptions{
			Grace: time.Minute, Orphans: true, DryRun: dry, Now: func() time.Time { return time.Now().Add(d) },
		})
	}
	if c := in(time.Hour, false); len(c.Objects) != 0 {
		t.Errorf("deleted although a repetition would count on them: %v", c.Objects)
	}
	if c := in(3*time.Hour, true); len(c.Objects) != 2 {
		t.Errorf("a dry run says %v", c.Objects)
	}
	if _, orphans := wantClean(t, b); len(orphans) != 2 {
		t.Errorf("a dry run has deleted something: %v", orphans)
	}
	if c := in(3*time.Hour, false); len(c.Objects) != 2 {
		t.Errorf("deleted %v", c.Objects)
	}
	if err := w.rewrite(t, n); err != nil {
		t.Fatal(err)
	}
	w.wantDone(t, n, b)
}

// Those of one that is under way do not, however long it takes.
func TestObjectsOfARunningRewriteStay(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	w := newRewriteWorld(t, n, newRand(t))
	fail := true
	late := CollectOptions{Grace: time.Minute, Orphans: true, Now: func() time.Time { return time.Now().Add(100 * time.Hour) }}
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if fail && c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			return objstore.ErrUnavailable
		}
		return nil
	})
	if err := w.rewrite(t, n); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	fail = false // the rewrite is repeated, and finds its objects there
	_, err := n.Rewrite(t.Context(), w.segs[:2], RewriteOptions{Keep: w.keep, Horizon: 1, Settle: func(context.Context) error {
		if c := collected(t, n, late); len(c.Objects) != 0 {
			t.Errorf("deleted %v", c.Objects)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.wantDone(t, n, b)
}

// A Rewrite leaves bandwidth to others also behind what it has stored.
func TestRewriteIsPacedBehindWhatItStores(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	w := newRewriteWorld(t, n, newRand(t))
	puts, paced := 0, false
	b.After(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key != ManifestKey(prefix) {
			puts++
		}
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) && !paced {
			t.Error("not paced before the manifest")
		}
		return nil
	})
	_, err := n.Rewrite(t.Context(), w.segs[:2], RewriteOptions{Keep: w.keep, Horizon: 1, Pace: func(context.Context, time.Duration) error {
		paced = puts == 2
		return nil
	}})
	if err != nil || !paced {
		t.Fatal(err)
	}
	w.wantDone(t, n, b)
}

// Damage of a local segment is told from trouble with the bucket, which comes first
// where there is both.
func TestDamageOfASourceIsToldApart(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	good, bad := build.numbered(3), build.numbered(3)
	bad.file[len(bad.file)/2] ^= 0xff
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			return objstore.ErrUnavailable
		}
		return nil
	})
	if _, err := n.Upload(t.Context(), []Source{good, bad}, 0); errors.Is(err, ErrSource) || !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("both: %v", err)
	}
	b.Before(nil)
	m, err := n.Upload(t.Context(), []Source{good, bad}, 0)
	if !errors.Is(err, ErrSource) || !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("damage alone: %v", err)
	}
	wantRanges(t, m, "0-2")
}
