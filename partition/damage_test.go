package partition

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/manifest"
)

// overwrite replaces a file.
func (r *rig) overwrite(path string, data []byte) {
	r.t.Helper()
	if err := manifest.WriteFile(r.fs, path, data); err != nil {
		r.t.Fatal(err)
	}
}

// indexTables are the files of the index with entries in them.
func (r *rig) indexTables() (paths []string) {
	r.t.Helper()
	names, err := r.fs.List("/data/t/0/kv_index")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			paths = append(paths, r.fs.PathJoin("/data/t/0/kv_index", name))
		}
	}
	if len(paths) == 0 {
		r.t.Fatal("the index has no table")
	}
	return paths
}

// A damaged table of an index is found and the index built anew also if nobody
// asks for a key. Until then Pebble would try to read it again without a pause.
func TestDamagedTableOfAnIdleIndex(t *testing.T) {
	r := newRig(t)
	want := fill(t, r.open(), "k", 40)
	r.stop()
	for range 10 { // until the position is in a table of its own
		put(t, r.open(), "last", "v")
		r.stop()
		if len(r.indexTables()) > 1 {
			break
		}
	}
	older := r.indexTables()
	if older = older[:len(older)-1]; len(older) == 0 {
		t.Fatal("there is only one table")
	}
	for _, path := range older {
		r.overwrite(path, bytes.Repeat([]byte{'x'}, len(readAll(t, r.fs, path))))
	}
	p := r.start()
	t.Cleanup(r.stop)
	eventually(t, "index built anew", func() bool { return testutil.ToFloat64(r.metrics.Rebuilds) == 1 })
	eventually(t, "ready", func() bool { ready, _, _ := p.State(); return ready })
	verify(t, p, want, nil)
	if n := testutil.ToFloat64(r.metrics.Corruptions.WithLabelValues("local", "index")); n != 1 {
		t.Errorf("damage was counted %v times", n)
	}
}
