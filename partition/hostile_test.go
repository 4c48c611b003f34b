package partition

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// sealed makes a batch of one record around payload, whose checksum is right.
func sealed(codec record.Codec, records int32, payload []byte) []byte {
	be := binary.BigEndian
	b := make([]byte, record.HeaderSize, record.HeaderSize+len(payload))
	b[16] = 2 // magic
	be.PutUint16(b[21:], uint16(codec))
	be.PutUint32(b[23:], uint32(max(records-1, 0)))
	be.PutUint64(b[43:], math.MaxUint64) // no producer
	be.PutUint32(b[57:], uint32(records))
	b = append(b, payload...)
	be.PutUint32(b[8:], uint32(len(b)-12))
	return resealed(b)
}

func resealed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// zeros is n bytes of zero as w compresses them.
func zeros(t *testing.T, n int, open func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := open(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// plant puts a batch in the place of the one batch of remote segment i. All
// checksums and sizes around it are right, so that only the batch is at fault.
func (r *rig) plant(i int, batch []byte) {
	r.t.Helper()
	prefix := tiered.Prefix("t", topicID, 0)
	m, err := manifest.Decode("", r.object(tiered.ManifestKey(prefix)))
	if err != nil {
		r.t.Fatal(err)
	}
	seg := &m.Segments[i]
	be := binary.BigEndian
	be.PutUint64(batch, uint64(seg.BaseOffset))
	index := r.object(tiered.IndexKey(prefix, seg))
	table := index[:seg.TableBytes]
	if n := be.Uint32(table[40:]); n != 1 {
		r.t.Fatalf("segment %d has %d chunks", i, n)
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	be.PutUint64(table[24:], uint64(len(batch)))
	be.PutUint32(table[44+24:], uint32(len(batch)))
	be.PutUint32(table[44+28:], crc32.Checksum(batch, castagnoli))
	be.PutUint32(table[len(table)-4:], crc32.Checksum(table[:len(table)-4], castagnoli))
	seg.Size = int64(len(batch))
	encoded, err := manifest.Encode(m)
	if err != nil {
		r.t.Fatal(err)
	}
	for key, data := range map[string][]byte{
		tiered.LogKey(prefix, seg): batch, tiered.IndexKey(prefix, seg): index, tiered.ManifestKey(prefix): encoded,
	} {
		if _, err := r.store.Inner().Put(r.t.Context(), key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) object(key string) []byte {
	r.t.Helper()
	b, _, err := r.store.Inner().Get(r.t.Context(), key, 1<<30)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// oneEach is a rig with one remote segment of one batch for each of n keys.
func oneEach(t *testing.T, n int) *rig {
	r := newRig(t)
	p := r.open()
	for i := range n {
		put(t, p, fmt.Sprint("key-", i), fmt.Sprint("value ", i))
		evict(t, p)
	}
	r.stop()
	// What the disk has of the bucket is about the batches as they were.
	if err := r.fs.RemoveAll("/data/t/0/remote"); err != nil {
		t.Fatal(err)
	}
	return r
}

// A batch in the bucket that inflates without end, or counts what it does not
// have, is an error for its key. The others are served.
func TestHostileBatches(t *testing.T) { // cases 3-07, 3-08
	const size = 96 << 20
	hostile := map[string][]byte{
		"zstd bomb":                   sealed(record.Zstd, 1, zeros(t, size, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) })),
		"gzip bomb":                   sealed(record.Gzip, 1, zeros(t, size, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) })),
		"lz4 bomb":                    sealed(record.LZ4, 1, zeros(t, size, func(w io.Writer) (io.WriteCloser, error) { return lz4.NewWriter(w), nil })),
		"snappy that declares 2 GiB":  sealed(record.Snappy, 1, []byte{0xff, 0xff, 0xff, 0xff, 0x07}),
		"two billion records":         sealed(record.None, math.MaxInt32, []byte{2, 0}),
		"no records":                  sealed(record.None, 0, nil),
		"record of negative length":   sealed(record.None, 1, []byte{0x01}),
		"record of 2 GiB":             sealed(record.None, 1, []byte{0xfe, 0xff, 0xff, 0xff, 0x0f}),
		"key of 2 GiB":                sealed(record.None, 1, []byte{20, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0}),
		"endless number":              sealed(record.None, 1, bytes.Repeat([]byte{0xff}, 100)),
		"codec that there is not":     sealed(7, 1, []byte("?")),
		"another version":             func() []byte { b := sealed(record.None, 1, []byte{2, 0}); b[16] = 1; return b }(),
		"longer than its chunk":       func() []byte { b := sealed(record.None, 1, []byte{2, 0}); b[8] = 0x7f; return b }(),
		"shorter than a header":       bytes.Repeat([]byte{0}, record.HeaderSize),
		"last offset beyond the next": func() []byte { b := sealed(record.None, 1, []byte{2, 0}); b[26] = 200; return resealed(b) }(),
	}
	var names []string
	for name := range hostile {
		names = append(names, name)
	}
	r := oneEach(t, len(names)+2)
	for i, name := range names {
		r.plant(i, bytes.Clone(hostile[name]))
	}
	p := r.open()
	for i, name := range names {
		res, err := get(p, fmt.Sprint("key-", i))
		if name == "no records" || name == "last offset beyond the next" {
			// A batch may be empty after compaction.
			if err == nil {
				t.Errorf("%s: %.40q", name, res.Value)
			}
			continue
		}
		if !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %.40q, %v", name, res.Value, err)
		}
	}
	for i := range 2 {
		if res := mustGet(t, p, fmt.Sprint("key-", len(names)+i)); string(res.Value) != fmt.Sprint("value ", len(names)+i) {
			t.Errorf("sound key: %q", res.Value)
		}
	}
}

// Many lookups that all inflate a large batch at once take the memory of few: two
// of 80 MiB with what the collector has not come round to, where all would take
// more than 3 GiB.
func TestInflationIsBounded(t *testing.T) { // case 3-08
	const lookups, size, limit = 24, 96 << 20, 1300 << 20
	bomb := sealed(record.Zstd, 1, zeros(t, size, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }))
	r := oneEach(t, lookups+1)
	for i := range lookups {
		r.plant(i, bytes.Clone(bomb))
	}
	p := r.open()
	runtime.GC()
	done, peak := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		var m runtime.MemStats
		top := uint64(0)
		for {
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapInuse)
			select {
			case <-tick.C:
			case <-done:
				peak <- top
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for i := range lookups {
		wg.Go(func() {
			if _, err := get(p, fmt.Sprint("key-", i)); !errors.Is(err, record.ErrCorrupt) && !unavailable(err) {
				t.Errorf("key-%d: %v", i, err)
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			if _, err := get(p, fmt.Sprint("key-", lookups)); err != nil {
				t.Errorf("sound key: %v", err)
			}
		}
	})
	wg.Wait()
	close(done)
	top := <-peak
	t.Logf("%d MiB at most", top>>20)
	if top > limit {
		t.Errorf("%d lookups took %d MiB", lookups, top>>20)
	}
}

// A record that is large, and compressed, is no bomb.
func TestLargeCompressedRecord(t *testing.T) {
	r := newRig(t)
	r.settings.Codec = record.Zstd
	r.settings.MaxRecordBytes = 64 << 20
	r.settings.SegmentBytes = 128 << 20
	p := r.open()
	value := bytes.Repeat([]byte("0123456789abcdef"), 3<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(value); i += 64 {
		value[i] = byte(rng.Uint32())
	}
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("large"), Value: value}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if res := mustGet(t, p, "large"); !bytes.Equal(res.Value, value) {
			t.Fatalf("%v: another value", res.Source)
		}
		evict(t, p)
	}
}
