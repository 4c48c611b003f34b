package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

// storm lets writers, readers, evictions, compactions and clean-ups loose on one
// partition at once, and readers of the replica beside it. Each
// key has one writer, so that what a reader may see is known: what was there
// before, or one of that writer's values, and never an older one than before.
func (w *world) storm() {
	w.t.Helper()
	t, n := w.pick()
	if t == nil {
		return
	}
	w.note("storm over %s/%d", t.name, n)
	const writers, each = 3, 12
	s := &stormy{w: w, t: t, p: w.partition(t, n), remote: w.remoteRead(t), indexed: w.indexed(t), before: make(map[string]*record.Record)}
	for key, off := range t.parts[n].latest {
		s.before[key] = &t.parts[n].recs[off]
	}
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for i := range writers {
		seed := w.rng.Uint64()
		writing.Go(func() { s.write(rand.New(rand.NewPCG(seed, 0)), i, each) })
	}
	for range 2 {
		seed := w.rng.Uint64()
		reading.Go(func() { s.read(rand.New(rand.NewPCG(seed, 0)), writers, done) })
	}
	reading.Go(func() { s.shrink(done) })
	if w.rng.IntN(2) == 0 {
		reading.Go(func() { s.compact(done) })
	}
	if w.weather == fine && w.replica != nil && w.replica.c != nil && t.followed {
		if p := w.replicaPartition(t, n, true); p != nil {
			from := &stormy{w: w, t: t, p: p, remote: s.remote, indexed: flag(t.props, "redpanda.kv.index.enabled", false), before: s.before, replica: true}
			seed := w.rng.Uint64()
			reading.Go(func() {
				from.read(rand.New(rand.NewPCG(seed, 0)), writers, done)
				if from.err != nil {
					s.fail(fmt.Errorf("replica: %w", from.err))
				}
			})
		}
	}
	writing.Wait()
	close(done)
	reading.Wait()
	if s.err != nil {
		w.t.Fatalf("storm over %s/%d: %v", t.name, n, s.err)
	}
	slices.SortFunc(s.written, func(a, b record.Record) int { return int(a.Offset - b.Offset) })
	for _, rec := range s.written {
		if rec.Offset != t.parts[n].next() {
			w.t.Fatalf("storm: a record was given offset %d, want %d", rec.Offset, t.parts[n].next())
		}
		t.parts[n].take(rec)
	}
	if w.flushes(t) {
		t.parts[n].durable = t.parts[n].next()
	}
	for i := range writers {
		w.lookup(t, n, stormKey(i), askGet)
	}
}

func stormKey(writer int) string { return fmt.Sprint("storm-", writer) }

type stormy struct {
	w               *world
	t               *topicModel
	p               *partition.Partition
	remote, indexed bool
	before          map[string]*record.Record
	replica         bool // it may be behind what was before

	mu      sync.Mutex
	written []record.Record
	err     error
}

func (s *stormy) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// write gives key i ever newer values, named by number.
func (s *stormy) write(rng *rand.Rand, i, count int) {
	for v := range count {
		rec := record.Record{Key: []byte(stormKey(i)), Timestamp: int64(v), Value: fmt.Appendf(nil, "%d:%d:%0*d", s.w.steps, v, 1+rng.IntN(900), 0)}
		base, err := s.p.Append(context.Background(), []record.Record{rec})
		if err != nil {
			// The limit may be set so low; then this one wrote nothing.
			if !errors.Is(err, partition.ErrRecordTooLarge) && !s.w.excused(err) {
				s.fail(fmt.Errorf("append: %w", err))
			}
			return
		}
		rec.Offset = base
		s.mu.Lock()
		s.written = append(s.written, rec)
		s.mu.Unlock()
	}
}

func (s *stormy) read(rng *rand.Rand, writers int, done chan struct{}) {
	last := make(map[string]int64)
	for {
		select {
		case <-done:
			return
		default:
		}
		key := stormKey(rng.IntN(writers))
		ctx, cancel := context.WithTimeout(context.Background(), s.w.c.LookupTimeout())
		res, err := s.p.Lookup(ctx, []byte(key), partition.Query{})
		cancel()
		if err := s.judge(key, last, res, err); err != nil {
			s.fail(fmt.Errorf("%s: %w", key, err))
			return
		}
	}
}

func (s *stormy) judge(key string, last map[string]int64, res partition.Result, err error) error {
	before := s.before[key]
	switch {
	case errors.Is(err, partition.ErrKeyNotFound):
		if at, seen := last[key]; seen {
			return fmt.Errorf("vanished after offset %d", at)
		}
		if before != nil && before.Value != nil && !s.replica {
			return errors.New("vanished")
		}
		return nil
	case errors.Is(err, partition.ErrRemoteReadDisabled) && (!s.remote || s.replica && !flag(s.t.props, "redpanda.remote.read", true)),
		errors.Is(err, partition.ErrNotIndexed) && !s.indexed, s.w.excused(err),
		errors.Is(err, tiered.ErrOverloaded) && s.w.cluster["kv_index_max_remote_reads"] == 1:
		return nil
	case err != nil:
		return err
	}
	if at, seen := last[key]; seen && res.Offset < at {
		return fmt.Errorf("went back from offset %d to %d", at, res.Offset)
	}
	last[key] = res.Offset
	if s.replica && bytes.IndexByte(res.Value, ':') > 0 {
		return nil // of this storm, or one before
	}
	if before != nil && before.Value != nil && bytes.Equal(before.Value, res.Value) {
		return nil
	}
	if !bytes.HasPrefix(res.Value, fmt.Appendf(nil, "%d:", s.w.steps)) || res.Position <= res.Offset && res.Offset < 0 {
		return fmt.Errorf("value %.40q at offset %d", res.Value, res.Offset)
	}
	return nil
}

// shrink evicts, and empties the cache, as fast as it can.
func (s *stormy) shrink(done chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
		}
		if _, err := s.p.Evict(context.Background(), 2<<10); err != nil {
			if !s.w.excused(err) && !errors.Is(err, partition.ErrNoStore) && !errors.Is(err, partition.ErrRemoteWriteDisabled) {
				s.fail(fmt.Errorf("evict: %w", err))
			}
			return
		}
		s.w.c.TrimCache()
	}
}

// compact compacts and cleans up as fast as it can.
func (s *stormy) compact(done chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
		}
		_, err := s.p.Compact(context.Background())
		if err == nil && s.w.bucket != nil {
			_, err = s.p.Collect(context.Background(), false)
		}
		if err != nil {
			if !s.w.excused(err) {
				s.fail(fmt.Errorf("compact: %w", err))
			}
			return
		}
	}
}
