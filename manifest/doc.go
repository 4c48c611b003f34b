// Package manifest holds the list of a partition's segments in the bucket,
// and is the only truth about them: an object that no manifest names does not
// exist for a reader.
//
// What it promises:
//
//   - A Manifest never changes after it was built. A reader takes one from
//     [Handle.Current] and uses it for a whole lookup.
//   - Bytes are read with bounds and a CRC-32C before anything is believed. A
//     damaged manifest is a [record.CorruptError], never an empty one.
//   - A manifest is replaced whole, and only by the writer that holds the
//     highest epoch. A writer that meets a higher epoch is fenced for good.
//   - What is called removed stays named until its objects are gone, and a record
//     keeps its epoch whatever segment holds it.
//   - A handle that follows writes nothing to the bucket and never goes back.
//   - Absent is what the store called absent. A refusal, an outage or garbage
//     is an error, and nothing is written after one.
//
// How a change travels:
//
//	Commit(edit) ──► current + edit ──► Store.Replace(If-Match) ──► current ──► local copy
//	      ▲                                   │ refused, or the reply was lost
//	      └──── own write? adopt ◄── Load ◄───┘   higher epoch? ErrFenced
//
// The local copy lets a node answer lookups at start without asking the
// bucket. It is written after the bucket has the same bytes and before Commit
// returns, so it is never ahead of the bucket and never behind what a caller
// was told.
//
// How a read replica sees it:
//
//	Follow ──► Store.LoadIfChanged(If-None-Match) ──► continues current? ──► current ──► copy
//	                                                        │ no
//	                                                        └──► record.ErrCorrupt, current stays
//
// The format is described in docs/format/manifest.md.
package manifest
