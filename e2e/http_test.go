package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// client is shared by all tests; its connections are closed with each node's.
var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
	Timeout:   patience,
	CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirect is a finding, not to be followed
	},
}

// answer is a whole HTTP answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// String is for messages.
func (a answer) String() string {
	return fmt.Sprintf("%d %s %.200q", a.status, a.header.Get("X-Kv-Reason"), a.body)
}

// try sends a request. A body that is not []byte is sent as JSON.
func (n *node) try(method, target string, header http.Header, body any) (answer, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return answer{}, err
		}
		reader = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, reader)
	if err != nil {
		return answer{}, err
	}
	maps.Copy(req.Header, header)
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

func (n *node) do(method, target string, header http.Header, body any) answer {
	n.t.Helper()
	a, err := n.try(method, target, header, body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, target, err)
	}
	return a
}

// kv is the URL of a key.
func (n *node) kv(topic, key string) string {
	return n.data + "/kv/" + topic + "/" + url.PathEscape(key)
}

func (n *node) get(topic, key string) answer {
	n.t.Helper()
	a, err := n.lookup(topic, key)
	if err != nil {
		n.t.Fatalf("GET %s: %v", n.kv(topic, key), err)
	}
	return a
}

// lookup is one that is repeated while the answer is only that time was short: where
// objects go soon, lookups may not take long, and replicas may not be far behind.
func (n *node) lookup(topic, key string) (answer, error) {
	for begun := time.Now(); ; {
		late := time.Since(begun) > patience
		a, err := n.try("GET", n.kv(topic, key), nil, nil)
		if err != nil || late || !n.outOfTime(a) {
			return a, err
		}
		pause(n.t.Context(), 10*time.Millisecond)
	}
}

// outOfTime says whether an answer is one that a machine gives on which a lookup
// takes longer than it may, or on which a replica is further behind its bucket than
// the grace period.
func (n *node) outOfTime(a answer) bool {
	behind := slices.Contains(n.flags, asReplica) && a.status == 503 && a.header.Get("X-Kv-Reason") == "not_ready"
	return behind || a.status == 504 && a.header.Get("X-Kv-Reason") == "deadline"
}

