package locallog

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

var seedFlag = flag.Uint64("seed", 0, "run the property test with this seed only")

// The property of DESIGN that everything above relies on: whatever is appended,
// noted, rolled, compacted, trimmed, truncated, closed and crashed, the Kafka offset of every
// record stays, its value is the one that was written, and nothing that was
// answered is lost if it was to be synced before the answer.
func TestModel(t *testing.T) {
	seeds := []uint64{1, 2, 3, uint64(time.Now().UnixNano())}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		for _, unsynced := range []int{0, 30, 100} {
			t.Run(fmt.Sprintf("seed %d unsynced %d", seed, unsynced), func(t *testing.T) {
				newModel(t, seed, unsynced).run(250)
			})
		}
	}
}

// model is what the log should hold.
type model struct {
	t        *testing.T
	rng      *rand.Rand
	unsynced int // percentage of unsynced pages and names that outlive a crash

	fs    *vfs.MemFS
	o     Options
	l     *Log
	lazy  bool // answers come before syncs
	start int64
	next  int64
	// synced is the offset below which nothing may be lost. It is next, unless
	// the log answers before it syncs.
	synced  int64
	remote  int64
	values  map[int64]string
	applied int64
	serial  int
	reader  record.Reader
}

func newModel(t *testing.T, seed uint64, unsynced int) *model {
	t.Logf("seed %d", seed)
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 0)), unsynced: unsynced, fs: vfs.NewCrashableMem(), values: map[int64]string{}}
	m.start = m.rng.Int64N(2) * 1_000_000
	m.next, m.synced, m.applied = m.start, m.start, m.start
	m.lazy = m.rng.IntN(4) == 0
	m.o = options(m.fs)
	m.o.StartKafka = m.start
	size := int64(1024) << m.rng.IntN(6)
	m.o.SegmentBytes = bytesOf(size)
	m.o.FlushInterval = func() time.Duration {
		if m.lazy {
			return time.Hour
		}
		return 0
	}
	m.o.Apply = func(group []Appended) error {
		for _, a := range group {
			if a.KafkaBase != m.applied {
				t.Errorf("applied offset %d, want %d", a.KafkaBase, m.applied)
			}
			h, err := record.Verify(a.Batch)
			if err != nil || h.BaseOffset != a.LogBase {
				t.Errorf("applied batch: %v, base %d, want %d", err, h.BaseOffset, a.LogBase)
			}
			m.applied = a.KafkaBase + int64(h.LastOffsetDelta) + 1
		}
		return nil
	}
	m.open()
	return m
}

func (m *model) open() {
	m.o.FS = m.fs
	l, err := Open(context.Background(), m.o)
	if err != nil {
		m.t.Fatalf("open: %v\n%s", err, m.fs)
	}
	m.l = l
}

func (m *model) run(steps int) {
	ctx := context.Background()
	for step := range steps {
		switch p := m.rng.IntN(100); {
		case p < 44:
			m.append(ctx)
		case p < 50:
			m.compact(ctx)
		case p < 58:
			m.remote = max(m.remote, m.start+m.rng.Int64N(m.next-m.start+1))
			must(m.t, m.l.Note(ctx, Note{RemoteNext: m.remote, ManifestGeneration: int64(step)}))
			m.synced = m.next
		case p < 66:
			must(m.t, m.l.Roll(ctx))
			m.checkRange()
		case p < 74:
			m.trim(ctx)
		case p < 79:
			m.truncate(ctx)
		case p < 85:
			must(m.t, m.l.Close())
			m.synced = m.next
			m.o.Epoch += m.rng.Int32N(2)
			m.open()
		case p < 91:
			m.crash()
		case p < 93:
			must(m.t, m.l.Sync(ctx))
			m.synced = m.next
		default:
			m.check()
		}
		if m.t.Failed() {
			m.t.Fatalf("at step %d", step)
		}
	}
	m.check()
	must(m.t, m.l.Close())
}

func (m *model) append(ctx context.Context) {
	var batches [][]byte
	var bases []int64
	next := m.next
	for range 1 + m.rng.IntN(4) {
		var recs []record.Record
		offset := int64(0)
		for range 1 + m.rng.IntN(5) {
			m.serial++
			v := value(m.serial, m.rng.IntN(1<<m.rng.IntN(13)))
			recs = append(recs, record.Record{Offset: offset, Timestamp: int64(m.serial), Key: []byte("k"), Value: []byte(v)})
			m.values[next+offset] = v
			offset += 1 + m.rng.Int64N(2)*m.rng.Int64N(3) // gaps, as of compaction
		}
		last := offset - 1 + m.rng.Int64N(2)
		b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: last, Codec: [...]record.Codec{record.None, record.None, record.Snappy, record.Zstd}[m.rng.IntN(4)]}, recs)
		must(m.t, err)
		batches, bases = append(batches, b), append(bases, next)
		next += last + 1
	}
	got := mustAppend(m.t, m.l, batches...)
	for i := range got {
		if got[i] != bases[i] {
			m.t.Fatalf("appended at %v, want %v", got, bases)
		}
	}
	m.next = next
	if !m.lazy {
		m.synced = m.next
	}
	if m.applied != m.next {
		m.t.Fatalf("applied up to %d, want %d", m.applied, m.next)
	}
}

