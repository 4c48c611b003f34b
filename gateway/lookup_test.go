package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"keyhole/catalog"
	"keyhole/partition"
	"keyhole/partitioner"
	"keyhole/record"
	"keyhole/recordjson"
)

func TestFound(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("other"), Value: []byte("x")})
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("hello"), Timestamp: 1_700_000_000_123})
	ts := start(t, newFakeTopics(topic))
	for source, name := range map[partition.Source]string{0: "local", 1: "cache", 2: "remote"} {
		topic.parts[0].source = source
		r := ts.get("/kv/t/k", "Range: bytes=0-1").want(t, "hit", http.StatusOK)
		want := http.Header{
			"Content-Type": {"application/octet-stream"}, "X-Content-Type-Options": {"nosniff"},
			"Content-Length": {"5"}, "X-Kv-Partition": {"0"}, "X-Kv-Offset": {"1"}, "X-Kv-Position": {"2"},
			"X-Kv-Timestamp": {"1700000000123"}, "X-Kv-Source": {name}, "Etag": {`"id-of-t-0-7-1"`},
		}
		if r.header.Get("Date") == "" {
			t.Error("no Date")
		}
		r.header.Del("Date")
		r.header.Del("Connection")
		if r.body != "hello" || !reflect.DeepEqual(r.header, want) {
			t.Errorf("answer %v\nwant headers %v", r, want)
		}
	}
}

// Lengths around the size up to which net/http finds the length itself: each is
// announced, none is chunked, and an empty value is a value. Case 1-17.
func TestLengths(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	for _, n := range []int{0, 1, 17, autoLength - 1, autoLength, autoLength + 1, 4096, 100_000, 8<<20 - 1} {
		value := strings.Repeat("v", n)
		topic.set(0, record.Record{Key: []byte("k"), Value: []byte(value)})
		r := ts.get("/kv/t/k").want(t, "GET", http.StatusOK)
		if r.body != value || r.header.Get("Content-Length") != strconv.Itoa(n) {
			t.Errorf("%d bytes: got %d, Content-Length %q", n, len(r.body), r.header.Get("Content-Length"))
		}
		r = ts.do(http.MethodHead, "/kv/t/k", "").want(t, "HEAD", http.StatusOK)
		if r.header.Get("Content-Length") != "" || r.body != "" {
			t.Errorf("HEAD of %d bytes: %v", n, r)
		}
	}
}

// HEAD gives the status and the place that GET gives, and reads no record. Case 1-16.
func TestHead(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("hello"), Timestamp: 7})
	p := topic.parts[0]
	p.source = partition.SourceRemote
	ts := start(t, newFakeTopics(topic))
	r := ts.do(http.MethodHead, "/kv/t/k", "").want(t, "HEAD", http.StatusOK)
	for name, want := range map[string]string{
		"X-Kv-Partition": "0", "X-Kv-Offset": "0", "X-Kv-Position": "1", "X-Kv-Source": "remote",
		"ETag": `"id-of-t-0-7-0"`, "X-Kv-Timestamp": "", "X-Kv-Headers": "", "Content-Length": "",
	} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if p.reads != 0 {
		t.Error("HEAD read the record")
	}
	for _, target := range []string{"/kv/t/absent", "/kv/absent/k", "/kv/t/k?partition=7", "/kv/t/"} {
		get, head := ts.get(target), ts.do(http.MethodHead, target, "")
		if get.status != head.status || get.header.Get("X-Kv-Reason") != head.header.Get("X-Kv-Reason") || head.body != "" {
			t.Errorf("%s: GET %v\nHEAD %v", target, get, head)
		}
	}
	ts.do(http.MethodHead, "/kv/t/k", "", `If-None-Match: "id-of-t-0-7-0"`).want(t, "conditional HEAD", http.StatusNotModified)
}

func TestIfNoneMatch(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("hello")})
	ts := start(t, newFakeTopics(topic))
	tag := ts.get("/kv/t/k").header.Get("ETag")
	topic.parts[0].reads = 0
	for _, c := range []struct {
		lines []string
		want  int
	}{
		{[]string{tag}, 304},
		{[]string{"W/" + tag}, 304},
		{[]string{"*"}, 304},
		{[]string{`"a,b", ` + tag}, 304},
		{[]string{`"a"` + tag}, 304},
		{[]string{`W/"x" ,, ` + tag + `, "y"`}, 304},
		{[]string{`"x"`, tag}, 304},
		{[]string{strings.Trim(tag, `"`)}, 200},
		{[]string{`"x"`}, 200},
		{[]string{`"x, ` + tag[1:]}, 200},
		{[]string{""}, 200},
		{[]string{`"`}, 200},
	} {
		var lines []string
		for _, l := range c.lines {
			lines = append(lines, "If-None-Match: "+l)
		}
		before := topic.parts[0].reads
		r := ts.get("/kv/t/k", lines...).want(t, fmt.Sprint(c.lines), c.want)
		if c.want == 304 && (r.body != "" || r.header.Get("ETag") != tag || r.header.Get("X-Kv-Offset") != "0" || topic.parts[0].reads != before) {
			t.Errorf("%q: %v, %d reads", c.lines, r, topic.parts[0].reads)
		}
	}
	// An absent key stays absent.
	ts.get("/kv/t/absent", "If-None-Match: *").refused(t, "absent", 404, "key_not_found", "key not found")
	// A record that replaced the one behind the tag is another one, ranges and
	// If-Range or not. Case 1-20.
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("newer")})
	r := ts.get("/kv/t/k", "If-None-Match: "+tag, "If-Range: "+tag, "Range: bytes=2-").want(t, "overwritten", http.StatusOK)
	if r.body != "newer" || r.header.Get("ETag") == tag {
		t.Errorf("overwritten: %v", r)
	}
}

