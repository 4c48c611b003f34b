package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"keyhole/catalog"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

// startNode serves a real catalog on a disk in memory. bucket may be nil.
func startNode(t *testing.T, bucket objstore.Bucket, change ...func(*Options)) *testServer {
	t.Helper()
	return startNodeAs(t, bucket, false, change...)
}

// startNodeAs is startNode for either role.
func startNodeAs(t *testing.T, bucket objstore.Bucket, replica bool, change ...func(*Options)) *testServer {
	t.Helper()
	ts := &testServer{t: t, logs: &syncBuffer{}, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(ts.logs, nil))
	c, err := catalog.Open(context.Background(), catalog.Options{
		DataDir: "/data", FS: vfs.NewMem(), Bucket: bucket, Logger: log, Registerer: ts.reg, ReadReplica: replica,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	o := Options{Catalog: c, Logger: log, Registerer: ts.reg, Gatherer: ts.reg}
	for _, f := range change {
		f(&o)
	}
	ts.Server = New(o)
	ts.serveUntilEnd()
	return ts
}

// ask sends an admin request and decodes its JSON answer.
func (ts *testServer) ask(method, target, body string, status int) map[string]any {
	ts.t.Helper()
	r := raw(ts.t, ts.admin, method, request(method, target, body)).want(ts.t, method+" "+target+" "+body, status)
	var got map[string]any
	if err := json.Unmarshal([]byte(r.body), &got); err != nil {
		ts.t.Fatalf("%s %s: %v\n%v", method, target, err, r)
	}
	return got
}

// ready waits until every partition serves.
func (ts *testServer) ready() {
	ts.t.Helper()
	waitFor(ts.t, "readiness", func() bool {
		return raw(ts.t, ts.admin, "GET", request("GET", "/v1/status/ready", "")).status == http.StatusOK
	})
}

// The whole way: make a topic, write, read it hot, evict it, be refused, flip the
// switch, read it cold, then from the cache.
func TestHotAndCold(t *testing.T) {
	store := objstoretest.NewFaulty(objstoretest.NewMemory())
	ts := startNode(t, store)
	ts.ready()
	ts.ask("PUT", "/v1/features/kv_index", `{"state":"active"}`, 200)
	if v := ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_enabled":"true"}}`, 200)["config_version"]; v == nil {
		t.Error("no config_version")
	}
	waitFor(t, "the topic to be made", func() bool {
		r := raw(t, ts.admin, "POST", request("POST", "/v1/topics", `{"name":"orders","partitions":1,"configs":{"redpanda.kv.index.enabled":true,"segment.bytes":4096}}`))
		if r.status != http.StatusCreated && r.status != http.StatusServiceUnavailable {
			t.Fatal(r)
		}
		return r.status == http.StatusCreated
	})
	ts.ready()
	for i := range 20 {
		ts.do(http.MethodPut, fmt.Sprint("/kv/orders/k", i), strings.Repeat(fmt.Sprint(i, ","), 200)).want(t, "PUT", 200)
	}
	hot := ts.get("/kv/orders/k3").want(t, "hot", 200)
	if hot.header.Get("X-Kv-Source") != "local" || hot.header.Get("X-Kv-Position") != "20" {
		t.Errorf("hot: %v", hot)
	}
	status := ts.ask("POST", "/v1/cloud_storage/evict/orders/0", `{"local_target_bytes":0}`, 200)
	if status["local_log_start_offset"] != status["high_watermark"] || status["high_watermark"] != 20.0 {
		t.Errorf("evicted: %v", status)
	}
	r := ts.get("/kv/orders/k3").refused(t, "switch off", 404, "remote_read_disabled", "record only available in tiered storage")
	if r.header.Get("X-Kv-Position") != "20" {
		t.Errorf("switch off: %v", r)
	}
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_remote_read_enabled":true},"remove":[]}`, 200)
	for _, source := range []string{"remote", "cache"} {
		r := ts.get("/kv/orders/k3").want(t, source, 200)
		if r.body != hot.body || r.header.Get("X-Kv-Source") != source || r.header.Get("ETag") != hot.header.Get("ETag") {
			t.Errorf("%s: %v", source, r)
		}
	}
	if r := raw(t, ts.admin, "POST", request("POST", "/v1/cloud_storage/cache/trim", "")); r.status != 200 {
		t.Errorf("trim: %v", r)
	}
	if r := ts.get("/kv/orders/k3"); r.header.Get("X-Kv-Source") != "remote" {
		t.Errorf("after trim: %v", r)
	}
	ts.get("/kv/orders/k3", "If-None-Match: "+hot.header.Get("ETag")).want(t, "conditional", 304)
	stored, _, err := store.Get(t.Context(), manifestKey(t, store), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if r := raw(t, ts.admin, "GET", request("GET", "/v1/cloud_storage/manifest/orders/0", "")); r.body != string(stored) {
		t.Errorf("manifest: %v\nstored: %s", r, stored)
	}
	if s := ts.ask("GET", "/v1/cloud_storage/status/orders/0", "", 200); s["cloud_log_last_offset"] != 19.0 || s["index_last_applied"] != 19.0 {
		t.Errorf("status: %v", s)
	}
	// A store that is away is not an unready node.
	store.Before(func(context.Context, objstoretest.Call) error { return objstore.ErrUnavailable })
	ts.ask("POST", "/v1/cloud_storage/cache/trim", "", 200)
	ts.get("/kv/orders/k3").refused(t, "store away", 503, "store_unavailable", "object store unavailable")
	ts.ask("GET", "/v1/status/ready", "", 200)
	store.Before(nil)
	if got := metric(t, ts, `keyhole_lookups_total{outcome="found",source="remote"}`); got != "2" {
		t.Errorf("remote lookups counted: %q", got)
	}
	// Deleted is gone at once.
	ts.ask("DELETE", "/v1/topics/orders", "", 200)
	ts.get("/kv/orders/k3").refused(t, "deleted", 404, "topic_not_found", "topic not found")
}

// manifestKey finds the one manifest in the bucket.
func manifestKey(t *testing.T, b objstore.Bucket) (key string) {
	t.Helper()
	err := b.List(t.Context(), "orders/", func(o objstore.Object) error {
		if strings.HasSuffix(o.Key, "/manifest.json") {
			key = o.Key
		}
		return nil
	})
	if err != nil || key == "" {
		t.Fatalf("no manifest: %v", err)
	}
	return key
}

func TestTopicsRoutes(t *testing.T) {
	ts := startNode(t, nil)
	ts.ready()
	if got := ts.ask("GET", "/v1/topics", "", 200)["topics"]; fmt.Sprint(got) != "[]" {
		t.Errorf("no topics: %v", got)
	}
	made := ts.ask("POST", "/v1/topics", `{"name":"a","partitions":3,"configs":{"segment.bytes":"1048576"}}`, 201)
	if made["name"] != "a" || made["partitions"] != 3.0 || len(made["id"].(string)) != 32 {
		t.Errorf("made: %v", made)
	}
	ts.ask("POST", "/v1/topics", `{"name":"a"}`, 409)
	if d := ts.ask("GET", "/v1/topics/a", "", 200)["configs"].(map[string]any)["segment.bytes"]; fmt.Sprint(d) != "map[default:false value:1048576]" {
		t.Errorf("segment.bytes: %v", d)
	}
	d := ts.ask("PUT", "/v1/topics/a/config", `{"upsert":{"segment.bytes":2048},"remove":[]}`, 200)
	if v := d["configs"].(map[string]any)["segment.bytes"].(map[string]any)["value"]; v != "2048" {
		t.Errorf("altered: %v", v)
	}
	// Refused, with the property, and nothing applied.
	for target, body := range map[string]string{
		"/v1/topics/a/config": `{"upsert":{"segment.bytes":1,"segment.ms":5}}`,
		"/v1/topics":          `{"name":"b","configs":{"segment.bytes":1}}`,
	} {
		method := http.MethodPost
		if strings.HasSuffix(target, "config") {
			method = http.MethodPut
		}
		e := ts.ask(method, target, body, 400)
		if !strings.Contains(e["error"].(string), "segment.bytes") || e["properties"].(map[string]any)["segment.bytes"] == nil {
			t.Errorf("%s: %v", target, e)
		}
	}
	d = ts.ask("PUT", "/v1/topics/a/config", `{"remove":["segment.bytes"]}`, 200)["configs"].(map[string]any)
	if fmt.Sprint(d["segment.bytes"]) != "map[default:true value:134217728]" || d["segment.ms"].(map[string]any)["default"] != true {
		t.Errorf("removed: %v", d)
	}
	ts.ask("PUT", "/v1/topics/a/config", `{"upsert":{"segment.bytes":4096}}`, 200)
	d = ts.ask("PUT", "/v1/topics/a/config", `{"upsert":{"segment.bytes":null}}`, 200)["configs"].(map[string]any)
	if fmt.Sprint(d["segment.bytes"]) != "map[default:true value:134217728]" {
		t.Errorf("null: %v", d)
	}
	if got := ts.ask("GET", "/v1/topics", "", 200)["topics"].([]any); len(got) != 1 {
		t.Errorf("one topic: %v", got)
	}
	ts.ask("GET", "/v1/topics/b", "", 404)
	ts.ask("DELETE", "/v1/topics/b", "", 404)
	ts.ask("DELETE", "/v1/topics/a", "", 200)
	ts.ask("GET", "/v1/topics/a", "", 404)
}

func TestClusterRoutes(t *testing.T) {
	ts := startNode(t, nil)
	config := ts.ask("GET", "/v1/cluster_config", "", 200)
	if config["kv_index_enabled"] != false || config["kv_index_lookup_timeout_ms"] != 5000.0 {
		t.Errorf("defaults: %v", config)
	}
	schema := ts.ask("GET", "/v1/cluster_config/schema", "", 200)
	for name := range config {
		if schema[name] == nil {
			t.Errorf("%s has no schema", name)
		}
	}
	// A bad value names its property, and nothing of the request is applied. Case 8-05.
	bad := ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_enabled":true,"kv_index_lookup_timeout_ms":"soon","nonsense":1}}`, 400)
	if bad["kv_index_lookup_timeout_ms"] == nil || bad["nonsense"] == nil || len(bad) != 2 {
		t.Errorf("refused: %v", bad)
	}
	if after := ts.ask("GET", "/v1/cluster_config", "", 200); fmt.Sprint(after) != fmt.Sprint(config) {
		t.Errorf("a refused request changed %v into %v", config, after)
	}
	for _, body := range []string{"", "null x", "[]", `{"upsert":{}`, `{"upsrt":{}}`, `{"upsert":{}} {}`, `{"upsert":[]}`} {
		if e := ts.ask("PUT", "/v1/cluster_config", body, 400); !strings.Contains(fmt.Sprint(e["error"]), "request body") {
			t.Errorf("%q: %v", body, e)
		}
	}
	// In the words of JSON, not of Go.
	for _, c := range []struct{ method, target, body, want string }{
		{"PUT", "/v1/cluster_config", `[]`, "request body must be an object"},
		{"PUT", "/v1/cluster_config", `{"upsert":[]}`, "request body: upsert must be an object"},
		{"PUT", "/v1/cluster_config", `{"remove":{}}`, "request body: remove must be a list"},
		{"PUT", "/v1/cluster_config", `{"remove":[1]}`, "request body: remove must be a string"},
		{"POST", "/v1/topics", `{"name":7}`, "request body: name must be a string"},
		{"POST", "/v1/topics", `{"name":"n","partitions":"1"}`, "request body: partitions must be a whole number of at most 31 bits"},
		{"POST", "/v1/topics", `{"name":"n","partitions":1.5}`, "request body: partitions must be a whole number of at most 31 bits"},
		{"POST", "/v1/cloud_storage/gc", `{"dry_run":"yes"}`, "request body: dry_run must be true or false"},
		{"POST", "/v1/cloud_storage/evict/a/0", `{"local_target_bytes":"0"}`, "request body: local_target_bytes must be a whole number of at most 63 bits"},
		{"POST", "/v1/compact/a/0", `[]`, "request body must be an object"},
	} {
		if e := ts.ask(c.method, c.target, c.body, 400); e["error"] != c.want {
			t.Errorf("%s %s: %v, want %q", c.target, c.body, e, c.want)
		}
	}
	if raw(t, ts.admin, "PUT", request("PUT", "/v1/cluster_config", strings.Repeat(" ", maxAdminBody+1))).status != 413 {
		t.Error("a large body was read")
	}
	if f := ts.ask("GET", "/v1/features", "", 200); fmt.Sprint(f) != "map[features:[map[name:kv_index state:disabled]]]" {
		t.Errorf("features: %v", f)
	}
	ts.ask("PUT", "/v1/features/kv_index", `{"state":"maybe"}`, 400)
	ts.ask("PUT", "/v1/features/other", `{"state":"active"}`, 404)
	ts.ask("PUT", "/v1/features/kv_index", `{"state":"active"}`, 200)
	if f := ts.ask("GET", "/v1/features", "", 200); !strings.Contains(fmt.Sprint(f), "state:active") {
		t.Errorf("features: %v", f)
	}
}

func TestAdminRefuses(t *testing.T) {
	ts := startNode(t, nil)
	ts.ask("POST", "/v1/topics", `{"name":"a"}`, 201)
	for _, c := range []struct {
		method, target, body string
		status               int
	}{
		{"GET", "/v1/nothing", "", 404},
		{"GET", "/kv/a/k", "", 404},
		{"GET", "/v1/cloud_storage/status/a/7", "", 404},
		{"GET", "/v1/cloud_storage/status/a/x", "", 400},
		{"GET", "/v1/cloud_storage/status/a/any", "", 400},
		{"GET", "/v1/cloud_storage/status/b/0", "", 404},
		{"GET", "/v1/cloud_storage/manifest/a/0", "", 409},
		{"POST", "/v1/cloud_storage/evict/a/0", `{}`, 400},
		{"POST", "/v1/cloud_storage/evict/a/0", `{"local_target_bytes":-1}`, 400},
		{"POST", "/v1/cloud_storage/evict/a/0", `{"local_target_bytes":0}`, 409},
		{"POST", "/v1/topics", `{"name":"c","configs":{"segment.bytes":[1]}}`, 400},
		{"DELETE", "/v1/topics", "", 405},
		{"POST", "/v1/status/live", "", 405},
	} {
		ts.ask(c.method, c.target, c.body, c.status)
	}
	ts.ask("GET", "/v1/status/live", "", 200)
	if r := raw(t, ts.admin, "HEAD", request("HEAD", "/v1/status/ready", "")); r.body != "" {
		t.Errorf("HEAD: %v", r)
	}
	// A page of another site cannot make a browser change anything here.
	evil := request("POST", "/v1/cloud_storage/cache/trim", "", "Origin: http://elsewhere.example", "Sec-Fetch-Site: cross-site")
	raw(t, ts.admin, "POST", evil).refused(t, "cross-origin", 403, "bad_request", "cross-origin request refused")
}

// A page whose site's name has come to mean loopback is of one origin with this
// listener, to its browser.
func TestAdminHost(t *testing.T) {
	ts := startNode(t, nil, func(o *Options) { o.AdminHost = "Gateway.Internal" })
	ask := func(host string) reply {
		text := strings.Replace(request("GET", "/v1/status/live", ""), "Host: localhost", "Host: "+host, 1)
		return raw(t, ts.admin, "GET", text)
	}
	for _, host := range []string{"localhost", "LOCALHOST:9644", "a.localhost", "localhost.", "127.0.0.1:9644", "127.1.2.3", "[::1]:9644", "[::1]", "gateway.internal:1"} {
		ask(host).want(t, host, 200)
	}
	for _, host := range []string{"evil.example", "evil.example:9644", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "xlocalhost"} {
		ask(host).refused(t, host, 403, "bad_request", "the admin listener is on loopback and does not go by this host name")
	}
	// The data listener has no such rule: it is meant to be reached by name.
	raw(t, ts.data, "GET", strings.Replace(request("GET", "/kv/t/k", ""), "Host: localhost", "Host: kv.example", 1)).want(t, "data", 404)
}

func TestReadyWhileDraining(t *testing.T) {
	ts := startNode(t, nil)
	ts.ready()
	ts.draining.Store(true)
	got := ts.ask("GET", "/v1/status/ready", "", 503)
	if got["ready"] != false || got["draining"] != true {
		t.Errorf("readiness: %v", got)
	}
	ts.draining.Store(false)
	if got := ts.ask("GET", "/v1/status/ready", "", 200); got["ready"] != true || got["draining"] != nil {
		t.Errorf("readiness: %v", got)
	}
}

// The time that a lookup may take is the catalog's, and live.
func TestLiveTimeout(t *testing.T) {
	ts := startNode(t, nil)
	ts.ask("PUT", "/v1/cluster_config", `{"upsert":{"kv_index_lookup_timeout_ms":1234}}`, 200)
	if got := ts.topics.LookupTimeout(); got != 1234*time.Millisecond {
		t.Errorf("timeout %v", got)
	}
}
