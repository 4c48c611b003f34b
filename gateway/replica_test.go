package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// writerNode is a node with a topic "orders" of small segments and its index, and
// with everything on.
func writerNode(t *testing.T, store *objstoretest.Faulty) *testServer {
	t.Helper()
	ts := startNode(t, store)
	ts.ready()
	ts.ask("PUT", "/v1/features/kv_index", `{"state":"active"}`, 200)
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_enabled":true,"kv_index_remote_read_enabled":true}}`, 200)
	ts.ask("POST", "/v1/topics", `{"name":"orders","configs":{"redpanda.kv.index.enabled":true,"segment.bytes":4096,"min.cleanable.dirty.ratio":"1"}}`, 201)
	ts.ready()
	return ts
}

func (ts *testServer) putKeys(n int, value string) {
	ts.t.Helper()
	for i := range n {
		ts.do(http.MethodPut, fmt.Sprint("/kv/orders/k", i), strings.Repeat(fmt.Sprint(value, i, ","), 100)).want(ts.t, "PUT", 200)
	}
}

func (ts *testServer) evict() {
	ts.t.Helper()
	ts.ask("POST", "/v1/cloud_storage/evict/orders/0", `{"local_target_bytes":0}`, 200)
}

func TestReplicaOverHTTP(t *testing.T) {
	shared := objstoretest.NewFaulty(nil)
	w := writerNode(t, shared)
	w.putKeys(20, "a")
	w.do(http.MethodDelete, "/kv/orders/k7", "").want(t, "DELETE", 200)
	w.evict()

	store := objstoretest.NewFaulty(shared.Inner())
	r := startNodeAs(t, store, true)
	r.ask("PUT", "/v1/cluster_config", `{"upsert":{"read_replica_refresh_ms":20}}`, 200)
	waitFor(t, "the topic", func() bool { return r.get("/kv/orders/k1").status == 200 })
	r.ready()
	same := func() {
		t.Helper()
		for i := range 21 {
			target := fmt.Sprint("/kv/orders/k", i)
			want, got := w.get(target), r.get(target)
			if got.status != want.status || got.body != want.body {
				t.Errorf("%s: %v\nthe writer: %v", target, got, want)
			}
			for _, name := range []string{"ETag", "X-Kv-Partition", "X-Kv-Offset", "X-Kv-Timestamp", "X-Kv-Position", "X-Kv-Reason"} {
				if got.header.Get(name) != want.header.Get(name) {
					t.Errorf("%s: %s is %q, the writer's %q", target, name, got.header.Get(name), want.header.Get(name))
				}
			}
		}
	}
	same()
	hit := r.get("/kv/orders/k1")
	r.get("/kv/orders/k1", "If-None-Match: "+hit.header.Get("ETag")).want(t, "conditional", 304)

	// A write belongs elsewhere, and so says every form of it.
	r.do(http.MethodPut, "/kv/orders/k1", "x").refused(t, "PUT", 421, "not_hosted", "partition not hosted on this node")
	r.do(http.MethodDelete, "/kv/orders/k1", "").refused(t, "DELETE", 421, "not_hosted", "partition not hosted on this node")
	const why = `"detail":"this node is a read replica`
	if got := r.do(http.MethodPut, "/kv/orders/k1", "x"); !strings.Contains(got.body, why) {
		t.Errorf("PUT does not say why: %v", got)
	}
	post := raw(t, r.data, "POST", request("POST", "/topics/orders", `{"records":[{"key":"k","value":1}]}`, "Content-Type: application/vnd.kafka.json.v2+json"))
	if post.want(t, "POST", 421); !strings.Contains(post.body, `"error_code":42101`) || !strings.Contains(post.body, why) {
		t.Errorf("POST: %v", post)
	}
	r.do(http.MethodPut, "/kv/nothing/k1", "x").refused(t, "PUT to no topic", 404, "topic_not_found", "topic not found")

	// Monotonic reads over both nodes: what the writer has answered is waited for.
	w.putKeys(20, "b")
	position := w.do(http.MethodPut, "/kv/orders/k20", "late").header.Get("X-Kv-Position")
	r.get("/kv/orders/k20?min_position="+position).refused(t, "ahead", 503, "position_not_reached", "position not reached")
	w.evict()
	r.get("/kv/orders/k20?wait_ms=20000&min_position="+position).want(t, "awaited", 200)
	same()
	w.ask("POST", "/v1/compact/orders/0", "", 200)
	same()
	if status := r.ask("GET", "/v1/cloud_storage/status/orders/0", "", 200); status["cloud_log_last_offset"] == nil || status["single_writer"] != nil || status["fenced"] != nil {
		t.Errorf("status: %v", status)
	}
	if m := raw(t, r.admin, "GET", request("GET", "/v1/cloud_storage/manifest/orders/0", "")); m.status != 200 {
		t.Errorf("manifest: %v", m)
	}
	// The store goes: what is in the cache is answered, the rest is 503.
	store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	r.ask("POST", "/v1/cloud_storage/cache/trim", "", 200)
	r.get("/kv/orders/k1").refused(t, "store away", 503, "store_unavailable", "object store unavailable")
	r.get("/kv/orders/none").refused(t, "absent", 404, "key_not_found", "key not found")
	store.Before(nil)
	if n := store.Count(objstoretest.OpPut, objstoretest.OpDelete); n != 0 {
		t.Errorf("%d writes reached the store", n)
	}
}

