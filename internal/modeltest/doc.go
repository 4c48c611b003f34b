// Package modeltest holds the model test: random operations on a whole catalog,
// with its disk and its bucket in memory, compared with a map after every step.
//
//	random step ─► catalog ─► partition ─► disk (crashable) and bucket (with weather)
//	      │                                                        ▲
//	      ├──────► read replica ─────────── its own disk ──────────┘
//	      └──────► map        what a correct node would answer
//
// The model knows every record that was acknowledged, all switches, and the
// weather of the store; from these alone follows which answer is right, down to
// the reason of a 404. Of the replica it demands that an answer reflects everything
// below the position that stands in it, and is not older than the one before; of
// compaction, that nothing dead is left, and of clean-up, that the bucket ends up
// with what the manifests name. Time is that of testing/synctest, so hours of background
// work pass between two steps. There is nothing else in the package.
package modeltest
