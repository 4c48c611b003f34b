package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func newReplica(t testing.TB, bucket objstore.Bucket) *node {
	n := newNode(t, bucket)
	n.replica = true
	return n
}

// startWriter is a writer with everything on.
func startWriter(t testing.TB, bucket objstore.Bucket) *Catalog {
	t.Helper()
	c := newNode(t, bucket).start()
	known(t, c)
	allOn(t, c)
	return c
}

// looked waits until the follower has come to the end of a look that began after
// the call.
func looked(t testing.TB, c *Catalog, b *objstoretest.Faulty) {
	t.Helper()
	before := b.CountKey("", objstoretest.OpListPrefixes)
	c.wakeFollower()
	eventually(t, "a look at the bucket", func() bool {
		if b.CountKey("", objstoretest.OpListPrefixes) < before+2 {
			c.wakeFollower() // the look that was under way may have begun earlier
			return false
		}
		return true
	})
}

func noWrites(t testing.TB, b *objstoretest.Faulty) {
	t.Helper()
	for _, call := range b.Calls() {
		if call.Op == objstoretest.OpPut || call.Op == objstoretest.OpDelete {
			t.Errorf("a read replica wrote: %+v", call)
		}
	}
}

// seenBy gives a view of a shared bucket of its own, so that its calls can be
// told from those of the writer.
func seenBy(b *objstoretest.Faulty) *objstoretest.Faulty { return objstoretest.NewFaulty(b.Inner()) }

