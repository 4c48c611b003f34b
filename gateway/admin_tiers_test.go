package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"keyhole/catalog"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// putTopic writes the description of a topic into the bucket, behind everybody's
// back, and an object of it.
func putTopic(t *testing.T, b objstore.Bucket, name, id string, deletedMS int64) {
	t.Helper()
	data := fmt.Sprintf(`{"name":%q,"id":%q,"partitions":1,"created_ms":1,"revision":1,"properties":{},"deleted_ms":%d}`, name, id, deletedMS)
	frame := fmt.Sprintf(`{"format":"keyhole.topic","version":1,"crc32c":"%08x","data":%s}`+"\n", castagnoli(data), data)
	for key, text := range map[string]string{catalog.TopicKey(name, id): frame, name + "/" + id + "/0/x.log": "data"} {
		if _, err := b.Put(t.Context(), key, strings.NewReader(text), int64(len(text)), objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
	}
}

func keysBelow(t *testing.T, b objstore.Bucket, prefix string) (keys []string) {
	t.Helper()
	err := b.List(t.Context(), prefix, func(o objstore.Object) error {
		keys = append(keys, o.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestCollectRoute(t *testing.T) {
	store := objstoretest.NewFaulty(nil)
	ts := startNode(t, store)
	ts.ready()
	const id = "0123456789abcdef0123456789abcdef"
	putTopic(t, store.Inner(), "gone", id, 1) // in 1970
	dry := ts.ask("POST", "/v1/cloud_storage/gc", `{"dry_run":true}`, 200)
	if dry["deleted"] != false || dry["object_count"] != 2.0 || fmt.Sprint(dry["failed"]) != "[]" {
		t.Errorf("dry run: %v", dry)
	}
	list := dry["objects"].([]any)
	if len(list) != 2 {
		t.Fatalf("dry run lists %v", list)
	}
	first := list[0].(map[string]any)
	if first["key"] != "gone/"+id+"/0/x.log" || first["size"] != 4.0 || first["why"] != "deleted topic" || first["age_ms"].(float64) < 1e12 || len(first) != 4 {
		t.Errorf("listed: %v", first)
	}
	if left := keysBelow(t, store.Inner(), "gone/"); len(left) != 2 {
		t.Errorf("a dry run left %v", left)
	}
	for _, body := range []string{`{"topic":"gone","partition":0}`, `{"topic":"other"}`} {
		ts.ask("POST", "/v1/cloud_storage/gc", body, 404)
	}
	for _, body := range []string{`{"dry":true}`, `{"topic":""}`, `{"partition":0}`, `{"topic":"gone","partition":-1}`, `{"partition":"x"}`, `x`} {
		ts.ask("POST", "/v1/cloud_storage/gc", body, 400)
	}
	if done := ts.ask("POST", "/v1/cloud_storage/gc", "", 200); done["deleted"] != true {
		t.Errorf("for real: %v", done)
	}
	waitFor(t, "the prefix to be empty", func() bool { return len(keysBelow(t, store.Inner(), "gone/")) == 0 })
	ts.ask("GET", "/v1/cloud_storage/gc", "", 405)
	startNode(t, nil).ask("POST", "/v1/cloud_storage/gc", "", 409)
}

func TestCompactRoute(t *testing.T) {
	ts := startNode(t, nil)
	ts.ask("POST", "/v1/topics", `{"name":"a"}`, 201)
	for target, status := range map[string]int{"/v1/compact/a/7": 404, "/v1/compact/a/x": 400, "/v1/compact/b/0": 404} {
		ts.ask("POST", target, "", status)
	}
	ts.ask("POST", "/v1/compact/a/0", `{"hard":true}`, 400)
	ts.ask("GET", "/v1/compact/a/0", "", 405)
}

// A replica answers what is refused as it would any other conflict, whatever the
// request is about; switches are its own.
func TestReplicaRefusesAdminChanges(t *testing.T) {
	memory := objstoretest.NewMemory()
	w := startNode(t, memory)
	w.ready()
	w.ask("POST", "/v1/topics", `{"name":"a"}`, 201)
	store := objstoretest.NewFaulty(memory)
	ts := startNodeAs(t, store, true)
	waitFor(t, "the topic", func() bool {
		return bytes.Contains([]byte(raw(t, ts.admin, "GET", request("GET", "/v1/topics", "")).body), []byte(`"name":"a"`))
	})
	for _, c := range [][3]string{
		{"POST", "/v1/topics", `{"name":"b"}`},
		{"DELETE", "/v1/topics/a", ""},
		{"PUT", "/v1/topics/a/config", `{"upsert":{"segment.bytes":4096}}`},
		{"POST", "/v1/cloud_storage/evict/a/0", `{"local_target_bytes":0}`},
		{"POST", "/v1/compact/a/0", ""},
		{"POST", "/v1/cloud_storage/gc", `{"dry_run":true}`},
	} {
		r := raw(t, ts.admin, c[0], request(c[0], c[1], c[2]))
		r.refused(t, c[0]+" "+c[1], 409, "conflict", "this node is a read replica")
	}
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"read_replica_refresh_ms":50}}`, 200)
	ts.ask("PUT", "/v1/features/kv_index", `{"state":"active"}`, 200)
	var config map[string]any
	if err := json.Unmarshal([]byte(raw(t, ts.admin, "GET", request("GET", "/v1/cluster_config", "")).body), &config); err != nil || config["kv_index_remote_read_enabled"] != true {
		t.Errorf("switches: %v, %v", config, err)
	}
	if n := store.Count(objstoretest.OpPut, objstoretest.OpDelete); n != 0 {
		t.Errorf("%d writes reached the store", n)
	}
}
