package locallog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
	"keyhole/rewrite"
)

var (
	// ErrActive says that a segment still grows.
	ErrActive = errors.New("segment is the active one")
	// ErrTruncated says that a suffix of the log was taken back while a segment
	// was compacted: what made its records superfluous may be gone.
	ErrTruncated = errors.New("log was truncated meanwhile")
)

// CompactOptions say what [Log.CompactSegment] makes of a segment.
type CompactOptions struct {
	// Codec, KeepCodec and Target are those of rewrite.Options.
	Codec     record.Codec
	KeepCodec bool
	Target    int
	// Keep says whether the record at a Kafka offset stays; nil: all do. key is
	// valid during the call. Records without a key are kept unasked. Its error
	// leaves the segment as it is and is returned.
	Keep func(key []byte, kafkaOffset int64, tombstone bool) (bool, error)
	// Settle is called when the new file is whole and synced, before it takes the
	// old one's place: time to make durable what replaced the records that go. It
	// may call the log's methods, but not Close. Its error leaves the segment as
	// it is and is returned. nil: there is nothing to do.
	Settle func(ctx context.Context) error
}

// Compacted is what a compaction came to.
type Compacted struct {
	Before, After               int64 // bytes of the file
	RecordsBefore, RecordsAfter int64
	Swapped                     bool // false: the new file was not smaller, the old one stays
}

// CompactSegment writes the sealed segment that begins at a log offset anew,
// without the records that Keep does not want, in merged and compressed batches.
// Every record that stays has the Kafka offset and the log offset that it had.
// Internal batches stay as they are and where they are.
//
//	write temporary file ─► sync ─► read it back ─► Settle ─► rename ─► new index ─► sync directory ─► readers see it
//
// The log can be read and written meanwhile: whoever is inside the old file stays
// there, and writers wait only from the rename on. A crash leaves the old
// file or the new one. One compaction runs at a time, others wait.
//
// The errors are ErrNoSegment, also if the segment went away meanwhile, ErrActive,
// ErrTruncated, ErrClosed, ErrReadOnly, record.ErrCorrupt if the segment is
// damaged, those of Keep, Settle and ctx, and ErrNoSpace or another one of the
// file system. After all of them the segment is what it was, and the log stays
// writable unless the error is ErrReadOnly.
func (l *Log) CompactSegment(ctx context.Context, baseLog int64, o CompactOptions) (Compacted, error) {
	select {
	case l.compacting <- struct{}{}:
	case <-l.life.Done():
		return Compacted{}, ErrClosed
	case <-ctx.Done():
		return Compacted{}, ctx.Err()
	}
	defer func() { <-l.compacting }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	done, err := l.compact(ctx, baseLog, o)
	if err != nil && l.life.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return done, err
}

func (l *Log) compact(ctx context.Context, baseLog int64, o CompactOptions) (done Compacted, err error) {
	if err := l.Err(); err != nil {
		return done, err
	}
	old, truncations, err := l.compactible(baseLog)
	if err != nil {
		return done, err
	}
	defer old.release()
	temp := old.name + compactSuffix
	swapped := false
	defer func() {
		if swapped {
			return
		}
		// On a full disk it takes room; the next Open removes it, too.
		if rerr := l.d.remove(temp); rerr != nil {
			l.d.logger.Warn("compaction left a temporary file behind", "segment", old.name, "err", rerr)
		}
	}()
	c := compaction{ctx: ctx, old: old, o: &o, d: l.d}
	done.Before = old.size
	if err := c.write(temp); err != nil {
		if errors.Is(err, record.ErrCorrupt) {
			old.narrow() // so that the segment is known to be damaged
		}
		return done, fmt.Errorf("compact segment %s: %w", old.name, err)
	}
	stats := c.w.Stats()
	done.After, done.RecordsBefore, done.RecordsAfter = c.size, stats.RecordsIn, stats.RecordsOut
	if c.size >= old.size {
		return done, nil
	}
	next, err := c.check(temp)
	if err != nil {
		return done, fmt.Errorf("compact segment %s: %w", old.name, err)
	}
	if o.Settle != nil {
		if err := o.Settle(ctx); err != nil {
			return done, err
		}
	}
	err = l.exclusively(ctx, func() error {
		if l.view.Load().truncations != truncations {
			return fmt.Errorf("compact segment %s: %w", old.name, ErrTruncated)
		}
		swapped, err = l.swapLocked(old, next, temp)
		return err
	})
	done.Swapped = err == nil
	return done, err
}

