package catalog

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"keyhole/record"
)

func sampleTopic() *topicData {
	return &topicData{
		Name: "orders", ID: strings.Repeat("0a", 16), Partitions: 3, CreatedMS: 1700000000000, Revision: 2,
		Properties: overrides{propSegmentBytes: "1048576", propTopicIndex: "true"},
	}
}

func sampleConfig() *configData {
	return &configData{
		Version: 3, Properties: overrides{propCacheSize: "7"},
		Features: map[string]string{FeatureIndex: StateActive},
	}
}

func TestGoldenTopicDocument(t *testing.T) {
	got, err := encodeDocument(formatTopic, sampleTopic())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"format":"keyhole.topic","version":1,"crc32c":"d06c378c","data":` +
		`{"name":"orders","id":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a","partitions":3,"created_ms":1700000000000,"revision":2,` +
		`"properties":{"redpanda.kv.index.enabled":"true","segment.bytes":"1048576"}}}` + "\n"
	if string(got) != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

func TestEveryFlippedBitAndEveryCutIsNoticed(t *testing.T) {
	good, err := encodeDocument(formatTopic, sampleTopic())
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(good) - 1 { // the last byte is a newline
		var data topicData
		if err := decodeDocument("f", formatTopic, good[:cut], &data); !errors.Is(err, record.ErrCorrupt) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	for i := range len(good) - 1 {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			var data topicData
			// A flip of case in a field name of the frame decodes as the same
			// value, which is no harm; and one in the version is a version.
			if err := decodeDocument("f", formatTopic, bad, &data); err == nil && !reflect.DeepEqual(&data, sampleTopic()) {
				t.Fatalf("bit %d of byte %d: decoded as %+v", bit, i, data)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	frame := func(data string) string {
		return `{"format":"keyhole.topic","version":1,"crc32c":"` + checksum([]byte(data)) + `","data":` + data + `}`
	}
	valid := `{"name":"t","id":"` + strings.Repeat("0", 32) + `","partitions":1,"created_ms":0,"revision":1,"properties":{}}`
	if err := decodeDocument("f", formatTopic, []byte(frame(valid)), &topicData{}); err != nil {
		t.Fatalf("the valid one: %v", err)
	}
	for name, doc := range map[string]string{
		"empty":             "",
		"not json":          "hello",
		"trailing":          frame(valid) + "{}",
		"other format":      strings.Replace(frame(valid), "keyhole.topic", "keyhole.node", 1),
		"null data":         frame("null"),
		"bad name":          frame(strings.Replace(valid, `"t"`, `"a/b"`, 1)),
		"path as name":      frame(strings.Replace(valid, `"t"`, `".."`, 1)),
		"bad id":            frame(strings.Replace(valid, "0000", "000/", 1)),
		"no partitions":     frame(strings.Replace(valid, `"partitions":1`, `"partitions":0`, 1)),
		"many partitions":   frame(strings.Replace(valid, `"partitions":1`, `"partitions":2000000000`, 1)),
		"unknown field":     frame(strings.Replace(valid, `"revision"`, `"x":1,"revision"`, 1)),
		"unknown property":  frame(strings.Replace(valid, `{}}`, `{"segment.byte":"1024"}}`, 1)),
		"value off bounds":  frame(strings.Replace(valid, `{}}`, `{"segment.bytes":"1"}}`, 1)),
		"value not one way": frame(strings.Replace(valid, `{}}`, `{"segment.bytes":"+2048"}}`, 1)),
	} {
		if err := decodeDocument("some/file", formatTopic, []byte(doc), &topicData{}); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "some/file") {
			t.Errorf("%s: %q does not name the file", name, err)
		}
	}
	future := strings.Replace(frame(valid), `"version":1`, `"version":2`, 1)
	if err := decodeDocument("f", formatTopic, []byte(future), &topicData{}); err == nil || errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a version from the future: %v", err)
	}
}

// fuzzDocument checks that whatever decodes encodes to something that decodes
// as the same.
func fuzzDocument[T any, P interface {
	*T
	validate() error
}](t *testing.T, format string, b []byte) {
	var first, second T
	err := decodeDocument("f", format, b, P(&first))
	if err != nil {
		return
	}
	again, err := encodeDocument(format, &first)
	if err != nil {
		t.Fatalf("%q decodes and does not encode: %v", b, err)
	}
	if err := decodeDocument("f", format, again, P(&second)); err != nil {
		t.Fatalf("%q became %q: %v", b, again, err)
	}
	if !reflect.DeepEqual(first, second) {
		t.Fatalf("%q: %+v became %+v", b, first, second)
	}
}

func FuzzTopicDocument(f *testing.F) {
	seedDocument(f, formatTopic, sampleTopic())
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzDocument[topicData](t, formatTopic, b)
		fuzzDocument[topicData](t, formatTopic, reframed(formatTopic, b))
	})
}

func FuzzConfigDocument(f *testing.F) {
	seedDocument(f, formatConfig, sampleConfig())
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzDocument[configData](t, formatConfig, b)
		fuzzDocument[configData](t, formatConfig, reframed(formatConfig, b))
	})
}

func FuzzNodeAndClusterDocument(f *testing.F) {
	yes := true
	seedDocument(f, formatNode, &nodeData{NodeID: newID(), ClusterID: newID(), Conditional: &yes})
	seedDocument(f, formatCluster, &clusterData{ClusterID: newID(), CreatedMS: 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzDocument[nodeData](t, formatNode, b)
		fuzzDocument[nodeData](t, formatNode, reframed(formatNode, b))
		fuzzDocument[clusterData](t, formatCluster, b)
		fuzzDocument[clusterData](t, formatCluster, reframed(formatCluster, b))
	})
}

// reframed puts b into a frame with a right checksum, so that the fuzzer gets
// behind it.
func reframed(format string, b []byte) []byte {
	return []byte(`{"format":"` + format + `","version":1,"crc32c":"` + checksum(b) + `","data":` + string(b) + `}`)
}

func seedDocument(f *testing.F, format string, data any) {
	f.Helper()
	b, err := encodeDocument(format, data)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[bytes.Index(b, []byte(`"data":`))+7 : len(b)-2]) // without its frame
	f.Add(b[:len(b)/2])
	f.Add([]byte(`{"properties":null,"features":{}}`))
}
