package locallog

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// BenchmarkAppend commits groups of 64 batches of 1 KiB, each of them synced,
// against writing and syncing the same bytes.
func BenchmarkAppend(b *testing.B) {
	batches := make([][]byte, 64)
	var size int64
	for i := range batches {
		batches[i] = batchOf(b, value(i, 480)) // as key and as value
		size += int64(len(batches[i]))
	}
	b.Run("log", func(b *testing.B) {
		l := benchLog(b)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := l.Append(context.Background(), batches); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		f, err := vfs.Default.Create(b.TempDir()+"/plain", vfs.WriteCategoryUnspecified)
		must(b, err)
		defer f.Close()
		buf := make([]byte, size)
		b.SetBytes(size)
		var pos int64
		for b.Loop() {
			if _, err := f.WriteAt(buf, pos); err != nil {
				b.Fatal(err)
			}
			if err := f.SyncData(); err != nil {
				b.Fatal(err)
			}
			pos += size
		}
	})
	b.Run("log, one by one in parallel", func(b *testing.B) {
		l := benchLog(b)
		b.SetBytes(int64(len(batches[0])))
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := l.Append(context.Background(), batches[:1]); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func benchLog(b *testing.B) *Log {
	o := options(vfs.Default)
	o.Dir = b.TempDir()
	o.SegmentBytes = bytesOf(64 << 20)
	return mustOpen(b, o)
}

// BenchmarkReadBatch finds batches of a log of some segments, without checking
// their CRC, which is their reader's part.
func BenchmarkReadBatch(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			o := options(vfs.Default)
			o.Dir = b.TempDir()
			o.SegmentBytes = bytesOf(4 << 20)
			l := mustOpen(b, o)
			n := 16 << 20 / size / 64
			group := make([][]byte, 64)
			for i := range group {
				group[i] = batchOf(b, value(i, size/2))
			}
			for range n {
				mustAppend(b, l, group...)
			}
			next := l.State().HighWatermark
			var sum atomic.Int64
			read := func(off int64) {
				err := l.ReadBatch(off, func(batch []byte, base int64) error {
					sum.Add(base)
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			for off := range next {
				read(off)
			}
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				off = (off + 7919) % next
				read(off)
			}
		})
	}
}

// Reading a batch allocates nothing, neither from the active segment nor from
// sealed ones.
func TestReadBatchAllocatesNothing(t *testing.T) {
	o := options(vfs.Default)
	o.Dir = t.TempDir()
	o.SegmentBytes = bytesOf(64 << 10)
	l := mustOpen(t, o)
	for i := range 20 {
		appendValues(t, l, value(i, 8<<10))
	}
	n := 0
	count := func([]byte, int64) error { n++; return nil }
	for _, off := range []int64{0, l.State().HighWatermark - 1} {
		must(t, l.ReadBatch(off, count)) // brings the mapping and the index in
		if allocs := testing.AllocsPerRun(100, func() { must(t, l.ReadBatch(off, count)) }); allocs != 0 {
			t.Errorf("offset %d: %v allocations", off, allocs)
		}
	}
}

// A thousand idle logs cost a few KiB of memory each, and no open file.
func TestIdleLogIsSmall(t *testing.T) {
	const n = 1000
	fs := vfs.Default
	dir := t.TempDir()
	o := options(fs)
	batch, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, []record.Record{{Value: []byte("v")}})
	must(t, err)
	reopen := func(i int) *Log {
		o.Dir = fmt.Sprintf("%s/%d", dir, i)
		return mustOpen(t, o)
	}
	logs := make([]*Log, n)
	for i := range logs[:1] { // one is enough to make the files; the others are copies of its folder
		logs[i] = reopen(i)
		mustAppend(t, logs[i], batch)
		must(t, logs[i].Close())
	}
	for i := 1; i < n; i++ {
		if ok, err := vfs.Clone(fs, fs, dir+"/0", fmt.Sprintf("%s/%d", dir, i)); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range logs {
		logs[i] = reopen(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	t.Logf("%d bytes of heap per idle log", each)
	if each > 4<<10 {
		t.Errorf("%d bytes of heap per idle log", each)
	}
	for _, l := range logs {
		if l.w.file != nil || l.view.Load().active.mapped.Load() != nil {
			t.Fatal("an idle log holds a file or a mapping")
		}
	}
	runtime.KeepAlive(logs)
}

// BenchmarkCompactSegment writes a segment of about 8 MiB of small plain batches
// anew, a quarter of the records and compressed; bytes are those of the old file.
func BenchmarkCompactSegment(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.Zstd} {
		b.Run(codec.String(), func(b *testing.B) {
			o := options(vfs.Default)
			o.Dir = b.TempDir()
			l := mustOpen(b, o)
			var batches [][]byte
			for i := range 2000 {
				batches = append(batches, batchOf(b, value(i, 1000), value(i, 1000)))
			}
			for b.Loop() {
				b.StopTimer()
				mustAppend(b, l, batches...)
				must(b, l.Roll(context.Background()))
				infos := l.Segments()
				s := infos[len(infos)-2]
				b.SetBytes(s.Bytes)
				b.StartTimer()
				done, err := l.CompactSegment(context.Background(), s.BaseLog, CompactOptions{
					Codec: codec, Target: 64 << 10, Keep: func(_ []byte, off int64, _ bool) (bool, error) { return off%4 == 0, nil },
				})
				if err != nil || !done.Swapped {
					b.Fatal(done, err)
				}
				b.StopTimer()
				must(b, l.TrimPrefix(context.Background(), s.NextKafka))
				b.StartTimer()
			}
		})
	}
}
