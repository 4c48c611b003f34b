package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/fsync"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
)

var (
	// ErrNotRetained says that the bucket has no record at the offset: it lies
	// outside of all segments, or compaction has removed the record.
	ErrNotRetained = errors.New("record not retained in the object store")
	// ErrUnknown says that nobody knows yet what the bucket has.
	ErrUnknown = errors.New("manifest not known yet")
	// ErrClosed is the answer of a closed Tier.
	ErrClosed = errors.New("remote tier closed")

	// ErrFenced and ErrSuperseded are those of package manifest.
	ErrFenced     = manifest.ErrFenced
	ErrSuperseded = manifest.ErrSuperseded
	// ErrNotClaimed is an Upload before a successful Claim.
	ErrNotClaimed = manifest.ErrNotClaimed
)

// Options configure Open. All fields are required but Recode and Now.
type Options struct {
	FS        vfs.FS
	Dir       string // for the manifest's copy and the chunk tables; nothing else may be in it
	Bucket    objstore.Bucket
	Topic     string
	TopicID   string
	Partition int32
	Writer    string // id of this node
	// Conditional says that the store honours conditions of a Put, as
	// objstore.Probe found out.
	Conditional bool
	ChunkBytes  func() int64     // target size of a chunk, asked once per segment
	Recode      func() Recode    // asked once per segment; nil: batches go as they are
	Now         func() time.Time // for the times in the manifest; nil: time.Now
	Shared      *Shared
	Logger      *slog.Logger
}

// Tier is the remote tier of one partition. All methods may be called in
// parallel; claims and uploads take turns.
type Tier struct {
	o        Options
	prefix   string
	manifest *manifest.Handle

	runsAhead int64 // bytes; what tests have lower

	closed     atomic.Bool  // set with mu held
	lastCommit atomic.Int64 // Unix nanoseconds, 0: none yet

	// turn holds one token while a claim or an upload runs; it guards the next
	// two fields.
	turn    chan struct{}
	claimed bool
	pending map[int64]*pending // by base offset

	// files is held while files in Dir are written or removed.
	files sync.Mutex

	life context.Context // ends with Close
	end  context.CancelFunc
	mu   struct {
		sync.Mutex
		calls     sync.WaitGroup // not added to once closed
		rewriting *rewriting     // that has not come through, nil: none
	}
}

