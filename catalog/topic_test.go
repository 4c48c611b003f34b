package catalog

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"keyhole/partition"
	"keyhole/record"
)

func TestTopicPropertiesAreCheckedAndKept(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	topic := create(t, c, "t", 2, map[string]string{propSegmentBytes: "4096", propPartitioner: "any", propCleanupPolicy: "delete,compact"})
	config := topic.Config()
	if len(config) != len(topicTable) {
		t.Errorf("config has %d properties, want %d", len(config), len(topicTable))
	}
	for name, want := range map[string]ConfigValue{
		propSegmentBytes:    {"4096", false},
		propCleanupPolicy:   {"compact,delete", false},
		propTopicRemoteRead: {"false", true}, // no store
		propMaxMessageBytes: {"8388608", true},
	} {
		if config[name] != want {
			t.Errorf("%s is %v, want %v", name, config[name], want)
		}
	}
	if !topic.Any() || topic.NumPartitions() != 2 || topic.MaxRecordBytes() != 8<<20 {
		t.Error("properties are not in force")
	}
	if err := c.AlterTopic(t.Context(), "t", map[string]string{propPartitioner: "crc32", propMaxMessageBytes: "100"}, []string{propSegmentBytes}); err != nil {
		t.Fatal(err)
	}
	if topic.Any() || topic.MaxRecordBytes() != 100 || topic.Config()[propSegmentBytes] != (ConfigValue{"134217728", true}) {
		t.Error("the change is not in force")
	}
	err := c.AlterTopic(t.Context(), "t", map[string]string{propMaxMessageBytes: "200", propFlush: "soon"}, nil)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Properties) != 1 || topic.MaxRecordBytes() != 100 {
		t.Errorf("a refused change: %v, limit now %d", err, topic.MaxRecordBytes())
	}
	if n.logs.count("property=max.message.bytes old=8388608 new=100") != 1 {
		t.Error("the change is not in the log")
	}
	stop(t, c)

	c = n.start()
	again, err := c.Topic("t")
	if err != nil || again.ID() != topic.ID() || again.MaxRecordBytes() != 100 || again.Any() {
		t.Errorf("after a reopen: %v, %v", again, err)
	}
}

func TestRefusedTopics(t *testing.T) {
	c := newNode(t, nil).start()
	create(t, c, "taken", 1, nil)
	for _, tt := range []struct {
		name       string
		partitions int32
		configs    map[string]string
		want       map[string]string // property → part of the message
	}{
		{"a/b", 0, map[string]string{"x": "y"}, map[string]string{"name": "letters", "partitions": "from 1", "x": "no such"}},
		{"t", maxPartitions + 1, nil, map[string]string{"partitions": "from 1"}},
		{"t", 1, map[string]string{propCleanupPolicy: "delete"}, map[string]string{propCleanupPolicy: "must contain compact"}},
		{"t", 1, map[string]string{propTopicIndex: "true"}, map[string]string{propTopicIndex: "needs the feature kv_index"}},
		{"t", 1, map[string]string{propTopicIndex: "true", propCleanupPolicy: "delete"}, map[string]string{propCleanupPolicy: "must contain", propTopicIndex: "needs cleanup.policy with compact"}},
		{"t", 1, map[string]string{propKind: "window"}, map[string]string{propKind: "needs keyhole.window.size.ms"}},
		{"t", 1, map[string]string{propRetentionAge: "1", propRetentionBytes: "0"}, map[string]string{propRetentionAge: "needs cleanup.policy with delete", propRetentionBytes: "with delete"}},
		{"t", 1, map[string]string{propSegmentBytes: "1"}, map[string]string{propSegmentBytes: "from 1024 to"}},
	} {
		_, err := c.CreateTopic(t.Context(), tt.name, tt.partitions, tt.configs)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Properties) != len(tt.want) {
			t.Errorf("%s %v: %v", tt.name, tt.configs, err)
			continue
		}
		for name, part := range tt.want {
			if !strings.Contains(invalid.Properties[name], part) {
				t.Errorf("%s: %q lacks %q", name, invalid.Properties[name], part)
			}
		}
		if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
			t.Errorf("a refused topic: %v", err)
		}
	}
	if _, err := c.CreateTopic(t.Context(), "taken", 1, nil); !errors.Is(err, ErrTopicExists) {
		t.Errorf("a second one: %v", err)
	}
	if err := c.AlterTopic(t.Context(), "none", nil, nil); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("alter: %v", err)
	}
	if err := c.DeleteTopic(t.Context(), "none"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("delete: %v", err)
	}
}

