// Package tiered is the remote tier of one partition: it brings sealed segments
// to the bucket and reads records back.
//
// What it promises:
//
//   - A record is read with exactly one ranged GET, or none when its chunk is in
//     the cache. Nothing is asked of the store to find out where the record is.
//   - A chunk is checked for length and CRC-32C before anyone sees it. What
//     fails is damage (record.ErrCorrupt), never kept, and never a "not found".
//   - A segment counts as remote when the manifest in the bucket names it, and
//     the manifest names it only after both of its objects are stored.
//   - A segment in the bucket is a plain Kafka log segment: data batches with
//     Kafka offsets, nothing else.
//   - No object name is used for two different contents.
//   - An object that a manifest has named stays readable for a grace period after
//     the manifest has stopped naming it.
//   - Nothing is deleted but objects of segments that the manifest, looked at just
//     before, says are not needed or does not know.
//
// The picture:
//
//	Upload ─► plan (chunk table, key run) ─► .log ─► .index ─► local table ─► manifest
//	Rewrite ─► .log objects ─► what stays ─► temporary file ─► as for Upload
//	Collect ─► removed longer ago than the grace period, orphans ─► delete ─► manifest
//	ReadBatch ─► manifest ─► chunk table ─► cache ─► one ranged GET ─► batch
//	KeyRuns ─► .index objects, some ahead, in offset order (a damaged one: its .log object)
//	Follow ─► manifest of another node
//
// On local disk, in the directory given: the manifest's copy and one chunk
// table per segment, both as they are in the bucket. Either may be lost; it is
// fetched again. Formats: docs/format/remote-segment.md, index-object.md,
// manifest.md.
package tiered
