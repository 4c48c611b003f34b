package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"keyhole/partitioner"
)

func murmur2(key string, n int32) int32 {
	place, err := partitioner.For("murmur2")
	if err != nil {
		panic(err)
	}
	return place([]byte(key), n)
}

// ndjson makes n records over some keys, with the record's number as value.
func ndjson(n, keys int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"key\":\"k%d\",\"value\":\"%d\"}\n", rand.IntN(keys), i)
	}
	return b.String()
}

// checkOrder fails unless the node got want records, and those of a partition in
// the order of the input. Records that came twice count once.
func (f *fakeNode) checkOrder(t *testing.T, want int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := make(map[string]bool)
	last := make(map[int]int)
	for _, r := range f.got {
		var n int
		if _, err := fmt.Sscan(r.Value, &n); err != nil {
			t.Fatal(err)
		}
		if !seen[r.Value] && n < last[r.Partition] {
			t.Fatalf("partition %d: record %d behind %d", r.Partition, n, last[r.Partition])
		}
		seen[r.Value] = true
		last[r.Partition] = max(n, last[r.Partition])
	}
	if len(seen) != want {
		t.Errorf("got %d records, want %d", len(seen), want)
	}
	if f.clashes > 0 {
		t.Errorf("%d requests overtook another with records of the same partition", f.clashes)
	}
}

// finalValues are what readers see in the end.
func (f *fakeNode) finalValues() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	final := make(map[string]string)
	for _, r := range f.got {
		final[r.Key] = r.Value
	}
	return final
}

func expectedFinal(t *testing.T, input string) map[string]string {
	t.Helper()
	final := make(map[string]string)
	for line := range strings.Lines(input) {
		var rec struct{ Key, Value string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatal(err)
		}
		final[rec.Key] = rec.Value
	}
	return final
}

func (f *fakeNode) checkFinal(t *testing.T, input string) {
	t.Helper()
	got, want := f.finalValues(), expectedFinal(t, input)
	for k, v := range want {
		if got[k] != v {
			t.Fatalf("key %s ends as %q, want %q", k, got[k], v)
		}
	}
}

func TestProduceOrder(t *testing.T) {
	for _, partitions := range []int{1, 3, 20} {
		f := newFakeNode(t, partitions)
		input := ndjson(5000, 300)
		r := keyhole(t, f.env(), strings.NewReader(input), "produce", "t", "--json")
		r.want(t, exitDone, `"records":5000`, "")
		f.checkOrder(t, 5000)
		f.checkFinal(t, input)
		if partitions > 1 && f.requestCount() < 2 {
			t.Errorf("%d partitions: everything in one request", partitions)
		}
	}
}

// Without the admin listener one request is in flight at a time.
func TestProduceWithoutAdmin(t *testing.T) {
	f := newFakeNode(t, 4)
	r := keyhole(t, []string{"KEYHOLE_URL=" + f.URL, "KEYHOLE_ADMIN_URL=http://127.0.0.1:1"}, strings.NewReader(ndjson(3000, 50)), "produce", "t", "-")
	r.want(t, exitDone, "produced 3000 records", "")
	f.checkOrder(t, 3000)
}

func TestProduceFile(t *testing.T) {
	input := ndjson(2500, 40)
	var zipped bytes.Buffer
	for _, part := range []string{input[:len(input)/2], input[len(input)/2:]} { // two members, as from cat a.gz b.gz
		zw := gzip.NewWriter(&zipped)
		if _, err := io.WriteString(zw, part); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string][]byte{
		"plain.ndjson": []byte(input), "with.ndjson.gz": zipped.Bytes(), "gzip-without-a-name": zipped.Bytes(),
		"crlf.ndjson": []byte(strings.ReplaceAll(input, "\n", "\r\n")), "blank-lines": []byte("\n\n" + strings.ReplaceAll(input, "\n", "\n \n")),
		"no-last-newline": []byte(strings.TrimSuffix(input, "\n")),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeNode(t, 3)
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			keyhole(t, f.env(), nil, "produce", "t", path).want(t, exitDone, "produced 2500 records", "")
			f.checkOrder(t, 2500)
		})
	}
	f := newFakeNode(t, 3)
	r := keyhole(t, f.env(), bytes.NewReader(zipped.Bytes()[:zipped.Len()-20]), "produce", "t")
	r.want(t, exitFailed, "produced ", "stdin: line ")
}

