package locallog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"keyhole/record"
)

// Open opens the log in o.Dir, or begins one. What a crash left is put in order
// first: a truncation that was broken off is carried on, files below the local
// start are removed, a torn tail is cut and the cut synced.
//
// Damage does not make Open fail as long as it is known which offsets it hit:
// they answer record.ErrCorrupt, and appending goes on behind them, in a new
// segment if the damage is in the last one. Otherwise the error is
// record.ErrCorrupt; any other is one of the file system or of ctx, and opening
// may succeed later.
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{
		o:     o,
		d:     &directory{fs: o.FS, path: o.Dir, logger: o.Logger},
		token: make(chan struct{}, 1),

		compacting: make(chan struct{}, 1),
	}
	l.life, l.end = context.WithCancel(context.Background())
	if err := l.d.make(o.Dir); err != nil {
		return nil, err
	}
	r := recovery{d: l.d, o: &l.o}
	if err := r.run(ctx, l); err != nil {
		return nil, fmt.Errorf("open log %s: %w", o.Dir, err)
	}
	return l, nil
}

// recovery works out from the files of a log where it stands.
type recovery struct {
	d *directory
	o *Options

	files    []*logFile // by base log offset
	stop     *notice    // the file clean-stop, if it holds
	stopFile bool       // there is one, whether it holds or not
	truncate *notice    // the file truncating

	state  State
	sealed []*sealed
	active active
	x      indexer // of the active segment
}

// logFile is a .log file and what its beginning, or its index, says about it.
type logFile struct {
	name    string // without suffix
	baseLog int64
	epoch   int32
	size    int64

	linked    bool  // the following are known
	baseKafka int64 // Kafka offset of its first data record
	prevLog   int64 // next log offset of the segment before it
	created   int64
	index     *indexHeader // nil: missing, damaged or of another state of the file
}

func (f *logFile) segment(d *directory) *segment {
	return newSegment(d, notice{
		log: f.baseLog, epoch: f.epoch, nextKafka: f.baseKafka, prevLog: f.prevLog, time: f.created,
	})
}

func (r *recovery) run(ctx context.Context, l *Log) error {
	if err := r.list(); err != nil {
		return err
	}
	var err error
	if r.stop, r.stopFile, err = r.noticeFile(stopFile, kindStop); err != nil {
		return err
	}
	if r.truncate, _, err = r.noticeFile(truncateFile, kindTruncate); err != nil {
		return err
	}
	for _, f := range r.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.link(f); err != nil {
			return err
		}
	}
	if n := len(r.files); n > 0 && r.stop != nil && r.stop.segment < r.files[n-1].baseLog {
		r.stop = nil // of an earlier state of the log
	}
	if err := r.last(); err != nil {
		return err
	}
	if err := r.older(ctx); err != nil {
		return err
	}
	if err := r.chain(); err != nil {
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	l.w.x = r.x
	l.w.stopped = r.stopFile && r.stop != nil
	l.view.Store(&view{State: r.state, sealed: r.sealed, active: r.active})
	if r.truncate != nil {
		if err := l.redoTruncate(r.truncate.nextKafka); err != nil {
			l.view.Load().release()
			return fmt.Errorf("carry on truncation to offset %d: %w", r.truncate.nextKafka, err)
		}
	}
	return nil
}

