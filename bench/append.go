package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"keyhole/record"
)

const (
	appenders   = 16
	appendValue = 1 << 10
)

// measureAppend lets some appenders write single records, each of which is
// durable and in the index before the next one, and then writes what reached the
// log files to a plain file, in the same pieces with the same syncs between.
func measureAppend(ctx context.Context, b *bench) error {
	var rate rounds
	var perSync []float64
	for r := range b.scale.appendRounds {
		dir := filepath.Join(b.dir, fmt.Sprintf("append-%d", r))
		trace := &traceFS{FS: vfs.Default}
		ours, err := b.appendRound(ctx, trace, dir)
		if err != nil {
			return err
		}
		plain, err := trace.replay(dir + ".plain")
		if err != nil {
			return err
		}
		if err := errors.Join(os.RemoveAll(dir), os.Remove(dir+".plain")); err != nil {
			return err
		}
		n := float64(b.scale.appends)
		rate.add(n/ours.Seconds(), n/plain.Seconds(), plain.Seconds()/ours.Seconds())
		perSync = append(perSync, n/float64(trace.syncs()))
	}
	b.report.compare("1 KiB records, 16 appenders, each one synced and in the index", "1/s", "same bytes and fsyncs to a file", rate, "≥ 0.5")
	b.report.value("records a sync", "", spreadOf(perSync).Median, "")
	return nil
}

// appendRound writes records and gives the time it took.
func (b *bench) appendRound(ctx context.Context, trace *traceFS, dir string) (time.Duration, error) {
	p, err := openPartition(ctx, trace, dir, 0)
	if err != nil {
		return 0, err
	}
	value := syntheticValue(0, appendValue)
	var next atomic.Int64
	trace.on.Store(true)
	start := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for range appenders {
		g.Go(func() error {
			for {
				i := next.Add(1)
				if i > int64(b.scale.appends) {
					return nil
				}
				rec := record.Record{Timestamp: i, Key: []byte(hotKey(int(i))), Value: value}
				if _, err := p.Append(gctx, []record.Record{rec}); err != nil {
					return err
				}
			}
		})
	}
	err = g.Wait()
	took := time.Since(start)
	trace.on.Store(false)
	return took, errors.Join(err, p.close(ctx))
}

// traceFS remembers what is done to the log files: the length of each write, and
// 0 for a sync.
type traceFS struct {
	vfs.FS
	on atomic.Bool
	mu struct {
		sync.Mutex
		ops []int
	}
}

func (t *traceFS) add(op int) {
	if !t.on.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.ops = append(t.mu.ops, op)
}

func (t *traceFS) syncs() int {
	n := 0
	for _, op := range t.mu.ops {
		if op == 0 {
			n++
		}
	}
	return max(n, 1)
}

func (t *traceFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") || strings.Contains(name, "kv_index") {
		return f, err
	}
	return &traceFile{f, t}, nil
}

func (t *traceFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := t.FS.Create(name, c)
	return t.wrap(name, f, err)
}

func (t *traceFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := t.FS.OpenReadWrite(name, c, o...)
	return t.wrap(name, f, err)
}

type traceFile struct {
	vfs.File
	t *traceFS
}

func (f *traceFile) Write(p []byte) (int, error) {
	f.t.add(len(p))
	return f.File.Write(p)
}

func (f *traceFile) WriteAt(p []byte, off int64) (int, error) {
	f.t.add(len(p))
	return f.File.WriteAt(p, off)
}

func (f *traceFile) Sync() error {
	f.t.add(0)
	return f.File.Sync()
}

func (f *traceFile) SyncData() error {
	f.t.add(0)
	return f.File.SyncData()
}

// replay does the same to one plain file and gives the time it took.
func (t *traceFS) replay(name string) (time.Duration, error) {
	largest := 0
	for _, op := range t.mu.ops {
		largest = max(largest, op)
	}
	b := syntheticValue(0, largest)
	f, err := vfs.Default.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for _, op := range t.mu.ops {
		if op == 0 {
			err = f.SyncData()
		} else {
			_, err = f.Write(b[:op])
		}
		if err != nil {
			return 0, errors.Join(err, f.Close())
		}
	}
	return time.Since(start), f.Close()
}