// A topic that another node has taken over is changed there.
func TestTakenOverTopicIsNotChangedOverHTTP(t *testing.T) {
	store := objstoretest.NewFaulty(nil)
	w := writerNode(t, store)
	w.putKeys(20, "a")
	w.evict()
	newer := startNode(t, store)
	newer.ready()
	waitFor(t, "the newer writer", func() bool { return newer.do(http.MethodPut, "/kv/orders/k", "x").status == 200 })

	const detail = "another node has taken over partitions of this topic: change it there"
	for _, r := range []map[string]any{
		w.ask("DELETE", "/v1/topics/orders", "", 421),
		w.ask("PUT", "/v1/topics/orders/config", `{"upsert":{"flush.ms":7}}`, 421),
	} {
		if r["error"] != "partition not hosted on this node" || r["detail"] != detail {
			t.Errorf("%v", r)
		}
	}
	w.ask("GET", "/v1/topics/orders", "", 200)
	newer.ask("DELETE", "/v1/topics/orders", "", 200)
}

// Compaction replaces objects; the grace period over, the clean-up deletes them,
// and every key is answered all the while.
func TestCompactAndCollect(t *testing.T) {
	store := objstoretest.NewFaulty(nil)
	ts := writerNode(t, store)
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_lookup_timeout_ms":1000,"cloud_storage_gc_grace_ms":1000}}`, 200)
	for _, round := range []string{"a", "b", "c"} {
		ts.putKeys(20, round)
		ts.evict()
	}
	done := ts.ask("POST", "/v1/compact/orders/0", "{}", 200)
	stats := done["compaction"].(map[string]any)
	background := metric(t, ts, "keyhole_compaction_removed_records_total") != fmt.Sprint(stats["records_removed"]) // has come before
	if (stats["records_removed"].(float64) < 40 || stats["cloud_segments"].(float64) < 1) && !background || done["high_watermark"] != 60.0 {
		t.Errorf("compacted: %v", done)
	}
	before := len(keysBelow(t, store.Inner(), "orders/"))
	var dry map[string]any
	waitFor(t, "something to collect", func() bool {
		dry = ts.ask("POST", "/v1/cloud_storage/gc", `{"dry_run":true,"topic":"orders","partition":0}`, 200)
		background := len(keysBelow(t, store.Inner(), "orders/")) < before // has come before
		return dry["object_count"].(float64) > 0 || background
	})
	for _, o := range dry["objects"].([]any) {
		g := o.(map[string]any)
		if g["why"] != "replaced" || g["age_ms"].(float64) < 1000 || !strings.HasPrefix(g["key"].(string), "orders/") {
			t.Errorf("listed: %v", g)
		}
	}
	got := ts.ask("POST", "/v1/cloud_storage/gc", "", 200)
	if after := len(keysBelow(t, store.Inner(), "orders/")); got["deleted"] != true || after >= before || fmt.Sprint(got["failed"]) != "[]" {
		t.Errorf("collected: %v; %d objects before, %d after", got, before, after)
	}
	ts.ask("POST", "/v1/cloud_storage/cache/trim", "", 200)
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_lookup_timeout_ms":60000,"cloud_storage_gc_grace_ms":60000}}`, 200)
	for i := range 20 {
		if r := ts.get(fmt.Sprint("/kv/orders/k", i)).want(t, "afterwards", 200); r.body != strings.Repeat(fmt.Sprint("c", i, ","), 100) {
			t.Errorf("k%d: %v", i, r)
		}
	}
}