// list finds the log's files and removes what earlier writes left unfinished.
// Names that are not the log's are left alone.
func (r *recovery) list() error {
	names, err := r.d.fs.List(r.d.path)
	if err != nil {
		return fmt.Errorf("list log directory: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		if base, ok := strings.CutSuffix(name, compactSuffix); ok {
			if _, _, ok := parseSegmentName(base); ok {
				if err := r.d.remove(name); err != nil {
					return err
				}
			}
			continue
		}
		whole, unfinished := strings.CutSuffix(name, tempSuffix)
		base, isLog := strings.CutSuffix(whole, logSuffix)
		base, isIndex := strings.CutSuffix(base, indexSuffix)
		baseLog, epoch, ok := parseSegmentName(base)
		ok = ok && isLog != isIndex
		switch {
		case unfinished && (ok || whole == stopFile || whole == truncateFile),
			ok && isIndex && !slices.Contains(names, base+logSuffix):
			if err := r.d.remove(name); err != nil {
				return err
			}
		case unfinished || !ok || isIndex:
		default:
			info, err := r.d.fs.Stat(r.d.join(name))
			if err != nil {
				return fmt.Errorf("look up %s: %w", name, err)
			}
			r.files = append(r.files, &logFile{name: base, baseLog: baseLog, epoch: epoch, size: info.Size()})
		}
	}
	for i := 1; i < len(r.files); i++ {
		if r.files[i].baseLog == r.files[i-1].baseLog {
			return record.Corrupt(r.files[i].name+logSuffix, 0, errors.New("two segments begin at one log offset"))
		}
	}
	return nil
}

// noticeFile reads a file that holds one internal batch. One that does not hold
// is as good as none: it was never synced, or is of no use.
func (r *recovery) noticeFile(name string, want kind) (n *notice, exists bool, err error) {
	b, err := r.d.read(name, noticeSize+1)
	if err != nil || b == nil {
		return nil, false, err
	}
	got, err := parseNotice(b)
	if err == nil && want == kindStop && got.prevLog != got.log {
		err = fmt.Errorf("it says twice where the log ends: at log offsets %d and %d", got.log, got.prevLog)
	}
	if err != nil || got.kind != want {
		r.d.logger.Warn("ignoring a file that does not hold", "file", name, "err", err)
		return nil, true, nil
	}
	return &got, true, nil
}

// link reads how a file fits into the chain: from its index, or from its
// checkpoint. A last segment has no index that could be right.
func (r *recovery) link(f *logFile) error {
	if f != r.files[len(r.files)-1] {
		b, err := r.d.read(f.name+indexSuffix, indexHeaderSize)
		if err != nil {
			return err
		}
		if b != nil {
			if err := r.useIndex(f, b); err != nil {
				r.d.logger.Warn("sparse index is unusable; it will be rebuilt", "segment", f.name, "err", err)
			}
		}
	}
	if f.linked {
		return nil
	}
	b, err := r.d.read(f.name+logSuffix, noticeSize)
	if err != nil {
		return err
	}
	n, err := parseNotice(b)
	if err == nil && n.kind == kindCheckpoint && n.log == f.baseLog && n.prevLog <= n.log {
		f.linked, f.baseKafka, f.prevLog, f.created = true, n.nextKafka, n.prevLog, n.time
		return nil
	}
	r.d.logger.Error("segment does not begin with its checkpoint", "segment", f.name, "err", err)
	return nil
}

func (r *recovery) useIndex(f *logFile, b []byte) error {
	info, err := r.d.fs.Stat(r.d.join(f.name + indexSuffix))
	if err != nil {
		return err
	}
	h, err := decodeIndexHeader(b, info.Size())
	if err != nil {
		return err
	}
	if h.baseLog != f.baseLog || h.logBytes != f.size {
		return errors.New("it describes another state of the segment")
	}
	f.linked, f.baseKafka, f.prevLog, f.created, f.index = true, h.baseKafka, h.prevLog, h.created, &h
	return nil
}