// Ranges are ignored, whatever they say. Case 1-19.
func TestRangeIgnored(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("four")})
	ts := start(t, newFakeTopics(topic))
	for _, v := range []string{"invalid", "bytes=5-2", "bytes=0-1,4-5", "bytes=999-", "bytes=0-0"} {
		r := ts.get("/kv/t/k", "Range: "+v).want(t, v, http.StatusOK)
		if r.body != "four" || r.header.Get("Content-Range") != "" {
			t.Errorf("Range: %s: %v", v, r)
		}
	}
}

func TestAcceptJSON(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte{0, 1, 2}, Timestamp: 5, Headers: []record.Header{{Name: "n"}}})
	ts := start(t, newFakeTopics(topic))
	raw := ts.get("/kv/t/k").want(t, "raw", http.StatusOK)
	r := ts.get("/kv/t/k", "Accept: application/json").want(t, "JSON", http.StatusOK)
	want := `{"topic":"t","partition":0,"offset":"0","timestamp":5,"key":{"type":"string","data":"k"},"value":{"type":"binary","data":"AAEC"},"headers":[{"name":"n","value":null}]}`
	if r.body != want || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("got %v\nwant %s", r, want)
	}
	// Two representations do not share a strong tag; each is recognised.
	tag := r.header.Get("ETag")
	if tag == raw.header.Get("ETag") {
		t.Error("both representations have the same ETag")
	}
	ts.get("/kv/t/k", "Accept: application/json", "If-None-Match: "+tag).want(t, "JSON again", http.StatusNotModified)
	ts.get("/kv/t/k", "If-None-Match: "+tag).want(t, "raw with the other tag", http.StatusOK)

	for accept, json := range map[string]bool{
		"*/*": false, "": false, "text/html": false, "application/*": false, "application/octet-stream": false,
		"application/json": true, "Application/JSON": true, "application/json;q=0.1": true, "application/json; charset=utf-8": true,
		"application/json;q=0": false, "application/json;q=x": false, "text/plain, application/json": true,
		"application/json, */*": true, "application/json;q=0.5, application/octet-stream": false,
		"application/octet-stream;q=0.5, application/json": true, "application/jsonp": false,
	} {
		if got := wantsJSON(http.Header{"Accept": {accept}}); got != json {
			t.Errorf("Accept %q: JSON %v, want %v", accept, got, json)
		}
	}
}

// Record headers reach the client in an encoded form only: nothing in them can
// add, replace or break a header. Case 1-22.
func TestRecordHeaders(t *testing.T) {
	headers := []record.Header{
		{Name: "h", Value: []byte("a\r\nX-Evil: 1")}, {Name: "nul", Value: []byte{0}}, {Name: "with space", Value: []byte("v")},
		{Name: "Content-Length", Value: []byte("999")}, {Name: "X-Kv-Offset", Value: []byte("999")},
		{Name: "null"}, {Name: "empty", Value: []byte{}}, {Name: "h", Value: []byte("again")},
	}
	for i := range 200 {
		headers = append(headers, record.Header{Name: fmt.Sprint("n", i), Value: []byte("v")})
	}
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("hello"), Headers: headers})
	ts := start(t, newFakeTopics(topic))
	r := ts.get("/kv/t/k").want(t, "GET", http.StatusOK)
	if r.body != "hello" || r.header.Get("X-Evil") != "" || r.header.Get("X-Kv-Offset") != "0" || len(r.header) > 12 {
		t.Errorf("a record header got out: %v", r)
	}
	got, err := recordjson.DecodeHeaders(r.header.Get("X-Kv-Headers"))
	if err != nil || !reflect.DeepEqual(got, headers) {
		t.Errorf("headers came back as %v, %v", got, err)
	}
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("hello")})
	if r := ts.get("/kv/t/k"); len(r.header["X-Kv-Headers"]) != 0 {
		t.Error("X-Kv-Headers without headers")
	}
}

