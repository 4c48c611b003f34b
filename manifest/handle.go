package manifest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"keyhole/record"
)

var (
	// ErrAbsent is what a Store returns when, and only when, the bucket said
	// that there is no manifest.
	ErrAbsent = errors.New("manifest: absent")
	// ErrUnchanged is what LoadIfChanged of a Store returns when the manifest
	// still has the given ETag.
	ErrUnchanged = errors.New("manifest: unchanged")
	// ErrConflict is what a Store returns when the condition of Replace did
	// not hold.
	ErrConflict = errors.New("manifest: replaced by someone else")
	// ErrFenced says that another writer has taken the partition over. It
	// stays for the life of the Handle.
	ErrFenced = errors.New("manifest: fenced by a newer writer")
	// ErrSuperseded says that the disk was written under an older epoch than
	// the bucket's and by another writer: it may hold records that the newer
	// writer never saw, so it must not take over again.
	ErrSuperseded = errors.New("manifest: disk superseded by a newer writer")
	// ErrNotClaimed is a Commit before a successful Claim.
	ErrNotClaimed = errors.New("manifest: not claimed")
	// ErrContended says that the manifest changed under every attempt. A later
	// call may succeed.
	ErrContended = errors.New("manifest: still contended")
)

// maxAttempts bounds how often one call starts again because the manifest
// changed underneath. Writers that race for one partition fence each other
// within a round or two.
const maxAttempts = 8

// takeOverGap is how many epochs a take-over leaves out. The disk before may have
// used some on its own, one per restart from a crash while the bucket could not
// be asked, and records of two disks must not share an epoch.
const takeOverGap = 1000

// Store keeps the encoded manifest of one partition. A Handle calls it from
// one goroutine at a time. Errors other than the two sentinels leave open
// whether a Replace took place.
type Store interface {
	// Load returns the whole manifest and its ETag. ErrAbsent only if the
	// store said plainly that there is none. The caller owns the bytes.
	Load(ctx context.Context) (data []byte, etag string, err error)
	// LoadIfChanged is Load, but ErrUnchanged while the manifest has the given
	// ETag, which is not empty.
	LoadIfChanged(ctx context.Context, etag string) (data []byte, newETag string, err error)
	// Replace stores data if the manifest still has the given ETag ("" = there
	// is none), else ErrConflict, and returns the new ETag. A store without
	// conditional writes replaces always. It keeps no reference to data.
	Replace(ctx context.Context, data []byte, etag string) (newETag string, err error)
}

// Options configure Open. All fields but Now are required.
type Options struct {
	Store     Store
	Object    string // name of the manifest in errors and logs
	FS        vfs.FS
	Path      string // of the local copy; its directory must exist. A follower adds to the name
	Topic     string
	TopicID   string
	Partition int32
	Writer    string // names this node; other nodes have other names
	// Conditional says that Store honours the condition of Replace. Without
	// it the manifest is loaded before each write, which notices another
	// writer but cannot exclude one.
	Conditional bool
	Logger      *slog.Logger
	// Now is the writer's clock; nil: time.Now.
	Now func() time.Time
}

// Handle holds the current manifest of one partition and replaces it. All
// methods may be called in parallel; claims and commits run one at a time.
type Handle struct {
	o       Options
	current atomic.Pointer[Manifest]
	fenced  atomic.Bool

	turn    chan struct{} // holds one token while a claim or commit runs; guards the rest
	session string        // of the claim in force
	seq     int64         // last attempt to write within the session
	epoch   int64         // 0 until claimed
	// diskEpoch is that of the local copy, 0 without one: the last epoch in
	// which this disk is known to have had the partition.
	diskEpoch int64
	etag      string
	unsaved   bool   // current is newer than the local copy
	proof     string // path of the local copy that has the latest of what is on the disk

	// What Follow met last: nothing is known of it while the ETag is empty.
	seen struct {
		etag    string
		verdict error // why it was not made current
	}
}

// Open reads the local copies, of which the later counts, and asks no one else.
// When there is none, or it cannot be read, is damaged or belongs to another
// partition, the manifest is unknown until Claim or Follow has read the bucket.
func Open(o Options) *Handle {
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Handle{o: o, turn: make(chan struct{}, 1), proof: o.Path}
	h.current.Store(h.empty())
	if m := h.readLocal(o.Path); m != nil {
		h.current.Store(m)
		h.diskEpoch = m.Epoch
	}
	if m := h.readLocal(o.Path + followedSuffix); m != nil && continues(h.Current(), m) == nil {
		h.current.Store(m)
		h.proof = o.Path + followedSuffix
	}
	return h
}

// readLocal returns a local copy, nil if there is none that can be used.
func (h *Handle) readLocal(path string) *Manifest {
	data, err := ReadFile(h.o.FS, path, MaxBytes)
	var m *Manifest
	if err == nil {
		m, err = Decode(path, data)
	}
	if err == nil {
		err = h.checkIdentity(m)
	}
	switch {
	case err == nil:
		return m
	case !errors.Is(err, os.ErrNotExist):
		h.o.Logger.Warn("local manifest not usable, it will be read from the bucket", "path", path, "err", err)
	}
	return nil
}

