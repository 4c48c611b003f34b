package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeNode accepts records as a gateway does and can be told to misbehave. It
// serves both listeners on one address.
type fakeNode struct {
	*httptest.Server
	partitions int

	mu       sync.Mutex
	got      []fakeRecord
	requests int
	inFlight map[int]int // requests that carry records of a partition
	clashes  int         // two requests in flight with records of one partition
	// before is asked for each request, counted from 1; a status other than 0
	// is answered instead. It may hijack the connection itself, giving -1.
	before func(w http.ResponseWriter, n int, records []fakeRecord) int
	// verdict gives the error of a record, 0: accepted.
	verdict func(n int, r fakeRecord) int
}

type fakeRecord struct {
	Key, Value string
	Null       bool
	Partition  int
	Timestamp  *int64
	Headers    json.RawMessage
}

// newFakeNode starts one; misbehave sets before and verdict.
func newFakeNode(t *testing.T, partitions int, misbehave ...func(*fakeNode)) *fakeNode {
	f := &fakeNode{partitions: partitions, inFlight: make(map[int]int)}
	for _, m := range misbehave {
		m(f)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /topics/{topic}", f.produce)
	mux.HandleFunc("GET /v1/topics/{topic}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"name":"t","partitions":%d,"configs":{"keyhole.partitioner":{"value":"murmur2"}}}`, partitions)
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// records are those that it has accepted so far.
func (f *fakeNode) records() []fakeRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

func (f *fakeNode) requestCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

func (f *fakeNode) env() []string {
	return []string{"KEYHOLE_URL=" + f.URL, "KEYHOLE_ADMIN_URL=" + f.URL}
}

func (f *fakeNode) produce(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Records []struct {
			Key, Value *string
			Partition  *int
			Timestamp  *int64
			Headers    json.RawMessage
		}
	}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/vnd.kafka.binary.v2+json" {
		http.Error(w, `{"error_code":422,"message":"malformed"}`, http.StatusUnprocessableEntity)
		return
	}
	var records []fakeRecord
	for _, in := range body.Records {
		rec := fakeRecord{Null: in.Value == nil, Timestamp: in.Timestamp, Headers: in.Headers}
		if in.Key != nil {
			key, _ := base64.StdEncoding.DecodeString(*in.Key)
			rec.Key = string(key)
		}
		if in.Value != nil {
			value, _ := base64.StdEncoding.DecodeString(*in.Value)
			rec.Value = string(value)
		}
		if in.Partition != nil {
			rec.Partition = *in.Partition
		} else {
			rec.Partition = fakePlace(rec.Key, f.partitions)
		}
		records = append(records, rec)
	}
	n := f.begin(records)
	defer f.end(records)
	if f.before != nil {
		if status := f.before(w, n, records); status != 0 {
			if status > 0 {
				w.WriteHeader(status)
				fmt.Fprintf(w, `{"error_code":50003,"message":"fake trouble %d"}`, status)
			}
			return
		}
	}
	f.answer(w, n, records)
}

func (f *fakeNode) begin(records []fakeRecord) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	for p := range partitionsOf(records) {
		if f.inFlight[p]++; f.inFlight[p] > 1 {
			f.clashes++
		}
	}
	return f.requests
}

func (f *fakeNode) end(records []fakeRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range partitionsOf(records) {
		f.inFlight[p]--
	}
}

func partitionsOf(records []fakeRecord) map[int]bool {
	set := make(map[int]bool)
	for _, r := range records {
		set[r.Partition] = true
	}
	return set
}

func (f *fakeNode) answer(w http.ResponseWriter, n int, records []fakeRecord) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var offsets []string
	accepted := 0
	for _, rec := range records {
		if code := f.judge(n, rec); code != 0 {
			offsets = append(offsets, fmt.Sprintf(`{"partition":null,"offset":null,"error_code":%d,"error":"fake refusal"}`, code))
			continue
		}
		f.got = append(f.got, rec)
		accepted++
		offsets = append(offsets, fmt.Sprintf(`{"partition":%d,"offset":%d}`, rec.Partition, len(f.got)))
	}
	if accepted == 0 {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, `{"offsets":[%s]}`, strings.Join(offsets, ","))
}

func (f *fakeNode) judge(n int, r fakeRecord) int {
	if f.verdict == nil {
		return 0
	}
	return f.verdict(n, r)
}

// fakePlace is where the fake puts a key: as a real node by murmur2, which the
// client has to compute alike.
func fakePlace(key string, partitions int) int {
	return int(murmur2(key, int32(partitions)))
}
