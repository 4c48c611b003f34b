package locallog

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// place is where a record stands and all that it is.
type place struct {
	log, kafka int64
	record.Record
}

// places reads every record of the log, by Scan.
func places(t testing.TB, l *Log) map[int64]place {
	t.Helper()
	got := map[int64]place{}
	must(t, l.Scan(context.Background(), l.Segments()[0].BaseLog, func(a Appended) error {
		for _, p := range recordsIn(t, a) {
			got[p.kafka] = p
		}
		return nil
	}))
	return got
}

// anyCodec is a random codec, none more often than the others: compressors are
// slow to make, and pools of them keep little under the race detector.
func anyCodec(rng *rand.Rand) record.Codec {
	if rng.IntN(4) > 0 {
		return record.None
	}
	return record.Codec(rng.IntN(5))
}

// shared keeps its decompressors, which are slow to make.
var shared struct {
	sync.Mutex
	record.Reader
}

func recordsIn(t testing.TB, a Appended) (out []place) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	r := &shared.Reader
	must(t, r.Reset(a.Batch, 1<<28))
	for r.Next() {
		v := r.Record()
		hs, err := v.Headers()
		must(t, err)
		for i := range hs {
			hs[i].Value = bytes.Clone(hs[i].Value)
		}
		p := place{log: v.Offset, kafka: v.Offset - a.LogBase + a.KafkaBase}
		p.Record = record.Record{Offset: v.Offset, Timestamp: v.Timestamp, Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value), Headers: hs}
		out = append(out, p)
	}
	must(t, r.Err())
	return out
}

// keepOnly is a Keep that wants the given offsets, and no others.
func keepOnly(want map[int64]bool) func([]byte, int64, bool) (bool, error) {
	return func(_ []byte, offset int64, _ bool) (bool, error) { return want[offset], nil }
}

// sealedSegments are the base log offsets of the sealed segments.
func sealedSegments(l *Log) (bases []int64) {
	for _, s := range l.Segments() {
		if s.Sealed {
			bases = append(bases, s.BaseLog)
		}
	}
	return bases
}

// wantSound wants Verify to find nothing, but that index files are missing if
// they may be.
func wantSound(t testing.TB, fs vfs.FS, indexMayBeMissing bool) {
	t.Helper()
	_, err := Verify(context.Background(), VerifyOptions{FS: fs, Dir: testDir, Report: func(f Finding) {
		if f.Damage || !indexMayBeMissing || !strings.HasSuffix(f.File, indexSuffix) {
			t.Errorf("verify finds in %s at %d: %v", f.File, f.Position, f.Err)
		}
	}})
	must(t, err)
}

// randomLog has a few segments with internal batches in the middle of each, in
// every codec, with gaps, records without a key, tombstones and headers.
func randomLog(t testing.TB, rng *rand.Rand, fs vfs.FS) *Log {
	t.Helper()
	ctx := context.Background()
	o := options(fs)
	o.StartKafka = rng.Int64N(2) * 5_000_000_000
	l := mustOpen(t, o)
	short := func() []byte {
		return [][]byte{nil, {}, []byte("a"), []byte("bc"), []byte("a longer one")}[rng.IntN(5)]
	}
	for range 2 + rng.IntN(3) {
		for range 1 + rng.IntN(40) {
			if rng.IntN(6) == 0 {
				must(t, l.Note(ctx, Note{ManifestGeneration: rng.Int64N(100)}))
			}
			var recs []record.Record
			offset := rng.Int64N(3)
			for range rng.IntN(8) {
				r := record.Record{Offset: offset, Timestamp: rng.Int64N(1e12), Key: short(), Value: short()}
				if rng.IntN(3) > 0 {
					r.Value = []byte(value(int(offset), rng.IntN(1<<rng.IntN(13))))
				}
				for range rng.IntN(3) {
					r.Headers = append(r.Headers, record.Header{Name: "h", Value: short()})
				}
				recs = append(recs, r)
				offset += 1 + rng.Int64N(3)
			}
			b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: offset + rng.Int64N(5), Codec: anyCodec(rng)}, recs)
			must(t, err)
			mustAppend(t, l, b)
		}
		must(t, l.Roll(ctx))
	}
	return l
}