// Every form of the line reaches the node as it was meant.
func TestProduceForms(t *testing.T) {
	f := newFakeNode(t, 1)
	input := `{"key":"s","value":"text é\n","timestamp":1700000000123}
{"key":{"base64":"/wA="},"value":{"base64":"AAEC"}}
{"key":"tomb","value":null}
{"key":"empty","value":""}
{"key":"num","value":{"id":9223372036854775807,"x":1.0,"x":2e1}}
{"key":"","value":"zero-length key","partition":0}
{"key":"h","value":"v","headers":[{"name":"a","value":"x"},{"name":"a","value":null},{"name":"b","value":{"base64":"/w=="}}]}
`
	keyhole(t, f.env(), strings.NewReader(input), "produce", "t").want(t, exitDone, "produced 7 records", "")
	want := []fakeRecord{
		{Key: "s", Value: "text é\n"},
		{Key: "\xff\x00", Value: "\x00\x01\x02"},
		{Key: "tomb", Null: true},
		{Key: "empty"},
		{Key: "num", Value: `{"id":9223372036854775807,"x":1.0,"x":2e1}`}, // case 1-26
		{Key: "", Value: "zero-length key"},
		{Key: "h", Value: "v"},
	}
	got := f.records()
	if len(got) != len(want) {
		t.Fatalf("got %d records, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Key != w.Key || g.Value != w.Value || g.Null != w.Null {
			t.Errorf("record %d: got %+v, want %+v", i, g, w)
		}
	}
	if ts := got[0].Timestamp; ts == nil || *ts != 1700000000123 {
		t.Errorf("timestamp is %v", ts)
	}
	const headers = `[{"name":"a","value":"eA=="},{"name":"a","value":null},{"name":"b","value":"/w=="}]`
	if h := string(got[6].Headers); h != headers {
		t.Errorf("headers are %s", h)
	}
}

func TestProduceBadLine(t *testing.T) {
	for _, bad := range []string{`{"key":"c" "value":"2"}`, `{"key":"c","valeu":"2"}`, `["c"]`, `x`, `{"key":"c","value":{"base64":"!"}}`, "{\"key\":\"c\"", "\x1f"} {
		f := newFakeNode(t, 2)
		input := ndjson(1500, 10) + "\n" + bad + "\n" + ndjson(10, 10)
		r := keyhole(t, f.env(), strings.NewReader(input), "produce", "t")
		r.want(t, exitFailed, "produced 1500 records", "stdin: line 1502: ")
		f.checkOrder(t, 1500)
	}
}

// case 1-23: records that the node refuses are named, and the exit code says so.
func TestProduceRefused(t *testing.T) {
	f := newFakeNode(t, 1, func(f *fakeNode) {
		f.verdict = func(_ int, r fakeRecord) int {
			if r.Key == "bad" {
				return 42208
			}
			return 0
		}
	})
	input := ndjson(10, 3) + "{\"key\":\"bad\",\"value\":\"\"}\n" + ndjson(10, 3)
	r := keyhole(t, f.env(), strings.NewReader(input), "produce", "t", "--json")
	r.want(t, exitFailed, `"topic":"t"`, "stdin: line 11: refused: fake refusal (42208)")
	if n := len(f.records()); n < 10 {
		t.Errorf("only %d records were written", n)
	}
}

// 42101 is a partition that another node has: trying again there is in vain.
func TestProduceManyRefused(t *testing.T) {
	for _, code := range []int{42208, 42101} {
		t.Run(strconv.Itoa(code), func(t *testing.T) { testProduceManyRefused(t, code) })
	}
}

func testProduceManyRefused(t *testing.T, code int) {
	path := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(path, []byte(ndjson(20_000, 3)), 0o600); err != nil {
		t.Fatal(err)
	}
	var f *fakeNode
	var r result
	for range 20 { // on a busy machine the first request may go off with a few records
		var most atomic.Int64
		f = newFakeNode(t, 1, func(f *fakeNode) {
			f.verdict = func(int, fakeRecord) int { return code }
			f.before = func(_ http.ResponseWriter, _ int, records []fakeRecord) int {
				most.Store(max(most.Load(), int64(len(records)))) // one request at a time
				return 0
			}
		})
		if r = keyhole(t, f.env(), nil, "produce", "t", path); most.Load() > maxRefused {
			break
		}
	}
	r.want(t, exitFailed, "produced 0 records", "more records were refused")
	if n := strings.Count(r.err, "\n"); n > maxRefused+2 {
		t.Errorf("%d lines of messages", n)
	}
	if f.requestCount() > 4 {
		t.Errorf("%d requests after the first refusal", f.requestCount())
	}
}

