package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

const (
	historyFile       = "kafka-file-history.ndjson.gz"
	historyTopic      = "history"
	historyPartitions = 3
	// historySegment makes a dozen segments of the 30 MB.
	historySegment = "1048576"

	historyRecords = 98257
	historyLive    = 6519
)

// history is the state of the topic after the last record.
type history struct {
	file string
	live map[string][]byte // key → latest value
	dead []string          // keys whose latest record is a tombstone
}

var loadHistory = sync.OnceValues(func() (*history, error) {
	file, err := findHistory()
	if err != nil || file == "" {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	h := &history{file: file, live: map[string][]byte{}}
	gone := map[string]bool{}
	lines := bufio.NewScanner(zr)
	lines.Buffer(nil, 1<<20)
	records := 0
	for ; lines.Scan(); records++ {
		var r struct {
			Key   string  `json:"key"`
			Value *string `json:"value"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, records+1, err)
		}
		if r.Value == nil {
			delete(h.live, r.Key)
			gone[r.Key] = true
			continue
		}
		h.live[r.Key] = []byte(*r.Value)
		delete(gone, r.Key)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	h.dead = sorted(gone)
	if records != historyRecords || len(h.live) != historyLive {
		return nil, fmt.Errorf("%s: %d records and %d live keys, expected %d and %d", file, records, len(h.live), historyRecords, historyLive)
	}
	return h, nil
})

// findHistory gives the path of the file, or nothing where it is not there.
func findHistory() (string, error) {
	if dir := os.Getenv("KEYHOLE_TESTDATA"); dir != "" {
		file := filepath.Join(dir, historyFile)
		_, err := os.Stat(file)
		return file, err
	}
	for dir := moduleRoot; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, "shared", "data", historyFile)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
		if dir == filepath.Dir(dir) {
			return "", nil
		}
	}
}

// needHistory skips the test where the file is not there.
func needHistory(t *testing.T) *history {
	t.Helper()
	h, err := loadHistory()
	if err != nil {
		t.Fatal(err)
	}
	if h == nil {
		t.Skipf("%s is not there: set KEYHOLE_TESTDATA to its folder", historyFile)
	}
	return h
}

// TestHistory takes the main job through on real input: the changes of every
// file of a large repository, hot, cold, refused, and after each way in which a
// node can lose its memory.
func TestHistory(t *testing.T) {
	h := needHistory(t)
	eachBackend(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		// Compaction, which would begin by itself, has a test of its own; here requests
		// are counted.
		n.indexed(historyTopic, historyPartitions, map[string]string{"segment.bytes": historySegment, "min.compaction.lag.ms": "3600000"})
		var summary struct {
			Records int `json:"records"`
		}
		out := n.mustCLI("", "produce", historyTopic, h.file, "--json")
		if err := json.Unmarshal([]byte(out), &summary); err != nil || summary.Records != historyRecords {
			t.Fatalf("produce: %v, %q", err, out)
		}

		r := &historyRun{h: h, n: n}
		r.phase(t, "hot", "local")

		for p, st := range n.evict(historyTopic, historyPartitions) {
			if st.CloudSegments < 2 {
				t.Errorf("partition %d has %d segments in the bucket, want several", p, st.CloudSegments)
			}
		}
		settle(n)
		wantTraffic(t, "cold, switch off", s.during(n, func() { r.refused(t) }), 0)

		n.setCluster(remoteRead, true)
		r.phase(t, "cold", "")

		n.restart()
		r.phase(t, "after a restart", "")

		// case 6-14: a hard stop leaves nothing that hinders the next start.
		n.kill()
		n.start()
		n.waitReady()
		r.phase(t, "after kill -9", "")

		n.stop()
		n.dropIndexes(t, historyPartitions)
		n.start()
		n.waitReady()
		r.phase(t, "without the index directories", "")
		n.stop()

		// An empty disk begins with defaults; the topic and its properties come
		// from the bucket.
		fresh := takeOver(t, s)
		r.n = fresh
		r.phase(t, "on an empty disk", "")
		fresh.stop()
		fresh.mustCheck("of the disk that was empty")
	})
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// historyRun checks one node against the history. Offsets of the first phase
// are what all later ones must show.
type historyRun struct {
	h       *history
	n       *node
	offsets map[string]string // key → partition/offset
}

// lookupWorkers is how many lookups run at once where the answers matter and
// not the counts.
const lookupWorkers = 8

func (r *historyRun) phase(t *testing.T, name, source string) {
	t.Helper()
	var mu sync.Mutex
	wrong := 0
	fail := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if wrong++; wrong <= 5 {
			t.Errorf(name+": "+format, args...)
		}
	}
	offsets := make(map[string]string, len(r.h.live))
	parallel(lookupWorkers, sorted(r.h.live), func(key string) {
		a, err := r.n.try("GET", r.n.kv(historyTopic, key), nil, nil)
		switch {
		case err != nil:
			fail("%s: %v", key, err)
		case a.status != 200 || !bytes.Equal(a.body, r.h.live[key]):
			fail("%s: %v, want 200 %q", key, a, r.h.live[key])
		case source != "" && a.header.Get("X-Kv-Source") != source:
			fail("%s: source %s, want %s", key, a.header.Get("X-Kv-Source"), source)
		default:
			mu.Lock()
			offsets[key] = a.header.Get("X-Kv-Partition") + "/" + a.header.Get("X-Kv-Offset")
			mu.Unlock()
		}
	})
	parallel(lookupWorkers, r.h.dead, func(key string) {
		a, err := r.n.try("GET", r.n.kv(historyTopic, key), nil, nil)
		if err != nil || a.status != 404 || a.header.Get("X-Kv-Reason") != "key_not_found" {
			fail("deleted %s: %v %v, want 404 key_not_found", key, a, err)
		}
	})
	if wrong > 0 {
		t.Fatalf("%s: %d of %d answers are wrong", name, wrong, len(r.h.live)+len(r.h.dead))
	}
	if r.offsets == nil {
		r.offsets = offsets
	}
	for key, first := range r.offsets {
		if offsets[key] != first {
			t.Fatalf("%s: %s is at %s, was at %s", name, key, offsets[key], first)
		}
	}
}

// refused wants every live key refused because it is cold.
func (r *historyRun) refused(t *testing.T) {
	t.Helper()
	var mu sync.Mutex
	wrong := 0
	parallel(lookupWorkers, sorted(r.h.live), func(key string) {
		a, err := r.n.try("GET", r.n.kv(historyTopic, key), nil, nil)
		ok := err == nil && a.status == 404 && a.header.Get("X-Kv-Reason") == "remote_read_disabled" &&
			errorText(a) == "record only available in tiered storage"
		mu.Lock()
		defer mu.Unlock()
		if !ok {
			if wrong++; wrong <= 5 {
				t.Errorf("%s with the switch off: %v %v", key, a, err)
			}
		}
	})
}

// errorText is the member "error" of a JSON answer.
func errorText(a answer) string {
	var body struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(a.body, &body) != nil {
		return ""
	}
	return body.Error
}
