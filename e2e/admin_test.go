package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"keyhole/internal/s3test"
)

// TestAdmin walks over the admin listener.
func TestAdmin(t *testing.T) {
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.adminJSON("GET", "/v1/status/live", nil, 200, nil)
		refused := func(what string, a answer, status int, mention string) {
			t.Helper()
			if a.status != status || !strings.Contains(string(a.body), mention) {
				t.Errorf("%s: %v, want %d about %q", what, a, status, mention)
			}
		}
		topics := n.admin + "/v1/topics"
		indexedTopic := object{"name": "a", "partitions": 2, "configs": object{"redpanda.kv.index.enabled": true}}
		refused("index without the feature", n.do("POST", topics, nil, indexedTopic), 400, "kv_index")
		n.indexed("t", 2, map[string]string{"segment.bytes": "4096"})
		refused("a name twice", n.do("POST", topics, nil, object{"name": "t", "partitions": 1}), 409, "exists")
		for what, body := range map[string]any{
			"no partitions":    object{"name": "b", "partitions": 0},
			"a bad name":       object{"name": "a/b", "partitions": 1},
			"unknown property": object{"name": "b", "partitions": 1, "configs": object{"no.such": "1"}},
			"bad value":        object{"name": "b", "partitions": 1, "configs": object{"segment.bytes": "12"}},
			"not JSON":         []byte("{"),
		} {
			refused(what, n.do("POST", topics, nil, body), 400, `"error"`)
		}
		var list struct {
			Topics []struct {
				Name string `json:"name"`
			} `json:"topics"`
		}
		n.adminJSON("GET", "/v1/topics", nil, 200, &list)
		if len(list.Topics) != 1 || list.Topics[0].Name != "t" {
			t.Errorf("topics: %+v, want t only", list.Topics)
		}
		checkTopicConfig(t, n)
		checkClusterConfig(t, n)

		var features struct {
			Features []struct{ Name, State string } `json:"features"`
		}
		n.adminJSON("GET", "/v1/features", nil, 200, &features)
		if !slices.Contains(features.Features, struct{ Name, State string }{"kv_index", "active"}) {
			t.Errorf("features: %+v", features)
		}
		refused("bad state", n.do("PUT", n.admin+"/v1/features/kv_index", nil, object{"state": "on"}), 400, "state")

		checkStatus(t, n)
		var before, after []string
		for _, key := range []string{"t", "nowhere", "x/y"} {
			n.get(key, "k")
		}
		before = sorted(n.metrics())
		checkCardinality(t, n)
		after = sorted(n.metrics())
		if !slices.Equal(before, after) {
			t.Errorf("%d series before, %d after", len(before), len(after))
		}
		for _, route := range []string{"/v1/topics", "/v1/status/ready", "/v1/cluster_config", "/metrics"} {
			if a := n.do("GET", n.data+route, nil, nil); a.status != 404 {
				t.Errorf("%s on the data listener: %v, want 404", route, a)
			}
		}
		n.adminJSON("DELETE", "/v1/topics/t", nil, 200, nil)
		n.adminJSON("GET", "/v1/topics/t", nil, 404, nil)
		n.stop()
	})
}

func checkTopicConfig(t *testing.T, n *node) {
	t.Helper()
	type topic struct {
		Partitions int `json:"partitions"`
		Configs    map[string]struct {
			Value   string `json:"value"`
			Default bool   `json:"default"`
		} `json:"configs"`
	}
	property := func(name string) string {
		var body topic
		n.adminJSON("GET", "/v1/topics/t", nil, 200, &body)
		return fmt.Sprint(body.Configs[name].Value, " ", body.Configs[name].Default)
	}
	put := func(upsert object, remove ...string) answer {
		return n.do("PUT", n.admin+"/v1/topics/t/config", nil, object{"upsert": upsert, "remove": append([]string{}, remove...)})
	}
	if a := put(object{"segment.bytes": "8192", "retention.local.target.ms": 5000}); a.status != 200 {
		t.Errorf("topic config: %v", a)
	}
	if a := put(object{"segment.bytes": "9999", "compression.type": "rar"}); a.status != 400 || !bytes.Contains(a.body, []byte("compression.type")) {
		t.Errorf("a bad value: %v, want 400 that names it", a)
	}
	if got := property("segment.bytes"); got != "8192 false" {
		t.Errorf("segment.bytes after a refused change: %s", got)
	}
	if a := put(object{}, "segment.bytes"); a.status != 200 {
		t.Errorf("remove: %v", a)
	}
	if got := property("segment.bytes"); got != "134217728 true" {
		t.Errorf("segment.bytes without its override: %s", got)
	}
}