// A retention that nothing obeys is refused, whichever of the two comes last.
func TestRetentionNeedsThePolicy(t *testing.T) {
	c := newNode(t, nil).start()
	create(t, c, "t", 1, map[string]string{propCleanupPolicy: "compact,delete", propRetentionAge: "5000", propRetentionBytes: "-1"})
	err := c.AlterTopic(t.Context(), "t", nil, []string{propCleanupPolicy})
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Properties) != 1 || invalid.Properties[propRetentionAge] == "" {
		t.Errorf("the policy goes, the retention stays: %v", err)
	}
	if err := c.AlterTopic(t.Context(), "t", nil, []string{propCleanupPolicy, propRetentionAge}); err != nil {
		t.Errorf("both go: %v", err)
	}
	if err := c.AlterTopic(t.Context(), "t", map[string]string{propRetentionAge: "-1"}, nil); err != nil {
		t.Errorf("no limit: %v", err)
	}
}

func TestIndexNeedsFeatureAndSwitch(t *testing.T) { // case 8-03
	c := newNode(t, nil).start()
	topic := create(t, c, "t", 1, nil)
	on := map[string]string{propTopicIndex: "true"}
	refused := func(reason string) {
		t.Helper()
		err := c.AlterTopic(t.Context(), "t", on, nil)
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Fatalf("got %v, want %q", err, reason)
		}
	}
	refused("needs the feature kv_index to be active")
	if err := c.SetFeature(t.Context(), FeatureIndex, StateActive); err != nil {
		t.Fatal(err)
	}
	refused("needs the cluster property kv_index_enabled to be true")
	if _, err := c.AlterCluster(t.Context(), map[string]any{propIndexEnabled: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.AlterTopic(t.Context(), "t", on, nil); err != nil {
		t.Fatal(err)
	}
	// Switched off above it, the topic keeps the property and can be configured.
	if err := c.SetFeature(t.Context(), FeatureIndex, StateDisabled); err != nil {
		t.Fatal(err)
	}
	if err := c.AlterTopic(t.Context(), "t", map[string]string{propTopicIndex: "true", propFlush: "10"}, nil); err != nil {
		t.Errorf("another property: %v", err)
	}
	if topic.Config()[propTopicIndex].Value != "true" {
		t.Error("the topic lost its property")
	}
	if s := partitionSettings(topic.config.Load(), c.switches.Load()); s.IndexActive || !s.IndexMaintained {
		t.Errorf("settings are %+v", s)
	}
}

func TestNamesWithSuffixesAreIndependent(t *testing.T) { // case 7-30
	n := newNode(t, nil)
	c := n.start()
	names := []string{"x", "x.part", "x.tmp", "x.json", "LOCK", "topic.json", "topic.json.tmp"}
	for i, name := range names {
		create(t, c, name, int32(i+1), nil)
	}
	if err := c.DeleteTopic(t.Context(), "x.part"); err != nil {
		t.Fatal(err)
	}
	stop(t, c)
	c = n.start()
	for i, name := range names {
		topic, err := c.Topic(name)
		if name == "x.part" {
			if !errors.Is(err, ErrTopicNotFound) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || topic.NumPartitions() != int32(i+1) {
			t.Errorf("%s: %v, %v", name, topic, err)
		}
	}
	var sorted []string
	for _, topic := range c.Topics() {
		sorted = append(sorted, topic.Name())
	}
	if got := strings.Join(sorted, " "); got != "LOCK topic.json topic.json.tmp x x.json x.tmp" {
		t.Errorf("topics are %s", got)
	}
}

func TestRecreatedTopicSharesNothing(t *testing.T) { // case 3-31
	n := newNode(t, nil)
	c := n.start()
	old := create(t, c, "t", 2, map[string]string{propFlush: "7"})
	p, err := old.Partition(0)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "partition ready", func() bool { ready, _, _ := p.State(); return ready })
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v")}}); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("a deleted topic: %v", err)
	}
	if _, err := n.fs.Stat(c.disk.path(topicsDir, "t")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if names, _ := c.disk.list(c.disk.path(deletedDir)); len(names) != 0 {
		t.Errorf("without a store nothing remains to be done, but there is %v", names)
	}
	if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v")}}); !errors.Is(err, partition.ErrClosed) {
		t.Errorf("append to a deleted topic: %v", err)
	}
	anew := create(t, c, "t", 1, nil)
	if anew.ID() == old.ID() || anew.NumPartitions() != 1 || anew.Config()[propFlush].Value != "0" {
		t.Errorf("the new topic has the old one's state: %v", anew)
	}
	if anew.ETag(0, 1, 5) == old.ETag(0, 1, 5) {
		t.Error("an ETag of the old topic is one of the new")
	}
	q, err := anew.Partition(0)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "partition ready", func() bool { ready, _, _ := q.State(); return ready })
	base, err := q.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v2")}})
	if err != nil || base != 0 {
		t.Errorf("first append to the new topic: %d, %v", base, err)
	}
}

