package catalog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"keyhole/manifest"
)

// ErrTopicGone refuses to write to or alter a topic that the bucket once had and
// has nothing of any more. Somebody has deleted it through another node, and its
// objects have been swept, or it was removed by hand. What this disk has of it
// would be a topic with holes, so nothing of it goes into the bucket again; it can
// be deleted here, and its files stay until then.
var ErrTopicGone = errors.New("topic is gone from the bucket")

// storedFile is an empty file in a topic's directory: its description has been in
// the bucket. Without it a missing description could as well be one that was never
// uploaded.
const storedFile = "stored"

// onceStored reports whether the bucket has ever had anything of a topic. A
// partition's copy of the manifest says so too, in directories from before there
// was storedFile.
func (d disk) onceStored(t *topicData) bool {
	dir := d.topicDir(t.Name, t.ID)
	if _, err := d.fs.Stat(d.fs.PathJoin(dir, storedFile)); err == nil {
		return true
	}
	for n := range t.Partitions {
		if _, err := d.fs.Stat(d.fs.PathJoin(dir, strconv.Itoa(int(n)), "remote", "manifest.json")); err == nil {
			return true
		}
	}
	return false
}

// noteStoredLocked makes durable that the bucket has had the topic's description.
// If that fails, the next start does it.
func (c *Catalog) noteStoredLocked(t *Topic) {
	if t.stored {
		return
	}
	path := c.disk.fs.PathJoin(c.disk.topicDir(t.name, t.id), storedFile)
	if _, err := c.disk.fs.Stat(path); err != nil {
		if err := manifest.WriteFile(c.disk.fs, path, nil); err != nil {
			c.o.Logger.Warn("cannot note that the bucket has a topic", "topic", t.name, "err", err)
			return
		}
	}
	t.stored = true
}

// stored follows up on a description that has reached the bucket: the note first,
// so that whoever sees the gate shut and the note knows that both are of a run
// before this one.
func (c *Catalog) stored(data *topicData) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.snap.Load().byName[data.Name]; t != nil && t.id == data.ID {
		c.noteStoredLocked(t)
	}
}

// vanish notes that the bucket has nothing of the topic any more.
func (c *Catalog) vanish(t *Topic) {
	if t.gate.gone.Swap(true) {
		return
	}
	c.keeper.drop(t.id)
	c.o.Logger.Error("topic is gone from the bucket, so nothing of it is written there", "topic", t.name, "id", t.id)
}

// isGone reports what vanish has noted.
func (t *Topic) isGone() bool { return t.gate != nil && t.gate.gone.Load() }

// advice tells an operator what to do about a topic that is gone.
func (t *Topic) advice() string {
	return fmt.Sprintf("topic %s is gone from the bucket: deleted through another node? writes to it are refused; `keyhole topic delete %s` removes it here", t.name, t.name)
}

// lookWhetherGone is for a topic whose description was not in the bucket just now.
// before says that the bucket had had it before that question was asked.
func (c *Catalog) lookWhetherGone(ctx context.Context, t *Topic, before bool) error {
	if !before || t.isGone() {
		return nil
	}
	left, err := c.listSome(ctx, topicPrefix(t.name, t.id), "")
	if err != nil || len(left) > 0 {
		return err
	}
	c.vanish(t)
	return nil
}
