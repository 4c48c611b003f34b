package tiered

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"keyhole/cache"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// tableChunk is the chunk number under which tables are cached.
const tableChunk = -1

const tableSuffix = ".table"

func tableFile(seg *manifest.Segment) string { return segmentName(seg) + tableSuffix }

// ReadBatch calls fn with the batch that holds a Kafka offset and the batch's
// base offset. m is the snapshot to look in. hit says that the chunk was in
// memory; otherwise exactly one ranged GET was made, or one of another caller
// waited for. batch is shared and must not be changed; its header was checked,
// its CRC is for fn to check, which record.Reader does. An error of fn is
// returned as it is, damage with the object and the position added.
//
// ErrUnknown, ErrNotRetained, ErrOverloaded as named; record.ErrCorrupt for
// bytes that fail a check and for an object that is missing or too short, unless
// m is out of date and the manifest as it is now does not name it: ErrMoved;
// otherwise the store's error or ctx's.
func (t *Tier) ReadBatch(ctx context.Context, m *manifest.Manifest, offset int64, fn func(batch []byte, kafkaBase int64) error) (hit bool, err error) {
	if t.closed.Load() {
		return false, ErrClosed
	}
	if !m.Known() {
		return false, ErrUnknown
	}
	at, ok := m.Find(offset)
	if !ok {
		return false, ErrNotRetained
	}
	seg := &m.Segments[at]
	tab, err := t.table(ctx, seg)
	if err != nil {
		return false, t.moved(seg, err)
	}
	i, ok := tab.find(offset)
	if !ok {
		return false, ErrNotRetained
	}
	c := tab.chunk(i)
	data, hit, err := t.chunk(ctx, seg, i, c)
	if err != nil {
		return hit, t.moved(seg, err)
	}
	if err := batchAt(data, offset, fn); err != nil {
		return hit, located(err, LogKey(t.prefix, seg), c.pos)
	}
	return hit, nil
}

// located adds object and pos to damage that does not name an object yet.
func located(err error, object string, pos int64) error {
	var damage *record.CorruptError
	if errors.As(err, &damage) && damage.Object == "" {
		return record.Corrupt(object, pos, err)
	}
	return err
}

// batchAt finds the batch of an offset in a chunk. Positions in its errors are
// relative to the chunk.
func batchAt(data []byte, offset int64, fn func(batch []byte, kafkaBase int64) error) error {
	// Only the first two fields of each header are looked at on the way, the
	// base offset and the length: a chunk may have hundreds of batches.
	found := int64(-1)
	for pos := int64(0); pos < int64(len(data)); {
		left := data[pos:]
		if len(left) < record.HeaderSize {
			return record.Corrupt("", pos, fmt.Errorf("%d bytes cannot be a batch", len(left)))
		}
		if int64(binary.BigEndian.Uint64(left)) > offset {
			break
		}
		found = pos
		size := int64(binary.BigEndian.Uint32(left[8:])) + 12
		if size < record.HeaderSize || size > int64(len(left)) {
			return record.Corrupt("", pos, fmt.Errorf("batch of %d bytes in the last %d of a chunk", size, len(left)))
		}
		pos += size
	}
	if found < 0 {
		return ErrNotRetained
	}
	h, err := record.ParseHeader(data[found:])
	if err != nil {
		return record.Corrupt("", found, err)
	}
	if offset > h.LastOffset() {
		return ErrNotRetained
	}
	end := found + h.Size()
	if err := fn(data[found:end:end], h.BaseOffset); err != nil {
		return located(err, "", found)
	}
	return nil
}

// chunk returns the bytes of one chunk, from memory or by one ranged GET.
func (t *Tier) chunk(ctx context.Context, seg *manifest.Segment, i int, c chunk) ([]byte, bool, error) {
	key := cache.Key{Upload: seg.UploadID, Chunk: int32(i)}
	if data, ok := t.o.Shared.chunks.Lookup(key); ok {
		return data, true, nil
	}
	data, hit, err := t.o.Shared.chunks.Get(ctx, key, func(ctx context.Context) ([]byte, error) {
		object := LogKey(t.prefix, seg)
		data, err := t.fetch(ctx, object, c.pos, c.size, seg.Size)
		if err != nil {
			return nil, err
		}
		if err := c.check(data); err != nil {
			return nil, record.Corrupt(object, c.pos, err)
		}
		t.o.Shared.bytes.Add(float64(len(data)))
		return data, nil
	})
	return data, hit, closing(err)
}