// last reads the last segment, takes the log's state from it, and decides about
// its tail.
func (r *recovery) last() error {
	r.state = State{LocalStart: r.o.StartKafka, HighWatermark: r.o.StartKafka, Epoch: r.o.Epoch}
	defer r.mergeState()
	if len(r.files) == 0 {
		if r.stop != nil { // then there were some; chain says what is missing
			r.state.HighWatermark, r.state.NextLog = max(r.o.StartKafka, r.stop.nextKafka), r.stop.log
		}
		return nil
	}
	f := r.files[len(r.files)-1]
	if !f.linked {
		if err := r.linkToPrevious(f); err != nil {
			return err
		}
	}
	res, err := r.scanLast(f)
	if err != nil {
		return err
	}
	r.state.HighWatermark, r.state.NextLog = res.nextKafka, res.nextLog
	r.state.Epoch = max(r.state.Epoch, f.epoch)
	if r.stop == nil && f.epoch < math.MaxInt32 {
		r.state.Epoch = max(r.state.Epoch, f.epoch+1)
	}
	n := res.last
	if n.kind == 0 {
		if n, err = r.olderState(); err != nil {
			return err
		}
	}
	r.state.LocalStart, r.state.RemoteNext, r.state.ManifestGeneration = n.localStart, n.remoteNext, n.generation
	s := &sealed{
		segment: f.segment(r.d), size: res.end, nextLog: res.nextLog, nextKafka: res.nextKafka,
		maxTimestamp: res.maxTimestamp, sealedAt: time.Now().UnixMilli(),
	}
	if res.data {
		s.firstAppend = f.created
	}
	if len(res.holes) > 0 {
		h := res.holes[0]
		r.d.logger.Error("last segment is damaged; appending goes on in a new one",
			"segment", f.name, "position", h.pos, "kafka_offset", h.kafka, "next_kafka_offset", res.nextKafka)
		s.damaged.Store(true)
		s.loaded.Store(&res.t)
		s.whole.Store(s.size)
		r.sealed = append(r.sealed, s)
		return nil
	}
	if err := r.settle(f); err != nil {
		return err
	}
	if res.end < f.size {
		r.d.logger.Warn("cutting a torn tail", "segment", f.name, "position", res.end, "bytes", f.size-res.end,
			"next_kafka_offset", res.nextKafka)
		if err := r.d.cut(f.name+logSuffix, res.end); err != nil {
			return err
		}
	}
	if r.stop == nil {
		r.d.logger.Info("log was not stopped cleanly, and is recovered", "segments", len(r.files),
			"local_start", n.localStart, "next_kafka_offset", res.nextKafka, "cut_bytes", f.size-res.end)
	}
	r.x = res.indexer
	r.active = active{
		segment: s.segment, size: res.end, t: res.t, maxTimestamp: res.maxTimestamp, firstAppend: s.firstAppend,
	}
	return nil
}

// olderState is the state that the newest sound checkpoint carries, when the last
// segment has none. The local start may have moved since; that it seems lower than
// it was makes evicted offsets seem damaged, where the other way round damaged
// ones would seem evicted.
func (r *recovery) olderState() (notice, error) {
	for _, f := range slices.Backward(r.files) {
		b, err := r.d.read(f.name+logSuffix, noticeSize)
		if err != nil {
			return notice{}, err
		}
		if n, err := parseNotice(b); err == nil {
			return n, nil
		}
	}
	return notice{localStart: r.files[0].baseKafka}, nil
}

// mergeState adds what the files beside the segments know.
func (r *recovery) mergeState() {
	for _, n := range []*notice{r.stop, r.truncate} {
		if n == nil {
			continue
		}
		r.state.LocalStart = max(r.state.LocalStart, n.localStart)
		r.state.RemoteNext = max(r.state.RemoteNext, n.remoteNext)
		r.state.ManifestGeneration = max(r.state.ManifestGeneration, n.generation)
		r.state.Epoch = max(r.state.Epoch, n.epoch)
	}
	r.state.LocalStart = min(r.state.LocalStart, r.state.HighWatermark)
}

// linkToPrevious finds out where a last segment begins whose checkpoint is bad.
func (r *recovery) linkToPrevious(f *logFile) error {
	if n := len(r.files); n > 1 && r.files[n-2].linked {
		prev, err := r.load(r.files[n-2], nil)
		if err != nil {
			return err
		}
		f.follow(prev)
		prev.release()
	}
	if f.linked {
		return nil
	}
	return record.Corrupt(f.name+logSuffix, 0, errors.New("first checkpoint is bad, and nothing says at which offset the segment begins"))
}

