package modeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/check"
	"keyhole/partition"
	"keyhole/record"
)

// promise is what must hold after a place of a kind was damaged.
type promise int

const (
	// heals: every lookup is right; what is damaged is made again, or not needed.
	heals promise = iota
	// partly: lookups are right, or say that the data is damaged or that the
	// partition is not ready; those of other partitions are right.
	partly
	// refuses: the node does not start and names the file.
	refuses
	// cold: lookups of what is on this disk are right in every partition.
	cold
)

var promises = map[string]promise{
	"node.json":                         refuses,
	"config.json":                       refuses,
	"cluster.json":                      cold,
	"topic.json, disk":                  heals,
	"topic.json, bucket":                heals,
	"manifest, disk":                    heals,
	"manifest, bucket":                  heals,
	"remote log object":                 partly,
	"remote index object":               heals,
	"chunk table":                       heals,
	"clean-stop":                        heals,
	"compacted":                         heals,
	"sparse index":                      heals,
	"local segment, also in the bucket": heals,
	"local segment, sealed":             partly,
	"local segment, active":             partly,
	"Pebble sst":                        heals,
	"Pebble MANIFEST":                   heals,
	"Pebble OPTIONS":                    heals,
	"Pebble marker manifest":            heals,
	"Pebble marker format-version":      heals,
	"Pebble log":                        heals,
}

// idle are files that nothing is read from, or nothing that matters to an answer.
var idle = map[string]bool{"Pebble log": true, "Pebble OPTIONS": true, "compacted": true}

// rested are files and objects of which damage shows only when a lookup, or a
// rebuild, needs them; and check tells.
var rested = map[string]bool{"remote log object": true, "remote index object": true, "chunk table": true, "local segment, also in the bucket": true}

// injury is one way to damage bytes.
type injury struct {
	name  string
	blunt bool // so much that it must be noticed
	do    func(b []byte) []byte
}

// injuries gives the ways to damage n bytes; bits of them flip a single bit.
func injuries(rng *rand.Rand, n, bits int) []injury {
	cut := rng.IntN(max(1, n))
	list := []injury{
		{"empty", true, func([]byte) []byte { return []byte{} }},
		{fmt.Sprint("cut at ", cut), false, func(b []byte) []byte { return b[:cut] }},
		{"last byte missing", false, func(b []byte) []byte { return b[:max(0, len(b)-1)] }},
		{"all garbage", true, func(b []byte) []byte {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			return b
		}},
		{"all zeros", true, func(b []byte) []byte { clear(b); return b }},
		{fmt.Sprint("garbage from ", cut), false, func(b []byte) []byte {
			for i := cut; i < min(len(b), cut+40); i++ {
				b[i] = byte(rng.Uint32())
			}
			return b
		}},
		{"removed", false, func([]byte) []byte { return nil }},
		{"garbage behind", false, func(b []byte) []byte { return append(b, "garbage"...) }},
	}
	at := rng.Perm(n)
	for _, pos := range at[:min(bits, n)] {
		bit := byte(1) << rng.IntN(8)
		list = append(list, injury{fmt.Sprintf("bit %#x at %d", bit, pos), false, func(b []byte) []byte { b[pos] ^= bit; return b }})
	}
	return list
}

