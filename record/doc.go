// Package record holds the words the rest of keyhole speaks (record, header,
// batch, codec) and the codec of Kafka's record batch, version 2. It imports
// nothing of keyhole.
//
// It promises:
//
//   - No input makes it panic, and no length is trusted before it is bounded:
//     every length is checked against the bytes at hand, and decompression
//     stops at a limit that the caller names.
//   - Bytes that fail a check are reported as a [CorruptError]; nothing of a
//     batch whose checksum or length is wrong is ever handed out.
//   - Iteration with a [Reader] allocates nothing per record: keys and values
//     are windows into the batch or into the Reader's own buffer.
//   - null and empty stay two things: a nil Key, Value or header Value is
//     Kafka's null, an empty one is empty.
//
// One batch on disk, on the wire and in the bucket:
//
//	         ┌── outside the checksum ──┐┌───────── under the checksum ─────────┐
//	0        8      12     16    17     21                                   61
//	├────────┼──────┼──────┼─────┼──────┼────────────────────────────────────┼──────────┐
//	│ base   │length│leader│magic│ CRC- │ attributes, last offset delta,     │ records, │
//	│ offset │      │epoch │ = 2 │ 32C  │ timestamps, producer, record count │ maybe    │
//	└────────┴──────┴──────┴─────┴──────┴────────────────────────────────────┴ packed ──┘
//
// Because the base offset stands outside the checksum, a batch moves from log
// offsets to Kafka offsets with [SetBaseOffset], without touching its records.
// docs/format/record-batch.md has the whole layout with a byte ruler.
package record
