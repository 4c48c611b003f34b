package locallog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"keyhole/record"
)

// kind is the type of a control record that the log wrote for itself. Kafka
// numbers its own control records from 0, so ours stay far away from them: a
// transaction marker is data here and has a Kafka offset.
type kind int16

const (
	kindCheckpoint kind = 0x6B00 + iota // first batch of every segment
	kindNote                            // state that changed within a segment
	kindStop                            // the file clean-stop
	kindTruncate                        // the file truncating
	kindLimit
)

const (
	noticeKeySize   = 4     // version, type
	noticeValueSize = 8 * 8 // eight 64-bit fields
	// noticeSize is the size of every internal batch in bytes: the batch header
	// and one record, whose length takes two bytes and whose other varints one
	// each, save the value's length.
	noticeSize = record.HeaderSize + 2 + 1 + 1 + 1 + 1 + noticeKeySize + 2 + noticeValueSize + 1
)

var errNotNotice = errors.New("not an internal batch")

// notice is the content of an internal batch: the state of the log behind it.
type notice struct {
	kind kind
	log  int64 // log offset of the batch itself
	time int64 // when it was written, Unix milliseconds

	nextKafka  int64 // Kafka offset of the next data record
	epoch      int32
	localStart int64
	remoteNext int64
	generation int64 // of the manifest that remoteNext is taken from
	// prevLog, in a checkpoint, is the next log offset of the segment before it:
	// what links the segments into a chain in which a missing file shows. In
	// clean-stop it is log once more: what is alone in a file has no neighbours to
	// prove its base offset, which stands outside of the checksum.
	prevLog int64
	// segment and segmentBytes, in the file clean-stop, are the base log offset
	// and the size of the active segment.
	segment, segmentBytes int64
}

// appendTo encodes n as one batch of exactly noticeSize bytes.
func (n notice) appendTo(dst []byte) ([]byte, error) {
	key := binary.BigEndian.AppendUint16(make([]byte, 0, noticeKeySize), 0)
	key = binary.BigEndian.AppendUint16(key, uint16(n.kind))
	value := make([]byte, 0, noticeValueSize)
	for _, f := range [...]int64{
		n.nextKafka, int64(n.epoch), n.localStart, n.remoteNext,
		n.generation, n.prevLog, n.segment, n.segmentBytes,
	} {
		value = binary.BigEndian.AppendUint64(value, uint64(f))
	}
	out, err := record.AppendBatch(dst, record.BatchOptions{
		BaseOffset: n.log, LastOffset: -1, LeaderEpoch: n.epoch, Control: true,
	}, []record.Record{{Offset: n.log, Timestamp: n.time, Key: key, Value: value}})
	if err != nil {
		return dst, fmt.Errorf("encode internal batch: %w", err)
	}
	return out, nil
}

// parseNotice decodes an internal batch. It fails with errNotNotice for a batch
// that is sound but not ours, with record.ErrCorrupt for anything else.
func parseNotice(batch []byte) (notice, error) {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return notice{}, err
	}
	if !maybeInternal(h) {
		return notice{}, errNotNotice
	}
	var r record.Reader
	if err := r.Reset(batch, 0); err != nil {
		return notice{}, err
	}
	if !r.Next() {
		return notice{}, errors.Join(errNotNotice, r.Err())
	}
	v := r.Record()
	k, ok := noticeKind(v.Key)
	if !ok {
		return notice{}, errNotNotice
	}
	if len(v.Value) != noticeValueSize || len(v.Key) != noticeKeySize || r.Next() || r.Err() != nil {
		return notice{}, record.Corrupt("", record.HeaderSize, fmt.Errorf("internal batch of type %#x has another layout", int16(k)))
	}
	n := notice{kind: k, log: h.BaseOffset, time: h.MaxTimestamp}
	var epoch int64
	for i, f := range [...]*int64{
		&n.nextKafka, &epoch, &n.localStart, &n.remoteNext,
		&n.generation, &n.prevLog, &n.segment, &n.segmentBytes,
	} {
		*f = int64(binary.BigEndian.Uint64(v.Value[8*i:]))
		if *f < 0 && f != &epoch {
			return notice{}, record.Corrupt("", record.HeaderSize, fmt.Errorf("internal batch has a negative field: %d", *f))
		}
	}
	if n.epoch = int32(epoch); int64(n.epoch) != epoch {
		return notice{}, record.Corrupt("", record.HeaderSize, fmt.Errorf("internal batch has epoch %d", epoch))
	}
	return n, nil
}

// maybeInternal is the cheap test on the header: a control batch of one offset,
// uncompressed, that no producer wrote. Transaction markers carry their
// producer's id.
func maybeInternal(h record.BatchHeader) bool {
	return h.IsControl() && h.ProducerID == -1 && h.LastOffsetDelta == 0 && h.NumRecords == 1 && h.Codec() == record.None
}

// noticeKind reads the key of a control record.
func noticeKind(key []byte) (kind, bool) {
	if len(key) < noticeKeySize {
		return 0, false
	}
	k := kind(binary.BigEndian.Uint16(key[2:]))
	return k, k >= kindCheckpoint && k < kindLimit
}

// isInternal reports whether a whole batch is one of ours, by its header and
// the type in its record's key. It does not check the CRC.
func isInternal(h record.BatchHeader, batch []byte) bool {
	if !maybeInternal(h) || len(batch) != noticeSize {
		return false
	}
	// All internal batches have one layout, so the key has one place.
	const keyAt = noticeSize - 1 - noticeValueSize - 2 - noticeKeySize
	_, ok := noticeKind(batch[keyAt : keyAt+noticeKeySize])
	return ok
}