// TestDamage damages everything that is stored, one thing at a time, and holds
// the promises to it. By default one file or object of each kind is damaged, by
// one flipped bit and in one other way. KEYHOLE_DAMAGE_BITS damages all of them in
// every way, with that many flipped bits, one in every byte where that is more
// than there are.
func TestDamage(t *testing.T) {
	bits, thorough := 1, false
	if n, err := strconv.Atoi(os.Getenv("KEYHOLE_DAMAGE_BITS")); err == nil {
		bits, thorough = n, true
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	inBubble(t, func(t *testing.T) {
		flipped := rng.IntN(2) == 1
		for i := range 4 {
			killed, compact := i%2 == 1, i/2 == 1
			if !thorough && (killed == compact) == flipped {
				continue // half of the scenes are enough for one run
			}
			s := newScene(t, seed, killed, compact)
			s.healthy()
			seen := make(map[string]int)
			victims := make(map[string][]place)
			for _, p := range s.places() {
				if kind := s.kind(p); kind != "" {
					victims[kind] = append(victims[kind], p)
				}
			}
			for kind, places := range victims {
				want, known := promises[kind]
				if !known {
					t.Errorf("nothing is promised of %s", kind)
				}
				if !thorough {
					places = []place{places[rng.IntN(len(places))]}
				}
				for _, p := range places {
					hurts := injuries(rng, len(s.read(p)), bits)
					if !thorough {
						i := rng.IntN(len(hurts) - 1)
						hurts = []injury{hurts[i], hurts[len(hurts)-1]} // the last one flips a bit
					}
					for _, how := range hurts {
						s.try(p, kind, want, how)
						seen[kind]++
					}
				}
			}
			for _, kind := range slices.Sorted(maps.Keys(seen)) {
				t.Logf("killed %v, compacted %v: %-34s %d injuries", killed, compact, kind, seen[kind])
			}
			for kind := range promises {
				if seen[kind] == 0 && !(killed && kind == "clean-stop") && !(!compact && kind == "compacted") {
					t.Errorf("killed %v, compacted %v: there is no %s", killed, compact, kind)
				}
			}
		}
	})
}

// try damages one place of a copy and looks at what comes of it.
func (s *scene) try(p place, kind string, want promise, how injury) {
	s.t.Helper()
	hurt := s.clone()
	whole := hurt.read(p)
	bad := how.do(bytes.Clone(whole))
	if bad == nil && want == refuses || bad != nil && bytes.Equal(bad, whole) {
		return // without such a file a data directory is a new one
	}
	hurt.write(p, bad)
	hurt.what = fmt.Sprintf("killed %v, compacted %v, %s (%s, %d bytes): %s", s.killed, s.compact, p, kind, len(whole), how.name)
	hurt.index = strings.HasPrefix(kind, "Pebble")
	defer hurt.close()
	named := hurt.named(p, bad == nil)
	if !strings.HasPrefix(kind, "Pebble") && s.rng.IntN(2) == 0 {
		hurt.what += ", and the index is lost"
		hurt.lost = true
		if kind == "manifest, bucket" {
			want = partly // what the index lacks is in the bucket, and nothing says where
		}
		if err := hurt.fs.RemoveAll(path.Join(dataDir, "topics/t", s.topics["t"].id, "0/kv_index")); err != nil {
			s.t.Fatal(err)
		}
	}
	if how.blunt && !named && !idle[kind] {
		s.t.Errorf("%s: check does not name the place", hurt.what)
	}
	if !hurt.begin() {
		// The number of the version stands outside of the checksum; one from the
		// future is not called damage.
		future := strings.Contains(hurt.refusal.Error(), "this program knows version")
		if !future && (want != refuses || !errors.Is(hurt.refusal, record.ErrCorrupt)) || !strings.Contains(hurt.refusal.Error(), p.name) {
			s.t.Errorf("%s: does not start: %v", hurt.what, hurt.refusal)
		}
		return
	}
	if want == refuses {
		if how.blunt {
			s.t.Errorf("%s: started", hurt.what)
		}
		want = heals // the case of a letter in a name, or the final line feed
	}
	errs := hurt.judge(want)
	if len(errs) > 0 && !named {
		s.t.Errorf("%s: %d keys with errors (%v), and check found nothing", hurt.what, len(errs), errs[0])
	}
	if len(errs) > 0 && !hurt.says() || how.blunt && !idle[kind] && !rested[kind] && hurt.loud() == 0 {
		s.t.Errorf("%s: %d keys with errors, %d warnings, and nothing tells of it", hurt.what, len(errs), hurt.loud())
	}
	// What is damaged must not be carried on, into the bucket or an index.
	hurt.evictAll()
	hurt.judge(want)
	hurt.compactAll()
	hurt.judge(want)
	hurt.stop()
	if !hurt.begin() {
		s.t.Errorf("%s: does not start again: %v", hurt.what, hurt.refusal)
		return
	}
	hurt.judge(want)
	hurt.stop()
}

// says reports whether the metric or the readiness tells of damage.
func (s *scene) says() bool {
	r := s.c.Ready()
	return s.corruptions() > 0 || len(r.Damaged)+len(r.NotReady)+len(r.Degraded) > 0
}

// healthy holds that nothing of what is tested for is there without damage.
func (s *scene) healthy() {
	s.t.Helper()
	c := s.clone()
	c.what = fmt.Sprintf("killed %v, not damaged", s.killed)
	defer c.close()
	if !c.begin() {
		s.t.Fatal(c.refusal)
	}
	c.judge(heals)
	if c.loud() > 0 || c.corruptions() > 0 {
		s.t.Errorf("%s: %d warnings", c.what, c.loud())
	}
	c.stop()
}

// named reports whether check has something to say about a place; of one that is
// gone, about its folder.
func (s *scene) named(p place, gone bool) (named bool) {
	s.t.Helper()
	o := check.Options{
		FS: s.fs, DataDir: dataDir, Bucket: s.bucket.Inner(), ScratchFS: vfs.NewMem(), ScratchDir: "/",
		Report: func(f check.Finding) {
			// An index is one thing: what matters is which one.
			dir, _, _ := strings.Cut(p.name, "/kv_index/")
			named = named || strings.HasSuffix(f.Object, p.name) || strings.HasSuffix(p.name, f.Object) || strings.HasPrefix(f.Object, dir+"/kv_index") ||
				gone && strings.HasPrefix(f.Object, path.Dir(p.name))
		},
	}
	if _, err := check.Run(context.Background(), o); err != nil {
		s.t.Errorf("%s: check: %v", s.what, err)
	}
	return named
}

// judge compares all lookups with what was promised and gives the errors there
// were. A block of an index may turn out to be damaged only when it is read: then
// lookups say so until the index is built anew, and are asked again.
func (s *scene) judge(want promise) (errs []error) {
	s.t.Helper()
	if s.index && len(s.answers(partly)) > 0 {
		time.Sleep(100 * time.Second)
		synctest.Wait()
	}
	return s.answers(want)
}

func (s *scene) answers(want promise) (errs []error) {
	s.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		t := s.topics[name]
		for n, m := range t.parts {
			victim := name == "t" && n == 0
			for _, key := range slices.Sorted(maps.Keys(m.latest)) {
				err := s.judgeKey(t, n, key)
				if err == nil {
					continue
				}
				errs = append(errs, err)
				excused := want == partly && victim || want == cold && (!s.hot[hotName(name, n, key)] || victim && s.lost)
				if !excused {
					s.t.Errorf("%s: %s/%d %s: %v", s.what, name, n, key, err)
				}
			}
		}
	}
	return errs
}

