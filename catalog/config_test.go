package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keyhole/manifest"
	"keyhole/partition"
)

func TestClusterConfigSurvivesAReopen(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	before := c.ClusterConfig()
	if len(before) != len(clusterTable) || before[propIndexEnabled] != false || before[propLookupTimeout] != int64(5000) {
		t.Fatalf("a new directory has %v", before)
	}
	v1, err := c.AlterCluster(t.Context(), map[string]any{propLookupTimeout: "750", propCacheSize: 1024.0}, nil)
	if err != nil || v1 != 1 {
		t.Fatalf("version %d, %v", v1, err)
	}
	if c.LookupTimeout() != 750*time.Millisecond {
		t.Errorf("lookup timeout is %v", c.LookupTimeout())
	}
	if n.logs.count("old=5000 new=750") != 1 {
		t.Error("the change is not in the log with its old and new value")
	}
	if err := c.SetFeature(t.Context(), FeatureIndex, StateActive); err != nil {
		t.Fatal(err)
	}
	if v, err := c.AlterCluster(t.Context(), map[string]any{propCacheSize: "1024"}, nil); v != 2 || err != nil {
		t.Errorf("a change that changes nothing: version %d, %v", v, err)
	}
	want := c.ClusterConfig()
	stop(t, c)

	c = n.start()
	if got := c.ClusterConfig(); !maps.Equal(got, want) {
		t.Errorf("after a reopen: %v, want %v", got, want)
	}
	if f := c.Features(); len(f) != 1 || f[0] != (Feature{FeatureIndex, StateActive}) {
		t.Errorf("features are %v", f)
	}
	// Removing an override gives back the default.
	if v, err := c.AlterCluster(t.Context(), map[string]any{propCacheSize: nil}, []string{propLookupTimeout}); v != 3 || err != nil {
		t.Fatalf("version %d, %v", v, err)
	}
	if got := c.ClusterConfig(); !maps.Equal(got, before) {
		t.Errorf("after removing: %v, want %v", got, before)
	}
}

func TestRefusedChangeAppliesNothing(t *testing.T) { // case 8-05
	n := newNode(t, nil)
	c := n.start()
	for _, upsert := range []map[string]any{
		{propRemoteRead: true, "unknown": 1},
		{propRemoteRead: true, propCacheSize: "lots"},
		{propRemoteRead: true, propGCGrace: 1000},                                   // shorter than the lookup deadline
		{propRemoteRead: true, propLookupTimeout: 600_000, propGCGrace: "599999"},   // the same, both set
		{propRemoteRead: true, propGCGrace: nil, propLookupTimeout: "not a number"}, // null beside a bad one
	} {
		_, err := c.AlterCluster(t.Context(), upsert, nil)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Properties) != 1 {
			t.Errorf("%v: %v", upsert, err)
		} else {
			for name := range invalid.Properties {
				if strings.Count(invalid.Error(), name) != 1 {
					t.Errorf("%v: the property is not named once: %v", upsert, err)
				}
			}
		}
		if c.ClusterConfig()[propRemoteRead] != false || c.switches.Load().version != 0 {
			t.Fatalf("%v was half applied", upsert)
		}
	}
	if err := c.SetFeature(t.Context(), "kv_indx", StateActive); !errors.Is(err, ErrFeatureNotFound) {
		t.Errorf("unknown feature: %v", err)
	}
	if err := c.SetFeature(t.Context(), FeatureIndex, "on"); err == nil {
		t.Error("unknown state is accepted")
	}
}

func TestFailedWriteAppliesNothing(t *testing.T) {
	n := newNode(t, nil)
	var fail bool
	n.fs = errorfs.Wrap(n.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail && strings.HasSuffix(op.Path, "config.json.tmp") && op.Kind == errorfs.OpFileSync {
			return errorfs.ErrInjected
		}
		return nil
	}))
	c := n.start()
	fail = true
	if _, err := c.AlterCluster(t.Context(), map[string]any{propRemoteRead: true}, nil); err == nil {
		t.Fatal("no error")
	}
	if c.ClusterConfig()[propRemoteRead] != false || c.switches.Load().version != 0 {
		t.Error("the change is in force although it is not durable")
	}
	fail = false
	if v, err := c.AlterCluster(t.Context(), map[string]any{propRemoteRead: true}, nil); err != nil || v != 1 {
		t.Errorf("afterwards: %d, %v", v, err)
	}
}

func TestDamagedFileStopsTheStart(t *testing.T) { // case 8-05
	for _, file := range []string{configFile, nodeFile} {
		for name, damage := range map[string]func([]byte) []byte{
			"truncated": func(b []byte) []byte { return b[:len(b)/2] },
			"empty":     func([]byte) []byte { return nil },
			"flipped":   func(b []byte) []byte { b[len(b)-10] ^= 1; return b },
			"too long":  func(b []byte) []byte { return append(b, make([]byte, maxDocumentBytes)...) },
		} {
			t.Run(file+" "+name, func(t *testing.T) {
				n := newNode(t, nil)
				c := n.start()
				if _, err := c.AlterCluster(t.Context(), map[string]any{propRemoteRead: true}, nil); err != nil {
					t.Fatal(err)
				}
				stop(t, c)
				path := n.fs.PathJoin(n.dir, file)
				overwrite(t, n.fs, path, damage)
				c, err := n.open()
				if err == nil {
					stop(t, c)
					t.Fatal("it starts")
				}
				if !strings.Contains(err.Error(), path) {
					t.Errorf("%q does not name the file", err)
				}
			})
		}
	}
}

