package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"keyhole/record"
)

// compacting are settings under which compaction has something to do: many small
// segments, tombstones that may go at once, merged batches in the bucket.
func compacting() Settings {
	s := defaults()
	s.SegmentBytes = 2 << 10
	s.RemoteMerge, s.RemoteCodec = true, record.Zstd
	s.DeleteRetention = 0
	return s
}

func compact(t *testing.T, p *Partition) Compaction {
	t.Helper()
	c, err := p.Compact(t.Context())
	if err != nil {
		t.Fatalf("compact: %v", err)
	}
	return c
}

// state is what lookups say about a set of keys: everything a client can see but
// where the record was read.
type answer struct {
	value  string
	offset int64
	epoch  int64
	time   int64
	err    string
}

func answers(t *testing.T, p *Partition, keys []string) map[string]answer {
	t.Helper()
	out := make(map[string]answer)
	for _, k := range keys {
		res, err := get(p, k)
		switch {
		case errors.Is(err, ErrKeyNotFound):
			out[k] = answer{err: "not found"}
		case err != nil:
			t.Fatalf("lookup %q: %v", k, err)
		default:
			out[k] = answer{value: string(res.Value), offset: res.Offset, epoch: res.Epoch, time: res.Timestamp}
		}
	}
	return out
}

func sameAnswers(t *testing.T, what string, got, want map[string]answer) {
	t.Helper()
	for k, w := range want {
		if g := got[k]; g != w {
			t.Fatalf("%s: %s is %.60v, was %.60v", what, k, g, w)
		}
	}
}

// remoteRecords counts what the manifest lists.
func remoteRecords(p *Partition) (records, tombstones int64) {
	for _, seg := range p.tier.Snapshot().Segments {
		records += seg.Records
		tombstones += seg.Tombstones
	}
	return records, tombstones
}

func numbered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key-%03d", i))
	}
	return keys
}

// After a compaction with everything in the bucket only what is alive is left, at
// the offsets and in the epochs it had; and a rebuild from nothing but the bucket
// gives the same answers. case 7-15
func TestCompactLeavesWhatIsAlive(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	p := r.open()
	keys := numbered(60)
	live := 0
	for round := range 6 {
		for i, k := range keys {
			if (i+round)%7 == 0 {
				del(t, p, k)
			} else {
				put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
			}
		}
		if round%2 == 1 {
			evict(t, p)
		}
		if round == 2 {
			r.p = r.reopen() // records of several epochs
			p = r.p
		}
	}
	want := answers(t, p, keys)
	for _, a := range want {
		if a.err == "" {
			live++
		}
	}
	c := compact(t, p)
	sameAnswers(t, "compacted", answers(t, p, keys), want)
	if records, tombstones := remoteRecords(p); records != int64(live) || tombstones != 0 {
		t.Fatalf("%d records, %d of them tombstones, are left in the bucket; %d keys are alive", records, tombstones, live)
	}
	if c.Done.CloudSegments == 0 || c.Done.RecordsRemoved == 0 || c.Done.CloudBytesAfter >= c.Done.CloudBytesBefore {
		t.Fatalf("done: %+v", c.Done)
	}
	evict(t, p)
	sameAnswers(t, "evicted", answers(t, p, keys), want)
	if again := compact(t, p); again.Done.CloudSegments != 0 || again.Done.LocalSegments != 0 {
		t.Fatalf("compacted again for nothing: %+v", again.Done)
	}

	r.stop()
	if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
		t.Fatal(err)
	}
	sameAnswers(t, "index built anew", answers(t, r.open(), keys), want)
	r.stop()
	sameAnswers(t, "empty disk", answers(t, r.other("node-b").open(), keys), want)
}

