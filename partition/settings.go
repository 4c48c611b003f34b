package partition

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/semaphore"

	"keyhole/index"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// MaxKeyBytes is the longest key a record may have.
const MaxKeyBytes = 32 << 10

// Settings is one immutable snapshot of every switch and property that a
// partition obeys. Configure swaps it whole, so one lookup never sees half of a
// change.
type Settings struct {
	// IndexMaintained: the topic asks for an index, so appends feed it.
	IndexMaintained bool
	// IndexActive: IndexMaintained, and neither the feature nor the cluster
	// switch hides it.
	IndexActive bool
	// RemoteRead: a store is configured, and the cluster switch and the topic
	// property both let lookups read it.
	RemoteRead bool
	// RemoteWrite: a store is configured and the topic uploads its segments.
	RemoteWrite bool

	SegmentBytes     int64         // roll at this size
	SegmentAge       time.Duration // roll when the first record is this old; 0: never
	LocalTargetBytes int64         // evict down to this many bytes; negative: no limit
	LocalTargetAge   time.Duration // evict what was sealed this long ago; negative: no limit
	FlushInterval    time.Duration // 0: durable before the answer
	MaxRecordBytes   int64         // key, value and headers, uncompressed
	Codec            record.Codec  // of batches written here
	KeepCodec        bool          // compaction leaves batches in the codec they have
	ChunkBytes       int64         // target of one remote chunk

	// RemoteCodec compresses the batches of segments in the bucket, after small ones
	// were merged into larger ones if RemoteMerge is set; else they go as they are.
	RemoteCodec record.Codec
	RemoteMerge bool

	DirtyRatio      float64       // compact once this share of what could be dropped is reached, 0 … 1
	CompactionLag   time.Duration // nothing is compacted away that was sealed less long ago
	DeleteRetention time.Duration // tombstones stay at least this long
	RetentionBytes  int64         // over both tiers; negative: no limit
	RetentionAge    time.Duration // since a segment was sealed; negative: no limit
	GCGrace         time.Duration // how long replaced objects stay in the bucket
	ReplicaInterval time.Duration // how often a read replica asks for the manifest
}

// Options are what Open needs; all but Bucket, Space, Start, Compactions, Judgements and Now are required.
type Options struct {
	FS        vfs.FS
	Dir       string // <data>/topics/<topic>/<id>/<partition>
	Topic     string
	TopicID   string
	Partition int32
	// Writer is the id of this node, kept in its data directory.
	Writer string
	// New says that the topic was created a moment ago, so the bucket cannot
	// hold anything of it and need not be asked.
	New bool
	// Replica says that this node only reads the partition from the bucket, where
	// another one writes it: there is no local log.
	Replica bool

	Bucket      objstore.Bucket // nil: no store
	Conditional bool            // the store honours If-Match and If-None-Match
	Tiers       *tiered.Shared
	Indexes     *index.Shared
	Metrics     *Metrics
	Logger      *slog.Logger
	Settings    Settings
	// Space says whether there is room for records; nil: always.
	Space *Space
	// Start bounds how many partitions replay into their index at once, Compactions
	// how many compact in the background, and Judgements how many find out at once what
	// of a segment need not be uploaded; nil: no bound.
	Start, Compactions, Judgements *semaphore.Weighted
	// Inflations bounds how many very large batches are decompressed at once.
	Inflations *semaphore.Weighted
	// Now is the time by which things are deleted that are old enough; nil: one that
	// does not jump ahead.
	Now func() time.Time
}

func (o *Options) remote() bool { return o.Bucket != nil }