// judgeKey fails the test if the answer is a lie, and gives the error if the
// answer is an honest one.
func (s *scene) judgeKey(t *topicModel, n int, key string) error {
	s.t.Helper()
	topic, err := s.c.Topic(t.name)
	if err != nil {
		if !honest(err) {
			s.t.Errorf("%s: topic %s: %v", s.what, t.name, err)
		}
		return err
	}
	p, err := topic.Partition(int32(n))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	res, err := p.Lookup(ctx, []byte(key), partition.Query{})
	m := t.parts[n]
	next := m.next()
	if s.killed {
		// What was torn and what was damaged at the end of a log that nobody
		// closed look the same.
		if st := p.Status(); st.HighWatermark != nil {
			next = min(next, *st.HighWatermark)
		}
	}
	want := (*record.Record)(nil)
	for off := next - 1; off >= 0; off-- {
		if string(m.recs[off].Key) == key {
			want = &m.recs[off]
			break
		}
	}
	switch {
	case err == nil && (want == nil || want.Value == nil || !bytes.Equal(res.Value, want.Value)):
		s.t.Errorf("%s: %s/%d %s: wrong value %.60q at offset %d", s.what, t.name, n, key, res.Value, res.Offset)
	case errors.Is(err, partition.ErrKeyNotFound):
		if want != nil && want.Value != nil {
			s.t.Errorf("%s: %s/%d %s: not found", s.what, t.name, n, key)
		}
	case err != nil && !honest(err):
		s.t.Errorf("%s: %s/%d %s: %v", s.what, t.name, n, key, err)
	}
	if errors.Is(err, partition.ErrKeyNotFound) {
		return nil
	}
	return err
}

// honest reports whether an error says what is true: damaged, or not to be had
// now.
func honest(err error) bool { return errors.Is(err, record.ErrCorrupt) || trouble(err) }
