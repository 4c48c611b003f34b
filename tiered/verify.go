package tiered

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

// VerifySegment reads both objects of one remote segment and compares
// everything that is said twice: sizes, chunk checksums, batches, record count,
// largest timestamp, and key run against batches. prefix is that of the
// partition (Prefix). Each finding goes to report with the object's key and a
// byte position. The error is the store's or ctx's, when they kept it from
// looking; what was not looked at is not reported.
func VerifySegment(ctx context.Context, bucket objstore.Bucket, prefix string, seg manifest.Segment, report func(object string, pos int64, err error)) error {
	v := &verifier{ctx: ctx, bucket: bucket, seg: &seg, report: report,
		log: LogKey(prefix, &seg), index: IndexKey(prefix, &seg), keys: make(keySet)}
	if err := v.sizes(prefix); err != nil {
		return err
	}
	tab, err := v.table()
	if err != nil {
		return err
	}
	whole, err := v.batches(tab)
	if err != nil {
		return err
	}
	return v.run(whole)
}

type verifier struct {
	ctx        context.Context
	bucket     objstore.Bucket
	seg        *manifest.Segment
	log, index string // object keys
	keys       keySet // from the batches
	report     func(object string, pos int64, err error)
}

// found reports damage and passes on everything else.
func (v *verifier) found(object string, err error) error {
	var damage *record.CorruptError
	if !errors.As(err, &damage) {
		return err
	}
	v.report(object, damage.Position, damage.Err)
	return nil
}

// sizes compares the objects' sizes by a listing, which also tells an object
// that is too long. What is missing or short is found when it is read.
func (v *verifier) sizes(prefix string) error {
	want := map[string]int64{v.log: v.seg.Size, v.index: v.seg.IndexSize}
	return v.bucket.List(v.ctx, prefix+segmentName(v.seg)+".", func(o objstore.Object) error {
		if size, ok := want[o.Key]; ok && o.Size > size {
			v.report(o.Key, size, fmt.Errorf("object has %d bytes, the manifest says %d", o.Size, size))
		}
		return nil
	})
}

// table reads the chunk table; without a usable one it has no chunks.
func (v *verifier) table() (table, error) {
	s := &stream{ctx: v.ctx, bucket: v.bucket, key: v.index, end: v.seg.IndexSize}
	raw, err := s.next(v.seg.TableBytes)
	if err != nil {
		return table{}, v.found(v.index, err)
	}
	tab, err := tableOf(raw, v.seg)
	if err != nil {
		v.report(v.index, 0, err)
		return table{}, nil
	}
	return tab, nil
}

// batches reads the .log object and reports whether it could be read to its end.
func (v *verifier) batches(tab table) (whole bool, err error) {
	s := &stream{ctx: v.ctx, bucket: v.bucket, key: v.log, end: v.seg.Size}
	var r record.Reader
	records, tombstones, maxTS := int64(0), int64(0), int64(math.MinInt64)
	i, crc := 0, uint32(0) // of the chunk the batch belongs to
	err = s.batches(v.seg, table{}, func(pos int64, batch []byte, h record.BatchHeader) error {
		if i < tab.len() {
			c := tab.chunk(i)
			if pos == c.pos {
				crc = 0
			}
			crc = crc32.Update(crc, castagnoli, batch)
			if pos < c.pos || h.BaseOffset < c.base || h.LastOffset() > c.last || pos+h.Size() > c.pos+c.size {
				v.report(v.index, tableHead+int64(i)*tableEntry, fmt.Errorf("chunk %d of offsets %d to %d at %d: batch of offsets %d to %d at %d",
					i, c.base, c.last, c.pos, h.BaseOffset, h.LastOffset(), pos))
			}
			if pos+h.Size() >= c.pos+c.size {
				if crc != c.crc {
					v.report(v.log, c.pos, fmt.Errorf("chunk of %d bytes has CRC-32C %08x, its table says %08x", c.size, crc, c.crc))
				}
				i++
			}
		}
		if err := r.Reset(batch, maxUncompressed); err != nil {
			return record.Corrupt(v.log, pos, err)
		}
		if h.NumRecords > 0 {
			maxTS = max(maxTS, h.MaxTimestamp)
		}
		n, err := v.keys.note(&r, 0)
		records += n.records
		tombstones += n.tombstones
		if err != nil {
			return record.Corrupt(v.log, pos, err)
		}
		return nil
	})
	if err != nil {
		return false, v.found(v.log, err)
	}
	if maxTS == math.MinInt64 {
		maxTS = noTimestamp
	}
	if records != v.seg.Records || maxTS != v.seg.MaxTimestamp {
		v.report(v.log, 0, fmt.Errorf("%d records up to timestamp %d, the manifest says %d up to %d", records, maxTS, v.seg.Records, v.seg.MaxTimestamp))
	}
	// A manifest of version 1 did not count tombstones; all records may be some.
	if tombstones != v.seg.Tombstones && v.seg.Tombstones != v.seg.Records {
		v.report(v.log, 0, fmt.Errorf("%d tombstones, the manifest says %d", tombstones, v.seg.Tombstones))
	}
	return true, nil
}

// run decodes the key run and, if all batches could be read, compares it with
// their keys.
func (v *verifier) run(compare bool) error {
	s := &stream{ctx: v.ctx, bucket: v.bucket, key: v.index, pos: v.seg.TableBytes, end: v.seg.IndexSize}
	wrong := 0
	err := readRun(s.next, s.end-s.pos, v.seg.BaseOffset, v.seg.LastOffset, func(key []byte, got keyState) error {
		if want := v.keys[string(key)]; compare && (want == nil || *want != got) {
			wrong++
		}
		delete(v.keys, string(key))
		return nil
	})
	if errors.Is(err, errRun) {
		err = record.Corrupt(v.index, s.pos, err)
	}
	if err != nil {
		return v.found(v.index, err)
	}
	if compare && wrong+len(v.keys) > 0 {
		v.report(v.index, v.seg.TableBytes, fmt.Errorf("key run has %d keys that differ from the batches and lacks %d", wrong, len(v.keys)))
	}
	return nil
}