func checkClusterConfig(t *testing.T, n *node) {
	t.Helper()
	read := func() object {
		var c object
		n.adminJSON("GET", "/v1/cluster_config", nil, 200, &c)
		return c
	}
	put := func(upsert object, remove ...string) answer {
		return n.do("PUT", n.admin+"/v1/cluster_config", nil, object{"upsert": upsert, "remove": append([]string{}, remove...)})
	}
	defaults := read()
	if a := put(object{"kv_index_max_remote_reads": "7", remoteRead: "true"}); a.status != 200 || !bytes.Contains(a.body, []byte(`"config_version"`)) {
		t.Errorf("values as strings: %v", a)
	}
	now := read()
	if now["kv_index_max_remote_reads"] != 7.0 || now[remoteRead] != true {
		t.Errorf("after the change: %v", now)
	}
	a := put(object{"kv_index_max_remote_reads": 9, "kv_index_lookup_timeout_ms": "soon", "no_such": 1})
	if a.status != 400 || !bytes.Contains(a.body, []byte(`"kv_index_lookup_timeout_ms":`)) || !bytes.Contains(a.body, []byte(`"no_such":`)) {
		t.Errorf("bad values: %v, want 400 and a message for each", a)
	}
	if !maps.Equal(read(), now) {
		t.Errorf("a refused change was applied in part: %v", read())
	}
	n.restart()
	if !maps.Equal(read(), now) {
		t.Errorf("after a restart: %v, want %v", read(), now)
	}
	if a := put(object{}, "kv_index_max_remote_reads", remoteRead); a.status != 200 {
		t.Errorf("remove: %v", a)
	}
	if !maps.Equal(read(), defaults) {
		t.Errorf("without overrides: %v, want %v", read(), defaults)
	}
	var schema any
	n.adminJSON("GET", "/v1/cluster_config/schema", nil, 200, &schema)
	if !strings.Contains(fmt.Sprint(schema), "kv_index_lookup_timeout_ms") {
		t.Errorf("schema: %v", schema)
	}
}

// checkStatus follows the offsets of a partition through writing and eviction.
func checkStatus(t *testing.T, n *node) {
	t.Helper()
	for i := range 40 {
		if a := n.do("PUT", n.kv("t", fmt.Sprint("k", i))+"?partition=1", nil, bytes.Repeat([]byte("v"), 200)); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
	}
	at := func(p *int64) string {
		if p == nil {
			return "-"
		}
		return fmt.Sprint(*p)
	}
	offsets := func(s tierStatus) string {
		return fmt.Sprintf("hw %s local %s..%s cloud %s..%s index %s", at(s.HighWatermark), at(s.LocalStart), at(s.LocalLast),
			at(s.CloudStart), at(s.CloudLast), at(s.IndexApplied))
	}
	if got := offsets(n.status("t", 0)); got != "hw 0 local 0..- cloud -..- index -" {
		t.Errorf("empty partition: %s", got)
	}
	got := offsets(n.status("t", 1))
	if !strings.HasPrefix(got, "hw 40 local 0..39 ") || !strings.HasSuffix(got, " index 39") {
		t.Errorf("written partition: %s", got)
	}
	n.evict("t", 2)
	if got := offsets(n.status("t", 1)); got != "hw 40 local 40..- cloud 0..39 index 39" {
		t.Errorf("evicted partition: %s", got)
	}
	if a := n.do("GET", n.admin+"/v1/cloud_storage/manifest/t/1", nil, nil); a.status != 200 || !bytes.Equal(a.body, n.store.manifest(t, "t", 1)) {
		t.Errorf("manifest route: %v, want the object as it is in the bucket", a)
	}
	n.adminJSON("PUT", "/v1/topics/t/config", object{"upsert": object{"redpanda.remote.write": false}, "remove": []string{}}, 200, nil)
	evict := "/v1/cloud_storage/evict/t/1"
	n.adminJSON("POST", evict, object{"local_target_bytes": 0}, 409, nil)
	n.adminJSON("POST", evict, object{"local_target_bytes": -1}, 400, nil)
	n.adminJSON("POST", "/v1/cloud_storage/evict/t/9", object{"local_target_bytes": 0}, 404, nil)
	n.adminJSON("GET", "/v1/cloud_storage/status/nowhere/0", nil, 404, nil)
}

