package gateway

import (
	"net/http"
	"testing"

	"keyhole/partition"
	"keyhole/record"
)

// Case 2-09 and the partitioner "any": the newest record answers, whichever
// partition has it.
func TestAny(t *testing.T) {
	topic := newFakeTopic("t", 4)
	ts := start(t, newFakeTopics(topic))
	get := func(want string, partition, ambiguous string, headers ...string) reply {
		t.Helper()
		r := ts.get("/kv/t/k?partition=any", headers...).want(t, "any", http.StatusOK)
		if r.body != want || r.header.Get("X-Kv-Partition") != partition || r.header.Get("X-Kv-Ambiguous") != ambiguous {
			t.Errorf("want %q of partition %s, ambiguous %q: %v", want, partition, ambiguous, r)
		}
		return r
	}
	k := []byte("k")

	r := ts.get("/kv/t/k?partition=any").refused(t, "nowhere", 404, "key_not_found", "key not found")
	if r.header.Get("X-Kv-Partition") != "" {
		t.Error("absent everywhere, but a partition is named")
	}

	topic.set(1, record.Record{Key: k, Value: []byte("one"), Timestamp: 10})
	r = get("one", "1", "")
	reads := topic.parts[1].reads
	ts.get("/kv/t/k?partition=any", "If-None-Match: "+r.header.Get("ETag")).want(t, "one holder, known", http.StatusNotModified)
	head := ts.do(http.MethodHead, "/kv/t/k?partition=any", "").want(t, "HEAD", http.StatusOK)
	if head.header.Get("X-Kv-Partition") != "1" || head.header.Get("ETag") != r.header.Get("ETag") || topic.parts[1].reads != reads {
		t.Errorf("HEAD with one holder: %v", head)
	}

	topic.set(2, record.Record{Key: k, Value: []byte("two"), Timestamp: 30})
	topic.set(3, record.Record{Key: k, Value: []byte("three"), Timestamp: 20})
	r = get("two", "2", "true")
	topic.set(3, record.Record{Key: k, Value: []byte("tie"), Timestamp: 30})
	get("tie", "3", "true")
	r = ts.get("/kv/t/k?partition=any", "If-None-Match: "+r.header.Get("ETag"))
	if r.status != http.StatusOK || r.body != "tie" {
		t.Errorf("the tag of a record that is no longer the newest: %v", r)
	}
	ts.get("/kv/t/k?partition=any", "If-None-Match: "+r.header.Get("ETag")).want(t, "several holders, known", http.StatusNotModified)
	// HEAD does not read, so it cannot know which is the newest, and says so.
	before := topic.parts[3].reads
	head = ts.do(http.MethodHead, "/kv/t/k?partition=any", "").want(t, "ambiguous HEAD", http.StatusOK)
	if head.header.Get("X-Kv-Ambiguous") != "true" || head.header.Get("X-Kv-Partition") != "" || topic.parts[3].reads != before {
		t.Errorf("HEAD with several holders: %v", head)
	}
	// The topic itself may be set to any.
	topic.any = true
	if r := ts.get("/kv/t/k"); r.body != "tie" {
		t.Errorf("topic set to any: %v", r)
	}
	if r := ts.get("/kv/t/k?partition=1"); r.body != "one" {
		t.Errorf("a named partition of a topic set to any: %v", r)
	}

	// A partition that cannot say makes the newest unknowable.
	topic.parts[0].fail = partition.ErrNotReady
	ts.get("/kv/t/k").refused(t, "one not ready", 503, "not_ready", "partition not ready")
	topic.parts[0].fail = partition.ErrRemoteReadDisabled
	ts.get("/kv/t/k").refused(t, "one hidden", 404, "remote_read_disabled", "record only available in tiered storage")
	topic.parts[1].fail = partition.ErrNotReady
	ts.get("/kv/t/k").refused(t, "the earliest step speaks", 503, "not_ready", "partition not ready")
	topic.parts[1].fail = nil
	topic.parts[0].fail = partition.ErrNotRetained
	get("tie", "3", "true")
	// One that another node has is none of those asked here.
	topic.parts[0].fail = partition.ErrNotHosted
	get("tie", "3", "true")
	topic.parts[3].failRead = record.ErrCorrupt
	ts.get("/kv/t/k").refused(t, "one unreadable", 500, "corrupt", "stored data is damaged")

	for _, p := range topic.parts {
		p.fail = partition.ErrNotHosted
	}
	ts.get("/kv/t/k").refused(t, "none here", 421, "not_hosted", "partition not hosted on this node")
	topic.parts[2].fail = partition.ErrNotRetained
	ts.get("/kv/t/k").refused(t, "not retained", 404, "not_retained", "record not retained")
	for n, p := range topic.parts {
		p.fail, p.failRead, p.next = nil, nil, int64(10+n)
	}
	// All of them together vouch for the smallest position; a record, for the one
	// of its partition.
	for target, want := range map[string]string{
		"/kv/t/absent":                 "10",
		"/kv/t/absent?min_position=10": "10",
		"/kv/t/k?min_position=11":      "10",
		"/kv/t/k":                      "13",
	} {
		if r := ts.get(target); r.header.Get("X-Kv-Position") != want {
			t.Errorf("%s: want position %s: %v", target, want, r)
		}
	}
	topic.parts[1].fail = partition.ErrNotHosted
	topic.parts[0].fail = partition.ErrNotHosted
	if r := ts.get("/kv/t/absent"); r.header.Get("X-Kv-Position") != "12" {
		t.Errorf("of those that are here: %v", r)
	}
	topic.parts = nil
	ts.get("/kv/t/k").refused(t, "no partition", 421, "not_hosted", "partition not hosted on this node")
}
