// Package check reads both tiers of a stopped gateway and says whether all
// holds. Of a bucket alone it does so while a gateway runs.
//
// What it promises:
//
//   - It changes nothing, on disk or in the bucket; the file system it works on
//     refuses every write.
//   - Every byte that a lookup could read is read and compared with everything
//     that is said about it elsewhere: checksums, sizes, offsets, keys.
//   - A finding is damage if a reader misses something or gets it wrong, else a
//     note: what the next start mends or removes, and what nothing points to.
//   - What could not be looked at is an error, and never "all holds".
//   - Memory is bounded by one manifest, the keys of one remote segment and the
//     caches of two indexes, whatever the tiers hold.
//
// The picture, per partition:
//
//	local log ─► every batch ─► latest record of each key ─┐
//	bucket ─► manifest ─► segments ─► their key runs ──────┤  scratch index: its
//	                                                       ▼  offset, who has it
//	                             kv_index ─► entry by entry, in the order of keys
//
// Compaction leaves the latest record of each key, and it must do so for whoever
// sees one tier only. So beside the index two more things are held against the
// scratch index: what the bucket alone says of keys as of where it ends, and
// whether the local log has what lookups expect there. That offsets are missing
// in between proves nothing, and is no finding.
//
// The judgements follow what a start would make of the files: a tail that
// recovery cuts is a note, one that it must keep is damage; entries that a replay
// is about to overwrite are not looked at. A read replica has no local log; its index
// is held against the bucket as of its position.
package check
