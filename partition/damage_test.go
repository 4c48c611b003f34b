package partition

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/semaphore"

	"keyhole/manifest"
	"keyhole/record"
)

// overwrite replaces a file.
func (r *rig) overwrite(path string, data []byte) {
	r.t.Helper()
	if err := manifest.WriteFile(r.fs, path, data); err != nil {
		r.t.Fatal(err)
	}
}

// indexTables are the files of the index with entries in them.
func (r *rig) indexTables() (paths []string) {
	r.t.Helper()
	names, err := r.fs.List("/data/t/0/kv_index")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			paths = append(paths, r.fs.PathJoin("/data/t/0/kv_index", name))
		}
	}
	if len(paths) == 0 {
		r.t.Fatal("the index has no table")
	}
	return paths
}

// damagedTable is a rig at rest whose index has a table that cannot be read; its
// position is in another one. It gives the records.
func damagedTable(t *testing.T) (r *rig, want map[string]string) {
	t.Helper()
	r = newRig(t)
	want = fill(t, r.open(), "k", 40)
	r.stop()
	for range 10 { // until the position is in a table of its own
		put(t, r.open(), "last", "v")
		r.stop()
		if len(r.indexTables()) > 1 {
			break
		}
	}
	tables := r.indexTables()
	if len(tables) == 1 {
		t.Fatal("there is only one table")
	}
	r.overwrite(tables[0], bytes.Repeat([]byte{'x'}, len(readAll(t, r.fs, tables[0]))))
	return r, want
}

// builtAnew waits until the index was built anew and looks everything up.
func (r *rig) builtAnew(want map[string]string) {
	r.t.Helper()
	eventually(r.t, "index built anew", func() bool { return testutil.ToFloat64(r.metrics.Rebuilds) == 1 })
	eventually(r.t, "ready", func() bool { ready, _, damaged := r.p.State(); return ready && damaged == nil })
	verify(r.t, r.p, want, nil)
	if n := testutil.ToFloat64(r.metrics.Corruptions.WithLabelValues("local", "index")); n != 1 {
		r.t.Errorf("damage was counted %v times", n)
	}
}

// A damaged table of an index is found and the index built anew also if nobody
// asks for a key. Until then Pebble would try to read it again without a pause.
func TestDamagedTableOfAnIdleIndex(t *testing.T) {
	r, want := damagedTable(t)
	r.start()
	t.Cleanup(r.stop)
	r.builtAnew(want)
}

// The same if the index fails before it has caught up.
func TestDamagedTableWhileCatchingUp(t *testing.T) {
	r, want := damagedTable(t)
	start := semaphore.NewWeighted(1)
	r.options = func(o *Options) { o.Start = start }
	if err := start.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p := r.start()
	t.Cleanup(r.stop)
	eventually(t, "damage found", func() bool {
		ix := p.feed.open()
		return ix != nil && ix.Err() != nil || testutil.ToFloat64(r.metrics.Rebuilds) == 1 // Open has found it
	})
	start.Release(1)
	r.builtAnew(want)
}

// Where the key runs stand in for a damaged segment, they may lack the tombstones
// that were in it, and what the index has of the deleted keys by then goes.
func TestDamagedSegmentWithTombstones(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 10 << 20
	p := r.open()
	put(t, p, "deleted", "v")
	recs := make([]record.Record, replayBatchRecords) // so that a replay commits in between
	for i := range recs {
		recs[i] = record.Record{Key: []byte("a"), Value: []byte("v")}
	}
	if _, err := p.Append(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	del(t, p, "deleted")
	put(t, p, "b", "v")
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.uploadSealed(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
	p.leave()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.compactRemote(t.Context(), p.serving.Load(), p.settings.Load(), true, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if records, tombstones := remoteRecords(p); records != 2 || tombstones != 0 {
		t.Fatalf("%d records, %d of them tombstones, are left in the bucket", records, tombstones)
	}
	name := fmt.Sprintf("/data/t/0/log/%020d-1", p.log.Load().Segments()[1].BaseLog)
	r.stop()
	data := readAll(t, r.fs, name+".log")
	data[len(data)/2] ^= 0xff
	r.overwrite(name+".log", data)
	for _, path := range []string{name + ".index", "/data/t/0/kv_index"} {
		if err := r.fs.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	p = r.open()
	mustGet(t, p, "b")
	if n := testutil.ToFloat64(r.metrics.Corruptions.WithLabelValues("local", "read")); n == 0 {
		t.Fatal("the damage was not met")
	}
	if res, err := get(p, "deleted"); !errors.Is(err, ErrKeyNotFound) {
		t.Fatalf("deleted key: %q, %v", res.Value, err)
	}
}
