package locallog

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// A group is at most this much, or one request.
const (
	groupBytes    = 4 << 20
	groupRequests = 1024
)

// request is one call of Append on its way.
type request struct {
	batches [][]byte
	headers []record.BatchHeader
	size    int64

	taken bool          // a leader has it; guarded by the queue's mutex
	bases []int64       // filled by the leader, as is err, before done is closed
	err   error         //
	done  chan struct{} // closed when bases and err are final
}

// Append adds batches, each one a whole encoded batch of format 2 whose offsets
// begin at 0, and gives the Kafka base offset of each. They follow each other
// without a gap, on disk in this order, with nothing of other callers between.
// The bytes are checked (their CRC too), copied and not changed.
//
// On return the batches are durable by the flush rule, below the high watermark
// and applied. An error that wraps ctx.Err() means that nothing was appended: once
// a group has taken the call up, Append waits for the outcome. After ErrReadOnly
// the batches may or may not be in the log when it is opened again. Other errors
// (ErrInvalid, ErrTooLarge, record.ErrCorrupt, ErrClosed) append nothing.
func (l *Log) Append(ctx context.Context, batches [][]byte) (bases []int64, err error) {
	r, err := l.request(batches)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.enqueue(r)
	for {
		select {
		case <-r.done:
			return r.bases, r.err
		case l.token <- struct{}{}:
			l.commitGroupLocked()
			l.unlock()
		case <-ctx.Done():
			if l.withdraw(r) {
				return nil, ctx.Err()
			}
			<-r.done
			return r.bases, r.err
		}
	}
}

// request checks batches.
func (l *Log) request(batches [][]byte) (*request, error) {
	if len(batches) == 0 {
		return nil, fmt.Errorf("%w: none given", ErrInvalid)
	}
	r := &request{
		batches: batches, headers: make([]record.BatchHeader, len(batches)),
		bases: make([]int64, len(batches)), done: make(chan struct{}),
	}
	for i, b := range batches {
		if l.o.MaxBatchBytes > 0 && int64(len(b)) > l.o.MaxBatchBytes {
			return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(b), l.o.MaxBatchBytes)
		}
		h, err := record.Verify(b)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: batch %d: %w", ErrInvalid, i, err)
		case h.BaseOffset != 0:
			return nil, fmt.Errorf("%w: batch %d begins at offset %d, want 0", ErrInvalid, i, h.BaseOffset)
		case isInternal(h, b):
			return nil, fmt.Errorf("%w: batch %d has the form of the log's own", ErrInvalid, i)
		}
		r.headers[i] = h
		r.size += int64(len(b))
	}
	return r, nil
}

func (l *Log) enqueue(r *request) {
	l.queue.Lock()
	defer l.queue.Unlock()
	l.queue.waiting = append(l.queue.waiting, r)
}

// withdraw takes r back unless a leader has it already.
func (l *Log) withdraw(r *request) bool {
	l.queue.Lock()
	defer l.queue.Unlock()
	if r.taken {
		return false
	}
	l.queue.waiting = slices.DeleteFunc(l.queue.waiting, func(q *request) bool { return q == r })
	return true
}

// take gives the next group, in the order of arrival.
func (l *Log) take() []*request {
	l.queue.Lock()
	defer l.queue.Unlock()
	var size int64
	n := 0
	for n < len(l.queue.waiting) && n < groupRequests {
		if size += l.queue.waiting[n].size; n > 0 && size > groupBytes {
			break
		}
		n++
	}
	group := l.queue.waiting[:n:n]
	for _, r := range group {
		r.taken = true
	}
	if l.queue.waiting = l.queue.waiting[n:]; len(l.queue.waiting) == 0 {
		l.queue.waiting = nil
	}
	return group
}

// commitGroupLocked commits for all who wait, as far as one group goes. It ends
// with all of them answered, so that the token goes to one who is not.
func (l *Log) commitGroupLocked() {
	group := l.take()
	err := l.usableLocked()
	if err == nil {
		err = l.writeGroupLocked(group)
	}
	for _, r := range group {
		if err != nil {
			r.bases, r.err = nil, err
		}
		close(r.done)
	}
}

// writeGroupLocked writes the batches of a group: one write and one sync, or one
// of each per segment if the group runs over the end of one.
func (l *Log) writeGroupLocked(group []*request) error {
	buf := l.d.buffer()
	defer func() { l.d.giveBack(buf) }()
	var chunk []Appended
	var maxTimestamp int64
	v := l.view.Load()
	log, kafka := v.NextLog, v.HighWatermark
	flush := func() error {
		if len(chunk) == 0 {
			return nil
		}
		err := l.writeChunkLocked(*buf, chunk, kafka, maxTimestamp)
		*buf, chunk, maxTimestamp = (*buf)[:0], chunk[:0], 0
		return err
	}
	for _, r := range group {
		for i, b := range r.batches {
			if l.fullLocked(int64(len(*buf)), int64(len(b))) {
				if err := flush(); err != nil {
					return err
				}
				if err := l.rollLocked(); err != nil {
					return err
				}
				log = l.view.Load().NextLog
			}
			at := len(*buf)
			*buf = append(*buf, b...)
			// The buffer may move while it grows; it is cut up when it is whole.
			chunk = append(chunk, Appended{Batch: (*buf)[at:], LogBase: log, KafkaBase: kafka})
			h := r.headers[i]
			r.bases[i] = kafka
			maxTimestamp = max(maxTimestamp, h.MaxTimestamp)
			log += int64(h.LastOffsetDelta) + 1
			kafka += int64(h.LastOffsetDelta) + 1
		}
	}
	return flush()
}

