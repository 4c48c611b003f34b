package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/record"
)

const (
	rebuildKey     = 32 // bytes, without order or pattern
	rebuildSegment = 4 << 20
)

// measureRebuild opens a partition of the bucket on empty disks: in turns from the
// key runs, and with the key runs out of sight, so that the segments are read.
func measureRebuild(ctx context.Context, b *bench) error {
	s, err := b.startStore(ctx, "rebuild-store")
	if errors.Is(err, errNoStore) {
		b.report.skip("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stop()
	bucket, err := openBucket(ctx, s.url(objstore.ClientAWS))
	if err != nil {
		return err
	}
	defer bucket.Close()
	for _, size := range []int{10 * rebuildKey, 1 << 10} {
		if err := b.rebuildOf(ctx, s, bucket, size); err != nil {
			return fmt.Errorf("values of %d bytes: %w", size, err)
		}
	}
	return nil
}

func (b *bench) rebuildOf(ctx context.Context, s *store, bucket objstore.Bucket, size int) error {
	topic := fmt.Sprintf("rebuild-%d", size)
	inBucket := func(o *partition.Options) {
		o.Topic, o.Bucket = topic, bucket
		o.Settings.RemoteRead, o.Settings.RemoteWrite, o.Settings.SegmentBytes, o.Settings.FlushInterval = true, true, rebuildSegment, time.Second
	}
	s.proxy.near.Store(true)
	w, err := openRig(ctx, filepath.Join(b.dir, topic, "writer"), func(o *partition.Options) { inBucket(o); o.New = true })
	if err != nil {
		return err
	}
	err = fillRandom(ctx, w, b.scale.rebuildBytes/size, size)
	if err == nil {
		_, err = w.Evict(ctx, 0)
	}
	if err = errors.Join(err, w.close(ctx)); err != nil {
		return err
	}
	s.proxy.near.Store(false)
	stored, err := sizeOf(filepath.Join(s.dir, topic), ".log")
	if err != nil {
		return err
	}
	var bytes, speed rounds
	disks := 0
	once := func() (took time.Duration, read int64, err error) {
		disks++
		s.proxy.take()
		start := time.Now()
		r, err := openRig(ctx, filepath.Join(b.dir, topic, fmt.Sprint("disk-", disks)), func(o *partition.Options) { inBucket(o); o.Writer = fmt.Sprint("bench-", disks) })
		if err != nil {
			return 0, 0, err
		}
		took, read = time.Since(start), s.proxy.take().bytes
		return took, read, errors.Join(r.close(ctx), os.RemoveAll(r.dir))
	}
	for round := range b.scale.rebuildRounds + 1 {
		runs, runBytes, err := once()
		if err != nil {
			return err
		}
		show, err := hide(filepath.Join(s.dir, topic), ".index")
		if err != nil {
			return err
		}
		scan, scanBytes, err := once()
		if err = errors.Join(err, show()); err != nil {
			return err
		}
		if scanBytes < stored {
			return fmt.Errorf("the scan has read %d of %d bytes", scanBytes, stored)
		}
		if round == 0 {
			continue // connections were made
		}
		bytes.add(float64(runBytes)/1024, float64(stored)/1024, float64(runBytes)/float64(stored))
		speed.add(millis(runs), millis(scan), float64(scan)/float64(runs))
	}
	name := fmt.Sprintf("index from the bucket, random %d-byte keys, values of %d bytes", rebuildKey, size)
	b.report.compare(name+": bytes read", "KiB", "log in the store", bytes, "≤ 0.1")
	b.report.compare(name+": time (peer / keyhole)", "ms", "reading the segments", speed, "≥ 5")
	return nil
}

// fillRandom writes records with random keys and values.
func fillRandom(ctx context.Context, r *rig, count, size int) error {
	random := rand.New(rand.NewPCG(7, 8))
	bytes := func(n int) []byte {
		v := make([]byte, n)
		for i := range v {
			v[i] = byte(random.Uint32())
		}
		return v
	}
	recs := make([]record.Record, 0, 500)
	for i := range count {
		recs = append(recs, record.Record{Timestamp: 1, Key: bytes(rebuildKey), Value: bytes(size)})
		if len(recs) == cap(recs) || i == count-1 {
			if _, err := r.Append(ctx, recs); err != nil {
				return err
			}
			recs = recs[:0]
		}
	}
	return nil
}

// hide gives the files below dir with a suffix other names, until show is called.
func hide(dir, suffix string) (show func() error, err error) {
	var hidden []string
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, suffix) {
			return err
		}
		hidden = append(hidden, path)
		return nil
	})
	for _, path := range hidden {
		err = errors.Join(err, os.Rename(path, path+".hidden"))
	}
	return func() (err error) {
		for _, path := range hidden {
			err = errors.Join(err, os.Rename(path+".hidden", path))
		}
		return err
	}, err
}