// What only the local log replaces stays in the bucket: whoever sees the bucket
// alone, a replica or an empty disk, must find the value as of the bucket's end.
func TestBucketAloneIsRightAfterCompaction(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	p := r.open()
	keys := numbered(40)
	for round := range 3 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	evict(t, p)
	want := answers(t, p, keys)
	var newer []record.Record // stays in the local log: one batch, which seals no segment
	for i, k := range keys {
		rec := record.Record{Key: []byte(k)}
		if i%2 == 0 {
			rec.Value = []byte("newer")
		}
		newer = append(newer, rec)
	}
	if _, err := p.Append(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	v, s := p.serving.Load(), p.settings.Load()
	var stats CompactionStats
	if err := p.compactRemote(t.Context(), v, s, true, &stats); err != nil {
		t.Fatal(err)
	}
	if stats.RecordsRemoved == 0 {
		t.Fatal("nothing was removed")
	}
	if records, _ := remoteRecords(p); records != int64(len(keys)) {
		t.Fatalf("%d records are left in the bucket for %d keys", records, len(keys))
	}
	r.stop()
	sameAnswers(t, "bucket alone", answers(t, r.other("node-b").open(), keys), want)
}

// A segment that is compacted before its upload keeps what only the segments
// behind it replace.
func TestCompactionBeforeUploadLooksNoFurtherThanTheBucket(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 1 << 20
	p := r.open()
	keys := numbered(40)
	for round := range 3 {
		for i, k := range keys {
			put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
		}
	}
	want := answers(t, p, keys)
	if err := p.log.Load().Roll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if i%2 == 0 {
			put(t, p, k, "newer")
		} else {
			del(t, p, k)
		}
	}
	s := *p.settings.Load()
	s.DirtyRatio = 0
	if err := p.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	var stats CompactionStats
	_, err := p.uploadGroup(t.Context(), p.log.Load(), &s, &stats)
	p.leave()
	if err != nil {
		t.Fatal(err)
	}
	if stats.LocalSegments != 1 || stats.RecordsRemoved != int64(2*len(keys)) {
		t.Fatalf("compacted before the upload: %+v", stats)
	}
	r.stop()
	sameAnswers(t, "bucket alone", answers(t, r.other("node-b").open(), keys), want)
}

// What is compacted while uploads are switched off may be uploaded later, and then
// no manifest may lack what only a later one replaces.
func TestCompactionWithUploadsSwitchedOff(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteWrite = false
	p := r.open()
	keys := numbered(10)
	states := map[int64]map[string]answer{0: answers(t, p, keys)}
	for round := range 12 {
		for i, k := range keys {
			if (round+i)%5 == 0 {
				del(t, p, k)
			} else {
				put(t, p, k, fmt.Sprintf("%d %0100d", round, i))
			}
		}
		if err := p.log.Load().Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		states[p.log.Load().State().HighWatermark] = answers(t, p, keys)
	}
	compact(t, p)
	s := r.settings
	s.RemoteWrite, s.DirtyRatio = true, 2
	p.Configure(s)
	for more := true; more; {
		if err := p.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		var err error
		more, err = p.uploadGroup(t.Context(), p.log.Load(), &s, new(CompactionStats))
		p.leave()
		if err != nil {
			t.Fatal(err)
		}
		replica := r.other("replica")
		replica.options = func(o *Options) { o.Replica = true }
		next := p.tier.Snapshot().Next()
		sameAnswers(t, fmt.Sprintf("bucket up to %d", next), answers(t, replica.open(), keys), states[next])
		replica.stop()
	}
}

