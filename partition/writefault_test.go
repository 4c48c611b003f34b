package partition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/locallog"
	"keyhole/record"
)

// fullDisk is a disk without room, while it is on, for files whose path holds
// only. A write leaves half of what it was given; what makes a file fails.
type fullDisk struct {
	vfs.FS
	only string
	on   atomic.Bool
	// after, if not negative, is how many writes still find room.
	after atomic.Int64
	usage vfs.DiskUsage // what GetDiskUsage says; zero: that it cannot
}

func newFullDisk(fs vfs.FS, only string) *fullDisk {
	d := &fullDisk{FS: fs, only: only}
	d.after.Store(-1)
	return d
}

func (d *fullDisk) full(path string) bool {
	if d.after.Load() >= 0 && d.after.Add(-1) < 0 {
		d.after.Store(-1)
		d.on.Store(true)
	}
	return d.on.Load() && strings.Contains(path, d.only)
}

func (d *fullDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if d.full(name) {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	f, err := d.FS.Create(name, c)
	return &fullFile{f, d, name}, err
}

func (d *fullDisk) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, o...)
	return &fullFile{f, d, name}, err
}

func (d *fullDisk) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if d.usage == (vfs.DiskUsage{}) {
		return vfs.DiskUsage{}, vfs.ErrUnsupported
	}
	return d.usage, nil
}

type fullFile struct {
	vfs.File
	disk *fullDisk
	name string
}

func (f *fullFile) Write(p []byte) (int, error) {
	if !f.disk.full(f.name) {
		return f.File.Write(p)
	}
	n, err := f.File.Write(p[:len(p)/2])
	return n, errors.Join(err, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC})
}

func (f *fullFile) WriteAt(p []byte, off int64) (int, error) {
	if !f.disk.full(f.name) {
		return f.File.WriteAt(p, off)
	}
	n, err := f.File.WriteAt(p[:len(p)/2], off)
	return n, errors.Join(err, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC})
}

func tryPut(p *Partition, key, value string) error {
	_, err := p.Append(context.Background(), []record.Record{{Key: []byte(key), Value: []byte(value)}})
	return err
}

// roundOfChores does what the background would do by itself within ten seconds.
func roundOfChores(t *testing.T, p *Partition) {
	t.Helper()
	if err := p.chore(t.Context()); err != nil {
		t.Logf("chore: %v", err)
	}
}

// The disk fills up while records are appended: they are refused and the reason is
// given, lookups go on in both tiers, and once there is room writes go on without
// a restart. case 6-06, 6-08
func TestDiskFull(t *testing.T) {
	for _, only := range []string{"", "/log/"} {
		t.Run("only="+only, func(t *testing.T) {
			r := newRig(t)
			full := newFullDisk(r.fs, only)
			r.fs = full
			p := r.open()
			want := fill(t, p, "cold", 40)
			evict(t, p)
			for k, v := range fill(t, p, "hot", 10) {
				want[k] = v
			}
			lookups := func(when string) {
				t.Helper()
				for k, v := range want {
					if res, err := get(p, k); err != nil || string(res.Value) != v {
						t.Fatalf("%s, %s: %.20q, %v", when, k, res.Value, err)
					}
				}
			}
			for round := range 2 {
				full.on.Store(true)
				for range 3 {
					if err := tryPut(p, "refused", strings.Repeat("x", 3000)); !errors.Is(err, ErrDiskFull) || !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("append to a full disk: %v", err)
					}
				}
				lookups("full")
				roundOfChores(t, p)
				if _, err := p.Evict(t.Context(), 0); err == nil {
					t.Fatal("evicted without room for the note")
				}
				lookups("full, after background work")
				if ready, reason, damaged := p.State(); !ready || damaged != nil {
					t.Fatalf("not ready: %s, %v", reason, damaged)
				}
				if st := p.Status(); st.ReadOnly == nil || !strings.Contains(*st.ReadOnly, "full") {
					t.Fatalf("status says nothing of it: %+v", st)
				}
				if err := p.ReadOnly(); !errors.Is(err, ErrDiskFull) {
					t.Fatalf("ReadOnly: %v", err)
				}
				full.on.Store(false)
				roundOfChores(t, p)
				eventually(t, "writes go on", func() bool { return tryPut(p, "again", strconv.Itoa(round)) == nil })
				want["again"] = strconv.Itoa(round)
				lookups("room again")
				if st := p.Status(); st.ReadOnly != nil {
					t.Fatalf("status: %s", *st.ReadOnly)
				}
				if _, err := get(p, "refused"); !errors.Is(err, ErrKeyNotFound) {
					t.Fatalf("the refused record: %v", err)
				}
				evict(t, p)
				lookups("evicted")
				for k, v := range fill(t, p, "more", 10) {
					want[k] = v
				}
			}
			p = r.reopen()
			lookups("reopened")
			r.stop()
			if err := r.fs.RemoveAll("/data/t/0/kv_index"); err != nil {
				t.Fatal(err)
			}
			p = r.open()
			lookups("index built anew")
		})
	}
}