func TestMinPosition(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.set(0, record.Record{Key: []byte("k"), Value: []byte("v")})
	ts := start(t, newFakeTopics(topic))
	ts.get("/kv/t/k?min_position=1").want(t, "reached", http.StatusOK)
	ts.get("/kv/t/k?min_position=0&wait_ms=30000").want(t, "no position", http.StatusOK)
	r := ts.get("/kv/t/k?min_position=2&wait_ms=1").refused(t, "not reached", 503, "position_not_reached", "position not reached")
	if r.header.Get("X-Kv-Position") != "1" || r.header.Get("X-Kv-Partition") != "0" {
		t.Errorf("place: %v", r)
	}
}

// The steps from the index on are the partition's; what it says is answered as
// the table has it, with the place where it is known.
func TestPartitionTrouble(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	for i := range outcomes {
		want := outcomes[i].outcome
		if want.step < 4 || errors.Is(outcomes[i].err, context.Canceled) {
			continue
		}
		topic.parts[0].fail = fmt.Errorf("secret-bucket/secret-key: %w", outcomes[i].err)
		r := ts.get("/kv/t/k").refused(t, outcomes[i].err.Error(), want.status, want.reason, want.message)
		if r.header.Get("X-Kv-Partition") != "0" || want.position != (r.header.Get("X-Kv-Position") == "0") {
			t.Errorf("%v: place %v", outcomes[i].err, r)
		}
		if strings.Contains(r.rawHead+r.body, "secret") {
			t.Errorf("%v: the cause got out: %v", outcomes[i].err, r)
		}
	}
}

// While it is not known which topics there are, "not found" is not known either.
func TestTopicsUnknown(t *testing.T) {
	topics := newFakeTopics()
	ts := start(t, topics)
	ts.get("/kv/t/k").refused(t, "no topic", 404, "topic_not_found", "topic not found")
	topics.missing = fmt.Errorf("%w: %w", catalog.ErrBucketUnknown, context.DeadlineExceeded)
	ts.get("/kv/t/k").refused(t, "bucket away", 503, "not_ready", "topics of the object store not known yet")
}

// Cases 2-02, 2-03 and 2-08.
func TestPartitioners(t *testing.T) {
	topic := newFakeTopic("t", 12)
	ts := start(t, newFakeTopics(topic))
	for _, c := range []struct {
		partitioner, key string
		want             int32
	}{
		{"murmur2", "user-2", 8}, {"murmur2", "100:48069", 9},
		{"murmur2", "foobar", 6}, {"fnv1a", "foobar", 0}, {"crc32", "foobar", 5},
	} {
		place, err := partitioner.For(c.partitioner)
		if err != nil {
			t.Fatal(err)
		}
		topic.place = place
		topic.set(c.want, record.Record{Key: []byte(c.key), Value: []byte(c.partitioner)})
		r := ts.get("/kv/t/"+c.key).want(t, c.partitioner, http.StatusOK)
		if r.body != c.partitioner || r.header.Get("X-Kv-Partition") != strconv.Itoa(int(c.want)) {
			t.Errorf("%v: %v", c, r)
		}
		// Asked in the wrong place, the answer names the place; the right one
		// can be named.
		topic.place = func([]byte, int32) int32 { return 11 }
		r = ts.get("/kv/t/"+c.key).refused(t, "wrong partitioner", 404, "key_not_found", "key not found")
		if r.header.Get("X-Kv-Partition") != "11" {
			t.Errorf("which partition was asked: %v", r)
		}
		ts.get(fmt.Sprint("/kv/t/", c.key, "?partition=", c.want)).want(t, "named", http.StatusOK)
	}
}

func TestMethods(t *testing.T) {
	ts := start(t, newFakeTopics(newFakeTopic("t", 1)))
	for _, c := range []struct{ method, target, allow string }{
		{"POST", "/kv/t/k", "GET, HEAD, PUT, DELETE"},
		{"PATCH", "/kv/t/k", "GET, HEAD, PUT, DELETE"},
		{"BREW", "/kv/t/k", "GET, HEAD, PUT, DELETE"},
		{"GET", "/topics/t", "POST"},
	} {
		r := ts.do(c.method, c.target, "").refused(t, c.method, 405, "method_not_allowed", "method not allowed")
		if r.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: Allow %q", c.method, c.target, r.header.Get("Allow"))
		}
	}
}

func TestZeroLengthKey(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic))
	// Case 2-05: the empty key is a key, null and an absent one are none.
	body := `{"records":[{"key":"","value":"ZW1wdHk="},{"key":null,"value":"eA=="},{"value":"eA=="}]}`
	r := ts.do(http.MethodPost, "/topics/t", body, "Content-Type: "+recordjson.MediaBinary).want(t, "POST", http.StatusOK)
	if strings.Count(r.body, `"error_code":42208`) != 2 {
		t.Errorf("null and absent keys: %v", r)
	}
	if r := ts.get("/kv/t/?partition=0").want(t, "empty key", http.StatusOK); r.body != "empty" {
		t.Errorf("empty key: %v", r)
	}
	if r := ts.get("/kv/t/?partition=0", "Accept: application/json"); !strings.Contains(r.body, `"key":{"type":"string","data":""}`) {
		t.Errorf("empty key as JSON: %v", r)
	}
}