func TestReplicaFollowsTheTopicsOfTheBucket(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	orders := create(t, w, "orders", 2, map[string]string{propTopicIndex: "true"})
	create(t, w, "prices", 1, nil)

	rb := seenBy(b)
	n := newReplica(t, rb)
	r := n.start()
	known(t, r)
	got, err := r.Topic("orders")
	if err != nil || got.ID() != orders.ID() || got.NumPartitions() != 2 {
		t.Fatalf("adopted: %v, %v", got, err)
	}
	// Being asked to read the bucket is what the role says: the switches are on.
	if s := partitionSettings(got.config.Load(), r.switches.Load()); !s.IndexActive || !s.RemoteRead || s.RemoteWrite {
		t.Errorf("settings are %+v", s)
	}
	if n.logs.count("switches of this disk are off") != 0 {
		t.Error("it warns of switches")
	}

	create(t, w, "late", 1, nil)
	if err := w.AlterTopic(t.Context(), "orders", map[string]string{propSegmentBytes: "4096"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteTopic(t.Context(), "prices"); err != nil {
		t.Fatal(err)
	}
	gone, err := r.Topic("prices")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change in the bucket", func() bool { return topicInBucket(t, b, orders).Properties[propSegmentBytes] == "4096" })
	r.wakeFollower()
	eventually(t, "the new topic", func() bool { r.wakeFollower(); _, err := r.Topic("late"); return err == nil })
	eventually(t, "the change", func() bool { r.wakeFollower(); return got.Config()[propSegmentBytes].Value == "4096" })
	eventually(t, "the deletion", func() bool {
		r.wakeFollower()
		_, err := r.Topic("prices")
		return errors.Is(err, ErrTopicNotFound) && !r.disk.hasTopicDir("prices", gone.ID())
	})
	if again, err := r.Topic("orders"); err != nil || again != got {
		t.Errorf("the changed topic was opened anew: %v", err)
	}
	if len(deletionMarks(t, r)) != 0 {
		t.Error("a replica keeps a mark of the deletion")
	}
	stop(t, r)
	noWrites(t, rb)

	// What was applied is on disk, and the store is not needed to know it.
	failing(rb, objstore.ErrUnavailable, everything)
	r = n.start()
	if got, err := r.Topic("orders"); err != nil || got.Config()[propSegmentBytes].Value != "4096" {
		t.Errorf("without the store: %v, %v", got, err)
	}
	if _, err := r.Topic("prices"); !errors.Is(err, ErrBucketUnknown) {
		t.Errorf("without the store, the deleted topic: %v", err)
	}
}

func TestReplicaFollowsARecreatedTopic(t *testing.T) { // case 3-31
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	old := create(t, w, "t", 1, nil)
	rb := seenBy(b)
	r := newReplica(t, rb).start()
	known(t, r)
	if err := w.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	anew := create(t, w, "t", 3, nil)
	eventually(t, "both in the bucket", func() bool {
		d := topicInBucket(t, b, old)
		return d != nil && d.DeletedMS != 0 && topicInBucket(t, b, anew) != nil
	})
	looked(t, r, rb)
	eventually(t, "the new one, and nothing of the old", func() bool {
		got, err := r.Topic("t")
		return err == nil && got.ID() == anew.ID() && got.NumPartitions() == 3 && !r.disk.hasTopicDir("t", old.ID())
	})
	if !r.disk.hasTopicDir("t", anew.ID()) {
		t.Error("the new one's files are gone")
	}

	// Swept meanwhile: no mark is left to be seen.
	if err := w.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "marked", func() bool { return topicInBucket(t, b, anew).DeletedMS != 0 })
	for _, key := range keysBelow(t, b, "t/") {
		if err := b.Inner().Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "gone", func() bool {
		r.wakeFollower()
		_, err := r.Topic("t")
		return errors.Is(err, ErrTopicNotFound) && !r.disk.hasTopicDir("t", anew.ID())
	})
	if _, err := r.disk.fs.Stat(r.disk.path(topicsDir, "t")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the name: %v", err)
	}
	noWrites(t, rb)
}

func TestReplicaWaitsForAWriter(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	rb := seenBy(b)
	r := newReplica(t, rb).start()
	eventually(t, "noticed", func() bool { _, err := r.remote.trouble(); return errors.Is(err, errNoWriter) })
	if _, err := r.Topic("t"); !errors.Is(err, ErrBucketUnknown) || !errors.Is(err, errNoWriter) {
		t.Errorf("a topic: %v", err)
	}
	if s := r.Ready(); s.Ready || len(s.NotReady) != 1 || !strings.Contains(s.NotReady[0].Reason, "no writer has used it") {
		t.Errorf("readiness is %+v", s)
	}
	if len(r.Failed()) != 0 {
		t.Error("it gives up")
	}
	w := startWriter(t, b)
	create(t, w, "t", 1, nil)
	eventually(t, "the topic", func() bool { r.wakeFollower(); _, err := r.Topic("t"); return err == nil })
	noWrites(t, rb)
}

func TestReplicaRefusesChanges(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	create(t, w, "t", 1, nil)
	rb := seenBy(b)
	n := newReplica(t, rb)
	r := n.start()
	known(t, r)
	for name, err := range map[string]error{
		"create": func() error { _, err := r.CreateTopic(t.Context(), "u", 1, nil); return err }(),
		"delete": r.DeleteTopic(t.Context(), "t"),
		"alter":  r.AlterTopic(t.Context(), "t", map[string]string{propFlush: "1"}, nil),
		"gc":     func() error { _, err := r.Collect(t.Context(), CollectOptions{Partition: -1}); return err }(),
		"check":  r.CheckWriter(),
	} {
		if !errors.Is(err, ErrReadReplica) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.TopicForWrite(t.Context(), "u"); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("a write to an unknown topic: %v", err)
	}
	// Not by anyone's good will: what partitions get cannot be written either.
	topic, err := r.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []objstore.Bucket{r.o.Bucket, &gatedBucket{Bucket: r.o.Bucket, gate: topic.gate}} {
		if _, err := bucket.Put(t.Context(), "t/x", strings.NewReader(""), 0, objstore.Condition{}); !errors.Is(err, objstore.ErrReadOnly) {
			t.Errorf("put: %v", err)
		}
		if err := bucket.Delete(t.Context(), "t/x"); !errors.Is(err, objstore.ErrReadOnly) {
			t.Errorf("delete: %v", err)
		}
	}
	// Switches are the node's own.
	if _, err := r.AlterCluster(t.Context(), map[string]any{propRemoteRead: false}, nil); err != nil {
		t.Errorf("a switch: %v", err)
	}
	if err := r.SetFeature(t.Context(), FeatureIndex, StateDisabled); err != nil {
		t.Errorf("a feature: %v", err)
	}
	stop(t, r)
	r = n.start()
	if r.ClusterConfig()[propRemoteRead] != false || r.Features()[0].State != StateDisabled {
		t.Error("a restart switched on what somebody had switched off")
	}
	noWrites(t, rb)
}

func TestRolesDoNotShareADirectory(t *testing.T) {
	for _, replica := range []bool{false, true} {
		n := newNode(t, objstoretest.NewFaulty(nil))
		n.replica = replica
		stop(t, n.start())
		n.replica = !replica
		c, err := n.open()
		if err == nil {
			stop(t, c)
			t.Fatalf("a directory of replica=%v opens as the other", replica)
		}
		if !strings.Contains(err.Error(), "read replica") {
			t.Errorf("the error is %q", err)
		}
		n.replica = replica
		stop(t, n.start()) // it is left as it was
		dir, err := ReadDirectory(n.fs, n.dir)
		if err != nil || dir.ReadReplica != replica {
			t.Errorf("inspected: replica %v, %v", dir.ReadReplica, err)
		}
	}
	n := newReplica(t, nil)
	if _, err := n.open(); err == nil {
		t.Error("a read replica starts without a store")
	}
	n = newReplica(t, objstoretest.NewFaulty(nil))
	n.dev = true
	if _, err := n.open(); err == nil {
		t.Error("a read replica starts that makes topics")
	}
}

// A bucket that was emptied, or is another one, does not pass for one whose
// topics were deleted; one that is away makes unknown names unknown again.
func TestReplicaDoesNotTakeTroubleForDeletion(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	topic := create(t, w, "t", 1, nil)
	rb := seenBy(b)
	r := newReplica(t, rb).start()
	known(t, r)
	raw, _, err := b.Inner().Get(t.Context(), clusterObject, maxDocumentBytes)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := encodeDocument(formatCluster, &clusterData{ClusterID: newID(), CreatedMS: 1})
	if err != nil {
		t.Fatal(err)
	}
	trouble := func(what string, want error) {
		t.Helper()
		eventually(t, what+" noticed", func() bool {
			r.wakeFollower()
			_, err := r.Topic("none")
			return errors.Is(err, ErrBucketUnknown) && errors.Is(err, want)
		})
		if got, err := r.Topic("t"); err != nil || got.ID() != topic.ID() {
			t.Errorf("%s: the topic: %v", what, err)
		}
		if s := r.Ready(); len(s.Degraded) == 0 {
			t.Errorf("%s: readiness is %+v", what, s)
		}
	}
	mended := func() {
		t.Helper()
		eventually(t, "mended", func() bool {
			r.wakeFollower()
			_, err := r.Topic("none")
			return errors.Is(err, ErrTopicNotFound)
		})
	}
	if err := b.Inner().Delete(t.Context(), clusterObject); err != nil {
		t.Fatal(err)
	}
	trouble("emptied", errEmptied)
	putObject(t, b, clusterObject, foreign)
	trouble("foreign", errForeign)
	putObject(t, b, clusterObject, raw)
	mended()
	failing(rb, objstore.ErrDenied, func(c objstoretest.Call) bool { return c.Op == objstoretest.OpListPrefixes })
	trouble("denied", objstore.ErrDenied)
	rb.Before(nil)
	mended()
	key := topicObject("t", topic.ID())
	good, _, err := b.Inner().Get(t.Context(), key, maxDocumentBytes)
	if err != nil {
		t.Fatal(err)
	}
	putObject(t, b, key, []byte("{"))
	looked(t, r, rb)
	if got, err := r.Topic("t"); err != nil || got.ID() != topic.ID() {
		t.Errorf("a damaged description: %v", err)
	}
	said := func() bool {
		return slices.ContainsFunc(r.Ready().Degraded, func(s string) bool { return strings.Contains(s, "its description in the bucket cannot be read") })
	}
	eventually(t, "said", said)
	fresh := newReplica(t, seenBy(b)).start()
	known(t, fresh)
	if _, err := fresh.Topic("t"); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a damaged description, on an empty disk: %v", err)
	}
	putObject(t, b, key, good)
	looked(t, r, rb)
	eventually(t, "good again", func() bool { return !said() })
	eventually(t, "adopted", func() bool { fresh.wakeFollower(); _, err := fresh.Topic("t"); return err == nil })
	if got, err := r.Topic("t"); err != nil || got.ID() != topic.ID() {
		t.Errorf("in the end: %v", err)
	}
	noWrites(t, rb)
}