func TestETag(t *testing.T) {
	c := newNode(t, nil).start()
	topic := create(t, c, "t", 1, nil)
	if got, want := topic.ETag(12, 2147483647, 20227160311775237), `"`+topic.ID()+`-12-2147483647-20227160311775237"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := topic.Partition(1); !errors.Is(err, ErrPartitionNotFound) {
		t.Errorf("partition 1: %v", err)
	}
	if _, err := topic.Partition(-1); !errors.Is(err, ErrPartitionNotFound) {
		t.Errorf("partition -1: %v", err)
	}
}

func TestInterruptedDeletionIsFinishedAtStart(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	topic := create(t, c, "t", 1, nil)
	mark := *topic.config.Load().data
	mark.DeletedMS = 1
	c.mu.Lock()
	err := c.disk.writeDeleted(&mark)
	c.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	stop(t, c)
	c = n.start()
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("the topic: %v", err)
	}
	if c.disk.hasTopicDir("t", topic.ID()) {
		t.Error("its files are still there")
	}
}

func TestInterruptedCreationLeavesNothing(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	dir := c.disk.topicDir("t", newID())
	if err := n.fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := n.fs.Create(n.fs.PathJoin(dir, topicFile+".tmp"), "")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	stop(t, c)
	c = n.start()
	if _, err := c.Topic("t"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("the topic: %v", err)
	}
	if _, err := n.fs.Stat(c.disk.path(topicsDir, "t")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}

func TestDamagedTopicIsNeitherFoundNorAbsent(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	topic := create(t, c, "bad", 1, nil)
	create(t, c, "good", 1, nil)
	stop(t, c)
	path := n.fs.PathJoin(c.disk.topicDir("bad", topic.ID()), topicFile)
	overwrite(t, n.fs, path, func(b []byte) []byte { return b[:len(b)-5] })

	c = n.start()
	if _, err := c.Topic("good"); err != nil {
		t.Errorf("the other topic: %v", err)
	}
	if _, err := c.Topic("bad"); !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), path) {
		t.Errorf("the damaged one: %v", err)
	}
	if _, err := c.CreateTopic(t.Context(), "bad", 1, nil); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a new one in its place: %v", err)
	}
	eventually(t, "ready", func() bool { return c.Ready().Ready })
	if r := c.Ready(); len(r.Damaged) != 1 || r.Damaged[0].Topic != "bad" {
		t.Errorf("readiness is %+v", r)
	}
}

func TestNewerOfTwoOnDiskIsServed(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	topic := create(t, c, "t", 1, nil)
	older, newer := *topic.config.Load().data, *topic.config.Load().data
	// Ids do not decide it: they come in the other order.
	older.ID, older.CreatedMS, older.Partitions = strings.Repeat("f", 32), older.CreatedMS-1, 2
	newer.ID, newer.CreatedMS, newer.Partitions = strings.Repeat("0", 32), newer.CreatedMS+1, 3
	for _, data := range []*topicData{&older, &newer} {
		if err := c.disk.writeTopic(data); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, c)
	c = n.start()
	if got, err := c.Topic("t"); err != nil || got.ID() != newer.ID {
		t.Errorf("the topic: %v, %v", got, err)
	}
}

func TestCallsAfterClose(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	create(t, c, "t", 1, nil)
	stop(t, c)
	stop(t, c) // idempotent
	if _, err := c.Topic("t"); !errors.Is(err, ErrClosed) {
		t.Errorf("topic: %v", err)
	}
	if _, err := c.CreateTopic(t.Context(), "u", 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("create: %v", err)
	}
	if err := c.DeleteTopic(t.Context(), "t"); !errors.Is(err, ErrClosed) {
		t.Errorf("delete: %v", err)
	}
	if err := c.AlterTopic(t.Context(), "t", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("alter: %v", err)
	}
	if _, err := c.AlterCluster(t.Context(), nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("alter cluster: %v", err)
	}
	if err := c.SetFeature(t.Context(), FeatureIndex, StateActive); !errors.Is(err, ErrClosed) {
		t.Errorf("feature: %v", err)
	}
	if r := c.Ready(); r.Ready {
		t.Error("a closed catalog is ready")
	}
}
