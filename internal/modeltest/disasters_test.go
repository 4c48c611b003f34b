package modeltest

import (
	"context"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// restart stops the node, does what is to be done meanwhile, and starts it.
func (w *world) restart(why string, meanwhile func()) {
	w.t.Helper()
	w.note("%s, weather %v", why, w.weather)
	w.stop()
	for _, t := range w.topics {
		for _, p := range t.parts {
			p.durable = p.next()
		}
	}
	meanwhile()
	w.unsteady = true
	w.start()
	w.calm()
}

// powerCut takes what was not synced, or some of it.
func (w *world) powerCut() {
	w.t.Helper()
	w.note("power cut, weather %v", w.weather)
	w.crash(w.rng)
	w.unsteady = true
	w.start()
	for _, t := range w.topics {
		for n, m := range t.parts {
			w.survive(t, n, m)
		}
	}
	w.calm()
}

// survive takes from the model what the power cut took from a partition.
func (w *world) survive(t *topicModel, n int, m *partModel) {
	w.t.Helper()
	p := w.partition(t, n)
	st := p.Status()
	for range 100 { // an index that needs the bucket keeps a partition from opening, but not its log
		if st.HighWatermark != nil {
			break
		}
		time.Sleep(time.Second)
		st = p.Status()
	}
	if st.HighWatermark == nil {
		w.t.Fatalf("%s/%d: log is not open after the power cut", t.name, n)
	}
	next := *st.HighWatermark
	if next < m.durable || next > m.next() {
		w.t.Fatalf("%s/%d: ends at %d after the power cut; %d were appended, %d are durable", t.name, n, next, m.next(), m.durable)
	}
	if next == m.next() {
		return
	}
	w.note("%s/%d lost offsets %d to %d, flush.ms %s", t.name, n, next, m.next()-1, t.props["flush.ms"])
	m.cut(next)
}

// loseDerived removes what can be made again: indexes, the local copy of the
// manifest and the chunk tables, sparse indexes.
func (w *world) loseDerived() {
	w.t.Helper()
	w.restart("lose derived files", func() {
		for _, t := range w.topics {
			for n := range t.parts {
				dir := w.fs.PathJoin(dataDir, "topics", t.name, t.id, strconv.Itoa(n))
				for _, sub := range []string{"kv_index", "remote"} {
					if w.rng.IntN(2) == 0 {
						w.note("remove %s of %s/%d", sub, t.name, n)
						if err := w.fs.RemoveAll(w.fs.PathJoin(dir, sub)); err != nil {
							w.t.Fatal(err)
						}
					}
				}
			}
		}
	})
}

// newDisk goes on with an empty disk where the bucket ends.
func (w *world) newDisk() {
	w.t.Helper()
	if w.bucket == nil {
		return
	}
	w.note("new disk")
	w.clear()
	for _, t := range w.topics {
		w.setTopic(t, "redpanda.remote.write", "true")
		for n := range t.parts {
			if _, err := w.partition(t, n).Evict(context.Background(), 0); err != nil {
				w.t.Fatalf("evict: %v", err)
			}
			w.status(t, n)
		}
	}
	w.settle()
	w.stop()
	w.fs = vfs.NewCrashableMem()
	w.start()
	w.cluster = make(map[string]any)
	w.switchOn()
}

// firstStore gives a node that has had none an object store, which it uploads
// everything to that it has.
func (w *world) firstStore() {
	w.t.Helper()
	if w.bucket != nil {
		return
	}
	w.restart("first store", w.giveStore)
}
