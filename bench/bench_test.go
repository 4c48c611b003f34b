package main

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQuantile(t *testing.T) {
	tenth := latencies{9, 1, 8, 2, 7, 3, 6, 4, 5, 10}
	for q, want := range map[float64]time.Duration{0: 1, 0.1: 1, 0.5: 5, 0.51: 6, 0.99: 10, 1: 10} {
		if got := tenth.quantile(q); got != want {
			t.Errorf("quantile %v of 1…10 is %d, want %d", q, got, want)
		}
	}
	if got := (latencies{}).quantile(0.5); got != 0 {
		t.Errorf("quantile of nothing is %d", got)
	}
	if got, want := spreadOf([]float64{3, 1, 2}), (spread{Median: 2, Min: 1, Max: 3}); got != want {
		t.Errorf("spread %v, want %v", got, want)
	}
}

// An answer must be recognised however it is cut into reads, and nothing else
// may be taken for one.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func([]byte, int) (int, error)
		whole  string
		head   int // bytes after which the length is known
		wrong  string
	}{
		"http": {httpAnswer, "HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nvalue", 27, "HTTP/1.1 404 Not Found\r\n\r\n"},
		"resp": {respAnswer, "$5\r\nvalue\r\n", 4, "$-1\r\n"},
	} {
		for n := range len(c.whole) + 1 {
			want := 0
			if n >= c.head {
				want = len(c.whole)
			}
			if got, err := c.answer([]byte(c.whole[:n]), 5); got != want || err != nil {
				t.Errorf("%s: after %d bytes: %d, %v; want %d", name, n, got, err, want)
			}
		}
		if _, err := c.answer([]byte(c.wrong), 5); err == nil {
			t.Errorf("%s: %q was taken for an answer", name, c.wrong)
		}
	}
}

func TestParseRange(t *testing.T) {
	if s, ok := parseRange("bytes=10-19"); !ok || s != (span{off: 10, n: 10}) {
		t.Errorf("bytes=10-19 is %+v, %v", s, ok)
	}
	for _, bad := range []string{"", "bytes=", "bytes=1", "bytes=a-b"} {
		if _, ok := parseRange(bad); ok {
			t.Errorf("%q was taken for a range", bad)
		}
	}
}

func TestLiveKeys(t *testing.T) {
	var d dataset
	for _, r := range []pair{{"a", []byte("1")}, {"b", []byte("1")}, {"c", []byte{}}, {"a", []byte("2")}, {"b", nil}} {
		d.add(r)
	}
	d.finish()
	if want := []string{"c", "a"}; !slices.Equal(d.live, want) {
		t.Errorf("live keys %q, want %q", d.live, want)
	}
}

// The plain file of the append measurement must get what the log got.
func TestTraceAndReplay(t *testing.T) {
	trace := &traceFS{FS: vfs.Default}
	dir := t.TempDir()
	write := func(name string, sizes ...int) {
		f, err := trace.Create(dir+"/"+name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range sizes {
			if _, err := f.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			if err := f.SyncData(); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write("before.log", 1)
	trace.on.Store(true)
	write("0.log", 100, 200)
	write("0.index", 50)
	trace.on.Store(false)
	if want := []int{100, 0, 200, 0}; !slices.Equal(trace.mu.ops, want) {
		t.Errorf("traced %v, want %v", trace.mu.ops, want)
	}
	if n := trace.syncs(); n != 2 {
		t.Errorf("%d syncs, want 2", n)
	}
	if _, err := trace.replay(dir + "/plain"); err != nil {
		t.Fatal(err)
	}
	info, err := vfs.Default.Stat(dir + "/plain")
	if err != nil || info.Size() != 300 {
		t.Errorf("the plain file: %v, %v; want 300 bytes", info, err)
	}
}

// A number must never make the report fail, and JSON holds all that text does.
func TestReport(t *testing.T) {
	r := &report{section: "some"}
	var in rounds
	in.add(2, 4, 0.5)
	r.compare("speed", "1/s", "peer", in, "≥ 0.8")
	r.value("size", "B", 1234, "")
	r.compare("nothing measured", "1/s", "peer", rounds{}, "")
	r.table("lines", []string{"a", "b"}, [][]string{{"1", "2"}})
	r.skip("%s is not there", "redis")
	for _, asJSON := range []bool{false, true} {
		var b bytes.Buffer
		if err := r.print(&b, asJSON); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"speed", "0.5", "1234", "lines", "redis is not there"} {
			if !bytes.Contains(b.Bytes(), []byte(want)) {
				t.Errorf("JSON %v: no %q in\n%s", asJSON, want, b.String())
			}
		}
	}
}
