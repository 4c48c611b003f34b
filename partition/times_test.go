package partition

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestSettled(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name        string
		times, want []int // hours from now; none: no time
	}{
		{"all right", []int{-3, -2, -1}, []int{-3, -2, -1}},
		{"none", nil, nil},
		{"one wrong", []int{-3, 90000, -1}, []int{-3, -1, -1}},
		{"two wrong", []int{90000, 80000, -1, -1}, []int{-1, -1, -1, -1}},
		{"the last one wrong", []int{-3, 90000}, []int{-3, 0}},
		{"another clock was behind", []int{-3, 90000, -500000, -1}, []int{-3, -3, -500000, -1}},
		{"the active one has none", []int{-3, 90000, none}, []int{-3, 0, none}},
	} {
		at := func(hours []int) (out []time.Time) {
			for _, h := range hours {
				if h == none {
					out = append(out, time.Time{})
				} else {
					out = append(out, now.Add(time.Duration(h)*time.Hour))
				}
			}
			return out
		}
		got, want := settled(at(c.times), now), at(c.want)
		for i := range want {
			if !got[i].Equal(want[i]) {
				t.Errorf("%s: %v, want %v", c.name, got, want)
				break
			}
		}
	}
}

const none = 1 << 30

// A clock that was years ahead for a while, as of a machine that has just been
// started, keeps neither retention nor compaction from what was uploaded then, nor
// from what comes later.
func TestClockThatWasAhead(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.settings.RetentionAge = time.Hour
	clock := r.clock()
	p := r.open()
	keys := numbered(20)
	round := func(prefix string) {
		for range 2 {
			for i, k := range keys {
				put(t, p, prefix+k, fmt.Sprintf("%0100d", i))
			}
		}
		if err := p.log.Load().Roll(t.Context()); err != nil {
			t.Fatal(err)
		}
		evict(t, p)
	}
	const ahead = 10 * 365 * 24 * time.Hour
	clock.add(ahead)
	round("ahead-")
	clock.add(-ahead)
	round("right-")
	if err := p.compactRemote(t.Context(), p.serving.Load(), p.settings.Load(), true, new(CompactionStats)); err != nil {
		t.Fatal(err)
	}
	if records, _ := remoteRecords(p); records != int64(2*len(keys)) {
		t.Fatalf("%d records are left for %d keys", records, 2*len(keys))
	}
	clock.add(59 * time.Minute)
	retained(t, p, *p.settings.Load())
	for _, k := range keys {
		mustGet(t, p, "ahead-"+k)
	}
	clock.add(2 * time.Minute)
	round("later-")
	retained(t, p, *p.settings.Load())
	for _, k := range keys {
		for _, gone := range []string{"ahead-", "right-"} {
			if _, err := get(p, gone+k); !errors.Is(err, ErrNotRetained) && !errors.Is(err, ErrKeyNotFound) {
				t.Fatalf("%s%s is retained: %v", gone, k, err)
			}
		}
		mustGet(t, p, "later-"+k)
	}
}

// The same of the local log, whose segments are dated by the wall clock: here the
// clock that counts is behind that.
func TestLocalLogOfAClockThatWasAhead(t *testing.T) {
	r := newRig(t)
	r.settings = compacting()
	r.noStore = true
	clock := r.clock()
	p := r.open()
	clock.add(-time.Hour)
	for range 3 {
		fill(t, p, "k", 30)
	}
	if c := compact(t, p); c.Done.LocalSegments == 0 {
		t.Fatalf("nothing was compacted: %+v", c.Done)
	}
}
