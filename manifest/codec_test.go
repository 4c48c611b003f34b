package manifest_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"keyhole/manifest"
	"keyhole/record"
)

// sample has something in every field.
func sample(t testing.TB) *manifest.Manifest {
	t.Helper()
	m := &manifest.Manifest{Topic: "orders", TopicID: "id1", Partition: 3, Epoch: 2, Writer: "node-a",
		Generation: 7, Session: "s1", Commit: 4}
	big := segment(20227160311775237, 20227160311775240, "u2") // beyond what a float holds
	big.MaxTimestamp, big.Tombstones, big.CreatedAt, big.Epoch = math.MinInt64, 2, 1_700_000_060_000, 2
	dead := segment(10, 19, "u1")
	m, err := m.With(segment(0, 4, "u0"), dead, segment(20, 29, "u3"), big)
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1_700_000_120_000)
	if m, err = m.Replace([]manifest.Segment{dead}, nil, 15, at); err != nil {
		t.Fatal(err)
	}
	if m, err = m.Truncate(8, at); err != nil {
		t.Fatal(err)
	}
	return m.Advance(20227160311775250)
}

const golden = `{"version":2,"crc32c":"cd349ce6","manifest":{"topic":"orders","topic_id":"id1","partition":3,` +
	`"epoch":2,"writer":"node-a","generation":7,"session":"s1","commit":4,` +
	`"start_offset":"8","next_offset":"20227160311775250","delete_horizon":"15",` +
	`"leader_epochs":[{"epoch":1,"start_offset":"0"},{"epoch":2,"start_offset":"20227160311775237"}],"segments":[` +
	`{"base_offset":"20","last_offset":"29","upload_id":"u3","size":100,"index_size":80,"table_bytes":60,` +
	`"records":10,"tombstones":0,"max_timestamp":1700000000000,"created_at":0,"epoch":1},` +
	`{"base_offset":"20227160311775237","last_offset":"20227160311775240","upload_id":"u2","size":100,` +
	`"index_size":80,"table_bytes":60,"records":4,"tombstones":2,"max_timestamp":-9223372036854775808,` +
	`"created_at":1700000060000,"epoch":2}],"removed":[` +
	`{"base_offset":"10","upload_id":"u1","size":180,"removed_at":1700000120000},` +
	`{"base_offset":"0","upload_id":"u0","size":180,"removed_at":1700000120000}]}}` + "\n"

// goldenOld is of version 1, which is read but not written any more.
const goldenOld = `{"version":1,"crc32c":"00a1ac1f","manifest":{"topic":"orders","topic_id":"id1","partition":3,` +
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

func TestVersion1IsRead(t *testing.T) {
	m, err := manifest.Decode("x", []byte(goldenOld))
	if err != nil {
		t.Fatal(err)
	}
	first, big := segment(0, 9, "u1"), segment(20227160311775237, 20227160311775240, "u2")
	first.Tombstones = 10
	big.MaxTimestamp, big.Tombstones = math.MinInt64, 4
	want := &manifest.Manifest{Topic: "orders", TopicID: "id1", Partition: 3, Epoch: 2, Writer: "node-a",
		Generation: 7, Session: "s1", Commit: 4, NextOffset: 20227160311775241,
		LeaderEpochs: []manifest.EpochStart{{Epoch: 1}}, Segments: []manifest.Segment{first, big}, Removed: []manifest.Removed{}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("decoded %+v, want %+v", m, want)
	}
	back, err := manifest.Decode("x", encode(t, m))
	if err != nil || !reflect.DeepEqual(back, m) {
		t.Errorf("as version 2 %+v, %v", back, err)
	}
}

// The epoch of every record is that of its segment, as it was under version 1.
func TestVersion1KeepsEpochs(t *testing.T) {
	doc := strings.TrimSuffix(goldenOld[strings.Index(goldenOld, `{"topic"`):], "}\n")
	epochs := []int64{5, 5, 1007, 1007, 1008, 1009, 1009}
	var segs []string
	for i, e := range epochs {
		segs = append(segs, fmt.Sprintf(`{"base_offset":"%d","last_offset":"%d","upload_id":"u","size":1,"index_size":1,`+
			`"table_bytes":1,"records":0,"max_timestamp":0,"epoch":%d}`, 20*i, 20*i+9, e))
	}
	m, err := manifest.Decode("x", wrap(1, doc[:strings.Index(doc, "[")+1]+strings.Join(segs, ",")+"]}"))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.LeaderEpochs) != 4 {
		t.Errorf("epochs %+v", m.LeaderEpochs)
	}
	for i, e := range epochs {
		for _, offset := range []int64{int64(20 * i), int64(20*i + 9)} {
			if got := m.EpochAt(offset); got != e {
				t.Errorf("offset %d has epoch %d, want %d", offset, got, e)
			}
		}
	}
}

