package locallog

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

const (
	// firstMapping is the least that is mapped of an active segment, which then
	// grows into the mapping: address space, not memory.
	firstMapping = 1 << 20
	// mappingGrowth bounds how far a mapping reaches beyond what is needed.
	mappingGrowth = 256 << 20
)

// segment is one .log file and who is using it. It begins with one reference,
// the log's own; whoever reads holds another. When the last one is given up the
// mappings go, and the files too if the segment was trimmed.
type segment struct {
	d         *directory
	name      string // without suffix
	baseLog   int64
	baseKafka int64
	prevLog   int64 // see notice
	epoch     int32
	created   int64 // Unix milliseconds

	refs   atomic.Int64
	remove atomic.Bool // files go with the last reference

	mapped atomic.Pointer[[]byte] // the widest mapping
	// whole is the size of a sealed segment: what to map. 0 while it grows.
	whole atomic.Int64

	mu struct {
		sync.Mutex
		mappings [][]byte // all of them, the index's too; readers may be inside any
		noMap    bool     // the file system has no mappings, or there are too many
		file     vfs.File // for ReadAt, when there is no mapping
	}
}

func newSegment(d *directory, n notice) *segment {
	s := &segment{
		d: d, name: segmentName(n.log, n.epoch), baseLog: n.log, baseKafka: n.nextKafka,
		prevLog: n.prevLog, epoch: n.epoch, created: n.time,
	}
	s.refs.Store(1)
	return s
}

// acquire counts a reader in. It fails once the last reference is gone: then
// the view in which the caller found the segment is outdated.
func (s *segment) acquire() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *segment) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	var errs []error
	s.mu.Lock()
	for _, m := range s.mu.mappings {
		errs = append(errs, unmapFile(m))
	}
	if s.mu.file != nil {
		errs = append(errs, s.mu.file.Close())
	}
	s.mu.mappings, s.mu.file = nil, nil
	s.mu.Unlock()
	if s.remove.Load() {
		// The log's start is beyond the segment, durably. If a removal fails or
		// is lost in a crash, the next Open removes the files.
		errs = append(errs, s.d.remove(s.name+indexSuffix), s.d.remove(s.name+logSuffix))
	}
	if err := errors.Join(errs...); err != nil {
		s.d.logger.Warn("segment left something behind", "segment", s.name, "err", err)
	}
}

// bytes gives the file from pos to end, both below what is committed: a window
// into the mapping, or else a copy in *lent, a buffer that is borrowed from the
// directory if there is none yet.
func (s *segment) bytes(pos, end int64, lent **[]byte) ([]byte, error) {
	if m := s.mapped.Load(); m != nil && end <= int64(len(*m)) {
		return (*m)[pos:end], nil
	}
	m, f, err := s.open(end)
	if err != nil {
		return nil, err
	}
	if m != nil {
		return m[pos:end], nil
	}
	if *lent == nil {
		*lent = s.d.buffer()
	}
	n := int(end - pos)
	if cap(**lent) < n {
		**lent = make([]byte, 0, n)
	}
	b := (**lent)[:n]
	if _, err := f.ReadAt(b, pos); err != nil {
		return nil, record.Corrupt(s.name+logSuffix, pos, fmt.Errorf("read: %w", err))
	}
	return b, nil
}

// open maps at least end bytes of the file, or opens it for ReadAt.
func (s *segment) open(end int64) ([]byte, vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.mapped.Load(); m != nil && end <= int64(len(*m)) {
		return *m, nil, nil
	}
	if s.mu.file != nil {
		return nil, s.mu.file, nil
	}
	f, err := s.d.fs.Open(s.d.join(s.name + logSuffix))
	if err != nil {
		return nil, nil, record.Corrupt(s.name+logSuffix, 0, err)
	}
	if m := s.mapLocked(f, s.mappingSize(end)); m != nil {
		s.mapped.Store(&m)
		return m, nil, f.Close()
	}
	s.mu.file = f
	return nil, f, nil
}

// mapLocked maps n bytes of f, or gives nil if that is not possible.
func (s *segment) mapLocked(f vfs.File, n int64) []byte {
	if s.mu.noMap {
		return nil
	}
	m, err := mapFile(f, n)
	if err != nil {
		s.mu.noMap = true
		if !errors.Is(err, errors.ErrUnsupported) {
			s.d.logger.Warn("cannot map segment; reading it instead", "segment", s.name, "err", err)
		}
		return nil
	}
	s.mu.mappings = append(s.mu.mappings, m)
	return m
}

// mappingSize is how much to map when end bytes are needed. A growing file gets
// up to twice that, so that a segment has few mappings in its life.
func (s *segment) mappingSize(end int64) int64 {
	if whole := s.whole.Load(); whole >= end {
		return whole
	}
	n := max(firstMapping, int64(1)<<bits.Len64(uint64(end)))
	return min(n, end+mappingGrowth)
}

// holds reports whether addr lies in one of the segment's mappings.
func (s *segment) holds(addr uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.mu.mappings {
		if base := addressOf(m); addr >= base && addr-base < uintptr(len(m)) {
			return true
		}
	}
	return false
}

// extent is the readable part of a segment as one view has it.
type extent struct {
	*segment
	size      int64
	t         table
	nextLog   int64
	nextKafka int64
}