func localRecords(t *testing.T, p *Partition) (n int) {
	t.Helper()
	v := p.serving.Load()
	pass := localPass{p: p, v: v, progress: func() {}}
	for _, seg := range v.log.Segments() {
		if err := pass.read(t.Context(), seg, func([]byte, int64, bool) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Random operations on one key space, with compactions of both tiers in between:
// the answers are those of a map, also of an index that is built anew, and of a
// disk that has nothing but the bucket.
func TestRandomCompactions(t *testing.T) {
	rng := seeded(t)
	for range 4 {
		randomCompactions(t, rand.New(rand.NewPCG(rng.Uint64(), 0)))
	}
}

func randomCompactions(t *testing.T, rng *rand.Rand) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.SegmentBytes = 1<<10 + rng.Int64N(8<<10)
	r.settings.RemoteMerge = rng.IntN(3) > 0
	r.settings.RemoteCodec = record.Codec(rng.IntN(5))
	r.settings.Codec = record.Codec(rng.IntN(5))
	p := r.open()
	keys := numbered(25)
	model := map[string]answer{}
	for _, k := range keys {
		model[k] = answer{err: "not found"}
	}
	write := func() {
		k := keys[rng.IntN(len(keys))]
		rec := record.Record{Key: []byte(k), Timestamp: rng.Int64N(1e12)}
		if rng.IntN(4) > 0 {
			rec.Value = fmt.Appendf(nil, "%0*d", 1+rng.IntN(300), rng.IntN(1000))
		}
		off, err := p.Append(t.Context(), []record.Record{rec})
		if err != nil {
			t.Fatal(err)
		}
		model[k] = answer{err: "not found"}
		if rec.Value != nil {
			model[k] = answer{value: string(rec.Value), offset: off, time: rec.Timestamp}
		}
	}
	check := func(what string, p *Partition) {
		t.Helper()
		got := answers(t, p, keys)
		for k, a := range got {
			a.epoch = 0
			got[k] = a
		}
		sameAnswers(t, what, got, model)
	}
	for range 60 {
		for range rng.IntN(40) {
			write()
		}
		switch rng.IntN(8) {
		case 0:
			compact(t, p)
		case 1:
			var stats CompactionStats
			if err := p.compact(t.Context(), p.settings.Load(), true, &stats); err != nil {
				t.Fatal(err)
			}
		case 2, 3:
			if _, err := p.Evict(t.Context(), rng.Int64N(20<<10)); err != nil {
				t.Fatal(err)
			}
		case 4:
			if _, err := p.Collect(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		case 5:
			p = r.reopen()
		case 6:
			r.stop()
			if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
				t.Fatal(err)
			}
			p = r.open()
		case 7: // everything is in the bucket, and the disk is lost
			evict(t, p)
			r.stop()
			r.fs = disk(t)
			r.writer = fmt.Sprintf("node-%d", rng.IntN(1000))
			p = r.open()
		}
		check("after a step", p)
	}
}

// Lookups and writes go on while both tiers are compacted, and see nothing of it.
// case 7-21
func TestCompactionUnderLoad(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	p := r.open()
	keys := numbered(50)
	for i, k := range keys {
		put(t, p, k, fmt.Sprintf("00000000 %0100d", i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	writes := make(chan struct{}, 400) // how many may be made
	for w := range 2 {
		wg.Go(func() { // each writer owns half of the keys and counts up
			n := 0
			for range writes {
				n++
				k := keys[(n*2+w)%len(keys)]
				if _, err := p.Append(context.Background(), []record.Record{{Key: []byte(k), Value: fmt.Appendf(nil, "%08d %0100d", n, 0)}}); err != nil {
					t.Errorf("append: %v", err)
					return
				}
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			seen := map[string]string{}
			for i := 0; ctx.Err() == nil; i++ {
				k := keys[i%len(keys)]
				res, err := get(p, k)
				if err != nil {
					t.Errorf("lookup %s: %v", k, err)
					return
				}
				n := string(res.Value[:8])
				if n < seen[k] {
					t.Errorf("%s went back from %s to %s", k, seen[k], n)
					return
				}
				seen[k] = n
			}
		})
	}
	for range 8 {
		for range 300 {
			writes <- struct{}{}
		}
		compact(t, p)
		if _, err := p.Evict(t.Context(), 4<<10); err != nil {
			t.Error(err)
		}
		if _, err := p.Collect(t.Context(), false); err != nil {
			t.Error(err)
		}
	}
	close(writes)
	cancel()
	wg.Wait()
}