// fullLocked reports whether a batch of n bytes, behind pending ones, belongs in
// a new segment.
func (l *Log) fullLocked(pending, n int64) bool {
	v := l.view.Load()
	if v.active.epoch != v.Epoch {
		return true
	}
	if !v.hasData() && pending == 0 || l.o.SegmentBytes == nil {
		return false
	}
	return v.active.size+pending+n > l.o.SegmentBytes()
}

// writeChunkLocked writes data batches to the active segment and makes them
// visible. b is all of them; nextKafka is the Kafka offset behind them.
func (l *Log) writeChunkLocked(b []byte, chunk []Appended, nextKafka, maxTimestamp int64) error {
	v := l.view.Load()
	rest := b
	for i := range chunk {
		n := len(chunk[i].Batch)
		chunk[i].Batch, rest = rest[:n:n], rest[n:]
		record.SetBaseOffset(chunk[i].Batch, chunk[i].LogBase)
		record.SetLeaderEpoch(chunk[i].Batch, v.Epoch)
	}
	if err := l.writeLocked(b, v.active.size); err != nil {
		return err
	}
	interval := time.Duration(0)
	if l.o.FlushInterval != nil {
		interval = l.o.FlushInterval()
	}
	if interval > 0 {
		l.flushLaterLocked(interval)
	} else if err := l.syncLocked(); err != nil {
		return err
	}
	pos := v.active.size
	for _, a := range chunk {
		l.w.x.add(a.LogBase, a.KafkaBase, pos, int64(len(a.Batch)), false)
		pos += int64(len(a.Batch))
	}
	last := chunk[len(chunk)-1]
	l.publish(func(v *view) {
		v.NextLog = last.LogBase + nextKafka - last.KafkaBase
		v.HighWatermark = nextKafka
		v.active.size, v.active.t = pos, l.w.x.t
		v.active.maxTimestamp = max(v.active.maxTimestamp, maxTimestamp)
		if v.active.firstAppend == 0 {
			v.active.firstAppend = time.Now().UnixMilli()
		}
	})
	if l.o.Apply != nil {
		for i := range chunk {
			chunk[i].Synced = interval <= 0
		}
		if err := l.o.Apply(chunk); err != nil {
			return l.failLocked(fmt.Errorf("apply what was appended: %w", err))
		}
	}
	return nil
}

// writeLocked writes b at position pos of the active segment. Any failure, a
// short write too, makes the log read-only: what is in the file behind pos is
// unknown then, and only recovery knows how to deal with that.
func (l *Log) writeLocked(b []byte, pos int64) error {
	if err := l.writableLocked(); err != nil {
		return err
	}
	n, err := l.w.file.WriteAt(b, pos)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return l.failLocked(fmt.Errorf("write %s: %w", l.view.Load().active.name, noSpace(err)))
	}
	l.w.dirty = true
	return nil
}

// unstopLocked removes the file that says that nothing was written since Close,
// durably, before something is.
func (l *Log) unstopLocked() error {
	if !l.w.stopped {
		return nil
	}
	if err := l.d.removeDurably(stopFile); err != nil {
		return l.failLocked(err)
	}
	l.w.stopped = false
	return nil
}

// writableLocked opens the active segment.
func (l *Log) writableLocked() error {
	if err := l.unstopLocked(); err != nil {
		return err
	}
	if l.w.file != nil {
		return nil
	}
	f, err := l.d.fs.OpenReadWrite(l.d.join(l.view.Load().active.name+logSuffix), vfs.WriteCategoryUnspecified)
	if err != nil {
		return l.failLocked(fmt.Errorf("open active segment: %w", err))
	}
	l.w.file = f
	return nil
}

// Note is state that the log keeps for its owner. None of it goes back: a value
// lower than the current one, like 0, leaves that as it is.
type Note struct {
	RemoteNext         int64 // Kafka offset, exclusive: what the bucket has
	ManifestGeneration int64
	LocalStart         int64 // Kafka offset; whole segments below it go at the next trim
}

// Note writes n down in an internal batch, synced. LocalStart is limited to the
// high watermark.
func (l *Log) Note(ctx context.Context, n Note) error {
	return l.exclusively(ctx, func() error { return l.noteLocked(n) })
}

func (l *Log) noteLocked(n Note) error {
	v := *l.view.Load()
	if v.active.epoch != v.Epoch {
		if err := l.rollLocked(); err != nil {
			return err
		}
		v = *l.view.Load()
	}
	v.RemoteNext = max(v.RemoteNext, n.RemoteNext)
	v.ManifestGeneration = max(v.ManifestGeneration, n.ManifestGeneration)
	v.LocalStart = max(v.LocalStart, min(n.LocalStart, v.HighWatermark))
	b, err := v.notice(kindNote).appendTo(nil)
	if err != nil {
		return err
	}
	if err := l.writeLocked(b, v.active.size); err != nil {
		return err
	}
	if err := l.syncLocked(); err != nil {
		return err
	}
	l.w.x.add(v.NextLog, v.HighWatermark, v.active.size, int64(len(b)), true)
	v.active.size += int64(len(b))
	v.active.t = l.w.x.t
	v.NextLog++
	l.view.Store(&v)
	return nil
}