func (h *Handle) empty() *Manifest {
	return &Manifest{Topic: h.o.Topic, TopicID: h.o.TopicID, Partition: h.o.Partition}
}

// Current returns the manifest as last known, one that is not Known while it
// is unknown. It never blocks and is never nil.
func (h *Handle) Current() *Manifest { return h.current.Load() }

// Fenced reports whether a newer writer was met.
func (h *Handle) Fenced() bool { return h.fenced.Load() }

// SingleWriter reports that the store cannot exclude a second writer.
func (h *Handle) SingleWriter() bool { return !h.o.Conditional }

// Claim reads the bucket's manifest and takes the next epoch, which it
// returns. When another writer had the partition since the local copy was
// written, it is ErrSuperseded and Current is the bucket's manifest; takeOver
// claims all the same, for a disk that holds nothing the bucket could lack, and
// leaves some epochs out. Segments whose CreatedAt is not known get the time of the
// claim. A Claim on a claimed handle takes one more epoch.
func (h *Handle) Claim(ctx context.Context, takeOver bool) (epoch int64, err error) {
	if err := h.lock(ctx); err != nil {
		return 0, err
	}
	defer h.unlock()
	if h.fenced.Load() {
		return 0, ErrFenced
	}
	h.epoch = 0 // a claim that fails half-way may have fenced the one before it
	session := uuid.NewString()
	for attempt := range int64(maxAttempts) {
		m, etag, err := h.load(ctx)
		if err != nil {
			return 0, err
		}
		if m != nil && m.Session == session {
			return h.claimed(m, etag) // the reply was lost, the write was not
		}
		if err := h.checkNotOlder(m); err != nil {
			return 0, err
		}
		if m == nil {
			m = h.empty()
		}
		if !takeOver && m.Epoch > h.diskEpoch && m.Writer != h.o.Writer {
			h.current.Store(m)
			return 0, fmt.Errorf("%w: disk has epoch %d, the bucket epoch %d by %s", ErrSuperseded, h.diskEpoch, m.Epoch, m.Writer)
		}
		next := *m
		next.Segments = m.dated(h.o.Now()) // as of a version that did not say
		next.Epoch++
		if takeOver {
			next.Epoch += takeOverGap
		}
		next.Generation++
		next.Writer, next.Session, next.Commit = h.o.Writer, session, attempt+1
		etag, err = h.replace(ctx, &next, etag)
		switch {
		case err == nil:
			return h.claimed(&next, etag)
		case !errors.Is(err, ErrConflict):
			return 0, err
		}
	}
	return 0, fmt.Errorf("claim %s: %w", h.o.Object, ErrContended)
}

// claimed ends a claim whose manifest is in the bucket.
func (h *Handle) claimed(m *Manifest, etag string) (int64, error) {
	if err := h.install(m, etag); err != nil {
		return 0, err
	}
	h.session, h.seq, h.epoch, h.diskEpoch = m.Session, m.Commit, m.Epoch, m.Epoch
	return m.Epoch, nil
}

// Commit replaces the manifest by what edit makes of the current one, and
// returns once the bucket and the local copy have it. edit may run more than
// once, must not keep what it is given, and returns its argument to change
// nothing; epoch, writer and generation are set here. On any error but
// ErrFenced the same Commit may be repeated: if the bucket took it after all,
// edit is shown the manifest that has the change.
func (h *Handle) Commit(ctx context.Context, edit func(*Manifest) (*Manifest, error)) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	if h.epoch == 0 && !h.fenced.Load() {
		return ErrNotClaimed
	}
	look := !h.o.Conditional || h.etag == ""
	attempt := int64(0)
	for range maxAttempts {
		if h.fenced.Load() {
			return ErrFenced
		}
		if look {
			if err := h.reconcile(ctx); err != nil {
				return err
			}
			if attempt != 0 && h.Current().Commit == attempt {
				return nil // the reply was lost, the write was not
			}
		}
		cur := h.Current()
		edited, err := edit(cur)
		if err != nil {
			return err
		}
		if edited == cur {
			return h.save(h.o.Path)
		}
		next := *edited
		next.Epoch, next.Writer, next.Session = h.epoch, h.o.Writer, h.session
		next.Generation = cur.Generation + 1
		h.seq++
		attempt, next.Commit = h.seq, h.seq
		etag, err := h.replace(ctx, &next, h.etag)
		if err == nil {
			return h.install(&next, etag)
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		look = true
	}
	return fmt.Errorf("commit %s: %w", h.o.Object, ErrContended)
}

// reconcile looks at what the bucket holds and decides whose it is. On return
// without error h.etag is that of the bucket's manifest and current is what
// this writer stands by.
func (h *Handle) reconcile(ctx context.Context) error {
	m, etag, err := h.load(ctx)
	if err != nil {
		return err
	}
	return h.judge(m, etag)
}