// checkCardinality sends what could make series, if keys, paths or methods were
// labels. Case 8-11.
func checkCardinality(t *testing.T, n *node) {
	t.Helper()
	var items []int
	for i := range 1000 {
		items = append(items, i)
	}
	parallel(lookupWorkers, items, func(i int) {
		method := "GET"
		if i%50 == 0 {
			method = fmt.Sprint("ODD", i)
		}
		for _, target := range []string{n.kv("t", fmt.Sprint("random", i*7919)), n.data + fmt.Sprint("/path/", i), n.kv(fmt.Sprint("topic", i), "k")} {
			if _, err := n.try(method, target, nil, nil); err != nil {
				t.Errorf("%s %s: %v", method, target, err)
			}
		}
	})
}

// TestSecrets looks for the secret key in everything that the process says.
// Case 8-21.
func TestSecrets(t *testing.T) {
	s3Backends(t, func(t *testing.T, s *store) {
		n := newNode(t, s, "--log-level", "debug")
		n.start()
		n.waitReady()
		n.produceCold(coldTopic, 100)
		n.evict(coldTopic, 1)
		n.setCluster(remoteRead, true)
		var said bytes.Buffer
		collect := func(method, target string, body any) {
			a := n.do(method, target, nil, body)
			fmt.Fprintf(&said, "%s %s: %d %v %s\n", method, target, a.status, a.header, a.body)
		}
		wantValue(t, "cold", n.get(coldTopic, coldKey(1)), coldValue(1), "remote")
		for _, fault := range []s3test.Fault{refuse(403, "InvalidAccessKeyId"), refuse(500, "InternalError"), refuse(301, "PermanentRedirect"), reset} {
			n.trimCache()
			s.proxy.SetFault(fault)
			collect("GET", n.kv(coldTopic, coldKey(1)), nil)
			collect("GET", n.admin+"/v1/cloud_storage/manifest/"+coldTopic+"/0", nil)
			collect("GET", n.admin+"/v1/status/ready", nil)
		}
		s.proxy.SetFault(nil)
		for _, route := range []string{"/v1/status/ready", "/v1/topics", "/v1/topics/" + coldTopic, "/v1/cluster_config",
			"/v1/cluster_config/schema", "/v1/features", "/v1/cloud_storage/status/" + coldTopic + "/0", "/metrics", "/v1/nothing"} {
			collect("GET", n.admin+route, nil)
		}
		n.stop()
		// A secret in the URL is refused, and not repeated.
		withSecret := strings.Replace(s.url, "s3://", "s3://user:"+s3test.SecretKey+"@", 1)
		for _, url := range []string{withSecret, s.url + "&secret=" + s3test.SecretKey, s.url + "&client=" + s3test.SecretKey} {
			r := runCLI(t, "", environment(s), "serve", "--data-dir", t.TempDir(), "--object-store", url)
			if r.code != 2 {
				t.Errorf("a strange URL: exit %d, want 2\n%s", r.code, r.stderr)
			}
			said.WriteString(r.stdout + r.stderr)
		}
		said.WriteString(n.logs.String())
		for line := range strings.Lines(said.String()) {
			if strings.Contains(line, s3test.SecretKey) {
				t.Errorf("the secret: %s", line)
			}
		}
	})
}

// TestRemoteReadMatrix sets the cluster switch and the topic's property to all
// they can be. Case 8-03.
func TestRemoteReadMatrix(t *testing.T) {
	n := coldNode(t, openStore(t, "dir"))
	for _, cluster := range []bool{false, true} {
		for _, topic := range []string{"", "false", "true"} {
			n.setCluster(remoteRead, cluster)
			change := object{"upsert": object{}, "remove": []string{"redpanda.remote.read"}}
			if topic != "" {
				change = object{"upsert": object{"redpanda.remote.read": topic}, "remove": []string{}}
			}
			n.adminJSON("PUT", "/v1/topics/"+coldTopic+"/config", change, 200, nil)
			what := fmt.Sprintf("cluster %v, topic %q", cluster, topic)
			a := n.do("GET", n.kv(coldTopic, coldKey(1)), http.Header{}, nil)
			if cluster && topic != "false" {
				wantValue(t, what, a, coldValue(1), "")
			} else {
				want(t, what, a, 404, "remote_read_disabled")
			}
		}
	}
}
