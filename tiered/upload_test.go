package tiered

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kmsg"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

// trace renders calls with upload ids replaced by letters in order of meeting.
func trace(calls []objstoretest.Call) string {
	ids := make(map[string]string)
	var out strings.Builder
	for _, c := range calls {
		key := strings.TrimPrefix(c.Key, prefix)
		if len(key) > 21+36 && key[20] == '-' {
			id := key[21 : 21+36]
			if ids[id] == "" {
				ids[id] = string(rune('A' + len(ids)))
			}
			key = strings.Replace(key, id, ids[id], 1)
		}
		fmt.Fprintf(&out, "%s %s\n", c.Op, key)
	}
	return out.String()
}

func TestUploadGoldenTrace(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	if got, want := trace(b.Calls()), "Get manifest.json\nPut manifest.json\n"; got != want {
		t.Fatalf("claim:\n%swant\n%s", got, want)
	}
	b.ResetCalls()
	build := newBuilder(t, 0)
	m := n.upload(t, build.numbered(10), build.numbered(5))
	wantRanges(t, m, "0-9 10-14")
	want := `Put 00000000000000000000-A.log
Put 00000000000000000000-A.index
Put 00000000000000000010-B.log
Put 00000000000000000010-B.index
Put manifest.json
`
	if got := trace(b.Calls()); got != want {
		t.Fatalf("upload:\n%swant\n%s", got, want)
	}
	if len(n.pending) != 0 {
		t.Error("uploads that came through are pending")
	}
	if n.LastCommit().IsZero() {
		t.Error("no time of the last commit")
	}
}

// Every batch of a remote segment is one that Kafka's own schema decodes, at
// the Kafka offset, with the internal batches left out.
func TestRemoteSegmentIsAPlainKafkaSegment(t *testing.T) {
	rng := newRand(t)
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 20227160311775237)
	build.random(rng, 200)
	src := build.done()
	seg := n.upload(t, src).Segments[0]
	data := content(t, b, LogKey(prefix, &seg))
	var r record.Reader
	left := src.records
	for i, want := range src.batches {
		var kb kmsg.RecordBatch
		if err := kb.ReadFrom(data[:want.size]); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		if kb.FirstOffset != want.kafkaBase || kb.Magic != 2 || kb.Attributes&0x20 != 0 || kb.PartitionLeaderEpoch != 5 {
			t.Fatalf("batch %d: %+v, want base offset %d", i, kb, want.kafkaBase)
		}
		if err := r.Reset(data[:want.size], maxUncompressed); err != nil { // CRC included
			t.Fatal(err)
		}
		for r.Next() {
			if v := r.Record(); v.Offset != left[0].Offset || string(v.Key) != string(left[0].Key) {
				t.Fatalf("record %d %q, want %d %q", v.Offset, v.Key, left[0].Offset, left[0].Key)
			}
			left = left[1:]
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		data = data[want.size:]
	}
	if len(data) != 0 || len(left) != 0 {
		t.Fatalf("%d bytes and %d records left", len(data), len(left))
	}
	if seg.Records != int64(len(src.records)) {
		t.Errorf("%d records in the manifest, %d in the source", seg.Records, len(src.records))
	}
	wantClean(t, b)
}

func TestChunksCloseAtTheTargetSize(t *testing.T) {
	const target = 1000
	build := newBuilder(t, 0)
	for _, size := range []int{300, 300, 300, 300, 5000, 100, 3 << 20, 10} { // case 3-32
		build.add(record.None, kv(0, "k", strings.Repeat("x", size)))
	}
	p, err := newPlan(build.done(), 0, 7, shape{chunkBytes: target})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, c := range p.chunks {
		got = append(got, fmt.Sprintf("%d-%d", c.base, c.last))
		if c.size < target && i < len(p.chunks)-1 {
			t.Errorf("chunk %d closed at %d bytes", i, c.size)
		}
	}
	// 300-byte batches have some 375 bytes each: the third reaches the target.
	if want := "0-2 3-4 5-6 7-7"; strings.Join(got, " ") != want {
		t.Errorf("chunks %v, want %v", got, want)
	}
}

func TestBodyReadsAndSeeksLikeAFile(t *testing.T) {
	build := newBuilder(t, 7)
	build.random(newRand(t), 60)
	src := build.done()
	p, err := newPlan(src, src.base, src.next-1, shape{chunkBytes: 700})
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(newBody(p))
	if err != nil || int64(len(want)) != p.info.size {
		t.Fatalf("read %d of %d bytes, %v", len(want), p.info.size, err)
	}
	if err := iotest.TestReader(newBody(p), want); err != nil {
		t.Error(err)
	}
	if _, err := newBody(p).Seek(-1, io.SeekStart); err == nil {
		t.Error("seek before the start succeeded")
	}
}

