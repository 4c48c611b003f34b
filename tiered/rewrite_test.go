package tiered

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func wantNoTemporaryFile(t testing.TB, fs vfs.FS) {
	t.Helper()
	if _, err := fs.Stat("p/remote/" + rewriteFile); err == nil {
		t.Error("the temporary file is still there")
	}
}

// Both logs are read once, then the new objects come, then what was decided is made
// durable, then the manifest says so. Nothing is deleted.
func TestRewriteGoldenTrace(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	sources := []*memSource{build.numbered(10), build.numbered(5), build.numbered(5)}
	segs := n.upload(t, sources...).Segments
	b.ResetCalls()
	settled := ""
	m, err := n.Rewrite(t.Context(), segs[:2], RewriteOptions{
		Keep:    func(_ []byte, offset int64, _ bool) (bool, error) { return offset%2 == 0, nil },
		Horizon: 12,
		Settle: func(context.Context) error {
			settled = trace(b.Calls())
			if n.Snapshot().Segments[0] != segs[0] {
				t.Error("the manifest is ahead of what it depends on")
			}
			return nil
		},
		Now: func() time.Time { return time.UnixMilli(77) },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `ReadRange 00000000000000000000-A.log
ReadRange 00000000000000000010-B.log
Put 00000000000000000000-C.log
Put 00000000000000000000-C.index
`
	if settled != want {
		t.Errorf("before the manifest:\n%swant\n%s", settled, want)
	}
	if got := trace(b.Calls()); got != want+"Put manifest.json\n" {
		t.Errorf("rewrite:\n%s", got)
	}
	wantRanges(t, m, "0-14 15-19")
	if m.DeleteHorizon != 12 || len(m.Removed) != 2 || m.Removed[0].RemovedAt != 77 || m.Removed[1].UploadID != segs[1].UploadID {
		t.Errorf("manifest %+v", m)
	}
	if s := m.Segments[0]; s.Records != 8 || s.Epoch != sourceEpoch || s.CreatedAt != segs[1].CreatedAt || s.CreatedAt == 0 {
		t.Errorf("segment %+v", s)
	}
	wantNoTemporaryFile(t, n.fs)
	// The first lookup in the new segment takes one request.
	b.ResetCalls()
	n.wantRecord(t, sources[0].records[4])
	if b.Count() != 1 {
		t.Errorf("first lookup: calls %v", b.Calls())
	}
	if _, _, err := n.read(t.Context(), 5); !errors.Is(err, ErrNotRetained) {
		t.Errorf("a record that went: %v", err)
	}
	wantClean(t, b)
}

// Random segments, random decisions, random neighbours: what is stored, what the
// key runs say and what lookups find is what a model says, under every codec.
func TestRandomRewrites(t *testing.T) {
	rng := newRand(t)
	for round := range 8 {
		b := newBucket()
		recode := Recode{Merge: rng.IntN(3) > 0, Codec: record.Codec(rng.IntN(5))}
		n := newNode(t, b, nodeOptions{recode: recode, chunkBytes: 500 + rng.Int64N(3000)})
		build := newBuilder(t, rng.Int64N(1000))
		var sources []*memSource
		for range 2 + rng.IntN(6) {
			sources = append(sources, build.mixed(rng, 1+rng.IntN(12)))
		}
		n.upload(t, sources...)
		model, fixed := allRecords(sources...), transactionOffsets(sources...)
		next := n.Snapshot().Next()
		for step := range 6 {
			segs := n.Snapshot().Segments
			if len(segs) == 0 {
				break
			}
			i := rng.IntN(len(segs))
			old := segs[i : i+1+rng.IntN(len(segs)-i)]
			from, last := old[0].BaseOffset, old[len(old)-1].LastOffset
			seed, share := rng.Uint64(), rng.IntN(4)
			within := func(offset int64) bool { return offset >= from && offset <= last }
			keep := func(key []byte, offset int64, _ bool) (bool, error) {
				return !within(offset) || (seed^uint64(offset)*0x9e3779b97f4a7c15)>>33%3 < uint64(share), nil
			}
			model = kept(model, fixed, keep)
			if _, err := n.Rewrite(t.Context(), old, RewriteOptions{Keep: keep}); err != nil {
				t.Fatal(err)
			}
			m, orphans := wantClean(t, b)
			if m.Next() != next || len(orphans) != 0 {
				t.Fatalf("bucket ends at %d, orphans %v", m.Next(), orphans)
			}
			wantStored(t, b, model)
			want := make(map[string]int64)
			for _, r := range model {
				switch {
				case r.Key == nil:
				case r.Value == nil:
					delete(want, string(r.Key))
				default:
					want[string(r.Key)] = r.Offset
				}
			}
			if got := replay(t, n, 0); !maps.Equal(got, want) {
				t.Fatalf("round %d, step %d: key runs have %d keys, want %d", round, step, len(got), len(want))
			}
		}
		for _, r := range model {
			n.wantRecord(t, r)
		}
		for _, r := range allRecords(sources...) {
			if !slices.ContainsFunc(model, func(k record.Record) bool { return k.Offset == r.Offset }) {
				if _, _, err := n.read(t.Context(), r.Offset); !errors.Is(err, ErrNotRetained) {
					t.Fatalf("offset %d went: %v", r.Offset, err)
				}
			}
		}
		// A second node has the same, and what was replaced can go.
		fresh := newNode(t, b, nodeOptions{writer: "b"})
		collected(t, fresh, CollectOptions{Now: func() time.Time { return time.Now().Add(time.Hour) }, Orphans: true})
		for _, r := range model {
			fresh.wantRecord(t, r)
		}
	}
}

func collected(t testing.TB, n *node, o CollectOptions) Collected {
	t.Helper()
	c, err := n.Collect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Full batches stay one chunk each when they are merged again, and the epoch that a
// batch names is the one of its records, which are not mixed.
func TestRewrittenBatchesAreAChunkAndHaveOneEpoch(t *testing.T) {
	for _, recode := range []Recode{{}, {Merge: true, Codec: record.Zstd}} {
		b := newBucket()
		const target = 8 << 10
		n := newNode(t, b, nodeOptions{chunkBytes: target, recode: recode})
		build := newBuilder(t, 0)
		var sources []Source
		for i := range 4 {
			for range 300 {
				build.add(record.Snappy, kv(0, fmt.Sprint("k", build.kafka), strings.Repeat("v", 150)))
			}
			sources = append(sources, epochSource{build.done(), int64(5 + i/2)})
		}
		m, err := n.Upload(t.Context(), sources, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, err = n.Rewrite(t.Context(), m.Segments, RewriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seg := m.Segments[0]
		if seg.Epoch != 6 || m.EpochAt(599) != 5 || m.EpochAt(600) != 6 {
			t.Errorf("epochs %d, %v", seg.Epoch, m.LeaderEpochs)
		}
		data := content(t, b, LogKey(prefix, &seg))
		tab, err := n.table(t.Context(), &seg)
		if err != nil {
			t.Fatal(err)
		}
		want := record.Snappy
		if recode.Merge {
			want = recode.Codec
		}
		for i := range tab.len() {
			c := tab.chunk(i)
			batches := batchesOf(t, data[c.pos:c.pos+c.size])
			h := batches[0]
			if len(batches) != 1 || h.Codec() != want {
				t.Errorf("chunk %d has %d batches, the first with codec %v", i, len(batches), h.Codec())
			}
			if int64(h.LeaderEpoch) != m.EpochAt(h.BaseOffset) || m.EpochAt(h.BaseOffset) != m.EpochAt(h.LastOffset()) {
				t.Errorf("chunk %d: batch of offsets %d to %d has epoch %d", i, h.BaseOffset, h.LastOffset(), h.LeaderEpoch)
			}
		}
		if plain := 1200 * 170; tab.len() > plain/target*5/4 {
			t.Errorf("%d chunks for %d bytes", tab.len(), plain)
		}
	}
}

type epochSource struct {
	*memSource
	epoch int64
}

func (s epochSource) Epoch() int64 { return s.epoch }

func TestRewriteOfDeadSegments(t *testing.T) {
	for _, empty := range []bool{false, true} {
		b := newBucket()
		n := newNode(t, b, nodeOptions{})
		build := newBuilder(t, 0)
		sources := []*memSource{build.numbered(5), build.numbered(5), build.numbered(5)}
		segs := n.upload(t, sources...).Segments
		b.ResetCalls()
		o := RewriteOptions{Empty: empty, Keep: keepNone, Horizon: 10}
		if empty {
			o.Keep = nil
		}
		m, err := n.Rewrite(t.Context(), segs[:2], o)
		if err != nil {
			t.Fatal(err)
		}
		wantRanges(t, m, "10-14")
		if m.Next() != 15 || m.DeleteHorizon != 10 || len(m.Removed) != 2 {
			t.Errorf("manifest %+v", m)
		}
		want := "Put manifest.json\n"
		if !empty {
			want = "ReadRange 00000000000000000000-A.log\nReadRange 00000000000000000005-B.log\n" + want
		}
		if got := trace(b.Calls()); got != want {
			t.Errorf("calls:\n%swant\n%s", got, want)
		}
		m, err = n.Rewrite(t.Context(), m.Segments, o)
		if err != nil || len(m.Segments) != 0 || m.Next() != 15 {
			t.Errorf("%+v, %v", m, err)
		}
		wantRanges(t, n.upload(t, build.numbered(3)), "15-17")
		wantClean(t, b)
	}
}

// Whatever of an input is damaged, cut or gone: nothing changes.
func TestRewriteOfDamagedSegments(t *testing.T) {
	build := newBuilder(t, 0)
	rng := newRand(t)
	sources := []*memSource{build.mixed(rng, 5), build.mixed(rng, 5)}
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	segs := n.upload(t, sources...).Segments
	want := allRecords(sources...)
	attempt := func(name string) {
		t.Helper()
		b.ResetCalls()
		before := n.Snapshot()
		_, err := n.Rewrite(t.Context(), segs, RewriteOptions{Keep: keepNone})
		if !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), prefix) {
			t.Fatalf("%s: %v", name, err)
		}
		if n.Snapshot() != before || b.Count(objstoretest.OpPut, objstoretest.OpDelete) != 0 {
			t.Fatalf("%s: calls %v", name, b.Calls())
		}
		wantNoTemporaryFile(t, n.fs)
	}
	object := LogKey(prefix, &segs[1])
	good := content(t, b, object)
	for at := 0; at < len(good); at += 1 + rng.IntN(20) {
		bad := slices.Clone(good)
		bad[at] ^= 1 << rng.IntN(8)
		put(t, b, object, bad)
		attempt(fmt.Sprintf("byte %d", at))
	}
	put(t, b, object, good[:len(good)-1])
	attempt("cut")
	if err := b.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	attempt("gone")
	put(t, b, object, good)
	// The table is what proves where batches are; a node without one of its own has
	// that of the bucket.
	fresh := newNode(t, b, nodeOptions{writer: "b"})
	n = fresh
	index := content(t, b, IndexKey(prefix, &segs[0]))
	bad := slices.Clone(index)
	bad[50] ^= 1
	put(t, b, IndexKey(prefix, &segs[0]), bad)
	attempt("table")
	put(t, b, IndexKey(prefix, &segs[0]), index)
	n.o.Shared.SetMaxReads(0) // lookups have taken all places, which are not for this
	if _, err := n.Rewrite(t.Context(), segs, RewriteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantStored(t, b, want)
	n.o.Shared.SetMaxReads(1)
	for _, r := range want {
		n.wantRecord(t, r)
	}
}

func TestRewriteNeedsNeighboursAndAClaim(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	segs := n.upload(t, build.numbered(5), build.numbered(5), build.numbered(5)).Segments
	other := segs[1]
	other.UploadID = "x"
	b.ResetCalls()
	for name, old := range map[string][]manifest.Segment{
		"none": nil, "not neighbours": {segs[0], segs[2]}, "other order": {segs[1], segs[0]}, "another one": {segs[0], other},
		"more than there is": append(slices.Clone(segs), other),
	} {
		if _, err := n.Rewrite(t.Context(), old, RewriteOptions{Keep: keepNone}); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.Count() != 0 {
		t.Errorf("calls %v", b.Calls())
	}
	fresh := newNode(t, b, nodeOptions{unclaimed: true, fs: n.fs})
	if _, err := fresh.Rewrite(t.Context(), segs, RewriteOptions{}); !errors.Is(err, ErrNotClaimed) {
		t.Errorf("without a claim: %v", err)
	}
	newNode(t, b, nodeOptions{writer: "b"})
	if _, err := n.Rewrite(t.Context(), segs, RewriteOptions{}); !errors.Is(err, ErrFenced) {
		t.Errorf("by a node that was overtaken: %v", err)
	}
	if m, _ := wantClean(t, b); len(m.Segments) != 3 {
		t.Error("the manifest has changed")
	}
}

// Retention may take a segment while it is rewritten; then nothing is committed.
func TestSegmentsThatChangeDuringARewrite(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	segs := n.upload(t, build.numbered(5), build.numbered(5), build.numbered(5)).Segments
	for _, gone := range []bool{false, true} {
		var once bool
		_, err := n.Rewrite(t.Context(), n.Snapshot().Segments[:2], RewriteOptions{Pace: func(ctx context.Context, _ time.Duration) error {
			if once {
				return nil
			}
			once = true
			if _, err := n.Truncate(ctx, n.Snapshot().Segments[1].BaseOffset, 0, time.UnixMilli(1)); err != nil {
				return err
			}
			if gone {
				return b.Delete(ctx, LogKey(prefix, &segs[2]))
			}
			return nil
		}})
		if !errors.Is(err, ErrChanged) || errors.Is(err, record.ErrCorrupt) {
			t.Errorf("gone %t: %v", gone, err)
		}
	}
	wantRanges(t, n.Snapshot(), "10-14")
}

// Pace sees each piece that was read; its errors, those of Keep and those of Settle
// end the rewrite as they are.
func TestRewriteCallsBack(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{chunkBytes: 64 << 10})
	build := newBuilder(t, 0)
	for i := range 12 {
		build.add(record.None, kv(0, fmt.Sprint("k", i), strings.Repeat(fmt.Sprint(i), 400_000)))
	}
	m := n.upload(t, build.done(), build.numbered(5))
	before := n.Snapshot()
	mine := record.Corrupt("mine", 0, errors.New("x"))
	for name, o := range map[string]RewriteOptions{
		"keep":   {Keep: func([]byte, int64, bool) (bool, error) { return false, mine }},
		"pace":   {Pace: func(context.Context, time.Duration) error { return mine }},
		"settle": {Settle: func(context.Context) error { return mine }},
	} {
		if _, err := n.Rewrite(t.Context(), m.Segments, o); !errors.Is(err, mine) || n.Snapshot() != before {
			t.Errorf("%s: %v", name, err)
		}
		wantNoTemporaryFile(t, n.fs)
	}
	pieces := 0
	b.ResetCalls()
	if _, err := n.Rewrite(t.Context(), m.Segments, RewriteOptions{Keep: keepNone, Pace: func(_ context.Context, took time.Duration) error {
		if took < 0 {
			t.Error("negative time")
		}
		pieces++
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	if reads := b.Count(objstoretest.OpReadRange); pieces != reads || reads < 3 {
		t.Errorf("%d pieces in %d reads", pieces, reads)
	}
	read := int64(0)
	for _, c := range b.Calls() {
		if c.Op == objstoretest.OpReadRange {
			read += c.N
			if c.N > pieceBytes {
				t.Errorf("a read of %d bytes", c.N)
			}
		}
	}
	if want := m.Segments[0].Size + m.Segments[1].Size; read != want {
		t.Errorf("%d bytes were read of %d", read, want)
	}
}
