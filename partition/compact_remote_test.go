package partition

import (
	"fmt"
	"testing"

	"keyhole/record"
)

// Records whose keys have newer ones that are not in the bucket yet stay, and do not
// make one segment of everything.
func TestGroupsStayWithinASegment(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RemoteCodec = record.None
	p := r.open()
	keys := numbered(200)
	for i, k := range keys {
		put(t, p, k, fmt.Sprintf("%0200d", i))
	}
	evict(t, p)
	for _, k := range keys {
		put(t, p, k, "")
	}
	if err := p.compactRemote(t.Context(), p.serving.Load(), p.settings.Load(), false, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if records, _ := remoteRecords(p); records != int64(len(keys)) {
		t.Fatalf("%d records are left in the bucket for %d keys", records, len(keys))
	}
	for _, seg := range p.tier.Snapshot().Segments {
		if limit := r.settings.SegmentBytes * 3 / 2; seg.Size > limit {
			t.Fatalf("segment of %d bytes; at most some %d are wanted", seg.Size, limit)
		}
	}
}
