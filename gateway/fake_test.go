package gateway

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"keyhole/catalog"
	"keyhole/partition"
	"keyhole/partitioner"
	"keyhole/record"
)

// fakeTopics is a catalog in memory.
type fakeTopics struct {
	mu      sync.Mutex
	byName  map[string]*fakeTopic
	missing error // what an unknown name gives
	timeout time.Duration
	create  bool // TopicForWrite makes topics
}

func newFakeTopics(topics ...*fakeTopic) *fakeTopics {
	f := &fakeTopics{byName: map[string]*fakeTopic{}, missing: catalog.ErrTopicNotFound, timeout: patience}
	for _, t := range topics {
		f.byName[t.name] = t
	}
	return f
}

func (f *fakeTopics) Topic(name string) (topic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.byName[name]; t != nil {
		return t, nil
	}
	return nil, f.missing
}

func (f *fakeTopics) TopicForWrite(_ context.Context, name string) (topic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.byName[name]
	if t == nil && f.create {
		t = newFakeTopic(name, 1)
		f.byName[name] = t
	}
	if t == nil {
		return nil, f.missing
	}
	return t, nil
}

func (f *fakeTopics) CheckWriter() error { return nil }

func (f *fakeTopics) LookupTimeout() time.Duration { return f.timeout }

// fakeTopic keeps its records in memory.
type fakeTopic struct {
	name  string
	id    string
	any   bool
	place func(key []byte, n int32) int32
	max   int64
	parts []*fakePartition
}

func newFakeTopic(name string, partitions int) *fakeTopic {
	place, err := partitioner.For("murmur2")
	if err != nil {
		panic(err)
	}
	t := &fakeTopic{name: name, id: "id-of-" + name, place: place, max: 8 << 20}
	for n := range partitions {
		t.parts = append(t.parts, &fakePartition{id: int32(n), topic: t, latest: map[string]record.Record{}})
	}
	return t
}

func (t *fakeTopic) PartitionFor(key []byte) int32 { return t.place(key, int32(len(t.parts))) }
func (t *fakeTopic) Any() bool                     { return t.any }
func (t *fakeTopic) MaxRecordBytes() int64         { return t.max }

func (t *fakeTopic) Partition(n int32) (keyLog, error) {
	if int(n) >= len(t.parts) {
		return nil, catalog.ErrPartitionNotFound
	}
	return t.parts[n], nil
}

func (t *fakeTopic) Hosted() []keyLog {
	var all []keyLog
	for _, p := range t.parts {
		all = append(all, p)
	}
	return all
}

func (t *fakeTopic) ETag(p int32, epoch, offset int64) string {
	return `"` + t.id + "-" + strconv.Itoa(int(p)) + "-" + strconv.FormatInt(epoch, 10) + "-" + strconv.FormatInt(offset, 10) + `"`
}

// set writes a record behind the gateway's back and gives its offset.
func (t *fakeTopic) set(p int32, r record.Record) int64 {
	base, err := t.parts[p].Append(context.Background(), []record.Record{r})
	if err != nil {
		panic(err)
	}
	return base
}

// fakeEpoch is that of all records.
const fakeEpoch = 7

// fakePartition behaves like a partition whose records are all at hand.
type fakePartition struct {
	id    int32
	topic *fakeTopic

	mu       sync.Mutex
	latest   map[string]record.Record
	next     int64
	source   partition.Source
	fail     error // what Lookup gives
	failRead error // what Lookup gives where it would read a record
	refuse   error // what Append gives
	appends  int   // calls of Append
	reads    int   // lookups that read a record
	// hold, if not nil, is called by Lookup before it answers.
	hold func(ctx context.Context) error
}

func (p *fakePartition) ID() int32 { return p.id }

func (p *fakePartition) Lookup(ctx context.Context, key []byte, q partition.Query) (partition.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	res := partition.Result{Partition: p.id, Position: p.next}
	if p.hold != nil {
		if err := p.hold(ctx); err != nil {
			return res, err
		}
	}
	if p.fail != nil {
		return res, p.fail
	}
	if p.next < q.MinPosition {
		return res, partition.ErrPositionNotReached
	}
	rec, ok := p.latest[string(key)]
	if !ok {
		return res, partition.ErrKeyNotFound
	}
	res.Offset, res.Epoch, res.Source = rec.Offset, fakeEpoch, p.source
	if q.Matches != nil && q.Matches(rec.Offset, fakeEpoch) {
		res.NotModified = true
		return res, nil
	}
	if q.ResolveOnly {
		return res, nil
	}
	p.reads++
	if p.failRead != nil {
		return res, p.failRead
	}
	res.Timestamp, res.Headers = rec.Timestamp, rec.Headers
	res.Value = append(q.Buf[:0], rec.Value...)
	return res, nil
}

func (p *fakePartition) Validate(rec *record.Record) error {
	switch {
	case rec.Key == nil:
		return partition.ErrNoKey
	case len(rec.Key) > partition.MaxKeyBytes:
		return partition.ErrKeyTooLong
	case int64(rec.Size()) > p.topic.max:
		return partition.ErrRecordTooLarge
	}
	return nil
}

func (p *fakePartition) Append(_ context.Context, recs []record.Record) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.appends++
	if p.refuse != nil {
		return 0, p.refuse
	}
	for i := range recs {
		if err := p.Validate(&recs[i]); err != nil {
			return 0, err
		}
	}
	base := p.next
	for _, r := range recs {
		r.Offset = p.next
		p.next++
		if r.Value == nil {
			delete(p.latest, string(r.Key))
			continue
		}
		r.Value = append([]byte{}, r.Value...)
		r.Headers = slices.Clone(r.Headers)
		for i := range r.Headers {
			r.Headers[i].Value = bytes.Clone(r.Headers[i].Value)
		}
		p.latest[string(r.Key)] = r
	}
	return base, nil
}
