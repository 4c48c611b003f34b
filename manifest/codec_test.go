package manifest_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"strings"
	"testing"

	"keyhole/manifest"
	"keyhole/record"
)

func sample(t testing.TB) *manifest.Manifest {
	t.Helper()
	m := &manifest.Manifest{Topic: "orders", TopicID: "id1", Partition: 3, Epoch: 2, Writer: "node-a",
		Generation: 7, Session: "s1", Commit: 4}
	big := segment(20227160311775237, 20227160311775240, "u2") // beyond what a float holds
	big.MaxTimestamp = math.MinInt64
	m, err := m.With(segment(0, 9, "u1"), big)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const golden = `{"version":1,"crc32c":"00a1ac1f","manifest":{"topic":"orders","topic_id":"id1","partition":3,` +
	`"epoch":2,"writer":"node-a","generation":7,"session":"s1","commit":4,"segments":[` +
	`{"base_offset":"0","last_offset":"9","upload_id":"u1","size":100,"index_size":80,"table_bytes":60,` +
	`"records":10,"max_timestamp":1700000000000,"epoch":1},` +
	`{"base_offset":"20227160311775237","last_offset":"20227160311775240","upload_id":"u2","size":100,` +
	`"index_size":80,"table_bytes":60,"records":4,"max_timestamp":-9223372036854775808,"epoch":1}]}}` + "\n"

func encode(t testing.TB, m *manifest.Manifest) []byte {
	t.Helper()
	data, err := manifest.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGoldenBytes(t *testing.T) {
	m := sample(t)
	data := encode(t, m)
	if string(data) != golden {
		t.Errorf("encoded\n%swant\n%s", data, golden)
	}
	back, err := manifest.Decode("x", []byte(golden))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, m) {
		t.Errorf("decoded %+v, want %+v", back, m)
	}
}

func TestEmptyListRoundTrips(t *testing.T) {
	m := sample(t)
	empty := *m
	empty.Segments = nil
	data := encode(t, &empty)
	if !bytes.Contains(data, []byte(`"segments":[]`)) {
		t.Errorf("encoded %s", data)
	}
	back, err := manifest.Decode("x", data)
	if err != nil || len(back.Segments) != 0 {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

// Each bit of the file is covered by the checksum or by a strict reader.
func TestEveryFlippedBitAndEveryCutIsNoticed(t *testing.T) {
	want := sample(t)
	data := encode(t, want)
	for i := range data {
		if _, err := manifest.Decode("x", data[:i]); !errors.Is(err, record.ErrCorrupt) && i != len(data)-1 {
			t.Fatalf("cut at %d: %v", i, err)
		}
		for bit := range 8 {
			bad := bytes.Clone(data)
			bad[i] ^= 1 << bit
			got, err := manifest.Decode("x", bad)
			if err == nil && !reflect.DeepEqual(got, want) {
				t.Fatalf("byte %d bit %d changed the manifest unnoticed", i, bit)
			}
			if err != nil && !errors.Is(err, record.ErrCorrupt) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
		}
	}
}

// wrap puts a document into an envelope with a true checksum.
func wrap(doc string) []byte {
	return fmt.Appendf(nil, `{"version":1,"crc32c":"%08x","manifest":%s}`,
		crc32.Checksum([]byte(doc), crc32.MakeTable(crc32.Castagnoli)), doc)
}

func TestDecodeRefuses(t *testing.T) {
	data := string(encode(t, sample(t)))
	doc := data[strings.Index(data, `{"topic"`) : len(data)-2]
	if _, err := manifest.Decode("x", wrap(doc)); err != nil {
		t.Fatal(err)
	}
	swap := func(old, new string) []byte {
		t.Helper()
		if !strings.Contains(doc, old) {
			t.Fatalf("%q is not in the document", old)
		}
		return wrap(strings.Replace(doc, old, new, 1))
	}
	for name, bad := range map[string][]byte{
		"nothing":            nil,
		"zeros":              make([]byte, 4096),
		"null":               []byte("null"),
		"html":               []byte("<html>sign in</html>"),
		"no document":        []byte(`{"version":1,"crc32c":"00000000"}`),
		"version":            []byte(strings.Replace(data, `"version":1`, `"version":2`, 1)),
		"checksum":           []byte(strings.Replace(data, `"crc32c":"`, `"crc32c":"0`, 1)),
		"tail":               []byte(data + "{}"),
		"outer field":        []byte(strings.Replace(data, `{"version"`, `{"x":1,"version"`, 1)),
		"null document":      wrap("null"),
		"empty document":     wrap("{}"),
		"inner field":        swap(`{"topic"`, `{"x":1,"topic"`),
		"segment field":      swap(`{"base_offset"`, `{"x":1,"base_offset"`),
		"segments null":      wrap(doc[:strings.Index(doc, "[")] + "null}"),
		"segments object":    wrap(doc[:strings.Index(doc, "[")] + "{}}"),
		"segment empty":      wrap(doc[:strings.Index(doc, "[")] + "[{}]}"),
		"offset as number":   swap(`"base_offset":"0"`, `"base_offset":0`),
		"offset too large":   swap(`"last_offset":"9"`, `"last_offset":"9223372036854775808"`),
		"size as fraction":   swap(`"size":100`, `"size":1e2`),
		"overlap":            swap(`"last_offset":"9"`, `"last_offset":"20227160311775237"`),
		"topic":              swap(`"orders"`, `"or/ders"`),
		"topic id":           swap(`"topic_id":"id1"`, `"topic_id":""`),
		"partition":          swap(`"partition":3`, `"partition":-3`),
		"epoch":              swap(`"epoch":2`, `"epoch":0`),
		"epoch past int32":   swap(`"epoch":2`, `"epoch":2147483648`),
		"writer":             swap(`"node-a"`, `""`),
		"generation":         swap(`"generation":7`, `"generation":0`),
		"session":            swap(`"s1"`, `""`),
		"commit":             swap(`"commit":4`, `"commit":0`),
		"deep nesting":       wrap(strings.Repeat("[", 200000) + strings.Repeat("]", 200000)),
		"many empty objects": wrap(doc[:strings.Index(doc, "[")] + "[" + strings.Repeat("{},", 1_000_000) + "{}]}"),
	} {
		if _, err := manifest.Decode("orders/manifest.json", bad); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "orders/manifest.json") {
			t.Errorf("%s: error does not name the object: %v", name, err)
		}
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	for name, spoil := range map[string]func(*manifest.Manifest){
		"no writer": func(m *manifest.Manifest) { m.Writer = "" },
		"overlap":   func(m *manifest.Manifest) { m.Segments = []manifest.Segment{segment(0, 5, "a"), segment(5, 6, "b")} },
	} {
		m := *sample(t)
		spoil(&m)
		if _, err := manifest.Encode(&m); !errors.Is(err, manifest.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, sample(f)))
	f.Add([]byte(golden))
	f.Add([]byte(nil))
	f.Add(wrap(`{"topic":"t","topic_id":"i","partition":0,"epoch":1,"writer":"w","generation":1,"session":"s","commit":1,"segments":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksum stops nearly all of what a fuzzer makes up, so the same
		// bytes are tried as the inner document as well.
		for _, in := range [][]byte{data, wrap(string(data))} {
			m, err := manifest.Decode("x", in)
			if err != nil {
				if !errors.Is(err, record.ErrCorrupt) {
					t.Fatalf("error of another class: %v", err)
				}
				continue
			}
			again, err := manifest.Decode("x", encode(t, m))
			if err != nil || !reflect.DeepEqual(again, m) {
				t.Fatalf("decoded %+v, after another round %+v, %v", m, again, err)
			}
		}
	})
}
