package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/locallog"
)

// The reserve is what records may not use of a disk. Without it a disk that is
// full would stay full: eviction, which makes room, has to write a note in the
// log, the index and the manifest first.
const (
	maxReserve   = 64 << 20
	reserveShare = 20 // or one part in so many of the disk, if that is less
	// measureInterval is how often the disk is asked, besides whenever records have
	// used up what was there the last time.
	measureInterval = time.Second
)

// Space watches the disk of the data directory for all partitions on it: no
// records are appended that would leave less than the reserve. A nil Space says
// that there is always room.
type Space struct {
	fs     vfs.FS
	dir    string
	logger *slog.Logger
	free   prometheus.Gauge

	room atomic.Int64 // bytes that records may take until the disk is measured again
	low  atomic.Bool  // records have been refused, and there is not clearly more room since
}

// NewSpace measures the disk of dir once; Watch goes on. A file system that does
// not say how full it is counts as one with room.
func NewSpace(fs vfs.FS, dir string, logger *slog.Logger, reg prometheus.Registerer) *Space {
	s := &Space{fs: fs, dir: dir, logger: logger, free: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "keyhole_data_disk_free_bytes", Help: "Bytes that are free on the disk of the data directory.",
	})}
	reg.MustRegister(s.free, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keyhole_data_disk_low", Help: "1 while the disk is so full that no records are accepted.",
	}, func() float64 {
		if s.Low() {
			return 1
		}
		return 0
	}))
	s.measure()
	return s
}

// Low reports whether the disk has only the reserve left.
func (s *Space) Low() bool { return s != nil && s.low.Load() }

// take claims room for n bytes of records, or says that there is none.
func (s *Space) take(n int64) bool {
	if s == nil {
		return true
	}
	if s.low.Load() {
		return false
	}
	if s.room.Add(-n) >= 0 {
		return true
	}
	s.measure() // what was claimed before is on the disk by now, or on its way
	if s.room.Add(-n) >= 0 {
		return true
	}
	if !s.low.Swap(true) {
		s.logger.Error("disk is full: no records are accepted until there is room", "dir", s.dir)
	}
	return false
}

// Watch measures until ctx ends.
func (s *Space) Watch(ctx context.Context) {
	tick := time.NewTicker(measureInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.measure()
		}
	}
}

func (s *Space) measure() {
	u, err := s.fs.GetDiskUsage(s.dir)
	if err != nil {
		if !errors.Is(err, vfs.ErrUnsupported) {
			s.logger.Warn("cannot tell how full the disk is", "dir", s.dir, "err", err)
		}
		s.room.Store(math.MaxInt64)
		return
	}
	avail := int64(min(u.AvailBytes, math.MaxInt64))
	reserve := int64(min(maxReserve, u.TotalBytes/reserveShare))
	s.free.Set(float64(avail))
	s.room.Store(avail - reserve)
	switch {
	case avail < reserve && !s.low.Swap(true):
		s.logger.Error("disk is full: no records are accepted until there is room", "dir", s.dir, "free", avail, "reserve", reserve)
	case avail >= reserve+reserve/4 && s.low.Swap(false):
		s.logger.Info("disk has room again: records are accepted", "dir", s.dir, "free", avail)
	}
}

// ReadOnly says why no records are appended although the partition is there:
// ErrDiskFull or ErrReadOnly, or nil.
func (p *Partition) ReadOnly() error {
	if log := p.log.Load(); log != nil && log.Err() != nil {
		return p.appendTrouble(log.Err())
	}
	if p.o.Space.Low() {
		return ErrDiskFull
	}
	return nil
}

// mendLog makes a log that ran out of space writable again, if there is room.
// After any other failure of the disk only a restart can tell what is left.
func (p *Partition) mendLog(ctx context.Context, log *locallog.Log) {
	if !errors.Is(log.Err(), locallog.ErrNoSpace) || p.o.Space.Low() {
		return
	}
	if err := log.Resume(ctx); err != nil {
		p.o.Logger.Warn("partition stays read-only; will try again", "err", err)
		return
	}
	p.readOnly.Store(false)
}

// appendTrouble turns an error of the log into one of the partition's.
func (p *Partition) appendTrouble(err error) error {
	switch {
	case errors.Is(err, locallog.ErrClosed):
		return ErrClosed
	case !errors.Is(err, locallog.ErrReadOnly):
		return err
	}
	if p.readOnly.CompareAndSwap(false, true) {
		p.o.Metrics.LogFailures.Inc()
	}
	if errors.Is(err, locallog.ErrNoSpace) {
		return fmt.Errorf("%w: %w", ErrDiskFull, err)
	}
	return fmt.Errorf("%w: %w", ErrReadOnly, err)
}

// probeBytes is what the index must be able to write before it is reopened for
// having run out of space.
const probeBytes = 1 << 20

// probeRoom reports whether a file of probeBytes fits on the disk.
func (p *Partition) probeRoom() bool {
	name := p.o.FS.PathJoin(p.o.Dir, "room.tmp")
	f, err := p.o.FS.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return false
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), p.o.FS.Remove(name)) == nil
}