// fetch reads a range of an object of which the manifest says that it has size
// bytes, within the bound on concurrent reads.
func (t *Tier) fetch(ctx context.Context, object string, pos, n, size int64) ([]byte, error) {
	if err := t.o.Shared.startRead(); err != nil {
		return nil, err
	}
	defer t.o.Shared.endRead()
	listening := objstore.Listening(ctx, func(err error) { cache.Report(ctx, err) })
	data, err := t.o.Bucket.ReadRange(listening, object, pos, n)
	if err != nil {
		return nil, damaged(object, pos, size, err)
	}
	if int64(len(data)) != n {
		return nil, record.Corrupt(object, pos, fmt.Errorf("%d bytes instead of %d", len(data), n))
	}
	return data, nil
}

// table returns the chunk table of a segment: from memory, from the local disk,
// or, when it is missing or damaged there, from the bucket, once.
func (t *Tier) table(ctx context.Context, seg *manifest.Segment) (table, error) {
	key := cache.Key{Upload: seg.UploadID, Chunk: tableChunk}
	raw, ok := t.o.Shared.tables.Lookup(key)
	if !ok {
		var err error
		raw, _, err = t.o.Shared.tables.Get(ctx, key, func(ctx context.Context) ([]byte, error) { return t.loadTable(ctx, seg) })
		if err != nil {
			return table{}, closing(err)
		}
	}
	return table{raw}, nil
}

func (t *Tier) loadTable(ctx context.Context, seg *manifest.Segment) ([]byte, error) {
	if raw, err := t.localTable(seg); err == nil {
		return raw, nil
	}
	object := IndexKey(t.prefix, seg)
	raw, err := t.fetch(ctx, object, 0, seg.TableBytes, seg.IndexSize)
	if err != nil {
		return nil, err
	}
	if _, err := tableOf(raw, seg); err != nil {
		return nil, record.Corrupt(object, 0, err)
	}
	t.keepTable(seg, raw)
	return raw, nil
}

// scanTable is table for who reads a segment front to back. It takes no place from
// lookups, and waits for none.
func (t *Tier) scanTable(ctx context.Context, seg *manifest.Segment) (table, error) {
	if raw, err := t.localTable(seg); err == nil {
		return table{raw}, nil
	}
	s := &stream{ctx: ctx, bucket: t.o.Bucket, key: IndexKey(t.prefix, seg), end: seg.TableBytes}
	raw, err := s.next(seg.TableBytes)
	if err != nil {
		return table{}, err
	}
	tab, err := tableOf(raw, seg)
	if err != nil {
		return table{}, record.Corrupt(s.key, 0, err)
	}
	t.keepTable(seg, raw)
	return tab, nil
}

// localTable reads the table on the local disk. A missing one is an error like
// a damaged one, but a silent one.
func (t *Tier) localTable(seg *manifest.Segment) ([]byte, error) {
	path := t.o.FS.PathJoin(t.o.Dir, tableFile(seg))
	raw, err := manifest.ReadFile(t.o.FS, path, seg.TableBytes)
	if err == nil {
		_, err = tableOf(raw, seg)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.o.Shared.repairs.WithLabelValues(partTable).Inc()
		t.o.Logger.Warn("local chunk table not usable, it will be read from the bucket", "path", path, "err", err)
	}
	return raw, err
}

// keepTable stores a table that came from the bucket. Failing to do so costs
// one more GET another time, nothing else.
func (t *Tier) keepTable(seg *manifest.Segment, raw []byte) {
	if err := t.saveTable(seg, raw); err != nil {
		t.o.Logger.Warn("chunk table cannot be kept on the local disk", "err", err)
	}
}

// saveTable writes a table to the local disk, synced.
func (t *Tier) saveTable(seg *manifest.Segment, raw []byte) error {
	t.files.Lock()
	defer t.files.Unlock()
	return manifest.WriteFile(t.o.FS, t.o.FS.PathJoin(t.o.Dir, tableFile(seg)), raw)
}

// closing turns the caches' word for the end of the process into ours.
func closing(err error) error {
	if errors.Is(err, cache.ErrClosed) {
		return ErrClosed
	}
	return err
}