// Trouble that passes is waited out, and no key ends with an older value.
func TestProduceRetries(t *testing.T) {
	for name, before := range map[string]func(w http.ResponseWriter, n int, records []fakeRecord) int{
		"503": func(w http.ResponseWriter, n int, _ []fakeRecord) int {
			if n%3 == 0 {
				w.Header().Set("Retry-After", "0")
				return http.StatusServiceUnavailable
			}
			return 0
		},
		"504": func(_ http.ResponseWriter, n int, _ []fakeRecord) int {
			if n == 2 {
				return http.StatusGatewayTimeout
			}
			return 0
		},
		"connection cut": func(w http.ResponseWriter, n int, _ []fakeRecord) int {
			if n%4 != 2 {
				return 0
			}
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			_ = conn.Close()
			return -1
		},
		"too large": func(_ http.ResponseWriter, _ int, records []fakeRecord) int {
			if len(records) > 150 {
				return http.StatusRequestEntityTooLarge
			}
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeNode(t, 2, func(f *fakeNode) { f.before = before })
			input := ndjson(3000, 20)
			r := keyhole(t, f.env(), strings.NewReader(input), "produce", "t", "--json")
			r.want(t, exitDone, `"records":3000`, "")
			f.checkOrder(t, 3000)
			f.checkFinal(t, input)
		})
	}
}

// Some records of a request have to be sent again while later ones are already
// in: all from the first one on are, so that the newest value still comes last.
func TestProducePartialRetry(t *testing.T) {
	f := newFakeNode(t, 1, func(f *fakeNode) {
		f.verdict = func(n int, r fakeRecord) int {
			if n <= 6 && strings.HasSuffix(r.Value, "3") {
				return retriable
			}
			return 0
		}
	})
	input := ndjson(900, 5)
	r := keyhole(t, f.env(), strings.NewReader(input), "produce", "t", "--json")
	r.want(t, exitDone, `"records":900`, "")
	f.checkFinal(t, input)
}

func TestProduceGivesUp(t *testing.T) {
	always := func(status int) func(*fakeNode) {
		return func(f *fakeNode) {
			f.before = func(http.ResponseWriter, int, []fakeRecord) int { return status }
		}
	}
	var f *fakeNode
	var r result
	for _, patience := range []string{"300ms", "3s", "30s"} { // the machine may stand still in the first one
		f = newFakeNode(t, 1, always(http.StatusServiceUnavailable))
		r = keyhole(t, f.env(), strings.NewReader(ndjson(10, 5)), "produce", "t", "--retry-timeout", patience)
		if f.requestCount() > 1 {
			r.want(t, exitFailed, "produced 0 records", "given up after "+patience+": fake trouble 503")
			break
		}
	}
	if f.requestCount() < 2 {
		t.Errorf("%d requests", f.requestCount())
	}
	f = newFakeNode(t, 1, always(http.StatusNotFound))
	r = keyhole(t, f.env(), strings.NewReader(ndjson(10, 5)), "produce", "t")
	r.want(t, exitFailed, "produced 0 records", "fake trouble 404")
}

// A line that is longer than the reader's buffer.
func TestProduceLongLine(t *testing.T) {
	f := newFakeNode(t, 1)
	value := strings.Repeat("v", 5<<20)
	input := "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"long\",\"value\":\"" + value + "\"}\n{\"key\":\"b\",\"value\":\"2\"}"
	keyhole(t, f.env(), strings.NewReader(input), "produce", "t").want(t, exitDone, "produced 3 records", "")
	if got := f.records(); len(got) != 3 || got[1].Value != value || got[2].Value != "2" {
		t.Error("records differ")
	}
}

// A pipe that stays open is passed on record by record.
func TestProduceFromPipe(t *testing.T) {
	arrived := make(chan string, 10)
	f := newFakeNode(t, 1, func(f *fakeNode) {
		f.before = func(_ http.ResponseWriter, _ int, records []fakeRecord) int {
			for _, r := range records {
				arrived <- r.Key
			}
			return 0
		}
	})
	r, w := io.Pipe()
	go func() {
		for _, key := range []string{"a", "b", "c"} {
			fmt.Fprintf(w, "{\"key\":%q,\"value\":\"\"}\n", key)
			if got := <-arrived; got != key { // only then the next one is written
				t.Errorf("got %q, want %q", got, key)
			}
		}
		w.Close()
	}()
	keyhole(t, f.env(), r, "produce", "t").want(t, exitDone, "produced 3 records", "")
}