// compactible finds a sealed, undamaged segment and counts the caller in, and
// says how many truncations there have been before.
func (l *Log) compactible(baseLog int64) (*sealed, int, error) {
	for {
		v := l.view.Load()
		switch {
		case v.closed:
			return nil, 0, ErrClosed
		case v.active.baseLog == baseLog:
			return nil, 0, fmt.Errorf("%w: base log offset %d", ErrActive, baseLog)
		}
		i := slices.IndexFunc(v.sealed, func(s *sealed) bool { return s.baseLog == baseLog })
		if i < 0 {
			return nil, 0, fmt.Errorf("%w: base log offset %d", ErrNoSegment, baseLog)
		}
		s := v.sealed[i]
		if !s.acquire() {
			continue // there is a newer view
		}
		if s.damaged.Load() {
			s.release()
			return nil, 0, record.Corrupt(s.name+logSuffix, 0, errors.New("a damaged segment is not compacted"))
		}
		return s, v.truncations, nil
	}
}

// compaction is one segment on its way into a new file.
type compaction struct {
	ctx  context.Context
	old  *sealed
	o    *CompactOptions
	d    *directory
	w    *rewrite.Writer
	out  *bufio.Writer
	size int64 // of the new file, also if it is too large to be written on

	log, kafka int64 // next offsets of the old file
	distance   int64 // from Kafka to log offset, in the batch at hand
}