// An index that finds no room serves on as it is, because it lacks nothing, and is
// opened again when there is room, so that eviction goes on. case 6-08
func TestIndexFindsNoRoom(t *testing.T) {
	r := newRig(t)
	full := newFullDisk(r.fs, "") // Options.FS of the index comes from the rig
	r.fs = full
	p := r.open()
	want := fill(t, p, "k", 20)
	full.only = "/kv_index/"
	full.on.Store(true)
	for range 3 {
		if _, err := p.Evict(t.Context(), 0); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("evict with an index that cannot be flushed: %v", err)
		}
		full.only = "" // not even a probe finds room
		roundOfChores(t, p)
		for k, v := range want {
			if res, err := get(p, k); err != nil || string(res.Value) != v {
				t.Fatalf("%s: %.20q, %v", k, res.Value, err)
			}
		}
		full.only = "/kv_index/"
	}
	full.on.Store(false)
	eventually(t, "the index was opened again and eviction goes on", func() bool {
		roundOfChores(t, p)
		st, err := p.Evict(t.Context(), 0)
		return err == nil && *st.LocalStart == *st.HighWatermark
	})
	put(t, p, "after", "room")
	want["after"] = "room"
	p = r.reopen()
	for k, v := range want {
		if res := mustGet(t, p, k); string(res.Value) != v {
			t.Fatalf("%s: %.20q", k, res.Value)
		}
	}
}

// A failed sync makes the partition read-only until it is opened again, even if
// every later one succeeds: what it lost nobody knows.
func TestSyncFails(t *testing.T) {
	mem := disk(t).(*vfs.MemFS)
	var broken atomic.Bool
	r := newRig(t)
	r.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			return syscall.EIO
		}
		return nil
	}))
	p := r.open()
	want := fill(t, p, "cold", 40)
	evict(t, p)
	for k, v := range fill(t, p, "hot", 5) {
		want[k] = v
	}
	broken.Store(true)
	if err := tryPut(p, "refused", "x"); !errors.Is(err, ErrReadOnly) || errors.Is(err, ErrDiskFull) {
		t.Fatalf("append: %v", err)
	}
	broken.Store(false)
	roundOfChores(t, p)
	if err := tryPut(p, "refused", "x"); !errors.Is(err, ErrReadOnly) {
		t.Fatalf("append afterwards: %v", err)
	}
	if st := p.Status(); st.ReadOnly == nil {
		t.Error("status says nothing of it")
	}
	if ready, _, damaged := p.State(); !ready || damaged != nil {
		t.Error("lookups should go on")
	}
	lookups := func() {
		t.Helper()
		for k, v := range want {
			if res := mustGet(t, p, k); string(res.Value) != v {
				t.Fatalf("%s: %.20q", k, res.Value)
			}
		}
	}
	lookups()
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	r.stop()
	r.fs = after
	p = r.open()
	lookups()
	put(t, p, "again", "y")
	want["again"] = "y"
	lookups()
}

