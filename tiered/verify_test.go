package tiered

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"keyhole/manifest"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/record"
)

func findings(t testing.TB, b objstore.Bucket, seg manifest.Segment) (objects []string) {
	t.Helper()
	err := VerifySegment(t.Context(), b, prefix, seg, func(object string, pos int64, err error) {
		if err == nil || pos < 0 {
			t.Errorf("finding in %s at %d: %v", object, pos, err)
		}
		objects = append(objects, object)
	})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Every byte of both objects matters, and a finding names the right object.
func TestVerifyFindsEveryChangedByte(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{chunkBytes: 400})
	build := newBuilder(t, 0)
	build.random(newRand(t), 12)
	seg := n.upload(t, build.done()).Segments[0]
	if got := findings(t, b, seg); got != nil {
		t.Fatalf("findings in a good segment: %v", got)
	}
	for _, object := range []string{LogKey(prefix, &seg), IndexKey(prefix, &seg)} {
		good := content(t, b, object)
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			put(t, b, object, bad)
			if got := findings(t, b, seg); len(got) == 0 {
				t.Fatalf("%s: byte %d changed unnoticed", object, i)
			}
		}
		for name, bad := range map[string][]byte{"cut": good[:len(good)-1], "empty": nil, "longer": append(bytes.Clone(good), 0)} {
			put(t, b, object, bad)
			if got := findings(t, b, seg); len(got) == 0 || got[0] != object {
				t.Errorf("%s, %s: findings %v", object, name, got)
			}
		}
		if err := b.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if got := findings(t, b, seg); len(got) == 0 || got[0] != object {
			t.Errorf("%s gone: findings %v", object, got)
		}
		put(t, b, object, good)
	}
}

// Objects that are whole but do not belong together are found out.
func TestVerifyComparesTheObjects(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	build.add(record.None, kv(0, "a", "1"), kv(1, "b", "2"))
	seg := n.upload(t, build.done()).Segments[0]
	index := content(t, b, IndexKey(prefix, &seg))
	for name, keys := range map[string]keySet{
		"key missing":   {"a": {offset: 0}, "c": {offset: 1}},
		"wrong offset":  {"a": {offset: 1}, "b": {offset: 1}},
		"not tombstone": {"a": {offset: 0}, "b": {offset: 1, tombstone: true}},
	} {
		bad := appendRun(bytes.Clone(index[:seg.TableBytes]), 0, keys, testEncoder(t))
		put(t, b, IndexKey(prefix, &seg), bad)
		changed := seg
		changed.IndexSize = int64(len(bad))
		if got := findings(t, b, changed); len(got) != 1 || got[0] != IndexKey(prefix, &seg) {
			t.Errorf("%s: findings %v", name, got)
		}
	}
	put(t, b, IndexKey(prefix, &seg), index)
	for name, spoil := range map[string]func(*manifest.Segment){
		"records":   func(s *manifest.Segment) { s.Records++ },
		"timestamp": func(s *manifest.Segment) { s.MaxTimestamp++ },
		"range":     func(s *manifest.Segment) { s.LastOffset++ },
	} {
		changed := seg
		spoil(&changed)
		if got := findings(t, b, changed); len(got) == 0 {
			t.Errorf("%s: nothing found", name)
		}
	}
}

func TestVerifyTellsAnOutageFromDamage(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	seg := n.upload(t, newBuilder(t, 0).numbered(5)).Segments[0]
	calls := 0
	for k := 1; ; k++ {
		b.ResetCalls()
		failing := objstoretest.NewFaulty(b)
		met := failAt(failing, k-1, failure{err: objstore.ErrUnavailable})
		err := VerifySegment(t.Context(), failing, prefix, seg, func(object string, _ int64, err error) {
			t.Errorf("outage reported as damage of %s: %v", object, err)
		})
		if !met() {
			break
		}
		calls++
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("call %d: %v", k, err)
		}
	}
	if calls < 4 {
		t.Errorf("only %d calls", calls)
	}
}

func TestNamesOfObjects(t *testing.T) {
	seg := manifest.Segment{BaseOffset: 20227160311775237, UploadID: "u-1"}
	p := Prefix("orders", "id1", 3)
	if p != prefix || ManifestKey(p) != "orders/id1/3/manifest.json" ||
		LogKey(p, &seg) != "orders/id1/3/00020227160311775237-u-1.log" ||
		!strings.HasSuffix(IndexKey(p, &seg), "/00020227160311775237-u-1.index") {
		t.Errorf("%s %s %s %s", p, ManifestKey(p), LogKey(p, &seg), IndexKey(p, &seg))
	}
}

// The counts of the manifest are compared too; one of version 1 does not know of
// tombstones.
func TestVerifyComparesCounts(t *testing.T) {
	b := newBucket()
	n := newNode(t, b, nodeOptions{})
	build := newBuilder(t, 0)
	build.add(record.None, kv(0, "a", "1"), record.Record{Offset: 1, Key: []byte("b")}, kv(2, "c", "3"))
	seg := n.upload(t, build.done()).Segments[0]
	if seg.Tombstones != 1 {
		t.Fatalf("%d tombstones", seg.Tombstones)
	}
	for tombstones, want := range map[int64]int{0: 1, 1: 0, 2: 1, 3: 0} {
		seg.Tombstones = tombstones
		if got := findings(t, b, seg); len(got) != want {
			t.Errorf("%d tombstones in the manifest: findings %v", tombstones, got)
		}
	}
}