// A look at a bucket that has not changed reads no body.
func TestReplicaAsksByConditions(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	for _, name := range []string{"a", "b", "c"} {
		create(t, w, name, 1, nil)
	}
	rb := seenBy(b)
	r := newReplica(t, rb).start()
	known(t, r)
	looked(t, r, rb)
	whole := func() (keys []string) {
		for _, call := range rb.Calls() {
			if call.Op == objstoretest.OpGet && (strings.HasSuffix(call.Key, topicFile) || call.Key == clusterObject) {
				keys = append(keys, call.Key)
			}
		}
		return keys
	}
	before := len(whole())
	if before != 4 {
		t.Errorf("at first %d documents were read: %v", before, whole())
	}
	rb.ResetCalls()
	looked(t, r, rb)
	if keys := whole(); len(keys) != 0 {
		t.Errorf("read again: %v", keys)
	}
	if rb.Count(objstoretest.OpGetIfChanged) < 4 {
		t.Error("nothing was asked")
	}
}

// What a crash left of dropped topics goes, and what is on disk of a topic that
// is served stays.
func TestReplicaTidiesItsDisk(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	topic := create(t, w, "t", 1, nil)
	n := newReplica(t, b)
	r := n.start()
	known(t, r)
	stop(t, r)
	strays := []*topicData{
		{Name: "gone", ID: newID(), Partitions: 1, CreatedMS: 1, Revision: 1},
		{Name: "t", ID: newID(), Partitions: 1, CreatedMS: 1, Revision: 1},
	}
	for _, data := range strays {
		if err := r.disk.writeTopic(data); err != nil {
			t.Fatal(err)
		}
	}
	half := r.disk.path(topicsDir, "half", newID(), "0") // no topic.json
	if err := n.fs.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	r = n.start()
	known(t, r)
	eventually(t, "tidied", func() bool {
		found, err := r.disk.topicFolders()
		return err == nil && len(found) == 1 && found[0].id == topic.ID()
	})
	if got := r.Topics(); len(got) != 1 || got[0].ID() != topic.ID() {
		t.Errorf("topics are %v", got)
	}
}

