package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"keyhole/index"
	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/tiered"
)

// Outcomes of the catalog itself; errors of partitions pass through.
var (
	// ErrTopicNotFound says that there is no such topic, here or in the bucket.
	ErrTopicNotFound = errors.New("topic not found")
	// ErrTopicExists refuses a second topic of a name.
	ErrTopicExists = errors.New("topic exists")
	// ErrBucketUnknown says that a topic is not known here and that the bucket
	// has not said yet which ones it has. Trying again helps; the cause is
	// wrapped beside it.
	ErrBucketUnknown = errors.New("topics of the bucket are not known yet")
	// ErrFeatureNotFound says that there is no such feature flag.
	ErrFeatureNotFound = errors.New("feature not found")
	// ErrClosed is what every call gives after Close.
	ErrClosed = errors.New("catalog closed")
)

const (
	// indexCacheBytes is the block cache that the indexes of all partitions
	// share. Index blocks hold keys and offsets only, so it covers some ten
	// million keys. Memory is taken as blocks are read, not ahead.
	indexCacheBytes = 256 << 20
	// indexOpenFiles bounds the index files open at once over all partitions.
	indexOpenFiles = 1000
	// startsAtOnce bounds the partitions that recover at the same time, and so
	// the memory and file handles of a start.
	startsAtOnce = 16
	// inflationsAtOnce bounds the very large batches that lookups decompress at the
	// same time, of up to 80 MiB each.
	inflationsAtOnce = 2
	// judgementsAtOnce bounds the partitions that find out what of a segment need not
	// be uploaded, of which each may take down the keys of all that waits behind it.
	judgementsAtOnce = 2
	// closesAtOnce bounds the partitions that flush and close at the same time.
	closesAtOnce = 32
	// uploadPatience is how long a change of a topic waits for the bucket to
	// have it. Then it is answered, and the bucket gets it in the background.
	uploadPatience = 5 * time.Second
)

// Options are what Open needs.
type Options struct {
	DataDir string
	FS      vfs.FS
	// Bucket is the object store; nil: none. It stays the caller's, who closes
	// it after the catalog.
	Bucket     objstore.Bucket
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// AutoCreate makes topics on their first write (TopicForWrite), and begins
	// a new data directory with all switches on. For a laptop.
	AutoCreate bool
	// ReadReplica answers from a bucket that another node writes, and writes
	// nothing into it: see replica.go. A new data directory begins with all
	// switches on. Needs Bucket, and excludes AutoCreate.
	ReadReplica bool

	// For tests: nil is guardedClock; and no sweeper, so that whatever else sweeps
	// can be seen.
	now       func() time.Time
	noSweeper bool
}

// Catalog holds the topics of a node. All methods may be called in parallel.
type Catalog struct {
	o       Options
	disk    disk
	lock    io.Closer
	indexes *index.Shared
	tiers   *tiered.Shared
	metrics *partition.Metrics
	space   *partition.Space
	start   *semaphore.Weighted
	// compactions, judgements and inflations bound what would take much memory or disk.
	compactions, judgements, inflations *semaphore.Weighted

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // background work and deletions

	snap     atomic.Pointer[snapshot]
	switches atomic.Pointer[switches]
	remote   *remote
	keeper   keeper
	sweeper  sweeper
	follow   chan struct{}    // wakes who follows the bucket's topics: follower or watchDeletions; holds one wish
	now      func() time.Time // what is deleted by age goes by it
	failed   chan error       // holds one
	closed   atomic.Bool
	close    struct {
		sync.Once
		err error
	}

	// mu admits one change at a time. Readers never take it, so it may be held
	// over writes to disk.
	mu   sync.Mutex
	node nodeData
	// conditional: some partition was told that the store honours conditions.
	conditional bool
	// gone are the ids of topics whose deletion this run knows of, so that an
	// older sight of the bucket does not bring them back.
	gone map[string]bool
}

// snapshot is one immutable state of what topics there are.
type snapshot struct {
	byName map[string]*Topic
	sorted []*Topic // by name
	// broken are names whose topic.json cannot be read: neither "found" nor
	// "not found" would be true of them.
	broken map[string]error
	// known says that every topic of the bucket is among the above.
	known bool
}

// publishLocked replaces the snapshot by an edited copy.
func (c *Catalog) publishLocked(edit func(*snapshot)) {
	old := c.snap.Load()
	next := &snapshot{byName: maps.Clone(old.byName), broken: maps.Clone(old.broken), known: old.known}
	edit(next)
	next.sorted = slices.SortedFunc(maps.Values(next.byName), func(a, b *Topic) int { return strings.Compare(a.name, b.name) })
	c.snap.Store(next)
}

func (c *Catalog) store() bool { return c.o.Bucket != nil }

