package tiered

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// objectsOf are the keys in the bucket.
func objectsOf(t testing.TB, b objstore.Bucket) (keys []string) {
	t.Helper()
	if err := b.List(t.Context(), "", func(o objstore.Object) error { keys = append(keys, o.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	return keys
}

// What was replaced goes when the grace period is over, objects first, and a dry run
// says so before.
func TestReplacedObjectsGoAfterTheGracePeriod(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	segs := n.upload(t, build.numbered(5), build.numbered(5)).Segments
	removed := time.UnixMilli(1_750_000_000_000)
	if _, err := n.Rewrite(t.Context(), segs[:1], RewriteOptions{Empty: true, Now: func() time.Time { return removed }}); err != nil {
		t.Fatal(err)
	}
	o := CollectOptions{Grace: time.Hour}
	at := func(d time.Duration) CollectOptions {
		o.Now = func() time.Time { return removed.Add(d) }
		return o
	}
	for _, early := range []time.Duration{-time.Hour, 0, time.Hour} { // the clock may have been set back
		if c := collected(t, n, at(early)); len(c.Objects) != 0 || b.Count(objstoretest.OpDelete) != 0 {
			t.Errorf("%v after the removal: %v", early, c.Objects)
		}
	}
	late := at(time.Hour + time.Second)
	late.DryRun = true
	before := objectsOf(t, b)
	dry := collected(t, n, late)
	if dry.Deleted || !slices.Equal(objectsOf(t, b), before) || len(n.Snapshot().Removed) != 1 {
		t.Error("a dry run changed something")
	}
	late.DryRun = false
	b.ResetCalls()
	c := collected(t, n, late)
	want := "GetIfChanged manifest.json\nDelete 00000000000000000000-A.log\nDelete 00000000000000000000-A.index\nPut manifest.json\n"
	if got := trace(b.Calls()); got != want {
		t.Errorf("collect:\n%swant\n%s", got, want)
	}
	if !c.Deleted || !slices.Equal(c.Objects, dry.Objects) || len(c.Objects) != 2 || c.Bytes() != segs[0].Size+segs[0].IndexSize {
		t.Errorf("deleted %+v, the dry run said %+v", c, dry)
	}
	if g := c.Objects[0]; g.Key != LogKey(prefix, &segs[0]) || g.Why != "replaced" || g.Age != time.Hour+time.Second {
		t.Errorf("%+v", g)
	}
	if m, orphans := wantClean(t, b); len(m.Removed) != 0 || len(orphans) != 0 || len(m.Segments) != 1 {
		t.Errorf("manifest %+v, orphans %v", m, orphans)
	}
	if _, err := n.fs.Stat("p/remote/" + tableFile(&segs[0])); err == nil {
		t.Error("the table of what is gone is still there")
	}
	b.ResetCalls()
	if collected(t, n, late); trace(b.Calls()) != "GetIfChanged manifest.json\n" {
		t.Errorf("with nothing to do: %v", b.Calls())
	}
}

// Only what can be an object of a segment is ever looked at, and of that only what
// nobody names and what is old enough.
func TestOrphansAreToldFromEverythingElse(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	segs := n.upload(t, build.numbered(5), build.numbered(5)).Segments
	if _, err := n.Rewrite(t.Context(), segs[:1], RewriteOptions{Empty: true, Now: func() time.Time { return time.Now().Add(24 * time.Hour) }}); err != nil {
		t.Fatal(err)
	}
	id := uuid.NewString()
	orphans := []string{
		prefix + fmt.Sprintf("%020d-%s.index", 3, id), prefix + fmt.Sprintf("%020d-%s.log", 3, id),
		prefix + fmt.Sprintf("%020d-%s.log", 7, segs[1].UploadID), // another segment than the one of that id
	}
	others := []string{
		"cluster.json", "orders/id1/topic.json", prefix + "manifest.json.bak", prefix + "x.log", prefix + id + ".log",
		prefix + fmt.Sprintf("%019d-%s.log", 3, id), prefix + fmt.Sprintf("%021d-%s.log", 3, id),
		prefix + fmt.Sprintf("%020d-%s.log.bak", 3, id), prefix + fmt.Sprintf("%020d-%s", 3, id),
		prefix + fmt.Sprintf("%020d-%s.log", 3, "x"), prefix + fmt.Sprintf("%020d-%s.table", 3, id),
		prefix + fmt.Sprintf("-%019d-%s.log", 3, id), prefix + fmt.Sprintf("99999999999999999999-%s.log", id),
		prefix + fmt.Sprintf("%020d-{%s}.log", 3, id), prefix + fmt.Sprintf("%020d-%s.log/%020d-%s.log", 3, id, 3, id),
		fmt.Sprintf("orders/id1/33/%020d-%s.log", 3, id), fmt.Sprintf("orders/id1/4/%020d-%s.log", 3, id),
		fmt.Sprintf("orders/id2/3/%020d-%s.log", 3, id),
	}
	for _, key := range append(slices.Clone(orphans), others...) {
		put(t, b, key, []byte("1234"))
	}
	all := objectsOf(t, b)
	for _, o := range []CollectOptions{
		{Grace: time.Hour, Orphans: true},                                                  // too young
		{Grace: time.Hour, Now: func() time.Time { return time.Now().Add(2 * time.Hour) }}, // not asked for
	} {
		if c := collected(t, n, o); len(c.Objects) != 0 || !slices.Equal(objectsOf(t, b), all) {
			t.Errorf("collected %v", c.Objects)
		}
	}
	o := CollectOptions{Grace: time.Hour, Orphans: true, Now: func() time.Time { return time.Now().Add(2 * time.Hour) }}
	c := collected(t, n, o)
	var keys []string
	for _, g := range c.Objects {
		keys = append(keys, g.Key)
		if g.Why != "orphan" || g.Size != 4 || g.Age < 2*time.Hour-time.Minute {
			t.Errorf("%+v", g)
		}
	}
	if !slices.Equal(keys, orphans) {
		t.Errorf("collected %v, want %v", keys, orphans)
	}
	if got := objectsOf(t, b); len(got) != len(all)-len(orphans) {
		t.Errorf("left %v", got)
	}
	for _, r := range segs[1:] {
		if _, err := b.ReadRange(t.Context(), LogKey(prefix, &r), 0, 1); err != nil {
			t.Error(err)
		}
	}
}

// Names of objects come from outside.
func FuzzSegmentName(f *testing.F) {
	f.Add("00000000000000000007-0b0a4c3e-1f52-4b53-8a3e-5c7b1f0a9d21.log")
	f.Add("00000000000000000007-0b0a4c3e-1f52-4b53-8a3e-5c7b1f0a9d21.index")
	f.Add("manifest.json")
	f.Fuzz(func(t *testing.T, name string) {
		base, id, ok := parseSegmentName(name)
		if !ok {
			return
		}
		seg := &manifest.Segment{BaseOffset: base, UploadID: id}
		if name != LogKey("", seg) && name != IndexKey("", seg) || base < 0 {
			t.Errorf("%q is taken for the segment %+v", name, seg)
		}
	})
}

// An upload that has not come through, however old its objects are, is about to
// have them named.
func TestObjectsOfABegunUploadAreNoOrphans(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	src := build.numbered(5)
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			return objstore.ErrUnavailable
		}
		return nil
	})
	if _, err := n.Upload(t.Context(), []Source{src}, 0); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	b.Before(nil)
	late := CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
	if c := collected(t, n, late); len(c.Objects) != 0 {
		t.Errorf("collected %v", c.Objects)
	}
	b.ResetCalls()
	n.upload(t, src)
	if b.Count(objstoretest.OpPut) != 1 {
		t.Errorf("calls %v", b.Calls())
	}
	wantClean(t, b)
	// What retention has passed is not uploaded any more.
	passed := build.numbered(5)
	b.Before(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			return objstore.ErrUnavailable
		}
		return nil
	})
	if _, err := n.Upload(t.Context(), []Source{passed}, 0); !errors.Is(err, objstore.ErrUnavailable) {
		t.Fatal(err)
	}
	b.Before(nil)
	if _, err := n.Truncate(t.Context(), 10, 10, time.Now()); err != nil {
		t.Fatal(err)
	}
	if c := collected(t, n, late); len(c.Objects) != 4 {
		t.Errorf("collected %v", c.Objects)
	}
	// Neither are those of one that comes through between the listing and the look, by
	// a clock of the store that is years behind.
	next := build.numbered(5)
	once := false
	b.After(func(ctx context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpList && !once {
			once = true
			if _, err := n.Upload(ctx, []Source{next}, 0); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	if c := collected(t, n, late); len(c.Objects) != 0 || !once {
		t.Errorf("collected %v", c.Objects)
	}
	for _, r := range next.records {
		n.wantRecord(t, r)
	}
}

// Whoever does not have the partition, or has it no more, deletes nothing.
func TestOnlyTheWriterCollects(t *testing.T) {
	for _, unconditional := range []bool{false, true} {
		b := newBucket()
		a := newNode(t, b, nodeOptions{writer: "a", unconditional: unconditional})
		segs := a.upload(t, newBuilder(t, 0).numbered(5)).Segments
		if _, err := a.Rewrite(t.Context(), segs, RewriteOptions{Empty: true}); err != nil {
			t.Fatal(err)
		}
		put(t, b, prefix+fmt.Sprintf("%020d-%s.log", 3, uuid.NewString()), nil)
		late := CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
		idle := newNode(t, b, nodeOptions{writer: "c", unclaimed: true})
		if _, err := idle.Collect(t.Context(), late); !errors.Is(err, ErrNotClaimed) {
			t.Errorf("without a claim: %v", err)
		}
		other := newNode(t, b, nodeOptions{writer: "b", unconditional: unconditional})
		before := objectsOf(t, b)
		for range 2 {
			if _, err := a.Collect(t.Context(), late); !errors.Is(err, ErrFenced) {
				t.Errorf("overtaken: %v", err)
			}
		}
		if got := objectsOf(t, b); !slices.Equal(got, before) {
			t.Errorf("left %v", got)
		}
		if c := collected(t, other, late); len(c.Objects) != 3 {
			t.Errorf("collected %v", c.Objects)
		}
	}
}

// Whichever call fails: what is named stays whole, and a repetition ends the work.
func TestEveryCallOfACollectFailsOnce(t *testing.T) {
	for _, f := range failures {
		for k := 0; ; k++ {
			b := newBucket()
			n := newNode(t, b, nodeOptions{unconditional: k%2 == 0})
			build := newBuilder(t, 0)
			segs := n.upload(t, build.numbered(5), build.numbered(5), build.numbered(5)).Segments
			for _, seg := range segs[:2] {
				if _, err := n.Rewrite(t.Context(), []manifest.Segment{seg}, RewriteOptions{Empty: true}); err != nil {
					t.Fatal(err)
				}
			}
			put(t, b, prefix+fmt.Sprintf("%020d-%s.log", 3, uuid.NewString()), nil)
			late := CollectOptions{Orphans: true, Now: func() time.Time { return time.Now().Add(time.Hour) }}
			met := failAt(b, k, f)
			c, err := n.Collect(t.Context(), late)
			if !met() {
				if k < 7 { // one of eight, which is answered "not modified", has no reply to lose
					t.Fatalf("only %d calls", k)
				}
				break
			}
			if err == nil && !f.lost {
				t.Fatalf("%s, call %d: no error", f.name, k)
			}
			for _, g := range c.Objects {
				if slices.Contains(objectsOf(t, b), g.Key) {
					t.Errorf("%s, call %d: %s is still there", f.name, k, g.Key)
				}
			}
			wantClean(t, b)
			collected(t, n, late)
			m, orphans := wantClean(t, b)
			if len(m.Removed) != 0 || len(orphans) != 0 || len(objectsOf(t, b)) != 3 {
				t.Fatalf("%s, call %d: objects %v", f.name, k, objectsOf(t, b))
			}
		}
	}
}

// A read by a snapshot that is out of date, after the grace period, is told so;
// what the manifest still names and the bucket lacks is damage.
func TestReadOfAReplacedSegment(t *testing.T) {
	b := newBucket()
	fs := newNode(t, b, nodeOptions{}).fs
	n := newNode(t, b, nodeOptions{fs: fs})
	src := newBuilder(t, 0).numbered(50)
	old := n.upload(t, src)
	replica := newNode(t, b, nodeOptions{unclaimed: true, writer: "r"})
	if changed, err := replica.Follow(t.Context()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	replica.wantRecord(t, src.records[0]) // has the table
	noTable := newNode(t, b, nodeOptions{unclaimed: true, writer: "s"})
	if _, err := noTable.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Rewrite(t.Context(), old.Segments, RewriteOptions{Keep: func(_ []byte, offset int64, _ bool) (bool, error) { return offset != 7, nil }}); err != nil {
		t.Fatal(err)
	}
	collected(t, n, CollectOptions{Now: func() time.Time { return time.Now().Add(time.Hour) }})
	readOld := func(n *node) error {
		_, err := n.ReadBatch(t.Context(), old, 49, func([]byte, int64) error { return nil })
		return err
	}
	if err := readOld(n); !errors.Is(err, ErrMoved) || errors.Is(err, record.ErrCorrupt) {
		t.Errorf("by an old snapshot: %v", err)
	}
	for _, r := range []*node{replica, noTable} {
		// As long as nothing else is known this is damage; then it has moved.
		if err := readOld(r); !errors.Is(err, record.ErrCorrupt) || errors.Is(err, ErrMoved) {
			t.Errorf("before following: %v", err)
		}
		if changed, err := r.Follow(t.Context()); !changed || err != nil {
			t.Fatal(changed, err)
		}
		if err := readOld(r); !errors.Is(err, ErrMoved) {
			t.Errorf("behind it: %v", err)
		}
		r.wantRecord(t, src.records[49])
	}
	// Bytes that fail a check are damage, whatever the manifest says by now.
	put(t, b, LogKey(prefix, &old.Segments[0]), make([]byte, old.Segments[0].Size))
	if err := readOld(replica); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("damaged: %v", err)
	}
	if err := b.Delete(t.Context(), LogKey(prefix, &n.Snapshot().Segments[0])); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.read(t.Context(), 49); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("named and gone: %v", err)
	}
}

// A reader follows without a trace in the bucket, at one request that moves nothing
// while nothing has changed, and keeps no tables of what is gone.
func TestFollow(t *testing.T) {
	b := newBucket()
	replica := newNode(t, b, nodeOptions{unclaimed: true, writer: "r"})
	if changed, err := replica.Follow(t.Context()); changed || err != nil || replica.Snapshot().Known() {
		t.Fatal(changed, err)
	}
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	sources := []*memSource{build.numbered(5), build.numbered(5)}
	old := n.upload(t, sources...)
	b.ResetCalls()
	if changed, err := replica.Follow(t.Context()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	for _, r := range allRecords(sources...) {
		replica.wantRecord(t, r)
	}
	if changed, err := replica.Follow(t.Context()); changed || err != nil {
		t.Fatal(changed, err)
	}
	if b.Count(objstoretest.OpPut, objstoretest.OpDelete) != 0 || b.Count(objstoretest.OpGetIfChanged) != 1 {
		t.Errorf("calls %v", b.Calls())
	}
	if _, err := n.Rewrite(t.Context(), old.Segments, RewriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if changed, err := replica.Follow(t.Context()); !changed || err != nil {
		t.Fatal(changed, err)
	}
	for _, r := range allRecords(sources...) {
		replica.wantRecord(t, r)
	}
	names, err := replica.fs.List("p/remote")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, tableSuffix) && name != tableFile(&n.Snapshot().Segments[0]) {
			t.Errorf("%s is still there", name)
		}
	}
	if _, err := replica.Rewrite(t.Context(), n.Snapshot().Segments, RewriteOptions{}); !errors.Is(err, ErrNotClaimed) {
		t.Errorf("rewrite: %v", err)
	}
	replica.Close()
	if _, err := replica.Follow(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Truncation and what comes behind it.
func TestTruncate(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	sources := []*memSource{build.numbered(5), build.numbered(5), build.numbered(5)}
	n.upload(t, sources...)
	at := time.UnixMilli(1234)
	for range 2 {
		m, err := n.Truncate(t.Context(), 5, 0, at)
		if err != nil {
			t.Fatal(err)
		}
		wantRanges(t, m, "5-9 10-14")
		if m.StartOffset != 5 || m.Next() != 15 || len(m.Removed) != 1 || m.Removed[0].RemovedAt != 1234 {
			t.Fatalf("manifest %+v", m)
		}
	}
	if _, err := n.Truncate(t.Context(), 7, 0, at); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("inside of a segment: %v", err)
	}
	if _, _, err := n.read(t.Context(), 2); !errors.Is(err, ErrNotRetained) {
		t.Errorf("below the start: %v", err)
	}
	// Beyond what the bucket has: the partition goes on there.
	m, err := n.Truncate(t.Context(), 30, 32, at)
	if err != nil || m.Next() != 32 || m.StartOffset != 30 || len(m.Segments) != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	build.skip(17)
	build.begin()
	wantRanges(t, n.upload(t, build.numbered(3)), "32-34")
	wantClean(t, b)
	idle := newNode(t, b, nodeOptions{unclaimed: true})
	if _, err := idle.Truncate(t.Context(), 40, 0, at); !errors.Is(err, ErrNotClaimed) {
		t.Errorf("without a claim: %v", err)
	}
}