// The local file is read twice. If it says something else the second time,
// nothing of it reaches the manifest.
func TestSourceThatChangesIsNotUploaded(t *testing.T) {
	for i, at := range []int{0, 8, 17, 80, 0, 8, 17, 80} { // base offset, length, CRC, record
		b := newBucket()
		n := newNode(t, b, nodeOptions{recode: Recode{Merge: i >= 4}})
		src := newBuilder(t, 0).numbered(20)
		pos := int(src.batches[5].pos) + at
		b.Before(func(_ context.Context, c objstoretest.Call) error {
			if c.Op == objstoretest.OpPut && strings.HasSuffix(c.Key, ".log") {
				src.file[pos] ^= 0x40
			}
			return nil
		})
		m, err := n.Upload(t.Context(), []Source{src}, 0)
		if !errors.Is(err, record.ErrCorrupt) || len(m.Segments) != 0 {
			t.Errorf("byte %d: %d segments, %v", at, len(m.Segments), err)
		}
	}
}

func TestDamagedSourceIsNotUploaded(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	first, second := build.numbered(3), build.numbered(4)
	n.o.Recode = func() Recode { return Recode{Merge: true} }
	second.file[second.batches[2].pos+70] ^= 1
	m, err := n.Upload(t.Context(), asSources([]*memSource{first, second}), 0)
	if !errors.Is(err, record.ErrCorrupt) {
		t.Fatal(err)
	}
	wantRanges(t, m, "0-2") // what comes before the damage is not held up
	if _, orphans := wantClean(t, b); len(orphans) != 0 {
		t.Errorf("orphans %v", orphans)
	}
}

func TestUploadLeavesOutWhatTheBucketHas(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	first, second := build.numbered(10), build.numbered(10)
	n.upload(t, first)
	b.ResetCalls()
	n.upload(t, first)
	if b.Count() != 0 {
		t.Errorf("repeating an upload made %d calls", b.Count())
	}
	// case 7-14: a segment with other borders after a fail-over.
	wide := newBuilder(t, 4).numbered(11) // 4 to 14
	wantRanges(t, n.upload(t, wide), "0-9 10-14")
	if _, err := n.Upload(t.Context(), []Source{second}, 0); err != nil {
		t.Fatal(err)
	}
	wantRanges(t, n.Snapshot(), "0-9 10-14 15-19")
	for _, r := range append(first.records, second.records...) {
		n.wantRecord(t, r)
	}
	wantClean(t, b)
}

func TestBatchAcrossTheEndOfTheBucketIsRefused(t *testing.T) {
	n := newNode(t, newBucket(), nodeOptions{})
	n.upload(t, newBuilder(t, 0).numbered(5))
	build := newBuilder(t, 3)
	build.add(record.None, kv(0, "a", "1"), kv(1, "b", "2"), kv(2, "c", "3"))
	if _, err := n.Upload(t.Context(), []Source{build.done()}, 0); err == nil {
		t.Fatal("a batch that is partly in the bucket was uploaded")
	}
	wantRanges(t, n.Snapshot(), "0-4")
}

func TestSegmentAnswersForItsWholeRange(t *testing.T) { // case 7-15
	n := newNode(t, newBucket(), nodeOptions{})
	build := newBuilder(t, 0)
	build.skip(5)
	build.add(record.None, kv(0, "a", "1"), kv(3, "b", "2"))
	build.skip(10)
	src := build.done()
	src.base = 0
	wantRanges(t, n.upload(t, src), "0-18")
	wantRanges(t, n.upload(t, build.numbered(2)), "0-18 19-20")
	for _, offset := range []int64{0, 4, 6, 9, 18, 21, -1} {
		if _, _, err := n.read(t.Context(), offset); !errors.Is(err, ErrNotRetained) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	for _, r := range src.records {
		n.wantRecord(t, r)
	}
}

func TestSourceWithoutBatchesIsPassedOver(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	build.skip(5)
	empty := build.done()
	wantRanges(t, n.upload(t, empty, build.numbered(2)), "5-6")
	if _, orphans := wantClean(t, b); len(orphans) != 0 {
		t.Errorf("orphans %v", orphans)
	}
}

func TestUploadNeedsAClaim(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{unclaimed: true})
	if _, err := n.Upload(t.Context(), []Source{newBuilder(t, 0).numbered(1)}, 0); !errors.Is(err, ErrNotClaimed) {
		t.Fatal(err)
	}
	if b.Count() != 0 {
		t.Error("something was asked of the store")
	}
}

// failure is what happens to the k-th call.
type failure struct {
	name string
	err  error
	lost bool // the call takes effect, the reply is lost
}

var failures = []failure{
	{"unavailable", objstore.ErrUnavailable, false},
	{"reply lost", objstore.ErrUnavailable, true},
	{"denied", objstore.ErrDenied, false},
}

// failAt makes the k-th call (from 0) fail, once.
func failAt(b *objstoretest.Faulty, k int, f failure) (met func() bool) {
	n, hit := 0, false
	hook := func(context.Context, objstoretest.Call) error {
		n++
		if n == k+1 {
			hit = true
			return f.err
		}
		return nil
	}
	if f.lost {
		b.After(hook)
	} else {
		b.Before(hook)
	}
	return func() bool {
		b.Before(nil)
		b.After(nil)
		return hit
	}
}