// Open reads the data directory and starts every topic in it; that needs no
// object store. With a store, the topics of the bucket, its cluster id and what
// it can do are found out in the background, see ErrBucketUnknown. A damaged
// config.json or node.json is an error that names the file.
func Open(ctx context.Context, o Options) (*Catalog, error) {
	if o.ReadReplica {
		if o.Bucket == nil || o.AutoCreate {
			return nil, errors.New("a read replica needs an object store and makes no topics")
		}
		o.Bucket = objstore.ReadOnly(o.Bucket)
	}
	c := &Catalog{
		o: o, disk: disk{o.FS, o.DataDir}, gone: make(map[string]bool), failed: make(chan error, 1), remote: newRemote(),
		start: semaphore.NewWeighted(startsAtOnce), compactions: semaphore.NewWeighted(1),
		judgements: semaphore.NewWeighted(judgementsAtOnce), inflations: semaphore.NewWeighted(inflationsAtOnce), sweeper: newSweeper(), follow: make(chan struct{}, 1), now: o.now,
	}
	if c.now == nil {
		c.now = guardedClock()
	}
	var err error
	if c.lock, err = c.disk.lock(); err != nil {
		return nil, err
	}
	if err := c.load(); err != nil {
		return nil, errors.Join(err, c.lock.Close())
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.snap.Store(&snapshot{byName: map[string]*Topic{}, broken: map[string]error{}, known: !c.store()})
	if c.store() && !o.ReadReplica {
		c.keeper.kick, c.keeper.work = make(chan struct{}, 1), make(map[string]*upkeep)
	}
	sw := c.switches.Load()
	c.indexes = index.NewShared(indexCacheBytes, indexOpenFiles)
	c.tiers = tiered.NewShared(sw.cacheBytes, int(sw.remoteReads), o.Registerer)
	c.metrics = partition.NewMetrics(o.Registerer)
	c.space = partition.NewSpace(o.FS, o.DataDir, o.Logger, o.Registerer)
	c.wg.Go(func() { c.space.Watch(c.ctx) })
	if err := c.openLocal(); err != nil {
		return nil, errors.Join(err, c.Close(context.WithoutCancel(ctx)))
	}
	switch {
	case !c.store():
	case o.ReadReplica:
		c.wg.Go(c.followTopics)
	default:
		c.wg.Go(c.attach)
		c.wg.Go(c.keep)
		c.wg.Go(c.watch)
		c.wg.Go(c.watchDeletions)
		if !o.noSweeper {
			c.wg.Go(c.sweep)
		}
	}
	return c, nil
}

// load reads node.json and config.json, and makes them where they are missing.
func (c *Catalog) load() error {
	path := c.disk.path(nodeFile)
	found, err := c.disk.read(path, formatNode, &c.node)
	if err != nil {
		return err
	}
	if found && c.node.ReadReplica != c.o.ReadReplica {
		return wrongRole(c.o.ReadReplica)
	}
	if !found {
		c.node = nodeData{NodeID: newID(), ReadReplica: c.o.ReadReplica}
		if err := c.disk.write(path, formatNode, &c.node); err != nil {
			return err
		}
	}

	var config configData
	path = c.disk.path(configFile)
	if found, err = c.disk.read(path, formatConfig, &config); err != nil {
		return err
	}
	if !found && (c.o.AutoCreate || c.o.ReadReplica) {
		config = configData{
			Properties: overrides{propIndexEnabled: "true", propRemoteRead: "true"},
			Features:   map[string]string{FeatureIndex: StateActive},
		}
		if err := c.disk.write(path, formatConfig, &config); err != nil {
			return err
		}
		c.o.Logger.Info("new data directory: all switches begin as on", "file", path)
	}
	c.switches.Store(c.newSwitches(&config))
	return nil
}

// openLocal finishes what deletions left and opens every topic on disk.
func (c *Catalog) openLocal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	deleted, err := c.disk.deletions()
	if err != nil {
		return err
	}
	for _, t := range deleted {
		c.gone[t.ID] = true
		if err := c.disk.removeTopic(t.Name, t.ID); err != nil {
			return err
		}
		if err := c.settleDeletionLocked(t); err != nil {
			return err
		}
	}
	found, err := c.disk.topics(deleted)
	if err != nil {
		return err
	}
	newest := make(map[string]*topicData)
	broken := make(map[string]error)
	for _, t := range found {
		if t.damage != nil {
			c.o.Logger.Error("topic cannot be opened", "topic", t.name, "err", t.damage)
			broken[t.name] = t.damage
			continue
		}
		if have := newest[t.name]; have != nil {
			c.o.Logger.Warn("two directories for one topic; the older one is left alone", "topic", t.name, "ids", []string{have.ID, t.id})
			if have.newerThan(t.data) {
				continue
			}
		}
		newest[t.name] = t.data
	}
	var opened []*Topic
	for name, data := range newest {
		if broken[name] != nil {
			continue // the one that cannot be read may be the newer one
		}
		topic, err := c.openLocked(data, false)
		if err != nil {
			return err
		}
		opened = append(opened, topic)
	}
	c.publishLocked(func(s *snapshot) {
		for _, t := range opened {
			s.byName[t.name] = t
		}
		maps.Copy(s.broken, broken)
	})
	return nil
}