// compact takes some of the records out of a segment. The next crash may come at
// any time, so what is gone must be gone for good.
func (m *model) compact(ctx context.Context) {
	var sealed []SegmentInfo
	for _, s := range m.l.Segments() {
		if s.Sealed {
			sealed = append(sealed, s)
		}
	}
	if len(sealed) == 0 {
		return
	}
	s := sealed[m.rng.IntN(len(sealed))]
	share := m.rng.IntN(11)
	dead := map[int64]bool{}
	done, err := m.l.CompactSegment(ctx, s.BaseLog, CompactOptions{
		Codec: anyCodec(m.rng), Target: m.rng.IntN(1 << m.rng.IntN(16)),
		Keep: func(_ []byte, off int64, _ bool) (bool, error) {
			dead[off] = m.rng.IntN(10) >= share
			return !dead[off], nil
		},
	})
	must(m.t, err)
	if done.Swapped {
		maps.DeleteFunc(m.values, func(off int64, _ string) bool { return dead[off] })
	}
	m.checkRange()
}

func (m *model) trim(ctx context.Context) {
	before := m.start + m.rng.Int64N(m.next-m.start+1)
	must(m.t, m.l.TrimPrefix(ctx, before))
	st := m.l.State()
	if st.LocalStart < m.start || st.LocalStart > max(before, m.start) {
		m.t.Fatalf("trim before %d moved the start from %d to %d", before, m.start, st.LocalStart)
	}
	if st.LocalStart != m.start {
		m.synced = m.next // the note that says so was synced
	}
	m.moveStart(st.LocalStart)
}

func (m *model) moveStart(start int64) {
	m.start = start
	maps.DeleteFunc(m.values, func(off int64, _ string) bool { return off < start })
}

func (m *model) truncate(ctx context.Context) {
	lowest := max(m.start, min(m.remote, m.next))
	to := m.next - m.rng.Int64N(min(20, m.next-lowest+1))
	must(m.t, m.l.TruncateSuffix(ctx, to))
	if to != m.next {
		m.synced = to
	}
	m.cutTo(to)
	m.checkRange()
}

func (m *model) cutTo(next int64) {
	m.next, m.applied = next, next
	m.synced = min(m.synced, next)
	maps.DeleteFunc(m.values, func(off int64, _ string) bool { return off >= next })
}

// crash loses what was not synced, or part of it.
func (m *model) crash() {
	old := m.l
	m.fs = m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: m.unsynced, RNG: m.rng})
	old.Close() // what it still writes goes to the file system that is no more
	m.open()
	st := m.l.State()
	if st.HighWatermark < m.synced || st.HighWatermark > m.next {
		m.t.Fatalf("log ends at %d after a crash; %d was synced, %d appended\n%s", st.HighWatermark, m.synced, m.next, m.fs)
	}
	m.cutTo(st.HighWatermark)
	m.synced = m.next // recovery reads it from disk, so it is there
	if st.LocalStart != m.start {
		m.t.Fatalf("local start %d after a crash, want %d", st.LocalStart, m.start)
	}
	for _, s := range m.l.Segments() {
		if s.Damaged {
			m.t.Fatalf("a crash was taken for damage: %+v", s)
		}
	}
	m.check()
}

func (m *model) checkRange() {
	st := m.l.State()
	if st.LocalStart != m.start || st.HighWatermark != m.next || st.RemoteNext != max(st.RemoteNext, m.remote) {
		m.t.Fatalf("state %+v, want offsets %d to %d, remote %d", st, m.start, m.next, m.remote)
	}
}

// check compares everything that can be read with the model.
func (m *model) check() {
	m.checkRange()
	for off, want := range m.values {
		got, err := valueBy(&m.reader, m.l, off)
		if err != nil || got != want {
			m.t.Fatalf("offset %d: %q, %v, want %q", off, clip(got), err, clip(want))
		}
	}
	for _, off := range []int64{m.start - 1, m.next} {
		if _, err := valueAt(m.l, off); !errors.Is(err, ErrBelowStart) && !errors.Is(err, ErrNotFound) {
			m.t.Fatalf("offset %d outside of the log: %v", off, err)
		}
	}
	segs := m.l.Segments()
	got, err := scanAll(m.t, m.l, segs[0].BaseLog)
	must(m.t, err)
	maps.DeleteFunc(got, func(off int64, _ string) bool { return off < m.start })
	if !maps.Equal(got, m.values) {
		m.t.Fatalf("scan gives %d records, want %d", len(got), len(m.values))
	}
	for i, s := range segs[1:] {
		if s.BaseKafka != segs[i].NextKafka {
			m.t.Fatalf("segments do not follow each other: %+v", segs)
		}
	}
}
