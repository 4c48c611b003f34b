package recordjson_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"keyhole/record"
	"keyhole/recordjson"
)

// openReal opens a file of real input: from KEYHOLE_TESTDATA, or from the
// folder shared/data beside a checkout. The test is skipped without it.
func openReal(tb testing.TB, name string) *os.File {
	tb.Helper()
	for _, dir := range []string{os.Getenv("KEYHOLE_TESTDATA"), filepath.Join("..", "..", "shared", "data")} {
		if dir == "" {
			continue
		}
		if f, err := os.Open(filepath.Join(dir, name)); err == nil {
			tb.Cleanup(func() { _ = f.Close() })
			return f
		}
	}
	tb.Skipf("%s is not here; set KEYHOLE_TESTDATA to its folder", name)
	return nil
}

func TestRealFileReadsAsEncodingJSONReadsIt(t *testing.T) {
	zr, err := gzip.NewReader(openReal(t, "kafka-file-history.ndjson.gz"))
	if err != nil {
		t.Fatal(err)
	}
	n, tombstones := 0, 0
	sc := bufio.NewScanner(zr)
	for sc.Scan() {
		n++
		r, err := recordjson.DecodeLine(sc.Bytes())
		if err != nil {
			t.Fatalf("line %d: %v", n, err)
		}
		if n%50 != 0 && r.Value != nil { // encoding/json is slow under -race
			continue
		}
		var want struct {
			Key       string
			Value     *string
			Timestamp int64
			Headers   []struct{ Name, Value string }
		}
		if err := json.Unmarshal(sc.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		same := string(r.Key) == want.Key && r.Timestamp == want.Timestamp && r.Partition == -1 &&
			(r.Value == nil) == (want.Value == nil) && len(r.Headers) == len(want.Headers)
		if same && want.Value != nil {
			same = string(r.Value) == *want.Value
		} else {
			tombstones++
		}
		for i := range want.Headers {
			same = same && r.Headers[i].Name == want.Headers[i].Name && string(r.Headers[i].Value) == want.Headers[i].Value
		}
		if !same {
			t.Fatalf("line %d: got %+v, want %+v", n, r, want)
		}
	}
	if sc.Err() != nil || n != 98_257 || tombstones != 3_624 {
		t.Errorf("%d lines, %d tombstones, %v", n, tombstones, sc.Err())
	}
}

func BenchmarkAppendRecord(b *testing.B) {
	r := record.Record{
		Offset: 1 << 40, Timestamp: 1700000000000, Key: []byte("customers/000042"),
		Value: []byte(`{"name":"Ada","city":"London","born":1815,"tags":["math","engine"],"note":"first"}`), Headers: []record.Header{{Name: "trace", Value: []byte("abc")}},
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = recordjson.AppendRecord(dst[:0], "customers", 3, &r)
	}
	b.SetBytes(int64(len(dst)))
}

func BenchmarkDecodeLine(b *testing.B) {
	line := []byte(`{"key":"core/src/main/scala/kafka/log/Log.scala","value":"{\"blob\":\"3b9646c1f877e6b227582333948f22593d7f974e\",\"mode\":\"100644\"}","timestamp":1312242084000,"headers":[{"name":"commit","value":"642da2f28c9bc6e373603d6d9119ce33684090f5"}]}`)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := recordjson.DecodeLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
