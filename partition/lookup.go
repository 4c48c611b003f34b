package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"keyhole/index"
	"keyhole/locallog"
	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/record"
	"keyhole/tiered"
)

// Source says where a value was read.
type Source uint8

// The sources of a value.
const (
	SourceLocal  Source = iota // the local log
	SourceCache                // a chunk of the bucket that was in memory
	SourceRemote               // a chunk that this lookup waited for
)

func (s Source) String() string {
	return [...]string{"local", "cache", "remote"}[s]
}

// Query says how a lookup is to be answered.
type Query struct {
	// MinPosition is the least applied position that may answer, and Wait how
	// long to wait for it.
	MinPosition int64
	Wait        time.Duration
	// ResolveOnly stops once it is known where the record is: nothing is read.
	ResolveOnly bool
	// Matches reports whether the caller already has the record of this offset
	// and epoch; nil: it has none. A match is decided without reading the record.
	Matches func(offset, epoch int64) bool
	// Buf is where the value goes (from its start); it grows as needed.
	Buf []byte
}

// Result is what a lookup found. With an error only Partition and Position are
// set.
type Result struct {
	Partition int32
	Offset    int64 // Kafka offset
	// Epoch in which the record was written. An offset whose record was lost is
	// given again, but not in the same epoch.
	Epoch int64
	// Position is exclusive: every record below it is reflected in the answer.
	Position    int64
	Timestamp   int64 // Unix milliseconds
	Source      Source
	Value       []byte // Query.Buf, possibly grown; the caller's
	Headers     []record.Header
	NotModified bool
}

// errMoved says that the record at the offset is not, or no longer, the one the
// index meant.
var errMoved = errors.New("record moved")

// errReplaced says that the segment was replaced while it was looked in: the record
// is in the one that took its place.
var errReplaced = errors.New("segment replaced")

// maxMoves bounds how often one lookup follows a pointer that keeps moving.
// Each move is a newer record of the same key, so a handful is already a storm.
const maxMoves = 16

// Lookup answers with the latest committed record of key.
//
// The answer takes one view: the switches, the index pointer and the tier are
// each read once, in the order below, and a pointer that moved meanwhile is
// followed. Reading the position before the pointer makes the position a lower
// bound of what the answer reflects.
//
//	switches → index (key → offset) → local log, if offset ≥ local start
//	                                → bucket, if the switches allow it
func (p *Partition) Lookup(ctx context.Context, key []byte, q Query) (Result, error) {
	res := Result{Partition: p.o.Partition}
	s := p.settings.Load()
	if p.fenced.Load() {
		return res, ErrNotHosted
	}
	if !s.IndexActive {
		return res, ErrNotIndexed
	}
	v := p.serving.Load()
	if v == nil {
		return res, p.notServing()
	}
	if q.MinPosition > 0 {
		if err := p.awaitPosition(ctx, q.MinPosition, q.Wait); err != nil {
			res.Position = p.position()
			return res, err
		}
	}

	last := int64(-1)
	for range maxMoves {
		if v = p.serving.Load(); v == nil {
			return res, p.notServing()
		}
		res.Position = v.ix.Applied().NextKafka
		offset, ok, err := v.ix.Get(key)
		if errors.Is(err, index.ErrClosed) && p.serving.Load() != v {
			continue // another one has taken its place
		}
		if err != nil {
			return res, p.indexTrouble(v, err)
		}
		if !ok || offset == last {
			if ok {
				p.o.Logger.Warn("index entry does not lead to its key", "offset", offset)
			}
			return res, ErrKeyNotFound
		}
		res.Offset = offset
		err = p.resolve(ctx, s, v, key, q, &res)
		switch {
		case errors.Is(err, errReplaced):
		case errors.Is(err, errMoved):
			last = offset
		default:
			return res, err
		}
		p.o.Metrics.Moved.Inc()
	}
	return res, fmt.Errorf("%w: record moved %d times", ErrNotReady, maxMoves)
}

