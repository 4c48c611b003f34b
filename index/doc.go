// Package index maps the keys of one partition to the Kafka offset of their
// latest record. It holds no values and is derived data: whatever happens to it,
// its owner can rebuild it from the log.
//
// It promises:
//
//   - what is read back after any crash is the state after some commit: the
//     entries of all commits up to it, none of a later one, and its position;
//   - Durable never names a position that a crash could take back;
//   - damage is an error that matches record.ErrCorrupt; after a failed write the
//     index accepts no more, keeps answering reads, and says why (ErrFailed). The
//     process never ends from inside;
//   - a snapshot is the entries and the position of one commit, for whoever has to
//     decide by them what is alive, and fails with the index;
//   - a thousand idle indexes share one block cache, one file cache and one
//     compaction slot for every two processors, and cost next to nothing.
//
// The picture, per index a Pebble database without a write-ahead log:
//
//	Commit ─▶ memtable ──flush──▶ tables, level 0 … 6 ─▶ disk
//	           lost in a crash     found again by the next Open
//	           └────── Applied ──────┘
//	                                 └─── Durable
//
// A write-ahead log would hold every key twice, since the partition's own log
// already has what was applied last. Instead each commit carries the position
// that it brings the index to, in the same atomic batch. Memtables reach the disk
// whole and in order, hence entries and position always belong together, and the
// owner replays its log from there.
//
// The format is Pebble's, with these keys and values (docs/format/index.md):
//
//	00            → 01, uvarint next log offset, uvarint next Kafka offset, uvarint synced log offset
//	01 <user key> → uvarint Kafka offset
package index
