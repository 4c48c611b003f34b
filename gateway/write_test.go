package gateway

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"keyhole/partition"
	"keyhole/record"
	"keyhole/recordjson"
)

func TestPutDelete(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topics := newFakeTopics(topic)
	ts := start(t, topics)
	p := topic.parts[0]
	headers := []record.Header{{Name: "h", Value: []byte("a\r\nb")}, {Name: "null"}, {Name: "h", Value: []byte{}}}

	r := ts.do(http.MethodPut, "/kv/t/a%2Fb", "value", "X-Kv-Timestamp: 42", "X-Kv-Headers: "+recordjson.EncodeHeaders(headers)).want(t, "PUT", 200)
	if r.header.Get("X-Kv-Partition") != "0" || r.header.Get("X-Kv-Offset") != "0" || r.header.Get("Content-Length") != "0" {
		t.Errorf("PUT: %v", r)
	}
	if got := p.latest["a/b"]; string(got.Value) != "value" || got.Timestamp != 42 || !reflect.DeepEqual(got.Headers, headers) {
		t.Errorf("PUT wrote %+v", got)
	}
	// Without a timestamp it is now; an empty body is an empty value, no tombstone.
	before := time.Now().UnixMilli()
	ts.do(http.MethodPut, "/kv/t/empty", "").want(t, "PUT of nothing", 200)
	got, ok := p.latest["empty"]
	if !ok || got.Value == nil || got.Timestamp < before || got.Timestamp > time.Now().UnixMilli() {
		t.Errorf("PUT of nothing wrote %+v, %v", got, ok)
	}
	if r := ts.get("/kv/t/empty").want(t, "empty value", 200); r.header.Get("Content-Length") != "0" {
		t.Errorf("empty value: %v", r)
	}
	// DELETE says where its tombstone is, also for a key that was not there.
	r = ts.do(http.MethodDelete, "/kv/t/empty", "").want(t, "DELETE", 200)
	if r.header.Get("X-Kv-Partition") != "0" || r.header.Get("X-Kv-Offset") != "2" || r.header.Get("X-Kv-Position") != "3" {
		t.Errorf("DELETE: %v", r)
	}
	// The position of a write is one that a lookup here has reached.
	ts.get("/kv/t/a%2Fb?min_position="+r.header.Get("X-Kv-Position")).want(t, "own write", 200)
	ts.get("/kv/t/empty").refused(t, "deleted", 404, "key_not_found", "key not found")
	ts.do(http.MethodDelete, "/kv/t/never", "").want(t, "DELETE of nothing", 200)

	appends := p.appends
	for _, c := range []struct {
		header, message string
	}{
		{"X-Kv-Timestamp: ", "X-Kv-Timestamp is not a decimal number of milliseconds"},
		{"X-Kv-Timestamp: 1e3", "X-Kv-Timestamp is not a decimal number of milliseconds"},
		{"X-Kv-Timestamp: -1", "X-Kv-Timestamp is not a decimal number of milliseconds"},
		{"X-Kv-Timestamp: 9223372036854775808", "X-Kv-Timestamp is not a decimal number of milliseconds"},
		{"X-Kv-Timestamp: 1\r\nX-Kv-Timestamp: 1", "X-Kv-Timestamp is given more than once"},
		{"X-Kv-Headers: ", "X-Kv-Headers is not the base64url of a JSON list of headers"},
		{"X-Kv-Headers: %%%", "X-Kv-Headers is not the base64url of a JSON list of headers"},
		{"X-Kv-Headers: " + base64.RawURLEncoding.EncodeToString([]byte("{}")), "X-Kv-Headers is not the base64url of a JSON list of headers"},
		{"If-Match: \"x\"", "If-Match is not supported on a write"},
		{"If-None-Match: *", "If-None-Match is not supported on a write"},
		{"If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT", "If-Modified-Since is not supported on a write"},
		{"Content-Encoding: gzip", "Content-Encoding is not supported on a write"},
		{"Content-Range: bytes 0-1/2", "Content-Range is not supported on a write"},
	} {
		ts.do(http.MethodPut, "/kv/t/k", "v", c.header).refused(t, c.header, 400, "bad_request", c.message)
		ts.do(http.MethodDelete, "/kv/t/k", "", c.header).refused(t, c.header, 400, "bad_request", c.message)
	}
	ts.do(http.MethodPut, "/kv/t/k?partition=5", "v").refused(t, "no partition", 404, "partition_not_found", "partition not found")
	ts.do(http.MethodPut, "/kv/u/k", "v").refused(t, "no topic", 404, "topic_not_found", "topic not found")
	if p.appends != appends {
		t.Error("a refused write was appended")
	}
	for err, want := range map[error]struct {
		status          int
		reason, message string
	}{
		partition.ErrReadOnly:  {503, "read_only", "partition is read-only after a failed write"},
		partition.ErrNotHosted: {421, "not_hosted", "partition not hosted on this node"},
		partition.ErrNotReady:  {503, "not_ready", "partition not ready"},
		partition.ErrClosed:    {503, "closing", "closing"},
	} {
		p.refuse = err
		ts.do(http.MethodPut, "/kv/t/k", "v").refused(t, err.Error(), want.status, want.reason, want.message)
	}
	topics.create = true
	ts.do(http.MethodPut, "/kv/made/k", "v").want(t, "topic made on first write", 200)
	ts.get("/kv/never/k").refused(t, "a lookup makes none", 404, "topic_not_found", "topic not found")
}