func TestEmptyListsRoundTrip(t *testing.T) {
	empty := &manifest.Manifest{Topic: "orders", TopicID: "id1", Partition: 3, Epoch: 2, Writer: "node-a",
		Generation: 7, Session: "s1", Commit: 4}
	data := encode(t, empty)
	for _, list := range []string{"segments", "removed", "leader_epochs"} {
		if !bytes.Contains(data, []byte(`"`+list+`":[]`)) {
			t.Errorf("encoded %s", data)
		}
	}
	back, err := manifest.Decode("x", data)
	if err != nil || back.Segments == nil || back.Removed == nil || back.LeaderEpochs == nil || back.Next() != 0 {
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
func wrap(version int, doc string) []byte {
	return fmt.Appendf(nil, `{"version":%d,"crc32c":"%08x","manifest":%s}`,
		version, crc32.Checksum([]byte(doc), crc32.MakeTable(crc32.Castagnoli)), doc)
}

func inner(data string) string {
	return data[strings.Index(data, `{"topic"`) : len(data)-2]
}

// cutAt is doc up to the value of the field.
func cutAt(doc, field string) string {
	at := `"` + field + `":`
	return doc[:strings.Index(doc, at)+len(at)]
}

func TestDecodeRefuses(t *testing.T) {
	data := string(encode(t, sample(t)))
	doc, old := inner(data), inner(goldenOld)
	for version, doc := range map[int]string{1: old, 2: doc} {
		if _, err := manifest.Decode("x", wrap(version, doc)); err != nil {
			t.Fatal(err)
		}
	}
	replaced := func(version int, doc, was, is string) []byte {
		t.Helper()
		if !strings.Contains(doc, was) {
			t.Fatalf("%q is not in the document", was)
		}
		return wrap(version, strings.Replace(doc, was, is, 1))
	}
	swap := func(was, is string) []byte { t.Helper(); return replaced(2, doc, was, is) }
	swapOld := func(was, is string) []byte { t.Helper(); return replaced(1, old, was, is) }
	for name, bad := range map[string][]byte{
		"nothing":               nil,
		"zeros":                 make([]byte, 4096),
		"null":                  []byte("null"),
		"html":                  []byte("<html>sign in</html>"),
		"no document":           []byte(`{"version":2,"crc32c":"00000000"}`),
		"no version":            []byte(strings.Replace(data, `"version":2,`, ``, 1)),
		"version 0":             wrap(0, doc),
		"version 3":             wrap(3, doc),
		"version 2 called 1":    wrap(1, doc),
		"version 1 called 2":    wrap(2, old),
		"checksum":              []byte(strings.Replace(data, `"crc32c":"`, `"crc32c":"0`, 1)),
		"tail":                  []byte(data + "{}"),
		"outer field":           []byte(strings.Replace(data, `{"version"`, `{"x":1,"version"`, 1)),
		"null document":         wrap(2, "null"),
		"empty document":        wrap(2, "{}"),
		"inner field":           swap(`{"topic"`, `{"x":1,"topic"`),
		"segment field":         swap(`{"base_offset"`, `{"x":1,"base_offset"`),
		"epoch field":           swap(`{"epoch"`, `{"x":1,"epoch"`),
		"removed field":         swap(`{"base_offset":"10"`, `{"x":1,"base_offset":"10"`),
		"segments null":         wrap(2, cutAt(doc, "segments")+`null,"removed":[]}`),
		"segments object":       wrap(2, cutAt(doc, "segments")+`{},"removed":[]}`),
		"segment empty":         wrap(2, cutAt(doc, "segments")+`[{}],"removed":[]}`),
		"no segments":           wrap(2, strings.Replace(cutAt(doc, "segments"), `,"segments":`, `,"removed":[]}`, 1)),
		"no removed":            wrap(2, cutAt(doc, "segments")+"[]}"),
		"no epochs":             swap(`"leader_epochs":[{"epoch":1,"start_offset":"0"},{"epoch":2,"start_offset":"20227160311775237"}],`, ``),
		"epochs null":           swap(`[{"epoch":1,"start_offset":"0"},{"epoch":2,"start_offset":"20227160311775237"}]`, `null`),
		"epoch of no segment":   swap(`{"epoch":1,"start_offset":"0"},`, ``),
		"epochs out of order":   swap(`{"epoch":1,"start_offset":"0"},`, `{"epoch":1,"start_offset":"20227160311775237"},`),
		"epoch at the end":      swap(`{"epoch":2,"start_offset":"20227160311775237"}`, `{"epoch":2,"start_offset":"20227160311775250"}`),
		"negative epoch":        swap(`{"epoch":2,"start`, `{"epoch":-1,"start`),
		"epoch entry too large": swap(`{"epoch":2,"start`, `{"epoch":2147483648,"start`),
		"no start":              swap(`"start_offset":"8",`, ``),
		"no next":               swap(`"next_offset":"20227160311775250",`, ``),
		"no horizon":            swap(`"delete_horizon":"15",`, ``),
		"start null":            swap(`"start_offset":"8",`, `"start_offset":null,`),
		"start as number":       swap(`"start_offset":"8",`, `"start_offset":8,`),
		"start negative":        swap(`"start_offset":"8",`, `"start_offset":"-8",`),
		"start inside segment":  swap(`"start_offset":"8",`, `"start_offset":"21",`),
		"start past the end":    wrap(2, strings.Replace(cutAt(doc, "leader_epochs"), `"start_offset":"8"`, `"start_offset":"20227160311775251"`, 1)+`[],"segments":[],"removed":[]}`),
		"end before a segment":  swap(`"next_offset":"20227160311775250",`, `"next_offset":"20227160311775240",`),
		"end is the largest":    swap(`"next_offset":"20227160311775250",`, `"next_offset":"9223372036854775807",`),
		"horizon negative":      swap(`"delete_horizon":"15",`, `"delete_horizon":"-1",`),
		"horizon past the end":  swap(`"delete_horizon":"15",`, `"delete_horizon":"20227160311775251",`),
		"offset as number":      swap(`"base_offset":"20"`, `"base_offset":20`),
		"offset too large":      swap(`"last_offset":"29"`, `"last_offset":"9223372036854775808"`),
		"no room for the end":   swap(`"last_offset":"20227160311775240"`, `"last_offset":"9223372036854775806"`),
		"size as fraction":      swap(`"size":100`, `"size":1e2`),
		"overlap":               swap(`"last_offset":"29"`, `"last_offset":"20227160311775237"`),
		"tombstones":            swap(`"tombstones":0`, `"tombstones":11`),
		"negative tombstones":   swap(`"tombstones":0`, `"tombstones":-1`),
		"created before 1970":   swap(`"created_at":0`, `"created_at":-1`),
		"topic":                 swap(`"orders"`, `"or/ders"`),
		"topic id":              swap(`"topic_id":"id1"`, `"topic_id":""`),
		"partition":             swap(`"partition":3`, `"partition":-3`),
		"epoch":                 swap(`"epoch":2`, `"epoch":0`),
		"epoch past int32":      swap(`"epoch":2`, `"epoch":2147483648`),
		"writer":                swap(`"node-a"`, `""`),
		"generation":            swap(`"generation":7`, `"generation":0`),
		"session":               swap(`"s1"`, `""`),
		"commit":                swap(`"commit":4`, `"commit":0`),
		"removed, not removed":  swap(`{"base_offset":"10","upload_id":"u1"`, `{"base_offset":"20","upload_id":"u3"`),
		"removed twice":         swap(`{"base_offset":"10","upload_id":"u1"`, `{"base_offset":"0","upload_id":"u0"`),
		"removed below 0":       swap(`{"base_offset":"10","upload_id":"u1"`, `{"base_offset":"-1","upload_id":"u1"`),
		"removed path":          swap(`"upload_id":"u1"`, `"upload_id":"../u1"`),
		"removed size":          swap(`"size":180`, `"size":-1`),
		"removed before 1970":   swap(`"removed_at":1700000120000`, `"removed_at":-1`),
		"old: next":             swapOld(`"segments"`, `"next_offset":"20227160311775241","segments"`),
		"old: epochs":           swapOld(`"segments"`, `"leader_epochs":[],"segments"`),
		"old: removed":          swapOld(`"segments"`, `"removed":[],"segments"`),
		"old: tombstones":       swapOld(`"records":10`, `"records":10,"tombstones":0`),
		"old: created":          swapOld(`"records":10`, `"records":10,"created_at":0`),
		"old: no segments":      wrap(1, strings.Replace(cutAt(old, "segments"), `,"segments":`, `}`, 1)),
		"old: segments null":    wrap(1, cutAt(old, "segments")+"null}"),
		"old: segment empty":    wrap(1, cutAt(old, "segments")+"[{}]}"),
		"old: overlap":          swapOld(`"last_offset":"9"`, `"last_offset":"20227160311775237"`),
		"old: null document":    wrap(1, "null"),
		"deep nesting":          wrap(2, strings.Repeat("[", 200000)+strings.Repeat("]", 200000)),
	} {
		if _, err := manifest.Decode("orders/manifest.json", bad); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "orders/manifest.json") {
			t.Errorf("%s: error does not name the object: %v", name, err)
		}
	}
}

// A short document cannot take much memory: the first entries of a list that are
// not what they should be end it.
func TestManyEmptyObjects(t *testing.T) {
	doc, old := inner(string(encode(t, sample(t)))), inner(goldenOld)
	many := "[" + strings.Repeat("{},", 1_000_000) + "{}]"
	for name, bad := range map[string][]byte{
		"segments":     wrap(2, cutAt(doc, "segments")+many+`,"removed":[]}`),
		"epochs":       wrap(2, cutAt(doc, "leader_epochs")+many+`,"segments":[],"removed":[]}`),
		"removed":      wrap(2, cutAt(doc, "removed")+many+"}"),
		"old segments": wrap(1, cutAt(old, "segments")+many+"}"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := manifest.Decode("x", bad)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		// The reader of JSON keeps a copy or two of the text, grown by doubling.
		if got := after.TotalAlloc - before.TotalAlloc; got > 8*uint64(len(bad)) {
			t.Errorf("%s: %d bytes allocated for a document of %d", name, got, len(bad))
		}
	}
}

// A manifest of many segments is read in one go over the list.
func TestManySegmentsOfVersion1(t *testing.T) {
	const n = 20_000
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"base_offset":"%d","last_offset":"%d","upload_id":"u","size":1,"index_size":1,`+
			`"table_bytes":1,"records":1,"max_timestamp":0,"epoch":1},`, i, i)
	}
	data := wrap(1, cutAt(inner(goldenOld), "segments")+"["+strings.TrimSuffix(b.String(), ",")+"]}")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := manifest.Decode("x", data)
	runtime.ReadMemStats(&after)
	if err != nil || len(m.Segments) != n || m.Next() != n {
		t.Fatalf("%d segments, %v", len(m.Segments), err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 20*uint64(len(data)) {
		t.Errorf("%d bytes allocated for a document of %d", got, len(data))
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	for name, spoil := range map[string]func(*manifest.Manifest){
		"no writer": func(m *manifest.Manifest) { m.Writer = "" },
		"overlap": func(m *manifest.Manifest) {
			m.Segments = []manifest.Segment{segment(10, 15, "a"), segment(15, 16, "b")}
		},
		"start":              func(m *manifest.Manifest) { m.StartOffset = 21 },
		"horizon":            func(m *manifest.Manifest) { m.DeleteHorizon = m.NextOffset + 1 },
		"epochs":             func(m *manifest.Manifest) { m.LeaderEpochs = nil },
		"epochs not ordered": func(m *manifest.Manifest) { m.LeaderEpochs = []manifest.EpochStart{{Epoch: 1}, {Epoch: 2}} },
		"removed":            func(m *manifest.Manifest) { m.Removed = []manifest.Removed{{UploadID: "/"}} },
		"removed, there":     func(m *manifest.Manifest) { m.Removed = []manifest.Removed{{BaseOffset: 20, UploadID: "u3"}} },
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
	f.Add([]byte(goldenOld))
	f.Add([]byte(inner(golden)))
	f.Add([]byte(inner(goldenOld)))
	f.Add([]byte(nil))
	head := `{"topic":"t","topic_id":"i","partition":0,"epoch":1,"writer":"w","generation":1,"session":"s","commit":1,`
	f.Add([]byte(head + `"segments":[]}`))
	f.Add([]byte(head + `"start_offset":"5","next_offset":"9","delete_horizon":"9","leader_epochs":[],"segments":[],"removed":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksum stops nearly all of what a fuzzer makes up, so the same
		// bytes are tried as the inner document as well.
		for _, in := range [][]byte{data, wrap(1, string(data)), wrap(2, string(data))} {
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