// Records leave a reserve on the disk, so that eviction can make room. case 7-03
func TestReserve(t *testing.T) {
	r := newRig(t)
	d := newFullDisk(r.fs, "")
	r.fs = d
	d.usage = vfs.DiskUsage{AvailBytes: 10 << 30, TotalBytes: 100 << 30}
	reg := prometheus.NewRegistry()
	space := NewSpace(d, "/data", slog.New(slog.NewTextHandler(io.Discard, nil)), reg)
	r.space = space
	p := r.open()
	want := fill(t, p, "k", 30)
	const little = 1 << 12 // more than the record of tryPut takes
	for _, c := range []struct {
		avail, total uint64
		full         bool
	}{
		{maxReserve + little, 100 << 30, false}, {maxReserve, 100 << 30, true},
		{1<<20 + little, 20 << 20, true}, // it has been full, and this is not clearly more
		{1<<20 + 1<<18, 20 << 20, false}, {1<<20 + little, 20 << 20, false},
		{1 << 20, 20 << 20, true}, {0, 100 << 30, true},
	} {
		d.usage = vfs.DiskUsage{AvailBytes: c.avail, TotalBytes: c.total}
		space.measure()
		if err := tryPut(p, "x", "y"); errors.Is(err, ErrDiskFull) != c.full {
			t.Errorf("%d of %d bytes free: %v", c.avail, c.total, err)
		}
	}
	if !errors.Is(p.ReadOnly(), ErrDiskFull) || p.Status().ReadOnly == nil {
		t.Error("nothing says that the disk is full")
	}
	st := evict(t, p) // the reserve is for this
	if *st.LocalStart != *st.HighWatermark {
		t.Errorf("not evicted: %+v", st)
	}
	for k, v := range want {
		if res := mustGet(t, p, k); string(res.Value) != v {
			t.Errorf("%s: %.20q", k, res.Value)
		}
	}
	d.usage.AvailBytes = 10 << 30
	space.measure()
	put(t, p, "x", "z")
	// Records count before the disk is measured again.
	d.usage.AvailBytes = maxReserve + 3*little
	space.measure()
	d.usage.AvailBytes = maxReserve
	refused := 0
	for range 10 {
		if errors.Is(tryPut(p, "x", strings.Repeat("y", little)), ErrDiskFull) {
			refused++
		}
	}
	if refused != 8 {
		t.Errorf("%d of 10 records refused that have room for less than three", refused)
	}
}

// The disk fills up at any write and has room again some appends later. What was
// acknowledged is there, once and in order; what was refused may be there where it
// was refused and nowhere else.
func TestDiskFullAtEveryWrite(t *testing.T) {
	rng := seeded(t)
	for at := rng.Int64N(9); at < 150; at += 1 + rng.Int64N(9) {
		t.Run(fmt.Sprint("write=", at), func(t *testing.T) {
			r := newRig(t)
			r.settings.SegmentBytes = 2 << 10
			d := newFullDisk(r.fs, "")
			r.fs = d
			r.dying = true // closing may find no room either
			p := r.open()
			fill(t, p, "before", 3)
			d.after.Store(at)
			var tried []record.Record
			var acked []bool
			lookups := rand.New(rand.NewPCG(uint64(at), 0))
			for i := range 60 {
				key := fmt.Sprintf("key-%d", lookups.IntN(10))
				value := fmt.Sprintf("%d %0*d", i, 1+lookups.IntN(400), 0)
				err := tryPut(p, key, value)
				if err != nil && !errors.Is(err, ErrDiskFull) {
					t.Fatalf("append: %v", err)
				}
				tried = append(tried, record.Record{Key: []byte(key), Value: []byte(value)})
				acked = append(acked, err == nil)
				if i%7 == 6 {
					_, _ = p.Evict(t.Context(), 2<<10)
				}
				if i%11 == 10 && d.on.Swap(false) {
					eventually(t, "the log takes writes", func() bool {
						roundOfChores(t, p)
						return !errors.Is(p.log.Load().Err(), locallog.ErrReadOnly)
					})
				}
			}
			d.on.Store(false)
			d.after.Store(-1)
			compare := func() {
				t.Helper()
				eventually(t, "ready", func() bool { ready, _, _ := p.State(); return ready })
				i := 0
				for _, rec := range allRecords(t, p)[3:] {
					for i < len(tried) && !acked[i] && string(tried[i].Value) != string(rec.Value) {
						i++
					}
					if i == len(tried) || string(tried[i].Value) != string(rec.Value) {
						t.Fatalf("offset %d holds %.20q out of order", rec.Offset, rec.Value)
					}
					i++
				}
				for ; i < len(tried); i++ {
					if acked[i] {
						t.Fatalf("acknowledged record %d is lost", i)
					}
				}
				latest := map[string]record.Record{}
				for _, rec := range allRecords(t, p) {
					latest[string(rec.Key)] = rec
				}
				for k, rec := range latest {
					if res, err := get(p, k); err != nil || string(res.Value) != string(rec.Value) {
						t.Fatalf("%s: %.20q, %v, want %.20q", k, res.Value, err, rec.Value)
					}
				}
			}
			roundOfChores(t, p)
			compare()
			p = r.reopen()
			compare()
			put(t, p, "last", "x")
			evict(t, p)
			tried, acked = append(tried, record.Record{Value: []byte("x")}), append(acked, true)
			compare()
		})
	}
}
