package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// manifestView is what these tests want to know of a manifest.
type manifestView struct {
	StartOffset   int64 `json:"start_offset,string"`
	NextOffset    int64 `json:"next_offset,string"`
	DeleteHorizon int64 `json:"delete_horizon,string"`
	Segments      []struct {
		BaseOffset int64  `json:"base_offset,string"`
		LastOffset int64  `json:"last_offset,string"`
		UploadID   string `json:"upload_id"`
		Size       int64  `json:"size"`
		IndexSize  int64  `json:"index_size"`
		Records    int    `json:"records"`
		Tombstones int    `json:"tombstones"`
	} `json:"segments"`
	Removed []struct {
		BaseOffset int64  `json:"base_offset,string"`
		UploadID   string `json:"upload_id"`
	} `json:"removed"`
}

// segmentName is what both objects of a segment are called, without the ending.
func segmentName(base int64, upload string) string { return fmt.Sprintf("%020d-%s", base, upload) }

// bucketView is a partition as it is in the bucket, read off the store's disk with
// nothing of the program's own code.
type bucketView struct {
	dir        string // <topic>/<topic id>/<partition>, to be put before a name
	manifest   manifestView
	records    int   // that the manifest claims
	tombstones int   // those among them
	bytes      int64 // of the objects that the manifest names
	named      map[string]bool
	kept       map[string]bool // names of segments that were replaced and are still there by right
}

// view reads the manifest of a partition.
func (s *store) view(t testing.TB, topic string, partition int) *bucketView {
	t.Helper()
	v := &bucketView{named: map[string]bool{}, kept: map[string]bool{}}
	for _, key := range s.objects(t) {
		if ok, _ := path.Match(fmt.Sprintf("%s/*/%d/manifest.json", topic, partition), key); ok {
			v.dir = path.Dir(key)
		}
	}
	if v.dir == "" {
		t.Fatalf("%s/%d has no manifest", topic, partition)
	}
	var outer struct {
		Version  int          `json:"version"`
		Manifest manifestView `json:"manifest"`
	}
	data := s.object(t, v.dir+"/manifest.json")
	if err := json.Unmarshal(data, &outer); err != nil || outer.Version != 2 {
		t.Fatalf("manifest of %s/%d: %v, version %d", topic, partition, err, outer.Version)
	}
	v.manifest = outer.Manifest
	for _, seg := range v.manifest.Segments {
		v.records += seg.Records
		v.tombstones += seg.Tombstones
		v.bytes += seg.Size + seg.IndexSize
		v.named[segmentName(seg.BaseOffset, seg.UploadID)] = true
	}
	for _, r := range v.manifest.Removed {
		v.kept[segmentName(r.BaseOffset, r.UploadID)] = true
	}
	return v
}

// bucketRecord is a record as a segment in the bucket has it; value is nil for a
// tombstone.
type bucketRecord struct {
	key   string
	value []byte
}

// decode gives every record of the segments that the manifest names, by offset.
func (v *bucketView) decode(t testing.TB, s *store) map[int64]bucketRecord {
	t.Helper()
	all := map[int64]bucketRecord{}
	for _, seg := range v.manifest.Segments {
		key := v.dir + "/" + segmentName(seg.BaseOffset, seg.UploadID) + ".log"
		data := s.object(t, key)
		if int64(len(data)) != seg.Size {
			t.Fatalf("%s has %d bytes, the manifest says %d", key, len(data), seg.Size)
		}
		records := 0
		for len(data) > 0 {
			var b kmsg.RecordBatch
			if err := b.ReadFrom(data); err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			data = data[batchHead+int(b.Length):]
			raw, err := kgo.DefaultDecompressor().Decompress(b.Records, kgo.CompressionCodecType(b.Attributes&7))
			if err != nil {
				t.Fatalf("%s: batch %d: %v", key, b.FirstOffset, err)
			}
			for range b.NumRecords {
				length, n := binary.Varint(raw)
				var r kmsg.Record
				if err := r.ReadFrom(raw[:n+int(length)]); err != nil {
					t.Fatalf("%s: batch %d: %v", key, b.FirstOffset, err)
				}
				raw = raw[n+int(length):]
				offset := b.FirstOffset + int64(r.OffsetDelta)
				if _, twice := all[offset]; twice || offset < seg.BaseOffset || offset > seg.LastOffset {
					t.Fatalf("%s: offset %d, twice (%v) or outside of the segment", key, offset, twice)
				}
				all[offset] = bucketRecord{string(r.Key), r.Value}
				records++
			}
		}
		if records != seg.Records {
			t.Fatalf("%s has %d records, the manifest says %d", key, records, seg.Records)
		}
	}
	return all
}

