package tiered

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// Every record of random segments comes back as it was, by one ranged GET for
// its chunk or none, whatever the chunk size and the cache.
func TestEveryRecordIsReadBack(t *testing.T) {
	rng := newRand(t)
	for _, o := range []nodeOptions{{chunkBytes: 1}, {chunkBytes: 900, cacheBytes: 1000}, {chunkBytes: 4096}, {chunkBytes: 1 << 20}} {
		b := newBucket()
		n := newNode(t, b, o)
		build := newBuilder(t, rng.Int64N(1000))
		var sources []*memSource
		for range 3 {
			build.random(rng, 40)
			sources = append(sources, build.done())
		}
		n.upload(t, sources...)
		records := make(map[int64]record.Record)
		for _, s := range sources {
			for _, r := range s.records {
				records[r.Offset] = r
			}
		}
		for range 150 {
			offset := sources[0].base + rng.Int64N(sources[2].next-sources[0].base+2) - 1
			b.ResetCalls()
			want, ok := records[offset]
			if !ok {
				if _, _, err := n.read(t.Context(), offset); !errors.Is(err, ErrNotRetained) {
					t.Fatalf("gap at %d: %v", offset, err)
				}
				continue
			}
			hit := n.wantRecord(t, want)
			wantCalls := 1
			if hit {
				wantCalls = 0
			}
			if b.Count() != wantCalls || b.Count(objstoretest.OpReadRange) != wantCalls {
				t.Fatalf("hit=%t: calls %v", hit, b.Calls())
			}
		}
	}
}

func TestStoreCallsOfALookup(t *testing.T) {
	b, fs := newBucket(), vfs.NewMem()
	n := newNode(t, b, nodeOptions{fs: fs})
	src := newBuilder(t, 0).numbered(100)
	n.upload(t, src)
	calls := func(n *node, offset int64, wantHit bool, want int) {
		t.Helper()
		b.ResetCalls()
		if hit := n.wantRecord(t, src.records[offset]); hit != wantHit {
			t.Errorf("offset %d: hit %t", offset, hit)
		}
		if b.Count() != want || b.Count(objstoretest.OpReadRange) != want {
			t.Errorf("offset %d: calls %v, want %d ranged reads", offset, b.Calls(), want)
		}
	}
	calls(n, 50, false, 1)
	calls(n, 50, true, 0)
	calls(n, 51, true, 0) // the same chunk
	calls(n, 0, false, 1)
	n.o.Shared.TrimCache()
	calls(n, 50, false, 1)

	again := newNode(t, b, nodeOptions{fs: fs, unclaimed: true})
	calls(again, 50, false, 1) // the first one after a restart
	calls(again, 51, true, 0)
}

func TestFiftyLookupsOfOneChunkAreOneGet(t *testing.T) { // case 5-03
	b := newBucket()
	n := newNode(t, b, nodeOptions{chunkBytes: 1 << 20})
	src := newBuilder(t, 0).numbered(50)
	n.upload(t, src)
	b.ResetCalls()
	release := make(chan struct{})
	b.Before(func(context.Context, objstoretest.Call) error { <-release; return nil })
	var wg sync.WaitGroup
	for _, r := range src.records {
		wg.Go(func() { n.wantRecord(t, r) })
	}
	close(release)
	wg.Wait()
	if b.Count() != 1 {
		t.Errorf("%d calls", b.Count())
	}
}

// One flipped bit anywhere in a chunk is damage, is not kept, and is gone when
// the bytes are right again. cases 3-25, 5-13
func TestDamagedChunkIsNeverServedNorKept(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{chunkBytes: 300})
	src := newBuilder(t, 0).numbered(20)
	seg := n.upload(t, src).Segments[0]
	want := src.records[7]
	var rangeOf objstoretest.Call
	b.FilterRead(func(c objstoretest.Call, data []byte) []byte { rangeOf = c; return data })
	n.wantRecord(t, want)
	for i := range rangeOf.N {
		n.o.Shared.TrimCache()
		b.FilterRead(func(_ objstoretest.Call, data []byte) []byte { data[i] ^= 1 << (i % 8); return data })
		_, hit, err := n.read(t.Context(), want.Offset)
		var damage *record.CorruptError
		if hit || !errors.As(err, &damage) || damage.Object != LogKey(prefix, &seg) || damage.Position != rangeOf.Off {
			t.Fatalf("byte %d: hit %t, %v", i, hit, err)
		}
		b.FilterRead(nil)
		if n.wantRecord(t, want) {
			t.Fatalf("byte %d: the damaged chunk was kept", i)
		}
	}
}