// DESIGN, sections 4 and 8: offsets never move, neither Kafka's nor the log's. What
// is kept is the same before and after, after reopening, and after the sparse
// indexes are gone; and everything that reads the log goes on to hold.
func TestCompactionMovesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if *seedFlag != 0 {
		seed = *seedFlag
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	swapped := 0
	for range 20 {
		fs := vfs.NewCrashableMem()
		l := randomLog(t, rng, fs)
		want := places(t, l)
		before, segments := l.State(), l.Segments()
		keep := map[int64]bool{}
		share := rng.IntN(11)
		for off, p := range want {
			keep[off] = rng.IntN(10) < share || p.Key == nil
		}
		for _, base := range sealedSegments(l) {
			done, err := l.CompactSegment(context.Background(), base, CompactOptions{
				Codec: anyCodec(rng), KeepCodec: rng.IntN(2) == 0, Target: rng.IntN(20_000),
				Keep: func(key []byte, offset int64, tombstone bool) (bool, error) {
					p, ok := want[offset]
					if !ok || !bytes.Equal(p.Key, key) || tombstone != (p.Value == nil) {
						t.Fatalf("asked about offset %d, key %q, tombstone %v, which is %+v", offset, key, tombstone, p)
					}
					return keep[offset], nil
				},
			})
			must(t, err)
			i := slices.IndexFunc(segments, func(s SegmentInfo) bool { return s.BaseLog == base })
			left := 0
			for off := segments[i].BaseKafka; off < segments[i].NextKafka; off++ {
				if _, ok := want[off]; ok && keep[off] {
					left++
				} else if done.Swapped {
					delete(want, off)
				}
			}
			got := l.Segments()[i]
			if done.Before != segments[i].Bytes || int64(left) != done.RecordsAfter || done.Swapped && got.Bytes != done.After || done.Swapped != (done.After < done.Before) {
				t.Fatalf("%+v: segment was %+v, is %+v, %d records left", done, segments[i], got, left)
			}
			if done.Swapped {
				swapped++
				segments[i].Bytes, segments[i].MaxTimestamp = got.Bytes, got.MaxTimestamp
			}
			if got != segments[i] {
				t.Fatalf("segment %+v, want %+v", got, segments[i])
			}
		}
		check := func(l *Log) {
			t.Helper()
			if got := places(t, l); !reflect.DeepEqual(got, want) {
				t.Fatalf("%d records, want %d (or they differ)", len(got), len(want))
			}
			for off, p := range want {
				if off%4 == 0 {
					wantPlace(t, l, off, p)
				}
			}
			for _, s := range l.Segments() {
				for _, off := range []int64{s.BaseKafka, s.NextKafka - 1} {
					if epoch, err := l.EpochAt(off); off < before.HighWatermark && (err != nil || epoch != s.Epoch) {
						t.Fatalf("epoch of offset %d: %d, %v, want %d", off, epoch, err, s.Epoch)
					}
				}
			}
		}
		check(l)
		if st := l.State(); st != before {
			t.Fatalf("state %+v, want %+v", st, before)
		}
		fs = killed(t, l, fs)
		wantSound(t, fs, false)
		l = mustOpen(t, options(fs))
		check(l)
		must(t, l.Close())
		for _, name := range listing(t, fs) {
			if strings.HasSuffix(name, indexSuffix) {
				removeFile(t, fs, name)
			}
		}
		wantSound(t, fs, true)
		l = mustOpen(t, options(fs))
		check(l)
		endOf(t, rng, l, want)
	}
	if swapped < 10 {
		t.Errorf("only %d segments became smaller: the test shows little", swapped)
	}
}

// wantPlace reads one record by its Kafka offset.
func wantPlace(t testing.TB, l *Log, off int64, want place) {
	t.Helper()
	must(t, l.ReadBatch(off, func(batch []byte, base int64) error {
		h, err := record.ParseHeader(batch)
		must(t, err)
		for _, p := range recordsIn(t, Appended{Batch: batch, LogBase: h.BaseOffset, KafkaBase: base}) {
			if p.kafka == off {
				if !reflect.DeepEqual(p, want) {
					t.Fatalf("offset %d: %+v, want %+v", off, p, want)
				}
				return nil
			}
		}
		t.Fatalf("offset %d: not in batch at %d", off, base)
		return nil
	}))
}

// endOf trims and truncates a compacted log at random places.
func endOf(t testing.TB, rng *rand.Rand, l *Log, want map[int64]place) {
	t.Helper()
	ctx := context.Background()
	st := l.State()
	cut := st.LocalStart + rng.Int64N(st.HighWatermark-st.LocalStart+1)
	must(t, l.TruncateSuffix(ctx, cut))
	maps.DeleteFunc(want, func(off int64, _ place) bool { return off >= cut })
	must(t, l.TrimPrefix(ctx, st.LocalStart+rng.Int64N(cut-st.LocalStart+1)))
	start := l.State().LocalStart
	maps.DeleteFunc(want, func(off int64, _ place) bool { return off < start })
	if got := places(t, l); !reflect.DeepEqual(got, want) {
		t.Fatalf("cut at %d, start at %d: %d records, want %d (or they differ)", cut, start, len(got), len(want))
	}
	if base := appendValues(t, l, "more"); base != cut {
		t.Fatalf("next offset %d, want %d", base, cut)
	}
	must(t, l.Close())
	wantSound(t, l.d.fs, true)
}

