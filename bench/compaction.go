package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/record"
)

const compactSegment = 8 << 20

// measureCompaction compacts logs of which half is dead, in both tiers, and copies
// the same bytes plainly; and looks at lookups while a neighbour is compacted.
func measureCompaction(ctx context.Context, b *bench) error {
	if err := b.localCompaction(ctx); err != nil {
		return err
	}
	if err := b.besideCompaction(ctx); err != nil {
		return err
	}
	s, err := b.startStore(ctx, "compaction-store")
	if errors.Is(err, errNoStore) {
		b.report.skip("%v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.stop()
	s.proxy.near.Store(true) // throughput, not latency
	bucket, err := openBucket(ctx, s.url(objstore.ClientAWS))
	if err != nil {
		return err
	}
	defer bucket.Close()
	return b.remoteCompaction(ctx, s, bucket)
}

// fillTwice writes every other key a second time, in random order, so that a third
// of all records is dead, all over the log.
func fillTwice(ctx context.Context, r *rig, bytes int) error {
	const size = 1 << 10
	keys := bytes / size * 2 / 3
	order := make([]int, 0, keys*3/2)
	for i := range keys {
		order = append(order, i)
		if i%2 == 0 {
			order = append(order, i)
		}
	}
	rand.New(rand.NewPCG(9, 10)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for piece := range slices.Chunk(order, 500) {
		recs := make([]record.Record, len(piece))
		for i, key := range piece {
			recs[i] = record.Record{Timestamp: 1, Key: []byte(hotKey(key)), Value: syntheticValue(key+i, size)}
		}
		if _, err := r.Append(ctx, recs); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) localCompaction(ctx context.Context) error {
	var speed rounds
	for round := range b.scale.compactRounds {
		dir := filepath.Join(b.dir, "compaction", fmt.Sprint("local-", round))
		r, err := openRig(ctx, dir, func(o *partition.Options) {
			o.New, o.Settings.SegmentBytes, o.Settings.FlushInterval = true, compactSegment, time.Second
		})
		if err != nil {
			return err
		}
		if err := fillTwice(ctx, r, b.scale.compactBytes); err != nil {
			return errors.Join(err, r.close(ctx))
		}
		plain, copied, err := copyLogs(filepath.Join(dir, "log"), filepath.Join(b.dir, "compaction", "copy"))
		if err != nil {
			return errors.Join(err, r.close(ctx))
		}
		start := time.Now()
		done, err := r.Compact(ctx)
		took := time.Since(start)
		if err = errors.Join(err, r.close(ctx), os.RemoveAll(dir)); err != nil {
			return err
		}
		if done.Done.RecordsRemoved == 0 {
			return errors.New("the compaction has removed nothing")
		}
		ours, peer := perSecond(done.Done.LocalBytesBefore, took), perSecond(copied, plain)
		speed.add(ours, peer, ours/peer)
	}
	b.report.compare("local compaction, a third is dead", "MB/s in", "files copied and synced", speed, "")
	return nil
}

func perSecond(n int64, took time.Duration) float64 { return float64(n) / 1e6 / took.Seconds() }

// copyLogs copies the segments in dir, one after the other, with a sync each.
func copyLogs(dir, to string) (took time.Duration, n int64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return 0, 0, err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	for i, name := range names {
		in, err := os.Open(name)
		if err != nil {
			return 0, 0, err
		}
		out, err := os.Create(filepath.Join(to, fmt.Sprint(i)))
		if err != nil {
			return 0, 0, errors.Join(err, in.Close())
		}
		// By way of memory, as a compaction does it.
		written, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 1<<20))
		n += written
		if err = errors.Join(err, out.Sync(), out.Close(), in.Close()); err != nil {
			return 0, 0, err
		}
	}
	took = time.Since(start)
	return took, n, os.RemoveAll(to)
}

func (b *bench) remoteCompaction(ctx context.Context, s *store, bucket objstore.Bucket) error {
	var speed rounds
	for round := range b.scale.compactRounds {
		topic := fmt.Sprint("compaction-", round)
		dir := filepath.Join(b.dir, "compaction", fmt.Sprint("remote-", round))
		r, err := openRig(ctx, dir, func(o *partition.Options) {
			o.New, o.Topic, o.Bucket = true, topic, bucket
			o.Settings.RemoteRead, o.Settings.RemoteWrite, o.Settings.SegmentBytes, o.Settings.FlushInterval = true, true, compactSegment, time.Second
		})
		if err != nil {
			return err
		}
		err = fillTwice(ctx, r, b.scale.compactBytes)
		if err == nil {
			_, err = r.Evict(ctx, 0)
		}
		if err != nil {
			return errors.Join(err, r.close(ctx))
		}
		plain, copied, err := copyObjects(ctx, bucket, topic)
		if err != nil {
			return errors.Join(err, r.close(ctx))
		}
		start := time.Now()
		done, err := r.Compact(ctx)
		took := time.Since(start)
		if err = errors.Join(err, r.close(ctx), os.RemoveAll(dir)); err != nil {
			return err
		}
		if done.Done.CloudSegments == 0 {
			return errors.New("the compaction has rewritten nothing")
		}
		ours, peer := perSecond(done.Done.CloudBytesBefore, took), perSecond(copied, plain)
		speed.add(ours, peer, ours/peer)
	}
	b.report.compare("compaction of the bucket, a third is dead, zstd", "MB/s in", "objects read and stored", speed, "")
	return nil
}

// copyObjects reads every object of a topic and stores it under another name.
func copyObjects(ctx context.Context, bucket objstore.Bucket, topic string) (took time.Duration, n int64, err error) {
	var keys []string
	err = bucket.List(ctx, topic+"/", func(o objstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	for _, key := range keys {
		data, _, err := bucket.Get(ctx, key, 1<<30)
		if err != nil {
			return 0, 0, err
		}
		if _, err := bucket.Put(ctx, "copy/"+key, bytes.NewReader(data), int64(len(data)), objstore.Condition{}); err != nil {
			return 0, 0, err
		}
		n += int64(len(data))
	}
	return time.Since(start), n, nil
}

// besideCompaction measures hot lookups of one topic, in turns alone and while
// another topic of the node is compacted.
func (b *bench) besideCompaction(ctx context.Context) error {
	n, err := b.startNode(ctx, filepath.Join(b.dir, "beside"), "")
	if err != nil {
		return err
	}
	defer n.kill()
	const hot, other = "bench", "compacted"
	if err := n.createTopic(ctx, hot, 4, nil); err != nil {
		return err
	}
	records := make([]pair, b.scale.hotKeys)
	for i := range records {
		records[i] = pair{hotKey(i), syntheticValue(i, hotValue)}
	}
	if err := n.produce(ctx, hot, slices.Values(records)); err != nil {
		return err
	}
	if err := n.createTopic(ctx, other, 1, map[string]string{"segment.bytes": "4194304", "min.cleanable.dirty.ratio": "1"}); err != nil {
		return err
	}
	var p50, p99, throughput, busy rounds
	for round := range b.scale.besideRounds {
		// Two thirds of this are dead.
		count := b.scale.besideBytes / hotValue
		if err := n.produce(ctx, other, func(yield func(pair) bool) {
			for i := range count {
				if !yield(pair{hotKey(i % (count / 3)), syntheticValue(i+round, hotValue)}) {
					return
				}
			}
		}); err != nil {
			return err
		}
		results := make([]loadResult, 2) // without, with
		for i := range results {
			which := (i + round) % 2
			if results[which], err = b.lookupsBeside(ctx, n, other, which == 1, &busy); err != nil {
				return err
			}
		}
		without, with := results[0], results[1]
		p50.add(millis(with.P50), millis(without.P50), float64(with.P50)/float64(without.P50))
		p99.add(millis(with.P99), millis(without.P99), float64(with.P99)/float64(without.P99))
		throughput.add(with.perSecond(), without.perSecond(), with.perSecond()/without.perSecond())
	}
	b.report.compare("hot GET beside a compaction, p50", "ms", "without", p50, "")
	b.report.compare("hot GET beside a compaction, p99", "ms", "without", p99, "")
	b.report.compare("hot GET beside a compaction, throughput", "1/s", "without", throughput, "")
	b.report.compare("time that the compaction took of these lookups'", "s", "lookups", busy, "")
	return nil
}

// lookupsBeside loads the node with lookups, and compacts a topic of it meanwhile if
// that is wanted.
func (b *bench) lookupsBeside(ctx context.Context, n *node, topic string, compacting bool, busy *rounds) (loadResult, error) {
	o := loadOptions{addr: n.addr, proto: "http", conns: hotConns, keys: b.scale.hotKeys, size: hotValue, duration: b.scale.besideRound}
	var wg sync.WaitGroup
	var failure error
	if compacting {
		wg.Go(func() {
			start := time.Now()
			failure = n.api(ctx, "POST", "/v1/compact/"+topic+"/0", nil, nil)
			took := time.Since(start).Seconds()
			busy.add(took, o.duration.Seconds(), min(1, took/o.duration.Seconds()))
		})
	}
	result, err := load(o)
	wg.Wait()
	return result, errors.Join(err, failure)
}