// Any number of them beside one writer, and none moves the writer's claim.
func TestReplicasBesideAWriter(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	topic := cold(t, w, "t")
	p := serving(t, topic, 0)
	before, err := p.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rb := seenBy(b)
	for range 3 {
		r := newReplica(t, rb).start()
		known(t, r)
		got, err := r.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		got.awaitOpened(ctx)
		cancel()
		stop(t, r)
	}
	noWrites(t, rb)
	after, err := p.Manifest(t.Context())
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("the manifest became %s, was %s, %v", after, before, err)
	}
	if lost, err := p.CheckOwner(t.Context()); lost || err != nil {
		t.Errorf("the writer lost the partition: %v, %v", lost, err)
	}
}

// Whichever request fails, a topic of the bucket is served or not known yet, and
// never said not to exist; and in the end it is served.
func TestReplicaLooksAgainAfterAnyFault(t *testing.T) {
	b := objstoretest.NewFaulty(nil)
	w := startWriter(t, b)
	for _, name := range []string{"a", "b"} {
		create(t, w, name, 1, nil)
	}
	for k := int64(0); ; k++ {
		rb := seenBy(b)
		var calls atomic.Int64
		rb.Before(func(_ context.Context, call objstoretest.Call) error {
			if strings.HasSuffix(call.Key, "manifest.json") {
				return nil // the partitions', at any time
			}
			if calls.Add(1) == k+1 {
				return &objstore.OpError{Op: string(call.Op), Key: call.Key, Kind: objstore.ErrUnavailable}
			}
			return nil
		})
		r := newReplica(t, rb).start()
		eventually(t, fmt.Sprintf("both topics after a fault of call %d", k), func() bool {
			for _, name := range []string{"a", "b"} {
				if _, err := r.Topic(name); errors.Is(err, ErrBucketUnknown) {
					return false
				} else if err != nil {
					t.Fatalf("call %d: topic %s: %v", k, name, err)
				}
			}
			return true
		})
		stop(t, r)
		noWrites(t, rb)
		if calls.Load() <= k {
			if k < 6 {
				t.Errorf("only %d calls were there to fail", k)
			}
			return
		}
	}
}