// Open makes Dir and reads the local copy of the manifest. It does not ask the
// bucket. The errors are those of the disk.
func Open(o Options) (*Tier, error) {
	if err := makeDir(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("make directory of the remote tier: %w", err)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	t := &Tier{
		o: o, prefix: Prefix(o.Topic, o.TopicID, o.Partition), runsAhead: runsAhead,
		turn: make(chan struct{}, 1), pending: make(map[int64]*pending),
	}
	if err := o.FS.Remove(o.FS.PathJoin(o.Dir, rewriteFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove what a rewrite has left behind: %w", err)
	}
	t.life, t.end = context.WithCancel(context.Background())
	t.manifest = manifest.Open(manifest.Options{
		Store:       &bucketStore{bucket: o.Bucket, key: ManifestKey(t.prefix), conditional: o.Conditional},
		Object:      ManifestKey(t.prefix),
		FS:          o.FS,
		Path:        o.FS.PathJoin(o.Dir, "manifest.json"),
		Topic:       o.Topic,
		TopicID:     o.TopicID,
		Partition:   o.Partition,
		Writer:      o.Writer,
		Conditional: o.Conditional,
		Logger:      o.Logger,
	})
	return t, nil
}

// makeDir makes dir durable if it is not there yet. What is above its parent is
// the caller's.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return fsync.Dir(fs, fs.PathDir(dir))
}

// Snapshot returns the manifest as last known. It is never nil; as long as it
// is not Known, nothing may be concluded from what it does not list.
func (t *Tier) Snapshot() *manifest.Manifest { return t.manifest.Current() }

// Fenced reports whether a newer writer was met; it stays so.
func (t *Tier) Fenced() bool { return t.manifest.Fenced() }

// SingleWriter reports that the store cannot exclude a second writer.
func (t *Tier) SingleWriter() bool { return t.manifest.SingleWriter() }

// LastCommit is when this process last wrote the manifest; zero if it has not.
func (t *Tier) LastCommit() time.Time {
	if ns := t.lastCommit.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Claim reads the bucket's manifest and takes the partition over under the next
// epoch, which it returns. ErrSuperseded when another writer had it since this
// disk last saw the bucket; the snapshot is the bucket's then. takeOver claims
// all the same, for a disk that holds nothing the bucket lacks. ErrFenced once
// a newer writer was met. Other errors are the store's and the disk's; after
// them Claim may be repeated.
func (t *Tier) Claim(ctx context.Context, takeOver bool) (epoch int64, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { done(&err) }()
	if err := t.lock(ctx); err != nil {
		return 0, err
	}
	defer t.unlock()
	t.claimed = false
	epoch, err = t.manifest.Claim(ctx, takeOver)
	if err != nil {
		return 0, err
	}
	t.claimed = true
	t.lastCommit.Store(time.Now().UnixNano())
	t.sweep()
	return epoch, nil
}

// Look asks the bucket whether the partition is still this node's: ErrFenced
// once a newer writer has it. It costs one request, which moves no bytes while
// the manifest is as it was; before a Claim it costs none. Other errors are the
// store's and leave the question open.
func (t *Tier) Look(ctx context.Context) (err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer func() { done(&err) }()
	return t.manifest.Look(ctx)
}

// sweep removes tables that neither the manifest nor a begun upload or Rewrite
// names: left by a process that ended before its upload did, or of segments that
// were replaced. It runs when the bucket's own manifest is at hand and who has the
// turn asks for it.
func (t *Tier) sweep() {
	keep := make(map[string]bool)
	m := t.Snapshot()
	for i := range m.Segments {
		keep[tableFile(&m.Segments[i])] = true
	}
	for _, p := range t.pending {
		if p.segment != nil {
			keep[tableFile(p.segment)] = true
		}
	}
	t.mu.Lock()
	if r := t.mu.rewriting; r != nil && len(r.old) > 0 {
		keep[tableFile(&manifest.Segment{BaseOffset: r.old[0].BaseOffset, UploadID: r.uploadID})] = true
	}
	t.mu.Unlock()
	t.files.Lock()
	defer t.files.Unlock()
	names, err := t.o.FS.List(t.o.Dir)
	if err != nil {
		t.o.Logger.Warn("directory of the remote tier cannot be listed", "dir", t.o.Dir, "err", err)
		return
	}
	for _, name := range names {
		stray := strings.HasSuffix(name, tableSuffix) && !keep[name] || strings.HasSuffix(name, tableSuffix+".tmp")
		if !stray {
			continue
		}
		if err := t.o.FS.Remove(t.o.FS.PathJoin(t.o.Dir, name)); err != nil {
			t.o.Logger.Warn("stray chunk table cannot be removed", "name", name, "err", err)
		}
	}
}

// RawManifest returns the manifest's bytes as they are in the bucket now.
func (t *Tier) RawManifest(ctx context.Context) (data []byte, err error) {
	ctx, done, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { done(&err) }()
	key := ManifestKey(t.prefix)
	data, _, err = t.o.Bucket.Get(ctx, key, manifest.MaxBytes)
	if errors.Is(err, objstore.ErrNotFound) && t.Snapshot().Known() {
		err = record.Corrupt(key, 0, fmt.Errorf("manifest is gone from the bucket: %w", err))
	}
	return data, err
}

// Close ends running calls and waits for them; reads go on in Shared until they
// or it end. It is idempotent.
func (t *Tier) Close() error {
	t.mu.Lock()
	t.closed.Store(true)
	t.mu.Unlock()
	t.end()
	t.mu.calls.Wait()
	return nil
}

// begin counts a call in and derives a context that Close ends. done counts it
// out and turns the cancellation by Close into ErrClosed.
func (t *Tier) begin(ctx context.Context) (_ context.Context, done func(*error), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return nil, nil, ErrClosed
	}
	t.mu.calls.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.life, cancel)
	return ctx, func(err *error) {
		if *err != nil && t.life.Err() != nil && errors.Is(*err, context.Canceled) {
			*err = ErrClosed
		}
		stop()
		cancel()
		t.mu.calls.Done()
	}, nil
}

// lock waits for the turn or for ctx.
func (t *Tier) lock(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *Tier) unlock() { <-t.turn }
