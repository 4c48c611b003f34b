package record_test

import (
	"reflect"
	"testing"

	"go.uber.org/goleak"

	"keyhole/record"
)

// The codec libraries can start goroutines of their own; here they must not.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample has every shape of key, value and header that a record may have.
func sample() []record.Record {
	return []record.Record{
		{Offset: 10, Timestamp: 1700000000000, Key: []byte("k1"), Value: []byte("value one")},
		{Offset: 11, Timestamp: 1699999999000, Key: []byte{}, Value: []byte{}},
		{Offset: 12, Timestamp: 1700000000001, Key: []byte("k1"), Value: nil},
		{Offset: 15, Timestamp: 1700000000002, Key: nil, Value: []byte("no key"), Headers: []record.Header{
			{Name: "trace", Value: []byte("abc")},
			{Name: "empty", Value: []byte{}},
			{Name: "null"},
			{Name: "trace", Value: []byte("def")},
			{Name: "", Value: []byte{0}},
		}},
	}
}

// readAll decodes batch and copies its records out.
func readAll(t testing.TB, batch []byte) []record.Record {
	t.Helper()
	var r record.Reader
	if err := r.Reset(batch, 64<<20); err != nil {
		t.Fatalf("Reset: %v", err)
	}
	return drain(t, &r)
}

func drain(t testing.TB, r *record.Reader) []record.Record {
	t.Helper()
	var out []record.Record
	for r.Next() {
		v := r.Record()
		hs, err := v.Headers()
		if err != nil {
			t.Fatalf("Headers at offset %d: %v", v.Offset, err)
		}
		out = append(out, record.Record{Offset: v.Offset, Timestamp: v.Timestamp, Key: v.Key, Value: v.Value, Headers: hs})
	}
	if err := r.Err(); err != nil {
		t.Fatalf("Next: %v", err)
	}
	return out
}

func TestRoundTripKeepsNullEmptyAndOrder(t *testing.T) { // cases 2-05, 3-20
	for _, c := range []record.Codec{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		batch, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 10, LastOffset: -1, Codec: c}, sample())
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, batch); !reflect.DeepEqual(got, sample()) {
			t.Errorf("%v: got %#v", c, got)
		}
	}
}
