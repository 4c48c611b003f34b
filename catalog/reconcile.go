package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// reconcile compares what the bucket has with what this disk has and makes the
// catalog know every topic:
//
//	only in the bucket, alive      adopted: written to disk, opened
//	only in the bucket, deleted    left to the sweeper
//	on both, bucket behind         the keeper writes the bucket's copy anew
//	on both, deleted there         deleted here: somebody did so through another node
//	only here, never uploaded      the keeper uploads it
//	only here, once there          gone: kept, and kept out of the bucket, see ErrTopicGone
//	on both, another id there      this disk's topic stays; reported if that id is newer
//	damaged in the bucket          the name answers with the damage, unless this disk has the topic
//
// An error leaves topics unknown; what has been adopted by then stays.
func (c *Catalog) reconcile(ctx context.Context, found []*foundTopic) error {
	if err := c.deleteMarked(ctx, found); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	s := c.snap.Load()
	var notes []string
	note := func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf(format, args...))
		c.o.Logger.Error(notes[len(notes)-1])
	}

	inBucket := make(map[string]*foundTopic, len(found)) // by id
	newest := make(map[string]*foundTopic)               // by name, alive
	broken := make(map[string]error)                     // by name
	for _, f := range found {
		inBucket[f.id] = f
		local := s.byName[f.name]
		switch {
		case c.gone[f.id]:
		case f.err != nil && (local == nil || local.id != f.id):
			broken[f.name] = f.err
			note("topic %s: its description in the bucket cannot be read: %v", f.name, f.err)
		case f.err != nil:
			c.o.Logger.Warn("description of a topic in the bucket is written anew", "topic", f.name, "id", f.id, "err", f.err)
		case f.data == nil:
		case f.data.DeletedMS != 0:
			c.sweeper.add(f.data)
		default:
			if have := newest[f.name]; have == nil || f.data.newerThan(have.data) {
				newest[f.name] = f
			}
		}
	}
	for _, t := range s.sorted {
		data := t.config.Load().data
		switch f := inBucket[t.id]; {
		case f == nil && !t.gate.isOpen() && c.disk.onceStored(data):
			c.vanish(t)
			continue
		case f == nil || f.data == nil || f.data.Revision < data.Revision:
			c.keeper.add(data, t.gate)
		default:
			c.noteStoredLocked(t)
			t.gate.open()
		}
		if n := newest[t.name]; n != nil && n.id != t.id && n.data.newerThan(data) {
			note("topic %s: the bucket has a newer topic of this name with id %s; this node serves id %s", t.name, n.id, t.id)
		}
	}
	var adopted []*Topic
	var failed error
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		f := newest[name]
		switch {
		case s.byName[name] != nil:
			continue
		case broken[name] != nil:
			continue // the one that cannot be read may be the newer one
		case s.broken[name] != nil && !c.disk.hasTopicDir(name, f.id):
			note("topic %s: damaged on this disk, and the bucket only has another topic of this name, with id %s", name, f.id)
			continue
		}
		t, err := c.adoptLocked(f.data)
		if err != nil {
			failed = err
			break
		}
		adopted = append(adopted, t)
	}
	c.publishLocked(func(s *snapshot) {
		for _, t := range adopted {
			s.byName[t.name] = t
			delete(s.broken, t.name)
		}
		maps.Copy(s.broken, broken)
		s.known = failed == nil
	})
	c.remote.note(notes)
	c.warnOfSwitches(adopted)
	return failed
}

// warnOfSwitches says what keeps lookups of topics that have just been adopted
// from being answered. The bucket has the topics, but not the switches: those
// are each disk's own, and an empty one begins with all of them off.
func (c *Catalog) warnOfSwitches(adopted []*Topic) {
	sw := c.switches.Load()
	var off []string
	if sw.features[FeatureIndex] != StateActive {
		off = append(off, FeatureIndex)
	}
	if !sw.indexEnabled {
		off = append(off, propIndexEnabled)
	}
	if !sw.remoteRead {
		off = append(off, propRemoteRead)
	}
	if len(adopted) > 0 && len(off) > 0 {
		c.o.Logger.Warn("topics were adopted from the bucket, and switches of this disk are off: lookups answer 404 until they are set (keyhole config set)",
			"topics", len(adopted), "off", off)
	}
}

// adoptLocked brings a topic of the bucket onto this disk and opens it.
func (c *Catalog) adoptLocked(data *topicData) (*Topic, error) {
	if err := c.disk.writeTopic(data); err != nil {
		return nil, fmt.Errorf("adopt topic %s: %w", data.Name, err)
	}
	t, err := c.openLocked(data, false)
	if err != nil {
		return nil, fmt.Errorf("adopt topic %s: %w", data.Name, err)
	}
	c.noteStoredLocked(t)
	t.gate.open()
	c.o.Logger.Info("topic adopted from the bucket", "topic", data.Name, "id", data.ID, "partitions", data.Partitions)
	return t, nil
}

// deleteMarked deletes the topics of this disk that the bucket marks as deleted.
func (c *Catalog) deleteMarked(ctx context.Context, found []*foundTopic) error {
	for _, f := range found {
		if f.data == nil || f.data.DeletedMS == 0 {
			continue
		}
		t, err := c.beginDeletion(f.data.DeletedMS, func(s *snapshot) (*Topic, error) {
			if t := s.byName[f.name]; t != nil && t.id == f.id {
				return t, nil
			}
			return nil, nil
		})
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		_, err = c.finishDeletion(ctx, t)
		c.wg.Done()
		if err != nil {
			return err
		}
	}
	return nil
}