// resolve reads the record at res.Offset from the tier that holds it.
func (p *Partition) resolve(ctx context.Context, s *Settings, v *view, key []byte, q Query, res *Result) error {
	if v.log == nil {
		return p.resolveReplica(ctx, s, v, key, q, res)
	}
	if res.Offset >= v.log.State().LocalStart {
		err := p.resolveLocal(ctx, v, key, q, res)
		switch {
		case errors.Is(err, locallog.ErrBelowStart):
			// Evicted underneath: the bucket has it.
		case errors.Is(err, record.ErrCorrupt):
			p.corrupted("local", err)
			if !p.inBucket(res.Offset) || !s.RemoteRead {
				return err
			}
		default:
			return err
		}
	}
	if !s.RemoteRead || p.tier == nil {
		return ErrRemoteReadDisabled
	}
	m := p.tier.Snapshot()
	if _, ok := m.Find(res.Offset); !ok {
		return p.notInBucket(m, v.log.State(), res.Offset)
	}
	err := p.resolveRemote(ctx, m, key, q, res)
	if errors.Is(err, record.ErrCorrupt) {
		p.corrupted("remote", err)
	}
	return err
}

// resolveRemote is resolve for an offset that a segment of m answers for.
func (p *Partition) resolveRemote(ctx context.Context, m *manifest.Manifest, key []byte, q Query, res *Result) error {
	if res.Epoch = m.EpochAt(res.Offset); done(q, res, SourceRemote) {
		return nil
	}
	hit, err := p.tier.ReadBatch(ctx, m, res.Offset, func(batch []byte, base int64) error {
		return p.take(ctx, batch, base, key, q, res)
	})
	res.Source = SourceRemote
	if hit {
		res.Source = SourceCache
	}
	switch {
	case errors.Is(err, tiered.ErrNotRetained):
		// The snapshot names a segment whose range spans the offset, but the record
		// itself was compacted away.
		return errMoved
	case errors.Is(err, tiered.ErrMoved):
		return errReplaced
	case errors.Is(err, tiered.ErrUnknown):
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	case errors.Is(err, tiered.ErrClosed):
		return ErrClosed
	}
	return err
}

// notInBucket is the answer for an offset that no segment answers for: retention
// took it, or compaction did and the pointer has moved on.
func (p *Partition) notInBucket(m *manifest.Manifest, st locallog.State, offset int64) error {
	if err := p.notRetained(m, st); !errors.Is(err, ErrNotRetained) || offset < m.StartOffset || offset >= m.Next() {
		return err
	}
	return errMoved
}

// notRetained is the answer for an offset that no tier has, which takes a
// manifest that can prove it.
func (p *Partition) notRetained(m *manifest.Manifest, st locallog.State) error {
	switch {
	case m.Generation < st.ManifestGeneration && !p.asked.Load():
		return fmt.Errorf("%w: the manifest was lost here and is not read again yet", ErrNotReady)
	case m.Next() < st.RemoteNext:
		key := tiered.ManifestKey(tiered.Prefix(p.o.Topic, p.o.TopicID, p.o.Partition))
		return record.Corrupt(key, 0, fmt.Errorf("manifest ends at offset %d; the bucket once had all below %d", m.Next(), st.RemoteNext))
	}
	return ErrNotRetained
}

// done reports whether the answer is complete once the tier is known.
func done(q Query, res *Result, src Source) bool {
	res.Source = src
	if q.Matches != nil && q.Matches(res.Offset, res.Epoch) {
		res.NotModified = true
		return true
	}
	return q.ResolveOnly
}

// resolveLocal is resolve for an offset that the local log should have.
func (p *Partition) resolveLocal(ctx context.Context, v *view, key []byte, q Query, res *Result) error {
	epoch, err := v.log.EpochAt(res.Offset)
	if err == nil {
		if res.Epoch = int64(epoch); done(q, res, SourceLocal) {
			return nil
		}
		err = p.readLocal(ctx, v, key, q, res)
	}
	switch {
	case errors.Is(err, locallog.ErrNotFound):
		return errMoved
	case errors.Is(err, locallog.ErrClosed):
		return ErrClosed
	}
	return err
}

func (p *Partition) readLocal(ctx context.Context, v *view, key []byte, q Query, res *Result) error {
	return v.log.ReadBatch(res.Offset, func(batch []byte, base int64) error {
		return p.take(ctx, batch, base, key, q, res)
	})
}

// readers keeps decompression buffers between lookups.
var readers = sync.Pool{New: func() any { return new(record.Reader) }}

// modestUncompressed is how far any lookup may inflate a batch. Beyond it only as
// many do so at once as Options.Inflations has room for, whatever batches the bucket
// holds and however many ask for them.
const modestUncompressed = 4 << 20