// follow links a file to the segment before it, if that is sound and ends where
// the file begins.
func (f *logFile) follow(prev *sealed) {
	if prev.nextLog == f.baseLog && !prev.damaged.Load() {
		f.linked, f.baseKafka, f.prevLog = true, prev.nextKafka, prev.nextLog
	}
}

// scanLast reads the last segment up to where it holds. Holes in the result are
// damage; bytes behind its end are a torn write.
func (r *recovery) scanLast(f *logFile) (*scanned, error) {
	in, err := r.d.fs.Open(r.d.join(f.name + logSuffix))
	if err != nil {
		return nil, fmt.Errorf("open last segment: %w", err)
	}
	defer in.Close()
	sc := scanner{f: in, size: f.size}
	if r.stop != nil && r.stop.segment == f.baseLog && r.stop.segmentBytes == f.size {
		// Nothing can be torn. It is enough that the headers lead to the end that
		// was noted; every read checks its CRC anyway.
		a := r.end()
		res, err := sc.segment(f.baseLog, f.baseKafka, a)
		if err != nil {
			return nil, err
		}
		if len(res.holes) == 0 && res.nextLog == a.log && res.nextKafka == a.kafka {
			return res, nil
		}
	}
	return r.tail(&sc, f)
}

// older takes the sealed segments in, and removes those that are done with: below
// the local start, or without data and followed by another.
func (r *recovery) older(ctx context.Context) error {
	damagedLast := r.sealed
	r.sealed = nil
	for i, f := range r.files[:max(0, len(r.files)-1)] {
		if err := ctx.Err(); err != nil {
			return err
		}
		next := r.files[i+1]
		if next.linked && (next.baseKafka <= r.state.LocalStart || f.linked && f.baseKafka == next.baseKafka) {
			for _, suffix := range []string{indexSuffix, logSuffix} {
				if err := r.d.remove(f.name + suffix); err != nil {
					return err
				}
			}
			continue
		}
		if !f.linked && len(r.sealed) > 0 {
			f.follow(r.sealed[len(r.sealed)-1])
		}
		if !f.linked {
			continue // chain reports the gap
		}
		s, err := r.load(f, next)
		if err != nil {
			return err
		}
		r.sealed = append(r.sealed, s)
	}
	r.sealed = append(r.sealed, damagedLast...)
	return nil
}

// load makes a sealed segment of a file: by its index, or by reading all of it.
// next is the file behind it, nil if that is of no help.
func (r *recovery) load(f, next *logFile) (*sealed, error) {
	s := &sealed{segment: f.segment(r.d), size: f.size}
	s.whole.Store(f.size)
	if h := f.index; h != nil && (next == nil || !next.linked || h.nextLog == next.prevLog && h.nextKafka == next.baseKafka) {
		s.nextLog, s.nextKafka, s.maxTimestamp = h.nextLog, h.nextKafka, h.maxTimestamp
		s.firstAppend, s.sealedAt = h.firstAppend, h.sealedAt
		return s, nil
	}
	in, err := r.d.fs.Open(r.d.join(f.name + logSuffix))
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	sc := scanner{f: in, size: f.size, verify: true}
	var a anchor
	if next != nil && next.linked {
		a = anchor{log: next.prevLog, kafka: next.baseKafka}
		sc.limit = next.prevLog
	}
	res, err := sc.segment(f.baseLog, f.baseKafka, a)
	if err != nil {
		return nil, err
	}
	if sc.limit > 0 {
		res.fill(a.log, a.kafka)
	}
	s.size, s.nextLog, s.nextKafka, s.maxTimestamp = res.end, res.nextLog, res.nextKafka, res.maxTimestamp
	s.firstAppend, s.sealedAt = f.created, info.ModTime().UnixMilli()
	s.loaded.Store(&res.t)
	if len(res.holes) > 0 {
		s.damaged.Store(true)
		r.d.logger.Error("segment is damaged", "segment", f.name, "position", res.holes[0].pos, "kafka_offset", res.holes[0].kafka)
	} else if res.end == f.size {
		s.writeIndex(res.t)
	}
	return s, nil
}
