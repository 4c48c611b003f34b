package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func TestNewestOfSeveralIsAdopted(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	for i, created := range []int64{5, 9, 7} {
		data := &topicData{Name: "t", ID: newID(), Partitions: int32(i + 1), CreatedMS: created, Revision: 1}
		if i == 1 {
			data.DeletedMS = 10
		}
		raw, err := encodeDocument(formatTopic, data)
		if err != nil {
			t.Fatal(err)
		}
		putObject(t, b, topicObject(data.Name, data.ID), raw)
	}
	putObject(t, b, "t/"+newID()+"/0/manifest.json", []byte("{}")) // its topic.json was swept
	putObject(t, b, "not a topic!/x", nil)
	putObject(t, b, "t/short/topic.json", nil)
	c := newNode(t, b).start()
	known(t, c)
	if got, err := c.Topic("t"); err != nil || got.NumPartitions() != 3 {
		t.Errorf("adopted: %v, %v", got, err)
	}
	if len(c.Topics()) != 1 {
		t.Errorf("topics are %v", c.Topics())
	}
}

// The switches are not in the bucket; who starts on an empty disk is told.
func TestAdoptionWarnsOfSwitches(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	create(t, c, "t", 1, nil)
	stop(t, c)
	const warning = "switches of this disk are off"
	empty := newNode(t, b)
	known(t, empty.start())
	if empty.logs.count(warning) != 1 || empty.logs.count("off=\"[kv_index kv_index_enabled kv_index_remote_read_enabled]\"") != 1 {
		t.Error("an empty disk adopted a topic without a word on its switches")
	}
	dev := newNode(t, b)
	dev.dev = true
	known(t, dev.start())
	if dev.logs.count(warning) != 0 {
		t.Error("a warning with all switches on")
	}
}

func TestDamagedDescriptionInTheBucket(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	topic := create(t, c, "t", 1, nil)
	create(t, c, "good", 1, nil)
	key := topicObject("t", topic.ID())
	for name, raw := range map[string][]byte{"short": []byte(`{"format":`), "long": make([]byte, maxDocumentBytes+1)} {
		putObject(t, b, key, raw)
		empty := newNode(t, b).start()
		known(t, empty)
		if _, err := empty.Topic("t"); !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s, on an empty disk: %v", name, err)
		}
		if _, err := empty.Topic("good"); err != nil {
			t.Errorf("%s, the other topic: %v", name, err)
		}
		if _, err := empty.CreateTopic(t.Context(), "t", 1, nil); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s, a new one of that name: %v", name, err)
		}
		if r := empty.Ready(); len(r.Damaged) != 1 || len(r.Degraded) != 1 {
			t.Errorf("%s: readiness is %+v", name, r)
		}
		stop(t, empty)
	}
	stop(t, c)
	// Whoever has the topic on disk writes it anew.
	known(t, n.start())
	eventually(t, "mended", func() bool {
		raw, _, err := b.Inner().Get(t.Context(), key, maxDocumentBytes)
		return err == nil && decodeDocument(key, formatTopic, raw, &topicData{}) == nil
	})
}

func TestDamagedTopicOnDiskIsRestoredFromTheBucket(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	n := newNode(t, b)
	c := n.start()
	known(t, c)
	topic := create(t, c, "t", 1, map[string]string{propFlush: "9"})
	stop(t, c)
	overwrite(t, n.fs, n.fs.PathJoin(c.disk.topicDir("t", topic.ID()), topicFile), func(b []byte) []byte { return b[1:] })
	c = n.start()
	known(t, c)
	if got, err := c.Topic("t"); err != nil || got.ID() != topic.ID() || got.Config()[propFlush].Value != "9" {
		t.Errorf("restored: %v, %v", got, err)
	}
	if r := c.Ready(); len(r.Damaged) != 0 {
		t.Errorf("readiness is %+v", r)
	}
}

// An older topic must not stand in for one that cannot be read.
func TestDamagedNewerTopicHidesTheOlder(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	old := &topicData{Name: "t", ID: newID(), Partitions: 1, CreatedMS: 1, Revision: 1}
	raw, err := encodeDocument(formatTopic, old)
	if err != nil {
		t.Fatal(err)
	}
	putObject(t, b, topicObject("t", old.ID), raw)
	putObject(t, b, topicObject("t", newID()), raw) // says it is the old one
	c := newNode(t, b).start()
	known(t, c)
	if _, err := c.Topic("t"); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("the topic: %v", err)
	}
}

func TestManyTopicsAreAdopted(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	const topics = 150
	for i := range topics {
		data := &topicData{Name: fmt.Sprintf("t%03d", i), ID: newID(), Partitions: 1, CreatedMS: 1, Revision: 1}
		raw, err := encodeDocument(formatTopic, data)
		if err != nil {
			t.Fatal(err)
		}
		putObject(t, b, topicObject(data.Name, data.ID), raw)
	}
	c := newNode(t, b).start()
	known(t, c)
	if len(c.Topics()) != topics {
		t.Errorf("%d topics, want %d", len(c.Topics()), topics)
	}
}

func TestFullDiskDoesNotLoseTopics(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	c := newNode(t, b).start()
	known(t, c)
	create(t, c, "a", 1, nil)
	create(t, c, "b", 1, nil)
	stop(t, c)

	n := newNode(t, b)
	full := &fullDisk{FS: n.fs}
	full.on.Store(true)
	n.fs = full
	c = n.start()
	eventually(t, "noticed", func() bool { _, err := c.remote.trouble(); return err != nil })
	if _, err := c.Topic("b"); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("a topic that does not fit: %v", err)
	}
	full.on.Store(false)
	known(t, c)
	for _, name := range []string{"a", "b"} {
		if _, err := c.Topic(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
