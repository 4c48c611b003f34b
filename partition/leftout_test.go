package partition

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// damageObject flips a bit in the middle of an object, or in its last bytes.
func (r *rig) damageObject(key string, atEnd bool) {
	r.t.Helper()
	b := r.store.Inner()
	data, _, err := b.Get(r.t.Context(), key, 1<<30)
	if err != nil {
		r.t.Fatal(err)
	}
	at := len(data) / 2
	if atEnd {
		at = len(data) - 8
	}
	data[at] ^= 1
	if _, err := b.Put(r.t.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
		r.t.Fatal(err)
	}
}

// A segment of the bucket that is damaged stays as it is, and so do tombstones that
// may hide something in it; all others are compacted, on either side of it.
func TestDamagedSegmentOfTheBucketIsLeftOut(t *testing.T) {
	for _, run := range []bool{false, true} { // whether the key run is damaged as well
		t.Run(fmt.Sprintf("key run too=%t", run), func(t *testing.T) {
			r := newRig(t)
			r.settings = compacting()
			p := r.open()
			keys := numbered(20)
			put(t, p, "deleted-early", "v")
			for round := range 6 {
				for i, k := range keys {
					put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
				}
				if round == 2 {
					put(t, p, "deleted-later", "v")
				}
				if round < 2 {
					del(t, p, "deleted-early")
				}
				if round == 5 {
					del(t, p, "deleted-later")
				}
				// Not compacted before the upload.
				if err := p.log.Load().Roll(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			evict(t, p)
			want := answers(t, p, append(keys, "deleted-early", "deleted-later"))
			m := p.tier.Snapshot()
			at, ok := m.Find(61) // round 2 begins there or shortly behind
			if !ok {
				t.Fatal("no segment")
			}
			for i := range m.Segments { // the one with the record that was deleted later
				if err := p.tier.Keys(t.Context(), &m.Segments[i], func(key []byte, _ int64, tombstone bool) error {
					if string(key) == "deleted-later" && !tombstone {
						at = i
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if at == 0 || at+1 == len(m.Segments) {
				t.Fatalf("segment %d of %d", at, len(m.Segments))
			}
			bad := m.Segments[at]
			prefix := tiered.Prefix("t", topicID, 0)
			r.damageObject(tiered.LogKey(prefix, &bad), false)
			if run {
				r.damageObject(tiered.IndexKey(prefix, &bad), true)
			}
			_, err := p.Compact(t.Context())
			if !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), ".log") {
				t.Fatalf("the damage is not named: %v", err)
			}
			var records int64
			left, behind := false, int64(0)
			for _, seg := range p.tier.Snapshot().Segments {
				if seg == bad {
					left = true
					continue
				}
				records += seg.Records
				if seg.BaseOffset > bad.BaseOffset {
					behind += seg.Tombstones
				}
			}
			if !left {
				// All of it had been replaced, which the key run says without its batches.
				if run || p.tier.Snapshot().DeleteHorizon == 0 {
					t.Fatal("the damaged segment was not left as it was")
				}
			}
			if limit := int64(len(keys)) + 2; records > limit {
				t.Errorf("%d records are left beside the damaged segment, at most %d are needed", records, limit)
			}
			if left && behind == 0 {
				t.Error("a tombstone went though what it hides may be in the damaged segment")
			}
			sameAnswers(t, "compacted", answers(t, p, append(keys, "deleted-early", "deleted-later")), want)
		})
	}
}

// The same of the local log.
func TestDamagedLocalSegmentIsLeftOut(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.noStore = true
	p := r.open()
	keys := numbered(20)
	put(t, p, "deleted", "v")
	for round := range 6 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	del(t, p, "deleted")
	for i, k := range keys {
		put(t, p, k, fmt.Sprintf("last %0100d", i))
	}
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := answers(t, p, append(keys, "deleted"))
	segs := p.log.Load().Segments()
	bad := segs[1]
	name := fmt.Sprintf("/data/t/0/log/%020d-%d.log", bad.BaseLog, bad.Epoch)
	r.stop()
	data := readAll(t, r.fs, name)
	data[len(data)/2] ^= 0xff
	if err := manifest.WriteFile(r.fs, name, data); err != nil {
		t.Fatal(err)
	}
	p = r.open()
	var before int64
	for _, seg := range p.log.Load().Segments() {
		before += seg.Bytes
	}
	_, err := p.Compact(t.Context())
	if !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("the damage is not named: %v", err)
	}
	tombstones := 0
	for _, seg := range p.log.Load().Segments() {
		src, err := p.log.Load().OpenSegment(seg.BaseLog)
		if err != nil {
			t.Fatal(err)
		}
		var rd record.Reader
		err = src.Batches(func(_ int64, batch []byte, _ int64) error {
			if err := rd.Reset(batch, 1<<20); err != nil {
				return err
			}
			for rd.Next() {
				if rec := rd.Record(); rec.Value == nil {
					tombstones++
				}
			}
			return rd.Err()
		})
		src.Close()
		if seg.BaseLog == bad.BaseLog {
			if seg.Bytes != bad.Bytes {
				t.Errorf("the damaged segment has %d bytes, had %d", seg.Bytes, bad.Bytes)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var after int64
	for _, seg := range p.log.Load().Segments() {
		after += seg.Bytes
	}
	if after-bad.Bytes > (before-bad.Bytes)/2 {
		t.Errorf("%d bytes are left of %d beside the damaged segment", after-bad.Bytes, before-bad.Bytes)
	}
	if tombstones == 0 {
		t.Error("the tombstone went though what it hides may be in the damaged segment")
	}
	sameAnswers(t, "compacted", answers(t, p, append(keys, "deleted")), want)
}

// What is in the bucket is evicted and grows old, also if a damaged segment keeps what
// lies behind it from getting there.
func TestEvictionBesideADamagedSegment(t *testing.T) {
	r := newRig(t)
	r.settings.RemoteWrite = false
	p := r.open()
	fill(t, p, "k", 100)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	segs := p.log.Load().Segments()
	bad := segs[len(segs)-3]
	name := fmt.Sprintf("/data/t/0/log/%020d-%d.log", bad.BaseLog, bad.Epoch)
	r.stop()
	data := readAll(t, r.fs, name)
	data[len(data)/2] ^= 0xff
	if err := manifest.WriteFile(r.fs, name, data); err != nil {
		t.Fatal(err)
	}
	r.settings.RemoteWrite = true
	r.settings.LocalTargetBytes = 0
	p = r.open()
	eventually(t, "evicted up to the damage", func() bool {
		roundOfChores(t, p)
		return p.log.Load().State().LocalStart == bad.BaseKafka
	})
	if m := p.tier.Snapshot(); m.Next() != bad.BaseKafka {
		t.Fatalf("the bucket ends at %d, the damage begins at %d", m.Next(), bad.BaseKafka)
	}
	s := r.settings
	s.RetentionBytes = 1
	p.Configure(s)
	eventually(t, "retention goes on", func() bool {
		roundOfChores(t, p)
		return p.tier.Snapshot().StartOffset > 0
	})
	mustGet(t, p, "k-099")
}