// Behind a true checksum a chunk is still not trusted with the program's life.
func TestChunkWithImpossibleBatches(t *testing.T) {
	src := newBuilder(t, 5).numbered(3)
	var good []byte
	for _, b := range src.batches {
		batch := bytes.Clone(src.file[b.pos : b.pos+b.size])
		record.SetBaseOffset(batch, b.kafkaBase)
		good = append(good, batch...)
	}
	first := int(src.batches[0].size)
	nop := func([]byte, int64) error { return nil }
	if err := batchAt(good, 7, nop); err != nil {
		t.Fatal(err)
	}
	spoilt := func(at int, b ...byte) []byte {
		out := bytes.Clone(good)
		copy(out[at:], b)
		return out
	}
	for name, data := range map[string][]byte{
		"cut in a header": good[:first+30],
		"cut in a batch":  good[:len(good)-1],
		"length 0":        spoilt(first+8, 0, 0, 0, 0),
		"length 48":       spoilt(first+8, 0, 0, 0, 48),
		"length -1":       spoilt(first+8, 0xff, 0xff, 0xff, 0xff),
		"magic":           spoilt(2*first+16, 9),
		"offset delta":    spoilt(2*first+23, 0xff),
	} {
		if err := batchAt(data, 7, nop); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChunkOfWrongLengthIsDamage(t *testing.T) { // case 4-11
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(20))
	b.FilterRead(func(_ objstoretest.Call, data []byte) []byte { return data[:len(data)-1] })
	if _, _, err := n.read(t.Context(), 3); !errors.Is(err, record.ErrCorrupt) {
		t.Fatal(err)
	}
}

// cases 4-08, 4-09, 4-14, 7-06: an object that the manifest names and that is
// gone, empty or too short is damage with its name and sizes, not "not found";
// other segments are not touched by it.
func TestMissingOrShortObjectIsDamage(t *testing.T) {
	for _, table := range []bool{false, true} {
		for _, state := range []string{"gone", "empty", "short"} {
			t.Run(fmt.Sprintf("table=%t/%s", table, state), func(t *testing.T) {
				b := newBucket()
				n := newNode(t, b, nodeOptions{})
				build := newBuilder(t, 0)
				bad, good := build.numbered(20), build.numbered(20)
				seg := n.upload(t, bad, good).Segments[0]
				object, size := LogKey(prefix, &seg), seg.Size
				if table {
					object, size = IndexKey(prefix, &seg), seg.IndexSize
					if err := n.fs.Remove("p/remote/" + tableFile(&seg)); err != nil {
						t.Fatal(err)
					}
				}
				switch state {
				case "gone":
					if err := b.Delete(t.Context(), object); err != nil {
						t.Fatal(err)
					}
				case "empty":
					put(t, b, object, nil)
				case "short":
					put(t, b, object, content(t, b, object)[:50])
				}
				for range 2 {
					_, hit, err := n.read(t.Context(), 15)
					if hit || !errors.Is(err, record.ErrCorrupt) {
						t.Fatalf("hit %t, %v", hit, err)
					}
					if text := err.Error(); !strings.Contains(text, object) || !strings.Contains(text, fmt.Sprint(size)) {
						t.Errorf("error does not name object and size: %v", err)
					}
				}
				n.wantRecord(t, good.records[3])
			})
		}
	}
}

func TestTroubleOfTheStoreIsPassedOnAsItIs(t *testing.T) { // cases 4-15, 4-17
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	src := newBuilder(t, 0).numbered(5)
	n.upload(t, src)
	for _, want := range []error{objstore.ErrUnavailable, objstore.ErrDenied, objstore.ErrMisconfigured, objstore.ErrUnusable} {
		b.FailNext(objstoretest.OpReadRange, 1, want)
		_, _, err := n.read(t.Context(), 2)
		if !errors.Is(err, want) || errors.Is(err, record.ErrCorrupt) || errors.Is(err, ErrNotRetained) {
			t.Errorf("%v became %v", want, err)
		}
	}
	n.wantRecord(t, src.records[2])
}

// The local table may be missing or damaged in any way; it is read once from
// the bucket and stored again.
func TestLocalTableIsFetchedOnceWhenUnusable(t *testing.T) {
	b, fs := newBucket(), vfs.NewMem()
	n := newNode(t, b, nodeOptions{fs: fs})
	src := newBuilder(t, 0).numbered(30)
	seg := n.upload(t, src).Segments[0]
	path := "p/remote/" + tableFile(&seg)
	good, err := manifest.ReadFile(fs, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 4
	for name, local := range map[string][]byte{"missing": nil, "empty": {}, "cut": good[:len(good)-1], "flipped": flipped, "longer": append(bytes.Clone(good), 0)} {
		if local == nil {
			err = fs.Remove(path)
		} else {
			err = manifest.WriteFile(fs, path, local)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{2, 1} {
			again := newNode(t, b, nodeOptions{fs: fs, unclaimed: true})
			b.ResetCalls()
			again.wantRecord(t, src.records[11])
			if b.Count() != want || b.Count(objstoretest.OpReadRange) != want {
				t.Errorf("%s, start %d: calls %v", name, i, b.Calls())
			}
			repairs := testutil.ToFloat64(again.o.Shared.repairs.WithLabelValues(partTable))
			if wantRepairs := i == 0 && name != "missing"; (repairs == 1) != wantRepairs {
				t.Errorf("%s, start %d: %v repairs", name, i, repairs)
			}
		}
		if kept, err := manifest.ReadFile(fs, path, 1<<20); err != nil || !bytes.Equal(kept, good) {
			t.Errorf("%s: table not stored again: %v", name, err)
		}
	}
}

func TestTableOfAnotherSegmentIsDamage(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	segs := n.upload(t, build.numbered(5), build.numbered(5)).Segments
	put(t, b, IndexKey(prefix, &segs[0]), content(t, b, IndexKey(prefix, &segs[1])))
	if err := n.fs.Remove("p/remote/" + tableFile(&segs[0])); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.read(t.Context(), 2); !errors.Is(err, record.ErrCorrupt) {
		t.Fatal(err)
	}
}

// The bound on reads holds for fetches, not for what is in memory, and moves
// while the process runs.
func TestReadsAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		n := newNode(t, b, nodeOptions{chunkBytes: 1, maxReads: 2})
		src := newBuilder(t, 0).numbered(10)
		n.upload(t, src)
		n.wantRecord(t, src.records[9])
		release := make(chan struct{})
		b.Before(func(context.Context, objstoretest.Call) error { <-release; return nil })
		var wg sync.WaitGroup
		for _, r := range src.records[:2] {
			wg.Go(func() { n.wantRecord(t, r) })
		}
		synctest.Wait()
		if _, _, err := n.read(t.Context(), 5); !errors.Is(err, ErrOverloaded) {
			t.Errorf("third read: %v", err)
		}
		n.wantRecord(t, src.records[9]) // in memory
		n.o.Shared.SetMaxReads(3)
		wg.Go(func() { n.wantRecord(t, src.records[5]) })
		synctest.Wait()
		if _, _, err := n.read(t.Context(), 6); !errors.Is(err, ErrOverloaded) {
			t.Errorf("fourth read: %v", err)
		}
		if got := testutil.ToFloat64(n.o.Shared.rejected); got != 2 {
			t.Errorf("%v reads counted as rejected", got)
		}
		close(release)
		wg.Wait()
		b.Before(nil)
		n.wantRecord(t, src.records[6])
		if n.o.Shared.reads.Load() != 0 {
			t.Errorf("%d places not given back", n.o.Shared.reads.Load())
		}
	})
}