// Look asks the bucket whether the partition is still this writer's: ErrFenced
// once another one has it. It writes nothing to the bucket, and moves no bytes
// while nothing has changed there. Without a claim there is nothing to ask. Any
// other error leaves the question open.
func (h *Handle) Look(ctx context.Context) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	switch {
	case h.fenced.Load():
		return ErrFenced
	case h.epoch == 0:
		return nil
	case h.etag == "":
		return h.reconcile(ctx)
	}
	m, etag, err := h.decoded(h.o.Store.LoadIfChanged(ctx, h.etag))
	if errors.Is(err, ErrUnchanged) {
		return nil
	}
	if err != nil {
		return err
	}
	return h.judge(m, etag)
}

// judge is the second half of reconcile: m, nil if there is none, is what the
// bucket holds under etag.
func (h *Handle) judge(m *Manifest, etag string) error {
	cur := h.Current()
	switch {
	case m == nil:
		return record.Corrupt(h.o.Object, 0, fmt.Errorf("manifest of generation %d is gone from the bucket", cur.Generation))
	case m.Session == h.session && m.Commit == cur.Commit:
		h.etag = etag
		return nil
	case m.Session == h.session && m.Commit > cur.Commit:
		// An earlier attempt whose reply was lost.
		return h.install(m, etag)
	case m.Session != h.session && m.Epoch >= h.epoch:
		h.fenced.Store(true)
		return fmt.Errorf("%w: epoch %d by %s, ours is %d", ErrFenced, m.Epoch, m.Writer, h.epoch)
	default:
		// Only a store without conditions lets an older write land on a newer
		// one. The holder of the highest epoch puts its own back.
		h.o.Logger.Warn("manifest was overwritten by an older writer, replacing it",
			"object", h.o.Object, "epoch", m.Epoch, "writer", m.Writer, "generation", m.Generation)
		h.etag = etag
		return nil
	}
}

// load reads the bucket's manifest; nil when the bucket says it has none.
func (h *Handle) load(ctx context.Context) (*Manifest, string, error) {
	return h.decoded(h.o.Store.Load(ctx))
}

// decoded makes a manifest of this partition out of what the Store answered.
func (h *Handle) decoded(data []byte, etag string, err error) (*Manifest, string, error) {
	if errors.Is(err, ErrAbsent) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("load %s: %w", h.o.Object, err)
	}
	m, err := Decode(h.o.Object, data)
	if err != nil {
		return nil, "", err
	}
	if err := h.checkIdentity(m); err != nil {
		return nil, "", err
	}
	return m, etag, nil
}

func (h *Handle) replace(ctx context.Context, m *Manifest, etag string) (string, error) {
	data, err := Encode(m)
	if err != nil {
		return "", err
	}
	etag, err = h.o.Store.Replace(ctx, data, etag)
	if err != nil {
		return "", fmt.Errorf("replace %s: %w", h.o.Object, err)
	}
	return etag, nil
}

// install makes m current and writes the local copy. When only the latter
// fails, m is current all the same, because the bucket has it; the next commit
// tries the copy again.
func (h *Handle) install(m *Manifest, etag string) error {
	h.current.Store(m)
	h.etag, h.unsaved = etag, true
	return h.save(h.o.Path)
}

// save writes a local copy unless it is up to date.
func (h *Handle) save(path string) error {
	if !h.unsaved {
		return nil
	}
	data, err := Encode(h.Current())
	if err != nil {
		return err
	}
	if err := WriteFile(h.o.FS, path, data); err != nil {
		return fmt.Errorf("local copy of manifest: %w", err)
	}
	h.unsaved, h.proof = false, path
	return nil
}

// checkIdentity refuses a manifest of some other partition.
func (h *Handle) checkIdentity(m *Manifest) error {
	if m.Topic == h.o.Topic && m.TopicID == h.o.TopicID && m.Partition == h.o.Partition {
		return nil
	}
	return record.Corrupt(h.o.Object, 0, fmt.Errorf("manifest of %s/%s/%d, expected %s/%s/%d",
		m.Topic, m.TopicID, m.Partition, h.o.Topic, h.o.TopicID, h.o.Partition))
}

// checkNotOlder refuses a bucket that went back behind the local copy. The
// copy is written after the bucket, so a bucket with less has lost something,
// and building on it would lose the rest.
func (h *Handle) checkNotOlder(m *Manifest) error {
	cur := h.Current()
	if !cur.Known() || m != nil && m.Generation >= cur.Generation {
		return nil
	}
	have := "none"
	if m != nil {
		have = fmt.Sprintf("generation %d", m.Generation)
	}
	return record.Corrupt(h.o.Object, 0, fmt.Errorf("bucket has %s, the local copy %s has generation %d; "+
		"remove the copy to go on with what the bucket has", have, h.proof, cur.Generation))
}

// lock waits for the turn or for ctx.
func (h *Handle) lock(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *Handle) unlock() { <-h.turn }
