package e2e

import (
	"bytes"
	"strings"
	"testing"
)

// TestTakenOver starts a second node on the bucket of a first one that knows
// nothing of it: the newer one wins, the older one stops where it would have
// written, and does not come back with what it alone holds. Cases 2-12, 7-17,
// 7-18.
func TestTakenOver(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		older := coldNode(t, s)
		put := func(n *node, key string, status int) {
			t.Helper()
			if a := n.do("PUT", n.kv(coldTopic, key), nil, []byte("value of "+key)); a.status != status {
				t.Errorf("put %s: %v, want %d", key, a, status)
			}
		}
		put(older, "late", 200)
		newer := newNode(t, s)
		newer.start()
		newer.waitReady()
		takesOver(t, newer)
		put(newer, "mine", 200)
		evict := "/v1/cloud_storage/evict/" + coldTopic + "/0"
		older.adminJSON("POST", evict, object{"local_target_bytes": 0}, 421, nil)
		fenced := func(when string) {
			t.Helper()
			want(t, when+": its own record", older.get(coldTopic, "late"), 421, "not_hosted")
			want(t, when+": a cold record", older.get(coldTopic, coldKey(1)), 421, "not_hosted")
			want(t, when+": an absent key", older.get(coldTopic, "nobody"), 421, "not_hosted")
			put(older, "later", 421)
		}
		fenced("after its upload was refused")

		newer.evict(coldTopic, 1)
		wantValue(t, "the newer node goes on", newer.get(coldTopic, "mine"), []byte("value of mine"), "remote")
		before := s.manifest(t, coldTopic, 0)

		older.stop()
		r := older.check()
		if said := r.stdout + r.stderr; r.code != 1 || !strings.Contains(said, coldTopic) {
			t.Errorf("check of the disk that was overtaken: exit %d, want 1 and what is on it alone:\n%s", r.code, said)
		}
		older.start()
		poll(t, "the overtaken disk does not serve after a restart", func() bool {
			a, err := older.try("GET", older.kv(coldTopic, coldKey(1)), nil, nil)
			return err == nil && a.status == 421
		})
		fenced("after a restart")
		if !bytes.Equal(before, s.manifest(t, coldTopic, 0)) {
			t.Error("the overtaken disk changed the manifest")
		}
		put(newer, "more", 200)
		newer.evict(coldTopic, 1)
		wantValue(t, "the newer node is not disturbed", newer.get(coldTopic, "more"), []byte("value of more"), "remote")
		older.stop()
		newer.stop()
	})
}
