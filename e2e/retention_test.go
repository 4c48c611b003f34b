package e2e

import (
	"fmt"
	"testing"
)

const (
	retainedBytes   = 100_000
	retainedSegment = 16384
	retainedKeys    = 400
)

// TestRetention has a topic outgrow retention.bytes in both tiers, and then
// retention.ms: the oldest segments go, whole ones, from the bucket and from the
// local log, and no node says anything else afterwards, whatever it has lost.
func TestRetention(t *testing.T) {
	for _, backend := range []string{"minio", "dir"} {
		t.Run(backend, func(t *testing.T) { retention(t, sharedStore(t, backend)) })
	}
}

func retention(t *testing.T, newStore func() *store) {
	s := newStore()
	n := startNode(t, s)
	n.setCluster(remoteRead, true)
	n.indexed("t", 1, map[string]string{"segment.bytes": fmt.Sprint(retainedSegment), "cleanup.policy": "compact,delete",
		"retention.bytes": fmt.Sprint(retainedBytes), "keyhole.remote.compression.type": "producer"})
	keys := make([]string, retainedKeys)
	for i := range keys {
		keys[i] = coldKey(i) // its offset is i
	}
	n.fillCold("t", retainedKeys/2)
	n.evict("t", 1)
	replica := startReplica(t, newStore())
	records := make([]object, 0, retainedKeys/2)
	for i := retainedKeys / 2; i < retainedKeys; i++ {
		records = append(records, object{"key": []byte(coldKey(i)), "value": coldValue(i)})
	}
	n.produce("t", records)
	n.compact("t", 0) // applies retention

	v := s.view(t, "t", 0)
	start := v.manifest.StartOffset
	size := int64(0)
	for _, seg := range v.manifest.Segments {
		size += seg.Size
		if seg.BaseOffset < start {
			t.Errorf("a segment from %d to %d is left below the start, %d", seg.BaseOffset, seg.LastOffset, start)
		}
	}
	// One segment more would be enough without its oldest one.
	if size < retainedBytes || size > retainedBytes+2*retainedSegment || start < retainedKeys/2 {
		t.Errorf("%d bytes are left from offset %d on, want %d and at most a segment more", size, start, retainedBytes)
	}
	// read gives the answers of all keys. That a record is not retained becomes that
	// there is none once the index has forgotten it, which is a matter of time.
	read := func(n *node) map[string]full {
		t.Helper()
		answers := n.readAll("t", keys)
		for key, a := range answers {
			if a.status == 404 && (a.reason == "key_not_found" || a.reason == "not_retained") {
				answers[key] = full{status: 404}
			}
		}
		return answers
	}
	wantRetained := func(when string, n *node, start int64) map[string]full {
		t.Helper()
		answers := read(n)
		for i, key := range keys {
			a := answers[key]
			if here := a.status == 200 && a.body == string(coldValue(i)); here != (int64(i) >= start) || !here && a != (full{status: 404}) {
				t.Fatalf("%s: %s, with all from offset %d on retained: %.200q", when, key, start, fmt.Sprint(a))
			}
		}
		return answers
	}
	answers := wantRetained("by size", n, start)
	st := n.status("t", 0)
	if st.CloudStart == nil || *st.CloudStart != start || *st.LocalStart < start || *st.HighWatermark != retainedKeys {
		t.Errorf("status: cloud from %v, local from %v, high watermark %v, want from %d", st.CloudStart, *st.LocalStart, *st.HighWatermark, start)
	}
	l := newLedger("t", "", 0)
	l.adopt(keys[0], &sight{found: true, value: "v", place: place{0, 0}})
	next := map[int32]int64{0: retainedKeys}
	replica.reaches(t, l, next)
	// Retention has a manifest of its own behind the one of the last records.
	expires := func(n *node, key string) {
		t.Helper()
		poll(t, key+" expires at a replica", func() bool { return n.get("t", key).status == 404 })
	}
	expires(replica, keys[start-1])
	wantAll(t, "at a replica", wantRetained("at a replica", replica, start), answers)
	n.restart()
	wantAll(t, "after a restart", read(n), answers)
	n.evict("t", 1)
	n.kill()
	n.dropIndexes(t, 1)
	n.start()
	n.waitReady()
	wantAll(t, "without the index directory", read(n), answers)

	// Age takes what is left, but nothing that was not sealed before.
	if a := n.do("PUT", n.kv("t", "young"), nil, []byte("here")); a.status != 200 || a.header.Get("X-Kv-Offset") != fmt.Sprint(retainedKeys) {
		t.Fatalf("write: %v", a)
	}
	n.setTopic("t", object{"retention.ms": 0})
	n.compact("t", 0)
	wantRetained("by age", n, retainedKeys)
	v = s.view(t, "t", 0)
	if v.records > 0 || v.manifest.StartOffset != retainedKeys+1 || v.manifest.NextOffset != retainedKeys+1 {
		t.Errorf("by age: %d records are left, from %d to %d", v.records, v.manifest.StartOffset, v.manifest.NextOffset)
	}
	n.setTopic("t", object{"retention.ms": -1})
	n.setGrace(1000)
	poll(t, "the bucket has no segments", func() bool {
		n.gc()
		return len(s.segmentObjects(t, "t/")) == 0
	})
	next[0]++
	replica.reaches(t, l, next)
	expires(replica, keys[retainedKeys-1])
	wantRetained("by age, at a replica", replica, retainedKeys)
	replica.leave()
	n.leave()
	n.mustCheck("with nothing left")

	fresh := takeOver(t, s)
	wantRetained("on an empty disk", fresh, retainedKeys)
	if a := fresh.do("PUT", fresh.kv("t", "young"), nil, []byte("again")); a.status != 200 || a.header.Get("X-Kv-Offset") != fmt.Sprint(retainedKeys+1) {
		t.Errorf("the next write: %v at %s", a, a.header.Get("X-Kv-Offset"))
	}
	wantValue(t, "written after all that", fresh.get("t", "young"), []byte("again"), "local")
	fresh.leave()
}
