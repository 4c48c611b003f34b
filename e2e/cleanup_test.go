package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// collected is the answer of the clean-up.
type collected struct {
	Objects []struct {
		Key   string `json:"key"`
		Size  int64  `json:"size"`
		AgeMS int64  `json:"age_ms"`
		Why   string `json:"why"`
	} `json:"objects"`
	Deleted bool `json:"deleted"`
}

// gc runs the clean-up command and gives the keys it names, with the reason.
func (n *node) gc(args ...string) map[string]string {
	n.t.Helper()
	out := n.mustCLI("", append([]string{"tier", "gc", "--json"}, args...)...)
	var c collected
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		n.t.Fatalf("tier gc: %v in %s", err, out)
	}
	if dry := slices.Contains(args, "--dry-run"); c.Deleted == dry {
		n.t.Errorf("tier gc %v: deleted is %v", args, c.Deleted)
	}
	keys := map[string]string{}
	for _, o := range c.Objects {
		keys[o.Key] = o.Why
	}
	return keys
}

// dryRun is gc that deletes nothing.
func (n *node) dryRun(t *testing.T) map[string]string {
	t.Helper()
	before := n.store.objects(t)
	keys := n.gc("--dry-run")
	if after := n.store.objects(t); !slices.Equal(before, after) {
		t.Errorf("a dry run changed the bucket: %v before, %v after", before, after)
	}
	return keys
}