// sealed is a segment that grows no more. What a search needs is in memory; the
// sparse index is brought in when the segment is first read.
type sealed struct {
	*segment
	size         int64
	nextLog      int64
	nextKafka    int64
	maxTimestamp int64
	firstAppend  int64 // Unix milliseconds
	sealedAt     int64 // Unix milliseconds
	damaged      atomic.Bool

	loaded atomic.Pointer[table]
	load   sync.Mutex
	// replaced says that the names of the files lead to others, of the compacted
	// segment; guarded by load. Then loaded is set, and the old file is open.
	replaced bool
}

func (s *sealed) header() indexHeader {
	return indexHeader{
		baseLog: s.baseLog, nextLog: s.nextLog, baseKafka: s.baseKafka, nextKafka: s.nextKafka,
		prevLog: s.prevLog, logBytes: s.size, maxTimestamp: s.maxTimestamp,
		created: s.created, firstAppend: s.firstAppend, sealedAt: s.sealedAt,
	}
}

// extent brings the index in if need be. The caller holds a reference.
func (s *sealed) extent() (extent, error) {
	t := s.loaded.Load()
	if t == nil {
		var err error
		if t, err = s.loadTable(); err != nil {
			return extent{}, err
		}
	}
	return extent{segment: s.segment, size: s.size, t: *t, nextLog: s.nextLog, nextKafka: s.nextKafka}, nil
}

func (s *sealed) loadTable() (*table, error) {
	s.load.Lock()
	defer s.load.Unlock()
	if t := s.loaded.Load(); t != nil {
		return t, nil
	}
	t, err := s.readTable()
	if err != nil {
		s.d.logger.Warn("sparse index is unusable; rebuilding it", "segment", s.name, "err", err)
		if t, err = s.rebuild(); err != nil {
			return nil, err
		}
	}
	s.loaded.Store(&t)
	return &t, nil
}

// narrow is called when a header on the way to an offset does not hold: the whole
// segment is read, once, so that only what is damaged answers so, and not all that
// shares its index entry. It reports whether there is a new table.
func (s *sealed) narrow() bool {
	s.load.Lock()
	defer s.load.Unlock()
	if s.damaged.Load() || s.replaced {
		return false
	}
	t, err := s.rebuild()
	if err != nil {
		s.d.logger.Error("reading a damaged segment", "segment", s.name, "err", err)
		return false
	}
	s.loaded.Store(&t)
	return s.damaged.Load()
}

// readTable maps the .index file and checks it.
func (s *sealed) readTable() (table, error) {
	f, err := s.d.fs.Open(s.d.join(s.name + indexSuffix))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	// A stale or foreign file must not make us allocate or map its size: the
	// header says how large it has to be, and it must be this segment's.
	head := make([]byte, indexHeaderSize)
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	h, err := decodeIndexHeader(head, size)
	if err != nil {
		return nil, err
	}
	if !s.describedBy(h) {
		return nil, record.Corrupt(s.name+indexSuffix, 0, errors.New("index of another segment"))
	}
	s.mu.Lock()
	b := s.mapLocked(f, size)
	s.mu.Unlock()
	if b == nil {
		b = make([]byte, size)
		if _, err := f.ReadAt(b, 0); err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
	}
	return decodeTable(h, b[indexHeaderSize:])
}

func (s *sealed) describedBy(h indexHeader) bool {
	return h.baseLog == s.baseLog && h.nextLog == s.nextLog && h.baseKafka == s.baseKafka &&
		h.nextKafka == s.nextKafka && h.logBytes == s.size
}

// rebuild reads the whole segment. Stretches that do not hold are marked in the
// table, which then stays in memory only.
func (s *sealed) rebuild() (table, error) {
	f, err := s.d.fs.Open(s.d.join(s.name + logSuffix))
	if err != nil {
		return nil, record.Corrupt(s.name+logSuffix, 0, err)
	}
	defer f.Close()
	sc := scanner{f: f, size: s.size, verify: true, limit: s.nextLog}
	res, err := sc.segment(s.baseLog, s.baseKafka, anchor{log: s.nextLog, kafka: s.nextKafka})
	if err != nil {
		return nil, fmt.Errorf("rebuild sparse index of %s: %w", s.name, err)
	}
	res.fill(s.nextLog, s.nextKafka)
	if len(res.holes) > 0 {
		s.damaged.Store(true)
		s.d.logger.Error("segment is damaged", "segment", s.name, "position", res.holes[0].pos, "holes", len(res.holes))
		return res.t, nil
	}
	s.writeIndex(res.t)
	return res.t, nil
}

// writeIndex stores the sparse index. It is derived data, so a failure costs a
// rebuild and nothing else.
func (s *sealed) writeIndex(t table) {
	if err := s.d.write(s.name+indexSuffix, encodeIndex(s.header(), t)); err != nil {
		s.d.logger.Warn("sparse index not written; it will be rebuilt", "segment", s.name, "err", err)
	}
}

func (s *sealed) info() SegmentInfo {
	return SegmentInfo{
		BaseLog: s.baseLog, NextLog: s.nextLog, BaseKafka: s.baseKafka, NextKafka: s.nextKafka,
		Bytes: s.size, Sealed: true, Damaged: s.damaged.Load(), MaxTimestamp: s.maxTimestamp, Epoch: s.epoch,
		FirstAppend: milli(s.firstAppend), SealedAt: milli(s.sealedAt),
	}
}

// milli is the time of Unix milliseconds; 0 stands for no time.
func milli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