// segmentObjects are the .log and .index objects that the bucket has below a
// prefix, in whatever list they are.
func (s *store) segmentObjects(t testing.TB, below string) []string {
	t.Helper()
	var keys []string
	for _, key := range s.objects(t) {
		if ext := path.Ext(key); strings.HasPrefix(key, below) && (ext == ".log" || ext == ".index") {
			keys = append(keys, key)
		}
	}
	return keys
}

// compact compacts one partition and wants it done.
func (n *node) compact(topic string, partition int) compacted {
	n.t.Helper()
	var c compacted
	n.adminJSON("POST", fmt.Sprintf("/v1/compact/%s/%d", topic, partition), nil, 200, &c)
	return c
}

// compactAll compacts until nothing is left to be done: a tombstone goes only after
// what it hides in segments before its own has gone.
func (n *node) compactAll(topic string, partitions int) {
	n.t.Helper()
	for p := range partitions {
		for pass := 0; ; pass++ {
			c := n.compact(topic, p)
			if c.Done.LocalSegments+c.Done.CloudSegments == 0 {
				break
			}
			if pass == 5 {
				n.t.Fatalf("%s/%d is compacted again and again: %+v", topic, p, c)
			}
		}
	}
}

// compacted is the answer of the compaction route.
type compacted struct {
	tierStatus
	Done struct {
		LocalSegments     int   `json:"local_segments"`
		CloudSegments     int   `json:"cloud_segments"`
		CloudBytesBefore  int64 `json:"cloud_bytes_before"`
		CloudBytesAfter   int64 `json:"cloud_bytes_after"`
		RecordsRemoved    int   `json:"records_removed"`
		TombstonesRemoved int   `json:"tombstones_removed"`
		SegmentsExpired   int   `json:"segments_expired"`
	} `json:"compaction"`
}

// setTopic changes properties of a topic.
func (n *node) setTopic(topic string, upsert object) {
	n.t.Helper()
	n.adminJSON("PUT", "/v1/topics/"+topic+"/config", object{"upsert": upsert, "remove": []string{}}, 200, nil)
}

// setGrace makes objects that nobody needs go that long afterwards. Lookups must
// not take longer, which on a busy machine some do: see lookup.
func (n *node) setGrace(ms int) {
	n.t.Helper()
	n.lookups = ms
	upsert := object{"cloud_storage_gc_grace_ms": ms, lookupTimeout: ms}
	n.adminJSON("PUT", "/v1/cluster_config", object{"upsert": upsert, "remove": []string{}}, 200, nil)
}

// full is everything of a lookup's answer that must not depend on the tier, the
// node or its past.
type full struct {
	status                                int
	partition, offset, etag, when, reason string
	headers, body                         string
}

func fullOf(a answer) full {
	h := a.header.Get
	return full{a.status, h("X-Kv-Partition"), h("X-Kv-Offset"), h("ETag"), h("X-Kv-Timestamp"), h("X-Kv-Reason"), h("X-Kv-Headers"), string(a.body)}
}

// readAll looks all keys up.
func (n *node) readAll(topic string, keys []string) map[string]full {
	n.t.Helper()
	out := make(map[string]full, len(keys))
	list := make([]full, len(keys))
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	parallel(lookupWorkers, order, func(i int) {
		a, err := n.lookup(topic, keys[i])
		if list[i] = fullOf(a); err != nil {
			list[i] = full{reason: err.Error()}
		}
	})
	for i, key := range keys {
		out[key] = list[i]
	}
	return out
}

// wantAll wants the answers that were given before.
func wantAll(t testing.TB, when string, got, want map[string]full) {
	t.Helper()
	wrong := 0
	for _, key := range sorted(want) {
		if got[key] != want[key] {
			if wrong++; wrong <= 5 {
				t.Errorf("%s: %s: %.300q, was %.300q", when, key, fmt.Sprint(got[key]), fmt.Sprint(want[key]))
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%s: %d of %d answers differ", when, wrong, len(want))
	}
}

// takeOver starts a node on an empty disk and switches everything on.
func takeOver(t testing.TB, s *store, flags ...string) *node {
	t.Helper()
	n := newNode(t, s, flags...)
	n.start()
	n.waitReady()
	n.switchOn()
	n.setCluster(remoteRead, true)
	n.waitReady()
	return n
}

// dropIndexes removes the index directories of a stopped node.
func (n *node) dropIndexes(t testing.TB, want int) {
	t.Helper()
	dirs := glob(t, n.dir+"/topics/*/*/*/kv_index")
	if len(dirs) != want {
		t.Fatalf("%d index directories, want %d", len(dirs), want)
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