func overwrite(t testing.TB, fs vfs.FS, path string, edit func([]byte) []byte) {
	t.Helper()
	b, err := manifest.ReadFile(fs, path, 1<<21)
	if err != nil {
		t.Fatal(err)
	}
	if err := manifest.WriteFile(fs, path, edit(b)); err != nil {
		t.Fatal(err)
	}
}

func TestCrashLosesNothingAcknowledged(t *testing.T) {
	fs := vfs.NewCrashableMem()
	n := newNode(t, nil)
	n.fs = fs
	c := n.start()
	allOn(t, c)
	topic := create(t, c, "t", 1, map[string]string{propTopicIndex: "true"})
	create(t, c, "gone", 1, nil)
	if err := c.AlterTopic(t.Context(), "t", map[string]string{propSegmentBytes: "4096"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteTopic(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	stop(t, c)

	n.fs = crashed
	c = n.start()
	got, err := c.Topic("t")
	if err != nil || got.ID() != topic.ID() || got.Config()[propSegmentBytes].Value != "4096" {
		t.Errorf("after the crash: %v, %v", got, err)
	}
	if _, err := c.Topic("gone"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("the deleted topic: %v", err)
	}
	if c.ClusterConfig()[propIndexEnabled] != true || c.switches.Load().version != 2 {
		t.Error("switches are lost")
	}
}

func TestOneProcessPerDataDirectory(t *testing.T) { // case 6-14
	for name, n := range map[string]*node{
		"memory": newNode(t, nil),
		"disk":   {t: t, fs: vfs.Default, dir: t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			c := n.start()
			create(t, c, "t", 1, nil)
			second, err := n.open()
			if err == nil {
				stop(t, second)
				t.Fatal("a second catalog opens")
			}
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), n.dir) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q", err)
			}
			stop(t, c)
			c = n.start()
			if _, err := c.Topic("t"); err != nil {
				t.Errorf("after the first one is closed: %v", err)
			}
		})
	}
}

func TestUnwritableDataDirectoryIsNotCalledLocked(t *testing.T) { // case 8-18
	n := newNode(t, nil)
	n.fs = errorfs.Wrap(n.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpMkdirAll {
			return errorfs.ErrInjected
		}
		return nil
	}))
	_, err := n.open()
	if err == nil || errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), n.dir) {
		t.Errorf("the error is %v", err)
	}
}

func TestNodeIDStays(t *testing.T) {
	n := newNode(t, nil)
	c := n.start()
	id := c.node.NodeID
	stop(t, c)
	if c = n.start(); c.node.NodeID != id || checkID("id", id) != nil {
		t.Errorf("node id was %q, is %q", id, c.node.NodeID)
	}
}

func TestFlipsUnderLookups(t *testing.T) { // case 8-06
	n := newNode(t, nil)
	c := n.start()
	allOn(t, c)
	create(t, c, "t", 2, map[string]string{propTopicIndex: "true"})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				topic, err := c.Topic("t")
				if err != nil {
					t.Errorf("lookup: %v", err)
					return
				}
				p, err := topic.Partition(topic.PartitionFor([]byte("key")))
				if err != nil {
					t.Errorf("partition: %v", err)
					return
				}
				_, err = p.Lookup(ctx, []byte("key"), partition.Query{})
				if !errors.Is(err, partition.ErrKeyNotFound) && !errors.Is(err, partition.ErrNotIndexed) && !errors.Is(err, partition.ErrNotReady) && ctx.Err() == nil {
					t.Errorf("lookup: %v", err)
					return
				}
				_ = c.ClusterConfig()
				_ = topic.Config()
				_ = c.Ready()
			}
		})
	}
	for i := range 1000 {
		if _, err := c.AlterCluster(t.Context(), map[string]any{propRemoteRead: i%2 == 0, propIndexEnabled: i%3 != 0}, nil); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			if err := c.AlterTopic(t.Context(), "t", map[string]string{propSegmentBytes: fmt.Sprint(4096 + i)}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	wg.Wait()
	if c.ClusterConfig()[propRemoteRead] != false {
		t.Error("the last flip is not in force")
	}
}

func TestSchemaCoversEveryProperty(t *testing.T) {
	c := newNode(t, nil).start()
	schema := c.ClusterSchema()
	for name, value := range c.ClusterConfig() {
		s, ok := schema[name]
		if !ok || s.Default != value {
			t.Errorf("%s: schema %+v, value %v", name, s, value)
		}
	}
}

func TestDevDirectoryBeginsWithAllSwitchesOn(t *testing.T) {
	n := newNode(t, nil)
	n.dev = true
	c := n.start()
	topic, err := c.TopicForWrite(t.Context(), "t")
	if err != nil || topic.Config()[propTopicIndex].Value != "true" {
		t.Fatalf("%v, %v", topic, err)
	}
	if again, err := c.TopicForWrite(t.Context(), "t"); again != topic || err != nil {
		t.Errorf("second write: %v, %v", again, err)
	}
	if _, err := c.TopicForWrite(t.Context(), ".."); err == nil {
		t.Error("a topic named .. is made")
	}
	// What somebody switches off stays off.
	if _, err := c.AlterCluster(t.Context(), map[string]any{propIndexEnabled: false}, nil); err != nil {
		t.Fatal(err)
	}
	stop(t, c)
	c = n.start()
	if c.ClusterConfig()[propIndexEnabled] != false {
		t.Error("a restart switched the index on again")
	}
	if _, err := c.TopicForWrite(t.Context(), "u"); err != nil {
		t.Errorf("a topic without index: %v", err)
	}
}
