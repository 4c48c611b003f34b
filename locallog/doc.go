// Package locallog is the local tier of one partition: a segmented, append-only
// log of Kafka record batches.
//
// It promises:
//
//   - What Append answered is there after a crash, as far as the flush rule in
//     Options says so, and keeps its Kafka offset for ever: over rolls, trims,
//     truncations and restarts.
//   - Damage is never skipped in silence. Offsets whose bytes cannot be proven
//     answer record.ErrCorrupt; a tail that a crash tore, and that nobody was
//     told about, is cut before anything is appended behind it.
//   - After a failed write or sync nothing is written any more until the log is
//     opened again: a later sync that succeeds proves nothing about the pages
//     that an earlier one lost. Only where a write found no room, and no sync has
//     failed, Resume brings the log back without that.
//   - A segment that is compacted keeps the offsets of every record that stays,
//     Kafka's and its own, and its readers.
//   - Readers never wait for writers, and a segment goes away only when its last
//     reader has left.
//
// The directory of a log:
//
//	00000000000000000000-1.log     sealed ─┐  ┌ <base log offset>-<epoch>
//	00000000000000000000-1.index           ├──┤ sparse index, derived from .log
//	00000000000000000000-1.compact.tmp  only while that segment is compacted
//	00000000000000004711-1.log     sealed ─┘  └
//	00000000000000009422-2.log     active: appends go here
//	clean-stop                     only while nothing was written since Close
//	truncating                     only during TruncateSuffix
//
// One segment, and the two ways of counting:
//
//	             ┌───────────┬────────┬────────┬──────┬────────┐
//	file         │checkpoint │ data   │ data   │ note │ data   │
//	             ├───────────┼────────┼────────┼──────┼────────┤
//	log offset   │ 100       │ 101-103│ 104    │ 105  │ 106-107│
//	Kafka offset │ says: 90  │ 90-92  │ 93     │  —   │ 94-95  │
//	             └───────────┴────────┴────────┴──────┴────────┘
//
// Checkpoints and notes ("internal batches") take a log offset but no Kafka
// offset. Every one of them carries the whole state of the log, so recovery only
// reads the last segment. Log offsets are what stands in the batch headers on
// disk; users of this package get a batch together with its Kafka base offset.
//
// Appends commit in groups without a goroutine of the log's own: whoever comes
// first takes the commit token and writes, syncs and applies for all who wait.
//
//	Append ─► queue ─► token ─► one write ─► one sync ─► high watermark ─► Apply ─► answers
//
// The formats are in docs/format/local-log.md and docs/format/sparse-index.md.
package locallog