// plant puts an object into the bucket by hand.
func (s *store) plant(t *testing.T, key string, age time.Duration) {
	t.Helper()
	file := filepath.Join(s.dir, filepath.FromSlash(key))
	if err := os.WriteFile(file, []byte("left behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
}

// TestCleanUp compacts a topic and leaves objects behind as a crash would: what
// nobody needs goes after the grace period, on request or not, nothing else and
// nothing sooner, and a dry run only tells.
func TestCleanUp(t *testing.T) {
	twoBackends(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.setCluster(remoteRead, true)
		n.indexed("t", 1, map[string]string{"segment.bytes": "16384", "delete.retention.ms": "0", "min.compaction.lag.ms": "3600000"})
		for round := range 4 {
			records := make([]object, 60)
			for i := range records {
				records[i] = object{"key": []byte(coldKey(i)), "value": coldValue(round*100 + i)}
			}
			n.produce("t", records)
		}
		n.evict("t", 1)
		old := s.segmentObjects(t, "t/")
		n.setTopic("t", object{"min.compaction.lag.ms": 0})
		n.compact("t", 0)
		keys := make([]string, 60)
		for i := range keys {
			keys[i] = coldKey(i)
		}
		answers := n.readAll("t", keys)
		for i, key := range keys {
			if a := answers[key]; a.status != 200 || a.body != string(coldValue(300+i)) {
				t.Fatalf("%s after the compaction: %.200q", key, fmt.Sprint(a))
			}
		}
		v := s.view(t, "t", 0)
		kept := 0
		for _, key := range old { // the background may have replaced some more than once
			if name, _, _ := strings.Cut(filepath.Base(key), "."); v.kept[name] {
				kept++
			}
		}
		if v.records != 60 || kept != len(old) || kept == 0 {
			t.Fatalf("compacted: %d records, %d of %d objects replaced", v.records, kept, len(old))
		}

		planted := map[string]string{}
		plant := func(name string, age time.Duration) string {
			key := v.dir + "/" + name
			s.plant(t, key, age)
			return key
		}
		broken := segmentName(17, "4d6d1b16-cc6b-4ac1-9bb9-97d488066de1")
		for _, name := range []string{broken + ".log", broken + ".index", segmentName(1<<40, "210c7155-c390-4bbf-a0dd-16d29e0a8d4c") + ".log"} {
			planted[plant(name, 2*time.Hour)] = "orphan"
		}
		fresh := plant(segmentName(18, "9e60714e-9511-48a9-8472-4624b664901c")+".log", 0)
		others := []string{plant("notes.txt", 2*time.Hour), plant(broken+".log.bak", 2*time.Hour), plant(segmentName(17, "copy")+".log", 2*time.Hour)}
		if got := n.dryRun(t); !maps.Equal(got, planted) {
			t.Errorf("dry run within the grace period: %v, want %v", got, planted)
		}
		if out := n.mustCLI("", "tier", "gc", "--dry-run", "t", "0"); strings.Count(out, "orphan") != len(planted) {
			t.Errorf("the table of a dry run:\n%s", out)
		}
		if got := n.gc("t"); !maps.Equal(got, planted) {
			t.Errorf("clean-up within the grace period: %v, want %v", got, planted)
		}
		now := s.objects(t)
		for key := range planted {
			if slices.Contains(now, key) {
				t.Errorf("%s is still there", key)
			}
		}
		for _, key := range slices.Concat(old, others, []string{fresh}) {
			if !slices.Contains(now, key) {
				t.Errorf("%s went too early", key)
			}
		}

		// What was replaced goes by itself, what was left behind when it is asked for.
		n.setGrace(1000)
		poll(t, "what was replaced is gone", func() bool {
			if s.proxy == nil { // the clock is waited for with one store only
				n.gc("t")
			}
			now = s.objects(t)
			// The orphan is a little younger than what was replaced.
			return !slices.ContainsFunc(old, func(key string) bool { return slices.Contains(now, key) }) &&
				(s.proxy != nil || !slices.Contains(now, fresh))
		})
		poll(t, "the manifest names nothing that is gone", func() bool {
			return len(s.view(t, "t", 0).manifest.Removed) == 0
		})
		if s.proxy != nil {
			due := map[string]string{fresh: "orphan"}
			poll(t, "the young object is past the grace period", func() bool { return len(n.dryRun(t)) > 0 })
			if got := n.gc(); !maps.Equal(got, due) {
				t.Errorf("clean-up after the grace period: %v, want %v", got, due)
			}
		}
		v = s.view(t, "t", 0)
		left := s.segmentObjects(t, "t/")
		for _, key := range left {
			if name, _, _ := strings.Cut(filepath.Base(key), "."); !v.named[name] && !slices.Contains(others, key) {
				t.Errorf("%s is left", key)
			}
		}
		for _, key := range others {
			if !slices.Contains(s.objects(t), key) {
				t.Errorf("%s was not ours to delete", key)
			}
		}
		n.trimCache()
		wantAll(t, "cleaned up", n.readAll("t", keys), answers)
		n.leave()
		n.mustCheck("of a bucket that was cleaned up")
	})
}

// TestTopicDeletionEmptiesTheBucket: nothing of a deleted topic stays in the bucket
// once the grace period is over, by itself or on request, over kill -9 too; its
// namesake and its neighbours keep what they have.
func TestTopicDeletionEmptiesTheBucket(t *testing.T) {
	twoBackends(t, func(t *testing.T, s *store) {
		n := startNode(t, s)
		n.setCluster(remoteRead, true)
		fill := func(topic string) {
			t.Helper()
			n.indexed(topic, 2, map[string]string{"segment.bytes": "16384"})
			n.fillCold(topic, 80)
			n.evict(topic, 2)
		}
		of := func(topic string) []string {
			t.Helper()
			return slices.DeleteFunc(s.objects(t), func(key string) bool { return !strings.HasPrefix(key, topic+"/") })
		}
		readable := func(when string) {
			t.Helper()
			n.trimCache()
			for _, i := range []int{0, 40, 79} {
				wantValue(t, when, n.get("stays", coldKey(i)), coldValue(i), "")
			}
		}
		fill("stays")
		stays := of("stays")

		// On request, and not before its time.
		fill("asked")
		first := of("asked")
		n.adminJSON("DELETE", "/v1/topics/asked", nil, 200, nil)
		fill("asked") // its namesake
		all := of("asked")
		if got := n.gc(); len(got) > 0 || len(all) <= len(first) {
			t.Errorf("within the grace period %v was deleted, %d objects are left of %d", got, len(all), len(first))
		}
		namesake := slices.DeleteFunc(slices.Clone(all), func(key string) bool { return slices.Contains(first, key) })
		for _, key := range first {
			if !slices.Contains(all, key) {
				t.Errorf("%s went within the grace period", key)
			}
		}
		n.setGrace(1000)
		poll(t, "the first topic of the name is gone", func() bool {
			n.gc()
			return slices.Equal(of("asked"), namesake)
		})
		wantValue(t, "of the second one", n.get("asked", coldKey(7)), coldValue(7), "")

		// By itself, and by the next process.
		fill("alone")
		n.adminJSON("DELETE", "/v1/topics/alone", nil, 200, nil)
		poll(t, "the bucket has nothing of the topic", func() bool { return len(of("alone")) == 0 })
		fill("killed")
		n.adminJSON("DELETE", "/v1/topics/killed", nil, 200, nil)
		n.kill()
		n.start()
		n.waitReady()
		poll(t, "the bucket has nothing of the topic", func() bool { return len(of("killed")) == 0 })

		if now := of("stays"); !slices.Equal(now, stays) {
			t.Errorf("a topic that was not deleted has %v, had %v", now, stays)
		}
		readable("of the topic that stays")
		n.leave()
		n.mustCheck("after deletions")
		n = takeOver(t, s)
		for _, topic := range []string{"alone", "killed"} {
			want(t, "deleted "+topic+" on an empty disk", n.get(topic, coldKey(1)), 404, "topic_not_found")
		}
		readable("on an empty disk")
		n.leave()
	})
}
