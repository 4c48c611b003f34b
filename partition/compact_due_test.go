package partition

import (
	"fmt"
	"testing"
	"time"
)

// What was too young to be compacted is compacted once it is old enough, although
// nothing is written any more.
func TestCompactionAfterTheLag(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.DirtyRatio, r.settings.CompactionLag = 0.3, time.Hour
	clock := r.clock()
	p := r.open()
	keys := numbered(20)
	for round := range 10 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	evict(t, p)
	for _, c := range []struct {
		passed time.Duration
		most   int64
	}{{0, 200}, {2 * time.Hour, 30}} {
		clock.add(c.passed)
		if err := p.compactDue(t.Context()); err != nil {
			t.Fatal(err)
		}
		if records, _ := remoteRecords(p); records > c.most || c.passed == 0 && records != c.most {
			t.Fatalf("after %v %d records are left for %d keys", c.passed, records, len(keys))
		}
	}
}

// A damaged segment of the local log does not keep the bucket from being compacted,
// and is not looked at again and again.
func TestCompactionWithDamageInOneTier(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	p := r.open()
	keys := numbered(20)
	for round := range 10 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := p.uploadSealed(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
	p.leave()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/data/t/0/log/%020d-1.log", p.log.Load().Segments()[1].BaseLog)
	r.stop()
	data := readAll(t, r.fs, name)
	data[len(data)/2] ^= 0xff
	r.overwrite(name, data)
	p = r.open()
	s := r.settings
	s.DirtyRatio = 0.3
	p.Configure(s)
	if err := p.compactDue(t.Context()); !isCorrupt(err) {
		t.Fatalf("the damage was not met: %v", err)
	}
	if records, _ := remoteRecords(p); records > 60 {
		t.Fatalf("%d records are left for %d keys", records, len(keys))
	}
	if err := p.compactDue(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The local log is compacted as a whole also where uploads are switched off or there
// is no store. When what is left goes to the bucket after all, one manifest shows it.
func TestCompactionWithoutUploads(t *testing.T) {
	for _, noStore := range []bool{false, true} {
		r := newRig(t)
		r.settings = compacting()
		r.settings.RemoteWrite = false
		r.noStore = noStore
		p := r.open()
		keys := numbered(20)
		for round := range 40 {
			for i, k := range keys {
				put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
			}
		}
		want := answers(t, p, keys)
		compact(t, p)
		if n := localRecords(t, p); n != len(keys) {
			t.Fatalf("%d records are left for %d keys", n, len(keys))
		}
		end := p.log.Load().State().HighWatermark
		r.noStore = false
		r.settings.RemoteWrite = true
		p = r.reopen()
		if err := p.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := p.uploadGroup(t.Context(), p.log.Load(), p.settings.Load(), new(CompactionStats))
		p.leave()
		if next := p.tier.Snapshot().Next(); err != nil || next != end {
			t.Fatalf("the bucket ends at %d, want %d: %v", next, end, err)
		}
		r.stop()
		sameAnswers(t, "bucket alone", answers(t, r.other("node-b").open(), keys), want)
	}
}

// Compacting what is about to be uploaded is progress: whoever waits for an eviction
// is not told that the store is away because it takes long.
func TestCompactionBeforeUploadIsProgress(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteWrite = false
	p := r.open()
	put(t, p, "k", "old")
	put(t, p, "k", "new")
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := r.settings
	s.DirtyRatio = 0
	p.moved.Store(0)
	if err := p.compactBeforeUpload(t.Context(), p.log.Load().Segments()[:1], &s, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if p.moved.Load() == 0 {
		t.Fatal("nothing has moved")
	}
}

// Background compaction does by itself what an operator can ask for, and not more
// often than the dirty ratio says.
func TestCompactionWhenDue(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.DirtyRatio = 0.5
	p := r.open()
	keys := numbered(20)
	for round := range 10 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	evict(t, p)
	want := answers(t, p, keys)
	if err := p.compactDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if records, _ := remoteRecords(p); records > 30 {
		t.Fatalf("%d records are left for 20 keys", records)
	}
	sameAnswers(t, "compacted", answers(t, p, keys), want)
	put(t, p, "one", "more")
	evict(t, p)
	if due := p.due(p.serving.Load(), p.settings.Load()); due != (dueNow{}) {
		t.Fatalf("due again after one record: %+v", due)
	}
	p = r.reopen()
	if due := p.due(p.serving.Load(), p.settings.Load()); due != (dueNow{}) {
		t.Fatalf("due again after a restart: %+v", due)
	}
}

// A record that is younger than min.compaction.lag.ms stays, replaced or not.
func TestCompactionLag(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.CompactionLag = time.Hour
	p := r.open()
	keys := numbered(20)
	for round := range 3 {
		for _, k := range keys {
			put(t, p, k, fmt.Sprint(round))
		}
	}
	if c := compact(t, p); c.Done.RecordsRemoved != 0 {
		t.Fatalf("%+v", c.Done)
	}
	if records, _ := remoteRecords(p); records != 60 {
		t.Fatalf("%d records in the bucket, want all 60", records)
	}
}
