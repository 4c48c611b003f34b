package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/catalog"
	"keyhole/index"
	"keyhole/locallog"
	"keyhole/objstore"
	"keyhole/record"
)

// Severity says what a finding means to a reader.
type Severity string

const (
	// Damage is what a reader misses or gets wrong, now or after a restart.
	Damage Severity = "damage"
	// Note is what costs no reader anything: leftovers, what the next start mends,
	// what nothing points to.
	Note Severity = "note"
)

// Tier says where an object of a finding is.
type Tier string

// The tiers.
const (
	Local  Tier = "local"
	Remote Tier = "remote"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity `json:"severity"`
	Tier     Tier     `json:"tier"`
	Object   string   `json:"object"`   // full path of a file or folder, or object key
	Position int64    `json:"position"` // byte in the object
	Message  string   `json:"message"`
}

// Summary is what was looked at, and what came of it.
type Summary struct {
	Topics         int   `json:"topics"` // that live
	Partitions     int   `json:"partitions"`
	LocalSegments  int   `json:"local_segments"`
	RemoteSegments int   `json:"remote_segments"`
	Records        int64 `json:"local_records"`
	Keys           int64 `json:"keys"`  // index entries compared
	Bytes          int64 `json:"bytes"` // of segments, both tiers
	Damages        int   `json:"damages"`
	Notes          int   `json:"notes"`
}

// OK reports that a reader misses nothing.
func (s *Summary) OK() bool { return s.Damages == 0 }

// Options say what to check.
type Options struct {
	FS      vfs.FS
	DataDir string          // empty: the bucket alone
	Bucket  objstore.Bucket // nil: the local tier alone
	// ScratchDir, on ScratchFS, exists and takes what does not fit into memory:
	// a few dozen bytes for each key of one partition.
	ScratchFS  vfs.FS
	ScratchDir string

	Report func(Finding) // called as findings come up, by one goroutine
	// Begin is told how many bytes there are to read, about, and Step how many of
	// them are done; nil: nobody is.
	Begin, Step func(bytes int64)
}

// ErrRunning says that a gateway has the data directory open.
var ErrRunning = errors.New("a gateway uses the data directory")

// ErrNothing says that a data directory or a bucket holds nothing of keyhole, so
// that whoever named it meant another one.
var ErrNothing = errors.New("nothing of keyhole")

// Run checks everything. Its error says that not all could be looked at: ErrRunning,
// ErrNothing, fs.ErrNotExist for the data directory, or the store's, the disk's and
// ctx's.
func Run(ctx context.Context, o Options) (Summary, error) {
	c := &checker{o: &o, bucket: o.Bucket, dir: &catalog.Directory{}}
	if o.DataDir != "" {
		lock, err := catalog.LockDirectory(o.FS, o.DataDir)
		if errors.Is(err, catalog.ErrLocked) {
			return c.sum, fmt.Errorf("%w: %s", ErrRunning, o.DataDir)
		}
		if err != nil {
			return c.sum, fmt.Errorf("data directory: %w", err)
		}
		defer lock.Close() // an empty file; nothing can be lost
		c.fs = readOnlyFS{o.FS}
		if c.dir, err = catalog.ReadDirectory(c.fs, o.DataDir); err != nil {
			return c.sum, fmt.Errorf("data directory: %w", err)
		}
		if d := c.dir; d.NodeID == "" && len(d.Topics)+len(d.Deleted)+len(d.Damage) == 0 {
			return c.sum, fmt.Errorf("%w in %s: no node.json and no topic", ErrNothing, o.DataDir)
		}
		c.directory()
	}
	c.shared = index.NewShared(indexCacheBytes, indexOpenFiles)
	defer c.shared.Close()
	return c.sum, c.run(ctx)
}

const (
	indexCacheBytes = 32 << 20
	indexOpenFiles  = 200
)

type checker struct {
	o      *Options
	bucket objstore.Bucket // nil: there is none, or it is another cluster's
	fs     vfs.FS
	dir    *catalog.Directory
	shared *index.Shared
	sum    Summary
}

func (c *checker) run(ctx context.Context) error {
	topics, err := c.survey(ctx)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, t := range topics {
		if !t.deleted() {
			total += t.size()
		}
	}
	if c.o.Begin != nil {
		c.o.Begin(total)
	}
	for _, t := range topics {
		if err := c.topic(ctx, t); err != nil {
			return fmt.Errorf("topic %s: %w", t.name, err)
		}
	}
	return nil
}

func (c *checker) report(s Severity, tier Tier, object string, pos int64, format string, args ...any) {
	if s == Damage {
		c.sum.Damages++
	} else {
		c.sum.Notes++
	}
	// Some errors come with details on further lines.
	message, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
	c.o.Report(Finding{s, tier, object, pos, strings.TrimRight(message, ": ")})
}

// corrupt reports err as damage where it says what and where, and gives it back
// where it does not.
func (c *checker) corrupt(tier Tier, object string, err error) error {
	var damage *record.CorruptError
	if !errors.As(err, &damage) {
		return err
	}
	if damage.Object != "" {
		object = damage.Object
	}
	c.report(Damage, tier, object, damage.Position, "%v", damage.Err)
	return nil
}

func (c *checker) step(n int64) {
	c.sum.Bytes += n
	c.pass(n)
}

// pass is step for bytes that there was no need to read.
func (c *checker) pass(n int64) {
	if c.o.Step != nil {
		c.o.Step(n)
	}
}

// directory reports what the documents of the data directory are like.
func (c *checker) directory() {
	for _, err := range c.dir.Damage {
		if err := c.corrupt(Local, c.o.DataDir, err); err != nil {
			c.report(Damage, Local, c.o.DataDir, 0, "%v", err)
		}
	}
	for _, path := range c.dir.Strays {
		c.report(Note, Local, path, 0, "belongs to no topic; left over, and ignored or removed by the next start")
	}
}

// topicState is a topic of either tier.
type topicState struct {
	name, id string
	local    *catalog.StoredTopic // nil: not on this disk
	gone     bool                 // deleted here, and the bucket may not know yet
	remote   *catalog.Description // nil: the bucket has none that can be read
	damaged  bool                 // the bucket has one that cannot be read
	objects  map[int32]int64      // bytes of the objects of each partition
	logs     int64                // bytes of the local logs
}

func (t *topicState) deleted() bool {
	return t.gone || t.remote != nil && t.remote.DeletedMS != 0
}

func (t *topicState) size() int64 {
	total := t.logs
	for _, n := range t.objects {
		total += n
	}
	return total
}

// partitions is how many there are, and whether anything says so.
func (t *topicState) partitions() (int32, bool) {
	switch {
	case t.local != nil:
		return t.local.Partitions, true
	case t.remote != nil:
		return t.remote.Partitions, true
	}
	return 0, false
}

// logBytes sums up the local logs of a topic, for the progress only.
func (c *checker) logBytes(t *catalog.StoredTopic) int64 {
	total := int64(0)
	for n := range t.Partitions {
		dir := c.fs.PathJoin(t.Dir, fmt.Sprint(n), logDir)
		names, err := c.fs.List(dir)
		if err != nil {
			continue // it will be met again
		}
		for _, name := range names {
			if info, err := c.fs.Stat(c.fs.PathJoin(dir, name)); err == nil && strings.HasSuffix(name, ".log") {
				total += info.Size()
			}
		}
	}
	return total
}

// holds reports whether an offset lies in one of the ranges.
func holds(ranges []locallog.Range, offset int64) bool {
	for _, r := range ranges {
		if r.From <= offset && offset < r.Next {
			return true
		}
	}
	return false
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