func TestPutTooLarge(t *testing.T) {
	topic := newFakeTopic("t", 1)
	topic.max = 100
	ts := start(t, newFakeTopics(topic))
	// Key and value together may have 100 bytes.
	ts.do(http.MethodPut, "/kv/t/k", strings.Repeat("v", 99)).want(t, "largest", 200)
	ts.do(http.MethodPut, "/kv/t/k", strings.Repeat("v", 100)).refused(t, "larger", 413, "bad_request", "record too large")
	ts.do(http.MethodPut, "/kv/t/"+strings.Repeat("k", 101), "").refused(t, "key alone", 413, "bad_request", "record too large")
	// A length that is not announced is noticed as the bytes come.
	chunked := "PUT /kv/t/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("20\r\n"+strings.Repeat("v", 32)+"\r\n", 4) + "0\r\n\r\n"
	raw(t, ts.data, http.MethodPut, chunked).refused(t, "chunked", 413, "bad_request", "request body too large")
	if topic.parts[0].appends != 1 {
		t.Errorf("%d appends", topic.parts[0].appends)
	}
	// An announced one is refused before a byte of it is read.
	r := raw(t, ts.data, http.MethodPut, "PUT /kv/t/k HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n")
	r.refused(t, "announced", 413, "bad_request", "record too large")
}

type offsets struct {
	Offsets []struct {
		Partition *int32 `json:"partition"`
		Offset    *int64 `json:"offset"`
		Code      int    `json:"error_code"`
		Error     string `json:"error"`
	} `json:"offsets"`
}