func TestUnknownManifestIsNotAnEmptyOne(t *testing.T) { // case 7-29
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(5))
	for _, damage := range []bool{false, true} {
		fs := vfs.NewMem()
		if damage {
			if err := errors.Join(fs.MkdirAll("p/remote", 0o755), manifest.WriteFile(fs, "p/remote/manifest.json", nil)); err != nil {
				t.Fatal(err)
			}
		}
		again := newNode(t, b, nodeOptions{fs: fs, unclaimed: true})
		if _, _, err := again.read(t.Context(), 2); !errors.Is(err, ErrUnknown) {
			t.Errorf("read: %v", err)
		}
		err := again.KeyRuns(t.Context(), 0, nil, func([]byte, int64, bool) error { return nil })
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("key runs: %v", err)
		}
		for _, refusal := range []error{objstore.ErrDenied, objstore.ErrUnavailable} { // case 4-17
			b.FailNext(objstoretest.OpGet, 1, refusal)
			b.ResetCalls()
			if _, err := again.Claim(t.Context(), false); !errors.Is(err, refusal) {
				t.Errorf("claim: %v", err)
			}
			if b.Count(objstoretest.OpPut) != 0 || again.Snapshot().Known() {
				t.Error("a refusal was taken for an empty bucket")
			}
		}
		if _, err := again.Claim(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		wantRanges(t, again.Snapshot(), "0-4")
	}
}

func TestErrorOfTheCallbackComesBack(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	seg := n.upload(t, newBuilder(t, 0).numbered(5)).Segments[0]
	want := errors.New("mine")
	if _, err := n.ReadBatch(t.Context(), n.Snapshot(), 2, func([]byte, int64) error { return want }); err != want {
		t.Errorf("got %v", err)
	}
	// Damage that a reader of the batch finds is given its place.
	_, err := n.ReadBatch(t.Context(), n.Snapshot(), 2, func(batch []byte, _ int64) error {
		return record.Corrupt("", 61, errors.New("record"))
	})
	var damage *record.CorruptError
	if !errors.As(err, &damage) || damage.Object != LogKey(prefix, &seg) || damage.Position <= 61 {
		t.Errorf("got %v", err)
	}
}

func BenchmarkReadCached(b *testing.B) {
	n := newNode(b, newBucket(), nodeOptions{chunkBytes: 64 << 10})
	src := newBuilder(b, 0).numbered(1000)
	n.upload(b, src)
	m := n.Snapshot()
	ctx := context.Background()
	fn := func(batch []byte, _ int64) error { return nil }
	if _, err := n.ReadBatch(ctx, m, 500, fn); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if hit, err := n.ReadBatch(ctx, m, 500, fn); err != nil || !hit {
			b.Fatal(hit, err)
		}
	}
}