// inflate gives a reader of batch, which deflate takes back. The error is damage,
// or ctx's while it waits for room.
func (p *Partition) inflate(ctx context.Context, batch []byte) (r *record.Reader, large bool, err error) {
	r = readers.Get().(*record.Reader)
	if err = r.Reset(batch, modestUncompressed); err == nil {
		return r, false, nil
	}
	readers.Put(r)
	if !errors.Is(err, record.ErrTooLarge) {
		return nil, false, err
	}
	if err := p.o.Inflations.Acquire(ctx, 1); err != nil {
		return nil, false, err
	}
	r = new(record.Reader)
	if err := r.Reset(batch, maxUncompressed); err != nil {
		p.o.Inflations.Release(1)
		return nil, false, err
	}
	return r, true, nil
}

// deflate keeps the buffer for the next one, unless it is large.
func (p *Partition) deflate(r *record.Reader, large bool) {
	if large {
		p.o.Inflations.Release(1)
		return
	}
	readers.Put(r)
}

// take copies the record of res.Offset out of batch, whose Kafka base offset is
// base, after checking the batch's CRC, the offset and the full key.
func (p *Partition) take(ctx context.Context, batch []byte, base int64, key []byte, q Query, res *Result) error {
	r, large, err := p.inflate(ctx, batch)
	if err != nil {
		return err
	}
	defer p.deflate(r, large)
	// A local batch carries its log offset; a remote one its Kafka offset.
	shift := base - r.Header().BaseOffset
	if r.Header().IsControl() {
		return errMoved
	}
	for r.Next() {
		rec := r.Record()
		switch at := rec.Offset + shift; {
		case at < res.Offset:
			continue
		case at > res.Offset, rec.Key == nil, rec.Value == nil, !bytes.Equal(rec.Key, key):
			return errMoved
		}
		headers, err := rec.Headers()
		if err != nil {
			return err
		}
		for i := range headers {
			headers[i].Value = bytes.Clone(headers[i].Value)
		}
		res.Timestamp = rec.Timestamp
		res.Value = append(q.Buf[:0], rec.Value...)
		res.Headers = headers
		return nil
	}
	if err := r.Err(); err != nil {
		return err
	}
	return errMoved
}

// maxUncompressed bounds one decompressed batch: the largest record that any
// topic may hold and what surrounds it in its batch.
const maxUncompressed = 80 << 20

func (p *Partition) inBucket(offset int64) bool {
	if p.tier == nil {
		return false
	}
	_, ok := p.tier.Snapshot().Find(offset)
	return ok
}

// corrupted counts and logs damage with its place.
func (p *Partition) corrupted(tier string, err error) {
	p.o.Metrics.Corruptions.WithLabelValues(tier, "read").Inc()
	p.o.Logger.Error("stored data is damaged", "tier", tier, "err", err)
}

// position is the applied position that lookups see, 0 while none is served.
func (p *Partition) position() int64 {
	if v := p.serving.Load(); v != nil {
		return v.ix.Applied().NextKafka
	}
	return 0
}

// awaitPosition waits until everything below min is applied.
func (p *Partition) awaitPosition(ctx context.Context, min int64, wait time.Duration) error {
	if p.position() >= min {
		return nil
	}
	if wait <= 0 {
		return ErrPositionNotReached
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		moved := p.applied.wait()
		if p.position() >= min {
			return nil
		}
		select {
		case <-moved:
		case <-timer.C:
			return ErrPositionNotReached
		case <-p.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return ErrPositionNotReached
		}
	}
}

// pulse wakes everybody who waits for the next event. Its zero value is ready.
type pulse struct {
	mu struct {
		sync.Mutex
		ch chan struct{} // nil: nobody waits
	}
}

// wait gives a channel that the next beat closes.
func (b *pulse) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.ch == nil {
		b.mu.ch = make(chan struct{})
	}
	return b.mu.ch
}

func (b *pulse) beat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.ch != nil {
		close(b.mu.ch)
		b.mu.ch = nil
	}
}

// unavailable reports whether err is trouble with the bucket that may pass.
func unavailable(err error) bool {
	for _, kind := range []error{objstore.ErrUnavailable, objstore.ErrDenied, objstore.ErrMisconfigured, objstore.ErrUnusable,
		objstore.ErrUnsupported, manifest.ErrContended, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