// newID makes an id: 32 hex digits, later ones sort behind earlier ones.
func newID() string {
	id, err := uuid.NewV7()
	if err != nil {
		// crypto/rand does not fail on any system that Go supports.
		panic(fmt.Sprintf("catalog: no randomness: %v", err))
	}
	return strings.ReplaceAll(id.String(), "-", "")
}

// Topic gives the topic of a name, or ErrTopicNotFound, ErrBucketUnknown,
// ErrClosed, or what keeps the topic's description from being read. It takes
// no lock.
func (c *Catalog) Topic(name string) (*Topic, error) {
	s := c.snap.Load()
	if t, ok := s.byName[name]; ok {
		return t, nil
	}
	return nil, c.missing(s, name)
}

// missing says what is true of a name that no topic has.
func (c *Catalog) missing(s *snapshot, name string) error {
	switch {
	case c.closed.Load():
		return ErrClosed
	case s.broken[name] != nil:
		return s.broken[name]
	case !s.known:
		return c.remote.unknown()
	}
	return ErrTopicNotFound
}

// TopicForWrite is Topic, but makes the topic if it does not exist and the
// catalog was opened with AutoCreate. One that takes no writes is ErrTopicGone.
func (c *Catalog) TopicForWrite(ctx context.Context, name string) (*Topic, error) {
	t, err := c.Topic(name)
	if err == nil && t.isGone() {
		return nil, ErrTopicGone
	}
	if !c.o.AutoCreate || !errors.Is(err, ErrTopicNotFound) {
		return t, err
	}
	configs := map[string]string{propSegmentBytes: autoSegmentBytes}
	if sw := c.switches.Load(); sw.indexEnabled && sw.features[FeatureIndex] == StateActive {
		configs[propTopicIndex] = "true"
	}
	t, err = c.CreateTopic(ctx, name, 1, configs)
	if errors.Is(err, ErrTopicExists) { // somebody else wrote first
		if t, err = c.Topic(name); err == nil {
			t.awaitOpened(ctx)
		}
	}
	return t, err
}

// autoSegmentBytes is segment.bytes of topics made on first use: small, so that
// a laptop sees segments move to the bucket.
const autoSegmentBytes = "1048576"

// Topics gives all topics by name. The slice must not be modified.
func (c *Catalog) Topics() []*Topic { return c.snap.Load().sorted }

// TrimCache empties the chunk cache.
func (c *Catalog) TrimCache() { c.tiers.TrimCache() }

// Failed delivers, at most once, that the object store refuses for good while
// this disk has no topic, so that the node can serve nothing before somebody
// mends its settings. The catalog itself goes on trying.
func (c *Catalog) Failed() <-chan error { return c.failed }

// Close stops the background work, closes all partitions in parallel and gives
// the data directory back. It is idempotent; a second call waits for the first
// and gives its error.
func (c *Catalog) Close(ctx context.Context) error {
	c.close.Do(func() { c.close.err = c.shut(ctx) })
	return c.close.err
}

func (c *Catalog) shut(ctx context.Context) error {
	c.closed.Store(true)
	c.cancel()
	// A change that has passed its check of closed ends before this.
	c.mu.Lock()
	topics := c.snap.Load().sorted
	c.mu.Unlock()
	c.wg.Wait()
	errs := []error{closePartitions(ctx, topics...), c.tiers.Close(ctx)}
	c.indexes.Close()
	c.mu.Lock()
	c.publishLocked(func(s *snapshot) { s.byName = map[string]*Topic{} })
	c.mu.Unlock()
	return errors.Join(append(errs, c.lock.Close())...)
}

func closePartitions(ctx context.Context, topics ...*Topic) error {
	var g errgroup.Group
	g.SetLimit(closesAtOnce)
	var mu sync.Mutex
	var errs []error
	for _, t := range topics {
		for _, p := range t.partitions {
			g.Go(func() error {
				if err := p.Close(ctx); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("close %s/%d: %w", t.name, p.ID(), err))
				}
				return nil
			})
		}
	}
	_ = g.Wait() // no function fails; errors are gathered above
	return errors.Join(errs...)
}