// write makes the new file, synced. It stops writing when that is not going to be
// smaller than the old one.
func (c *compaction) write(temp string) error {
	f, err := c.d.fs.Create(c.d.join(temp), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", temp, noSpace(err))
	}
	c.out = bufio.NewWriterSize(f, scanWindow)
	ro := rewrite.Options{
		Codec: c.o.Codec, KeepCodec: c.o.KeepCodec, Target: c.o.Target, Dense: true,
		Emit: func(batch []byte, _ int64) error { return c.emit(batch) },
	}
	if c.o.Keep != nil {
		ro.Keep = func(key []byte, logOffset int64, tombstone bool) (bool, error) {
			return c.o.Keep(key, logOffset-c.distance, tombstone)
		}
	}
	c.w = rewrite.NewWriter(ro)
	err = c.copy()
	if err == nil && c.size < c.old.size {
		if err = noSpace(c.out.Flush()); err == nil {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

// copy reads the old file and writes the new one.
func (c *compaction) copy() (err error) {
	defer func() { c.old.caught(recover(), &err) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	e, err := c.old.extent()
	if err != nil {
		return err
	}
	c.log, c.kafka = c.old.baseLog, c.old.baseKafka
	err = e.all(0, func(pos int64, h record.BatchHeader, batch []byte, _ int64) error {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if h.BaseOffset != c.log {
			return record.Corrupt(c.old.name+logSuffix, pos, fmt.Errorf("log offset %d, want %d", h.BaseOffset, c.log))
		}
		if isInternal(h, batch) {
			return c.internal(pos, batch)
		}
		// Offsets are counted and not taken from the sparse index: it could lead
		// astray, and Keep would be asked about other records.
		c.distance = c.log - c.kafka
		if err := c.w.Add(batch, h.BaseOffset); err != nil {
			return c.damage(pos, err)
		}
		c.log, c.kafka = h.NextOffset(), c.kafka+int64(h.LastOffsetDelta)+1
		return nil
	})
	if err != nil {
		return err
	}
	if c.log != c.old.nextLog || c.kafka != c.old.nextKafka {
		return record.Corrupt(c.old.name+logSuffix, c.old.size, fmt.Errorf("ends at log offset %d, Kafka offset %d, want %d, %d",
			c.log, c.kafka, c.old.nextLog, c.old.nextKafka))
	}
	return c.w.Flush(c.log)
}

// internal takes an internal batch over as it is.
func (c *compaction) internal(pos int64, batch []byte) error {
	n, err := parseNotice(batch)
	if err != nil {
		return c.damage(pos, err)
	}
	if n.nextKafka != c.kafka {
		return record.Corrupt(c.old.name+logSuffix, pos, fmt.Errorf("internal batch says Kafka offset %d, want %d", n.nextKafka, c.kafka))
	}
	if err := c.w.Flush(c.log); err != nil {
		return err
	}
	c.log++
	return c.emit(batch)
}

// damage names the place of a batch that does not hold.
func (c *compaction) damage(pos int64, err error) error {
	var corrupt *record.CorruptError
	if errors.As(err, &corrupt) && corrupt.Object == "" {
		return record.Corrupt(c.old.name+logSuffix, pos, err)
	}
	return err
}

func (c *compaction) emit(batch []byte) error {
	c.size += int64(len(batch))
	if c.size >= c.old.size {
		return nil // it is for nothing, but the records are counted
	}
	_, err := c.out.Write(batch)
	return noSpace(err)
}

// check reads the new file back, with all CRCs, and makes a segment of it. A file
// that is not what it should be never takes the place of a good one.
func (c *compaction) check(temp string) (*sealed, error) {
	f, err := c.d.fs.Open(c.d.join(temp))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", temp, err)
	}
	defer f.Close()
	sc := scanner{f: f, size: c.size, verify: true}
	old := c.old
	res, err := sc.segment(old.baseLog, old.baseKafka, anchor{})
	if err != nil {
		return nil, fmt.Errorf("read %s back: %w", temp, err)
	}
	if len(res.holes) > 0 || res.end != c.size || res.nextLog != old.nextLog || res.nextKafka != old.nextKafka {
		return nil, fmt.Errorf("read %s back: sound up to byte %d of %d, log offset %d and Kafka offset %d, want %d and %d",
			temp, res.end, c.size, res.nextLog, res.nextKafka, old.nextLog, old.nextKafka)
	}
	s := &sealed{
		segment: newSegment(c.d, notice{
			log: old.baseLog, nextKafka: old.baseKafka, prevLog: old.prevLog, epoch: old.epoch, time: old.created,
		}),
		size: c.size, nextLog: old.nextLog, nextKafka: old.nextKafka,
		maxTimestamp: res.maxTimestamp, firstAppend: old.firstAppend, sealedAt: old.sealedAt,
	}
	s.whole.Store(c.size)
	s.loaded.Store(&res.t)
	return s, nil
}

// swapLocked lets next take the place of old. From the rename on, the name leads to
// the new file, so whoever still reads the old one must have it open before. The
// copy has opened it; here that is made sure of.
func (l *Log) swapLocked(old, next *sealed, temp string) (renamed bool, err error) {
	i := slices.Index(l.view.Load().sealed, old)
	if i < 0 {
		return false, fmt.Errorf("%w: base log offset %d went away meanwhile", ErrNoSegment, old.baseLog)
	}
	if _, err := old.guardedExtent(); err != nil {
		return false, err
	}
	if _, _, err := old.open(old.size); err != nil {
		return false, err
	}
	if err := old.replaceBy(temp); err != nil {
		return false, err
	}
	// Until it is there, the index of the old file names another size, so nobody
	// takes it for one of the new.
	next.writeIndex(*next.loaded.Load())
	if err := l.d.sync(); err != nil {
		// Either file is right, whichever the disk gives after a crash.
		return true, l.failLocked(fmt.Errorf("put compacted segment %s in place: %w", old.name, err))
	}
	l.publish(func(v *view) {
		v.sealed = slices.Clone(v.sealed)
		v.sealed[i] = next
	})
	old.release()
	return true, nil
}

// replaceBy gives the segment's name to another file. Nothing reads the segment by
// its name afterwards.
func (s *sealed) replaceBy(temp string) error {
	s.load.Lock()
	defer s.load.Unlock()
	if err := s.d.fs.Rename(s.d.join(temp), s.d.join(s.name+logSuffix)); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("temporary file is gone: %w", err)
		}
		return fmt.Errorf("put compacted segment %s in place: %w", s.name, err)
	}
	s.replaced = true
	return nil
}