func (ts *testServer) produceJSON(target, body string, status int) (got offsets) {
	ts.t.Helper()
	r := ts.do(http.MethodPost, target, body, "Content-Type: "+recordjson.MediaJSON).want(ts.t, body, status)
	if ct := r.header.Get("Content-Type"); ct != "application/vnd.kafka.v2+json" {
		ts.t.Errorf("Content-Type %q", ct)
	}
	if (status == 503) != (r.header.Get("Retry-After") == "1") {
		ts.t.Errorf("status %d with Retry-After %q", status, r.header.Get("Retry-After"))
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil {
		ts.t.Fatalf("%v: %v", err, r)
	}
	return got
}

// codes are the error codes in order, 0 for an accepted record.
func (o offsets) codes() (codes []int) {
	for _, r := range o.Offsets {
		if (r.Code == 0) != (r.Partition != nil && r.Offset != nil && r.Error == "") || r.Code != 0 && r.Error == "" {
			codes = append(codes, -1)
			continue
		}
		codes = append(codes, r.Code)
	}
	return codes
}

func TestProduce(t *testing.T) {
	topic := newFakeTopic("t", 3)
	topic.max = 1000
	ts := start(t, newFakeTopics(topic))
	// Case 1-23: what is wrong with one record does not keep the others out.
	got := ts.produceJSON("/topics/t", `{"records":[{"key":"a","value":1},{"value":2},{"key":"c","value":3,"partition":1},{"key":"d","value":4,"partition":9},{"key":"a","value":5},{"key":"e","value":"`+strings.Repeat("x", 1000)+`"},{"key":"f","value":6,"headers":"x"}]}`, 200)
	if want := []int{0, 42208, 0, 40402, 0, 42208, 42208}; !reflect.DeepEqual(got.codes(), want) {
		t.Fatalf("codes %v, want %v", got.codes(), want)
	}
	home := topic.PartitionFor([]byte("a"))
	if *got.Offsets[0].Partition != home || *got.Offsets[2].Partition != 1 || *got.Offsets[4].Offset <= *got.Offsets[0].Offset {
		t.Errorf("places: %+v", got)
	}
	if n := topic.parts[home].appends; n != 1 && home != 1 {
		t.Errorf("%d appends for one request and partition", n)
	}
	if r := ts.get("/kv/t/a").want(t, "read back", 200); r.body != "5" {
		t.Errorf("the later record of a key must win: %v", r)
	}
	// Case 1-26: a value is what was sent, digit for digit.
	ts.produceJSON("/topics/t", `{"records":[{"key":"n","value":{"id":9223372036854775807,"x":1.0}}]}`, 200)
	if r := ts.get("/kv/t/n"); r.body != `{"id":9223372036854775807,"x":1.0}` {
		t.Errorf("value changed: %v", r)
	}
	// Case 1-25: the text null is a value, null and nothing are tombstones.
	ts.produceJSON("/topics/t", `{"records":[{"key":"n","value":"null"}]}`, 200)
	ts.get("/kv/t/n").want(t, "text null", 200)
	ts.produceJSON("/topics/t", `{"records":[{"key":"n","value":null}]}`, 200)
	ts.get("/kv/t/n").want(t, "null", 404)
	// One partition named by the path.
	got = ts.produceJSON("/topics/t/partitions/2", `{"records":[{"key":"a","value":7,"timestamp":9},{"key":"a","value":8,"partition":2},{"key":"a","value":9,"partition":0}]}`, 200)
	if want := []int{0, 0, 42208}; !reflect.DeepEqual(got.codes(), want) || *got.Offsets[1].Partition != 2 {
		t.Fatalf("path partition: %+v", got)
	}
	// Case 2-09: each is reachable where it was put.
	if r := ts.get("/kv/t/a?partition=2"); r.body != "8" {
		t.Errorf("named partition: %v", r)
	}
	// Case 2-06: a null key is no key, and never the empty one.
	nulls := strings.TrimSuffix(strings.Repeat(`{"key":null,"value":1},`, 100), ",")
	for _, code := range ts.produceJSON("/topics/t", `{"records":[`+nulls+`]}`, 422).codes() {
		if code != 42208 {
			t.Fatalf("null key: code %d", code)
		}
	}
	for n := range topic.parts {
		ts.get(fmt.Sprint("/kv/t/?partition=", n)).want(t, "empty key", 404)
	}
	// Nothing accepted: the status says what kind of trouble it is.
	large := `{"key":"e","value":"` + strings.Repeat("x", 1000) + `"}`
	ts.produceJSON("/topics/t", `{"records":[`+large+`,`+large+`]}`, 413)
	ts.produceJSON("/topics/t", `{"records":[`+large+`,{"value":1}]}`, 422)
	ts.produceJSON("/topics/t", `{"records":[{"key":"e","value":1,"partition":7}]}`, 422)
	for _, p := range topic.parts {
		p.refuse = partition.ErrNotReady
	}
	got = ts.produceJSON("/topics/t", `{"records":[{"key":"e","value":1},{"value":1}]}`, 503)
	if want := []int{50003, 42208}; !reflect.DeepEqual(got.codes(), want) {
		t.Errorf("codes %v, want %v", got.codes(), want)
	}
	for _, p := range topic.parts {
		p.refuse = partition.ErrNotHosted
	}
	if got := ts.produceJSON("/topics/t", `{"records":[{"key":"e","value":1}]}`, 421); got.codes()[0] != 42101 {
		t.Errorf("not hosted: %v", got.codes())
	}
	ts.produceJSON("/topics/t", `{"records":[{"key":"e","value":1},{"value":1}]}`, 422)
}

func TestProduceRefused(t *testing.T) {
	topic := newFakeTopic("t", 1)
	ts := start(t, newFakeTopics(topic), func(o *Options) { o.MaxBodyBytes = 1 << 16 })
	for _, c := range []struct {
		target, mediaType, body string
		status, code            int
		message                 string
	}{
		{"/topics/u", recordjson.MediaJSON, `{"records":[]}`, 404, 40401, "topic not found"},
		{"/topics/t/partitions/7", recordjson.MediaJSON, `{"records":[]}`, 404, 40402, "partition not found"},
		{"/topics/t/partitions/x", recordjson.MediaJSON, `{"records":[]}`, 404, 40402, "partition not found"},
		{"/topics/t/partitions/any", recordjson.MediaJSON, `{"records":[]}`, 404, 40402, "partition not found"},
		{"/topics/t", "application/json", `{}`, 415, 415, "Content-Type must be"},
		{"/topics/t", "", `{}`, 415, 415, "Content-Type must be"},
		{"/topics/t", recordjson.MediaJSON + "\r\nContent-Encoding: gzip", `{}`, 415, 415, "must not be compressed"},
		// Case 1-28: the answer names what is missing.
		{"/topics/t", recordjson.MediaJSON, ``, 422, 422, "records"},
		{"/topics/t", recordjson.MediaJSON, `{}`, 422, 422, "records"},
		{"/topics/t", recordjson.MediaJSON, `{"records":[]}`, 422, 422, `the list "records" is empty`},
		{"/topics/t", recordjson.MediaBinary, `null`, 422, 422, "records"},
		{"/topics/t", recordjson.MediaJSON, `{"records":[{"key":"k"`, 422, 422, "malformed JSON"},
		{"/topics/t", recordjson.MediaJSON, strings.Repeat("[", 60_000), 422, 422, "malformed JSON"}, // case 8-17
		{"/topics/t", recordjson.MediaJSON, strings.Repeat(" ", 1<<16+1), 413, 413, "request body too large"},
	} {
		r := ts.do(http.MethodPost, c.target, c.body, "Content-Type: "+c.mediaType).want(t, c.target+" "+c.body[:min(40, len(c.body))], c.status)
		var got kafkaError
		if strings.HasSuffix(c.body, "]}") && strings.Contains(r.body, "malformed") {
			t.Errorf("well-formed JSON is called malformed: %v", r)
		}
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || got.Code != c.code || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s %.40s: %v, want %d %q", c.target, c.body, r, c.code, c.message)
		}
	}
	if topic.parts[0].appends != 0 {
		t.Error("a refused request wrote something")
	}
	// Parameters of the media type do not matter.
	ts.do(http.MethodPost, "/topics/t", `{"records":[{"key":"k","value":1}]}`, `Content-Type: Application/Vnd.Kafka.JSON.v2+json; charset=utf-8`).want(t, "parameters", 200)
}
