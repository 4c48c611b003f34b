package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

func serving(t testing.TB, topic *Topic, n int32) *partition.Partition {
	t.Helper()
	p, err := topic.Partition(n)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "partition ready", func() bool {
		ready, _, damaged := p.State()
		if damaged != nil {
			t.Fatal(damaged)
		}
		return ready
	})
	return p
}

func appendKeys(t testing.TB, p *partition.Partition, from, to int) {
	t.Helper()
	var recs []record.Record
	for i := from; i < to; i++ {
		recs = append(recs, record.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Appendf(nil, "value-%d", i)})
	}
	if _, err := p.Append(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
}

// cold makes a topic whose 100 records are only in the bucket. They are not
// compressed: the encoders outlive a test, and one made in a bubble of synctest
// works nowhere else.
func cold(t testing.TB, c *Catalog, name string) *Topic {
	t.Helper()
	topic := create(t, c, name, 1, map[string]string{propTopicIndex: "true", propRemoteCodec: "none"})
	p := serving(t, topic, 0)
	appendKeys(t, p, 0, 100)
	if _, err := p.Evict(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return topic
}

func find(t testing.TB, p *partition.Partition, i int) (partition.Result, error) {
	t.Helper()
	r, err := p.Lookup(t.Context(), fmt.Appendf(nil, "key-%d", i), partition.Query{})
	if err == nil && string(r.Value) != fmt.Sprintf("value-%d", i) {
		t.Errorf("key-%d has the value %q", i, r.Value)
	}
	return r, err
}

func TestRemoteReadSwitchIsLive(t *testing.T) { // case 8-02
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	allOn(t, c)
	topic := cold(t, c, "t")
	p := serving(t, topic, 0)
	flip := func(on any) {
		t.Helper()
		if _, err := c.AlterCluster(t.Context(), map[string]any{propRemoteRead: on}, nil); err != nil {
			t.Fatal(err)
		}
		b.ResetCalls()
	}
	refused := func(key int) {
		t.Helper()
		if _, err := find(t, p, key); !errors.Is(err, partition.ErrRemoteReadDisabled) {
			t.Errorf("off: %v", err)
		}
		for _, call := range b.Calls() {
			// The look for deleted topics reads descriptions, whenever it is its time.
			if call.Op == objstoretest.OpReadRange || call.Op == objstoretest.OpGet && !strings.HasSuffix(call.Key, "/topic.json") {
				t.Errorf("off, and the store saw %v", call)
			}
		}
	}
	flip("false")
	refused(7)
	flip("true")
	if r, err := find(t, p, 7); err != nil || r.Source != partition.SourceRemote {
		t.Errorf("on: %v, %v", r.Source, err)
	}
	if n := b.Count(objstoretest.OpReadRange); n != 1 {
		t.Errorf("a cold lookup cost %d reads: %v", n, b.Calls())
	}
	if r, err := find(t, p, 7); err != nil || r.Source != partition.SourceCache {
		t.Errorf("again: %v, %v", r.Source, err)
	}
	flip(false)
	refused(7) // although its chunk is in the cache
	flip(nil)  // the default is off as well
	refused(7)
	flip(true)
	if err := c.AlterTopic(t.Context(), "t", map[string]string{propTopicRemoteRead: "false"}, nil); err != nil {
		t.Fatal(err)
	}
	b.ResetCalls()
	refused(7)
	if err := c.AlterTopic(t.Context(), "t", nil, []string{propTopicRemoteRead}); err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, p, 7); err != nil {
		t.Errorf("with the topic's default: %v", err)
	}
	// The cache is live too.
	c.TrimCache()
	if r, err := find(t, p, 7); err != nil || r.Source != partition.SourceRemote {
		t.Errorf("after a trim: %v, %v", r.Source, err)
	}
	if _, err := c.AlterCluster(t.Context(), map[string]any{propCacheSize: 0}, nil); err != nil {
		t.Fatal(err)
	}
	if r, err := find(t, p, 7); err != nil || r.Source != partition.SourceRemote {
		t.Errorf("without a cache: %v, %v", r.Source, err)
	}
}

func TestIndexSwitchesAreLive(t *testing.T) {
	c := newNode(t, nil).start()
	allOn(t, c)
	p := serving(t, create(t, c, "t", 1, map[string]string{propTopicIndex: "true"}), 0)
	appendKeys(t, p, 0, 10)
	if err := c.SetFeature(t.Context(), FeatureIndex, StateDisabled); err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, p, 3); !errors.Is(err, partition.ErrNotIndexed) {
		t.Errorf("feature off: %v", err)
	}
	appendKeys(t, p, 10, 20)
	if err := c.SetFeature(t.Context(), FeatureIndex, StateActive); err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // maintained while it was hidden
		if _, err := find(t, p, i); err != nil {
			t.Errorf("key-%d: %v", i, err)
		}
	}
	if _, err := c.AlterCluster(t.Context(), nil, []string{propIndexEnabled}); err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, p, 3); !errors.Is(err, partition.ErrNotIndexed) {
		t.Errorf("switch removed: %v", err)
	}
}

func TestRecordsOfAnAdoptedTopicAreFound(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	allOn(t, c)
	cold(t, c, "t")
	stop(t, c)

	c = newNode(t, b).start()
	allOn(t, c)
	known(t, c)
	topic, err := c.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	p := serving(t, topic, 0)
	for i := range 100 {
		if _, err := find(t, p, i); err != nil {
			t.Fatalf("key-%d: %v", i, err)
		}
	}
	appendKeys(t, p, 100, 101)
	if r, err := find(t, p, 100); err != nil || r.Offset != 100 {
		t.Errorf("a new record is at offset %d, %v", r.Offset, err)
	}
}

func TestRecreatedTopicInBothTiers(t *testing.T) { // case 3-31
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	allOn(t, c)
	old := cold(t, c, "t")
	if err := c.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	anew := create(t, c, "t", 1, map[string]string{propTopicIndex: "true"})
	p := serving(t, anew, 0)
	b.ResetCalls()
	appendKeys(t, p, 0, 5)
	check := func(p *partition.Partition) {
		t.Helper()
		for i := range 100 {
			r, err := find(t, p, i)
			if i < 5 && (err != nil || r.Offset != int64(i)) {
				t.Errorf("new key-%d: offset %d, %v", i, r.Offset, err)
			}
			if i >= 5 && !errors.Is(err, partition.ErrKeyNotFound) {
				t.Errorf("old key-%d: %v", i, err)
			}
		}
	}
	check(p)
	if _, err := p.Evict(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	check(p)
	for _, call := range b.Calls() {
		if strings.Contains(call.Key, old.ID()) && !strings.HasSuffix(call.Key, topicFile) {
			t.Errorf("the new topic uses an object of the old one: %v", call)
		}
	}
	stop(t, c)
	c = n.start()
	known(t, c)
	again, err := c.Topic("t")
	if err != nil || again.ID() != anew.ID() {
		t.Fatalf("%v, %v", again, err)
	}
	check(serving(t, again, 0))
}
