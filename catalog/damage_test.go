package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/partition"
	"keyhole/record"
)

// settle waits for all that the catalog does by itself without a timer.
func settle(t *testing.T, c *Catalog) {
	t.Helper()
	synctest.Wait()
	if !c.snap.Load().known {
		t.Fatal("topics of the bucket are not known")
	}
}

// A description that is damaged in the bucket costs nothing where the disk has
// the topic: it is written anew, and the log says so.
func TestDamagedDescriptionInTheBucketIsWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := objstoretest.NewFaulty(nil)
		n := newNode(t, b)
		c := n.start()
		settle(t, c)
		topic := create(t, c, "t", 1, nil)
		synctest.Wait()
		stop(t, c)
		key := topicObject("t", topic.ID())
		for _, bad := range [][]byte{{}, []byte("garbage"), bytes.Repeat([]byte{0}, 300), make([]byte, maxDocumentBytes+1)} {
			putObject(t, b, key, bad)
			before := n.logs.count("written anew")
			c := n.start()
			settle(t, c)
			if _, err := c.Topic("t"); err != nil {
				t.Fatal(err)
			}
			if topicInBucket(t, b, topic) == nil {
				t.Fatal("not written anew")
			}
			if n.logs.count("written anew") != before+1 {
				t.Error("the log does not tell")
			}
			stop(t, c)
		}
	})
}

// Every byte of every document on disk is damaged in turn. Either the document
// says the same as before, or the node refuses to start and names the file, or
// the topic answers with the damage while the others are served.
func TestEveryByteOfTheDocuments(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	base := vfs.NewMem()
	write := func(fs vfs.FS, path string, b []byte) {
		t.Helper()
		if err := manifest.WriteFile(fs, path, b); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t, nil)
	n.fs = base
	c := n.start()
	allOn(t, c)
	topic := create(t, c, "t", 1, map[string]string{propTopicIndex: "true"})
	create(t, c, "other", 1, nil)
	stop(t, c)
	d := disk{base, dataDir}
	topicPath := base.PathJoin(d.topicDir("t", topic.ID()), topicFile)
	for _, path := range []string{d.path(nodeFile), d.path(configFile), topicPath} {
		sound, err := manifest.ReadFile(base, path, maxDocumentBytes)
		if err != nil {
			t.Fatal(err)
		}
		for at := range len(sound) + 2 {
			bad := bytes.Clone(sound)
			what := fmt.Sprintf("%s, byte %d", path, at)
			switch at {
			case len(sound):
				bad, what = []byte{}, path+", empty"
			case len(sound) + 1:
				bad, what = bytes.Repeat([]byte{'x'}, maxDocumentBytes+1), path+", too long"
			default:
				bad[at] ^= 1 << rng.IntN(8)
			}
			write(base, path, bad)
			c, err := n.open()
			if err != nil {
				// The number of the version stands outside of the checksum. One from
				// the future stops the node whatever document has it.
				future := strings.Contains(err.Error(), "this program knows version")
				if !future && (path == topicPath || !errors.Is(err, record.ErrCorrupt)) || !strings.Contains(err.Error(), path) {
					t.Fatalf("%s: %v", what, err)
				}
				continue
			}
			if _, err := c.Topic("other"); err != nil {
				t.Errorf("%s: the other topic: %v", what, err)
			}
			switch got, err := c.Topic("t"); {
			case err == nil:
				if got.ID() != topic.ID() || got.NumPartitions() != 1 || got.Config()[propTopicIndex].Value != "true" || c.ClusterConfig()[propIndexEnabled] != true || c.node.NodeID == "" {
					t.Errorf("%s: passed for another document", what)
				}
			case !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), topicPath) || len(c.Ready().Damaged) != 1:
				t.Errorf("%s: %v, %+v", what, err, c.Ready())
			}
			stop(t, c)
		}
		write(base, path, sound)
	}
}

// A damaged cluster.json is neither a stranger's bucket nor an empty one: what is
// on disk is served, nothing is written, and the state says why.
func TestDamagedClusterObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := objstoretest.NewFaulty(nil)
		n := newNode(t, b)
		c := n.start()
		settle(t, c)
		allOn(t, c)
		topic := cold(t, c, "t")
		p := serving(t, topic, 0)
		appendKeys(t, p, 100, 110)
		stop(t, c)
		sound, _, err := b.Inner().Get(t.Context(), clusterObject, maxDocumentBytes)
		if err != nil {
			t.Fatal(err)
		}
		putObject(t, b, clusterObject, sound[:len(sound)/2])
		b.ResetCalls()
		c = n.start()
		synctest.Wait()
		topic, err = c.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		p = serving(t, topic, 0)
		if _, err := find(t, p, 105); err != nil {
			t.Errorf("hot key: %v", err)
		}
		if _, err := find(t, p, 5); !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("cold key: %v", err)
		}
		if _, err := c.Topic("never made"); !errors.Is(err, ErrBucketUnknown) {
			t.Errorf("topic that is not there: %v", err)
		}
		if r := c.Ready(); !r.Ready || len(r.Degraded) == 0 || !strings.Contains(strings.Join(r.Degraded, " "), clusterObject) {
			t.Errorf("%+v", r)
		}
		if b.Count(objstoretest.OpPut, objstoretest.OpDelete) > 0 {
			t.Error("written to a bucket that is not known to be ours")
		}
		stop(t, c)

		// An index that needs the bucket waits until the object is mended.
		if err := n.fs.RemoveAll(n.fs.PathJoin(dataDir, topicsDir, "t", topic.ID(), "0", "kv_index")); err != nil {
			t.Fatal(err)
		}
		c = n.start()
		time.Sleep(time.Minute)
		if topic, err = c.Topic("t"); err != nil {
			t.Fatal(err)
		}
		if p, err = topic.Partition(0); err != nil {
			t.Fatal(err)
		}
		if _, err := find(t, p, 105); !errors.Is(err, partition.ErrNotReady) {
			t.Errorf("hot key without an index: %v", err)
		}
		putObject(t, b, clusterObject, sound)
		time.Sleep(2 * time.Minute)
		settle(t, c)
		for _, key := range []int{5, 105} {
			if _, err := find(t, p, key); err != nil {
				t.Errorf("key-%d, bucket mended: %v", key, err)
			}
		}
		stop(t, c)
	})
}