// cases 7-09, 7-11, 7-08: whichever call fails, and whether or not it took
// effect, the manifest names nothing that is not whole, and the repetition
// leaves each range once and no object without a name.
func TestEveryCallFailsOnce(t *testing.T) {
	for _, unconditional := range []bool{false, true} {
		for _, f := range failures {
			t.Run(fmt.Sprintf("unconditional=%t/%s", unconditional, f.name), func(t *testing.T) {
				for k := 0; ; k++ {
					b := newBucket()
					n := newNode(t, b, nodeOptions{unconditional: unconditional, recode: Recode{Merge: k%2 == 0, Codec: record.Snappy}})
					build := newBuilder(t, 0)
					sources := []*memSource{build.numbered(10), build.numbered(10), build.numbered(10)}
					met := failAt(b, k, f)
					m, err := n.Upload(t.Context(), asSources(sources), 0)
					if !met() {
						if k < 7 {
							t.Fatalf("only %d calls", k)
						}
						break
					}
					if err == nil && !f.lost {
						t.Fatalf("call %d: no error", k)
					}
					for _, seg := range m.Segments {
						if seg.LastOffset >= n.Snapshot().Next() {
							t.Fatalf("call %d: segment beyond the snapshot", k)
						}
					}
					wantClean(t, b) // whatever the bucket's manifest says holds
					wantRanges(t, n.upload(t, sources...), "0-9 10-19 20-29")
					stored, orphans := wantClean(t, b)
					wantRanges(t, stored, "0-9 10-19 20-29")
					if len(orphans) != 0 {
						t.Fatalf("call %d: orphans %v", k, orphans)
					}
					for _, s := range sources {
						for _, r := range s.records {
							n.wantRecord(t, r)
						}
					}
				}
			})
		}
	}
}

// cases 7-05, 7-08, 7-11: the process ends at the k-th call, with the disk
// losing what was not synced. The next process converges on the same manifest.
func TestEndOfTheProcessAtEveryCall(t *testing.T) {
	rng := newRand(t)
	errEnd := errors.New("process ended")
	for _, lost := range []bool{false, true} {
		for k := 0; ; k++ {
			fs := vfs.NewCrashableMem()
			b := newBucket()
			build := newBuilder(t, 0)
			sources := []*memSource{build.numbered(10), build.numbered(10), build.numbered(10)}
			n := newNode(t, b, nodeOptions{fs: fs})
			n.upload(t, sources[0])
			met := failAt(b, k, failure{err: errEnd, lost: lost})
			_, err := n.Upload(t.Context(), asSources(sources), 0)
			if !met() {
				break
			}
			if err == nil {
				t.Fatalf("call %d: no error", k)
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rand.New(rand.NewPCG(rng.Uint64(), 0))})
			again := newNode(t, b, nodeOptions{fs: crashed, unclaimed: true})
			if again.Snapshot().Next() < 10 {
				t.Fatalf("call %d: local manifest forgot what was acknowledged", k)
			}
			if _, err := again.Claim(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			again.upload(t, sources...)
			m, _ := wantClean(t, b)
			wantRanges(t, m, "0-9 10-19 20-29")
			for _, s := range sources {
				for _, r := range s.records {
					again.wantRecord(t, r)
				}
			}
		}
	}
}

// After an end of the process behind the manifest's write, the first lookup in
// each segment still takes one GET: the tables were synced before it.
func TestTablesAreDurableBeforeTheManifest(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b := newBucket()
	n := newNode(t, b, nodeOptions{fs: fs})
	src := newBuilder(t, 0).numbered(20)
	var crashed vfs.FS
	b.After(func(_ context.Context, c objstoretest.Call) error {
		if c.Op == objstoretest.OpPut && c.Key == ManifestKey(prefix) {
			crashed = fs.CrashClone(vfs.CrashCloneCfg{})
		}
		return nil
	})
	n.upload(t, src)
	b.After(nil)
	again := newNode(t, b, nodeOptions{fs: crashed})
	b.ResetCalls()
	again.wantRecord(t, src.records[7])
	if got := b.Count(); got != 1 {
		t.Fatalf("%d calls for the first lookup: %v", got, b.Calls())
	}
}

func TestStrayTablesAreSweptByAClaim(t *testing.T) {
	fs := vfs.NewMem()
	b := newBucket()
	n := newNode(t, b, nodeOptions{fs: fs})
	src := newBuilder(t, 0).numbered(5)
	seg := n.upload(t, src).Segments[0]
	stray := "p/remote/00000000000000000099-x.table"
	for _, name := range []string{stray, stray + ".tmp"} {
		if err := manifest.WriteFile(fs, name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	newNode(t, b, nodeOptions{fs: fs})
	names, err := fs.List("p/remote")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if name != tableFile(&seg) && name != "manifest.json" {
			t.Errorf("%s is still there", name)
		}
	}
	if len(names) != 2 {
		t.Errorf("files %v", names)
	}
}