// adminJSON asks the admin listener, wants the status and decodes into out.
func (n *node) adminJSON(method, path string, body any, status int, out any) {
	n.t.Helper()
	a := n.do(method, n.admin+path, nil, body)
	if a.status != status {
		n.t.Fatalf("%s %s: %v, want %d", method, path, a, status)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(a.body, out); err != nil {
		n.t.Fatalf("%s %s: %v in %s", method, path, err, a.body)
	}
}

type object = map[string]any

// setCluster changes one cluster property.
func (n *node) setCluster(name string, value any) {
	n.t.Helper()
	n.adminJSON("PUT", "/v1/cluster_config", object{"upsert": object{name: value}, "remove": []string{}}, 200, nil)
}

const (
	remoteRead    = "kv_index_remote_read_enabled"
	lookupTimeout = "kv_index_lookup_timeout_ms"
)

// slowLookups is a time for lookups that no machine exceeds, in milliseconds. Tests
// whose matter is another one work with it.
const slowLookups = 60_000

// switchOn switches the index on, and gives lookups the time that they may take.
func (n *node) switchOn() {
	n.t.Helper()
	n.adminJSON("PUT", "/v1/features/kv_index", object{"state": "active"}, 200, nil)
	upsert := object{"kv_index_enabled": true, lookupTimeout: n.lookups}
	n.adminJSON("PUT", "/v1/cluster_config", object{"upsert": upsert, "remove": []string{}}, 200, nil)
}

// indexed switches the index on and makes a topic that has one; the topic takes
// writes as soon as the answer is here.
func (n *node) indexed(topic string, partitions int, configs map[string]string) {
	n.t.Helper()
	n.switchOn()
	all := map[string]string{"redpanda.kv.index.enabled": "true"}
	maps.Copy(all, configs)
	n.adminJSON("POST", "/v1/topics", object{"name": topic, "partitions": partitions, "configs": all}, 201, nil)
}

// tierStatus is the body of the status route.
type tierStatus struct {
	Mode          string `json:"cloud_storage_mode"`
	LocalStart    *int64 `json:"local_log_start_offset"`
	LocalLast     *int64 `json:"local_log_last_offset"`
	HighWatermark *int64 `json:"high_watermark"`
	CloudStart    *int64 `json:"cloud_log_start_offset"`
	CloudLast     *int64 `json:"cloud_log_last_offset"`
	CloudSegments int    `json:"cloud_log_segment_count"`
	IndexApplied  *int64 `json:"index_last_applied"`
}

func (n *node) status(topic string, partition int) tierStatus {
	n.t.Helper()
	var s tierStatus
	n.adminJSON("GET", fmt.Sprintf("/v1/cloud_storage/status/%s/%d", topic, partition), nil, 200, &s)
	return s
}

// evict moves all records of the topic to the bucket.
func (n *node) evict(topic string, partitions int) []tierStatus {
	n.t.Helper()
	out := make([]tierStatus, partitions)
	for p := range out {
		n.adminJSON("POST", fmt.Sprintf("/v1/cloud_storage/evict/%s/%d", topic, p), object{"local_target_bytes": 0}, 200, &out[p])
		if s := out[p]; s.LocalStart == nil || s.HighWatermark == nil || *s.LocalStart != *s.HighWatermark {
			n.t.Fatalf("evicted %s/%d: local start is not the high watermark: %+v", topic, p, s)
		}
	}
	return out
}

func (n *node) trimCache() {
	n.t.Helper()
	n.adminJSON("POST", "/v1/cloud_storage/cache/trim", nil, 200, nil)
}

// metrics are all series of the node, by name with labels.
func (n *node) metrics() map[string]string {
	n.t.Helper()
	var a answer
	poll(n.t, "metrics", func() bool { // where slow clients are cut it may be us
		var err error
		a, err = n.try("GET", n.admin+"/metrics", nil, nil)
		return err == nil
	})
	if a.status != 200 {
		n.t.Fatalf("metrics: %v", a)
	}
	series := map[string]string{}
	for line := range strings.Lines(string(a.body)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if i := strings.LastIndexByte(line, ' '); i > 0 {
			series[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return series
}

// sum adds up the series of a metric.
func (n *node) sum(name string) float64 {
	n.t.Helper()
	sum := 0.0
	for series, value := range n.metrics() {
		if metric, _, _ := strings.Cut(series, "{"); metric != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			n.t.Fatalf("%s: %v", series, err)
		}
		sum += v
	}
	return sum
}

// want checks status and reason of a lookup.
func want(t testing.TB, what string, a answer, status int, reason string) {
	t.Helper()
	if a.status != status || a.header.Get("X-Kv-Reason") != reason {
		t.Errorf("%s: %v, want %d %s", what, a, status, reason)
	}
}

// wantValue checks a hit; source is not checked if empty.
func wantValue(t testing.TB, what string, a answer, value []byte, source string) {
	t.Helper()
	switch {
	case a.status != 200 || !bytes.Equal(a.body, value):
		t.Errorf("%s: %v, want 200 %.200q", what, a, value)
	case source != "" && a.header.Get("X-Kv-Source") != source:
		t.Errorf("%s: source %s, want %s", what, a.header.Get("X-Kv-Source"), source)
	}
}

// parallel calls fn for each item on a few goroutines. fn must not end the test.
func parallel[T any](workers int, items []T, fn func(T)) {
	ch := make(chan T)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for item := range ch {
				fn(item)
			}
		})
	}
	for _, item := range items {
		ch <- item
	}
	close(ch)
	wg.Wait()
}

// sorted are the keys of m in order, so that a test asks in the same order each time.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