// A segment of which nothing is left still covers its offsets.
func TestCompactAllDead(t *testing.T) {
	fs, names := threeSegments(t)
	l := mustOpen(t, options(fs))
	for _, base := range sealedSegments(l) {
		done, err := l.CompactSegment(t.Context(), base, CompactOptions{Keep: keepOnly(nil)})
		must(t, err)
		if !done.Swapped || done.RecordsBefore != 3 || done.RecordsAfter != 0 {
			t.Fatalf("%+v", done)
		}
	}
	for range 2 {
		for off := range int64(6) {
			if v, err := valueAt(l, off); err == nil || errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("offset %d: %q, %v", off, v, err)
			}
		}
		for off := int64(6); off < 9; off++ {
			wantValue(t, l, off, string("abc"[off%3])+"2")
		}
		must(t, l.Close())
		wantSound(t, fs, false)
		l = mustOpen(t, options(fs))
	}
	// checkpoint, one empty batch, note
	if at := batchesIn(t, file(t, fs, names[0]+logSuffix)); len(at) != 3 {
		t.Errorf("batches at %v", at)
	}
	must(t, l.TruncateSuffix(t.Context(), 2))
	if base := appendValues(t, l, "new"); base != 2 {
		t.Fatalf("next offset %d", base)
	}
	wantValue(t, l, 2, "new")
}

// Runs of offsets that one batch cannot cover, because its header counts them in
// 32 bits.
func TestCompactWideRuns(t *testing.T) {
	wide := func(key string) []byte {
		b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: math.MaxInt32},
			[]record.Record{{Key: []byte(key), Value: []byte(value(0, 300))}})
		must(t, err)
		return b
	}
	for _, kept := range []map[int64]bool{{}, {0: true}, {3 << 31: true}, {0: true, 1 << 31: true, 4 << 31: true}} {
		fs := vfs.NewCrashableMem()
		l := mustOpen(t, options(fs))
		for range 5 {
			mustAppend(t, l, wide("k"))
		}
		must(t, l.Roll(t.Context()))
		want := places(t, l)
		maps.DeleteFunc(want, func(off int64, _ place) bool { return !kept[off] })
		done, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(kept), Target: 10_000})
		must(t, err)
		if !done.Swapped || len(want) != len(kept) {
			t.Fatalf("%+v", done)
		}
		fs = killed(t, l, fs)
		wantSound(t, fs, false)
		removeFile(t, fs, segmentName(0, 0)+indexSuffix)
		l = mustOpen(t, options(fs))
		if got := places(t, l); !reflect.DeepEqual(got, want) || l.State().HighWatermark != 5<<31 {
			t.Fatalf("kept %v: got %v, state %+v", kept, got, l.State())
		}
		for off, p := range want {
			wantPlace(t, l, off, p)
		}
	}
}

// A compacted batch may cover many offsets in a few bytes. What is damaged beside
// one must not take it along.
func TestDamageInCompactedSegment(t *testing.T) {
	base := vfs.NewCrashableMem()
	l := mustOpen(t, options(base))
	const n = 2_000_000 // more than the bytes of a batch could account for
	for off := range int64(3) {
		b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: n - 1}, []record.Record{
			{Key: []byte("k"), Value: []byte(value(int(off), 200))}, {Offset: 1, Key: []byte("k"), Value: []byte("gone")},
		})
		must(t, err)
		mustAppend(t, l, b)
	}
	must(t, l.Roll(t.Context()))
	done, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(map[int64]bool{0: true, n: true, 2 * n: true}), Target: 1})
	must(t, err)
	if !done.Swapped || done.RecordsAfter != 3 {
		t.Fatalf("%+v", done)
	}
	base = killed(t, l, base)
	at := batchesIn(t, file(t, base, firstLog))
	for i := range 8 {
		pos := []int{8, 16, 30, 80}[i/2] // length, format, header, record of the middle batch
		fs := crash(base)
		b := file(t, fs, firstLog)
		b[at[2]+pos] ^= 1
		setFile(t, fs, firstLog, b)
		if i%2 == 0 {
			removeFile(t, fs, segmentName(0, 0)+indexSuffix)
		}
		l := mustOpen(t, options(fs))
		wantErr(t, l, n, record.ErrCorrupt)
		wantValue(t, l, 0, value(0, 200))
		wantValue(t, l, 2*n, value(2, 200))
		if _, err := l.CompactSegment(t.Context(), 0, CompactOptions{Keep: keepOnly(nil)}); !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("compacting a damaged segment: %v", err)
		}
	}
}
