package partition

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"keyhole/locallog"
	"keyhole/record"
)

// Records may be dated as their producers like: in the year 2100, in microseconds,
// at the beginning or the end of time. Segments are rolled, uploaded and evicted as
// if they were not. case 7-23, 7-24
func TestTimestampsDoNotKeepSegments(t *testing.T) {
	stamps := []int64{4102444800000, 1700000000000000, math.MaxInt64, 0, 1700000000, time.Now().UnixMilli()}
	for name, set := range map[string]func(*Settings){
		"by bytes": func(s *Settings) { s.LocalTargetBytes = 0 },
		"by age":   func(s *Settings) { s.LocalTargetAge = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			set(&r.settings)
			r.settings.SegmentAge = time.Nanosecond // the last segment is due as well
			p := r.open()
			want := map[string]int64{}
			for i := range 60 {
				k := fmt.Sprint("key-", i)
				want[k] = stamps[i%len(stamps)]
				rec := record.Record{Key: []byte(k), Value: []byte(strings.Repeat(k, 50)), Timestamp: want[k]}
				// Several of them in one batch, too: the distance counts.
				if _, err := p.Append(t.Context(), []record.Record{rec, {Key: []byte("old"), Value: []byte("x")}}); err != nil {
					t.Fatal(err)
				}
			}
			evicted := func() bool {
				roundOfChores(t, p)
				st := p.log.Load().State()
				return st.LocalStart == st.HighWatermark
			}
			eventually(t, "everything is evicted", evicted)
			p = r.reopen()
			for k, ts := range want {
				if res := mustGet(t, p, k); res.Timestamp != ts || res.Source == SourceLocal {
					t.Errorf("%s: timestamp %d from %v, want %d from the bucket", k, res.Timestamp, res.Source, ts)
				}
			}
			put(t, p, "again", "x")
			eventually(t, "everything is evicted after a restart", evicted)
		})
	}
}

// Whoever produces such records can be found out.
func TestFutureRecordsAreCounted(t *testing.T) {
	r := newRig(t)
	p := r.open()
	put(t, p, "now", "x")
	for _, ts := range []int64{time.Now().UnixMilli(), time.Now().Add(time.Hour).UnixMilli(), 4102444800000, math.MaxInt64} {
		if _, err := p.Append(t.Context(), []record.Record{{Key: []byte("k"), Value: []byte("v"), Timestamp: ts}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := testutil.ToFloat64(r.metrics.FutureRecords); n != 2 {
		t.Errorf("%v records counted, want 2", n)
	}
}

// A clock that jumps back makes nothing due, and one that jumps ahead only what the
// bucket has: eviction never passes that.
func TestClockJumps(t *testing.T) {
	now := time.Now()
	s := Settings{LocalTargetBytes: -1, LocalTargetAge: time.Hour}
	segs := []locallog.SegmentInfo{
		{NextKafka: 10, Sealed: true, SealedAt: now}, {NextKafka: 20, Sealed: true, SealedAt: now}, {NextKafka: 30},
	}
	for jump, want := range map[time.Duration]int64{-24 * time.Hour: 0, 0: 0, 24 * time.Hour: 20} {
		if cut := dueForEviction(segs, &s, now.Add(jump)); cut != want {
			t.Errorf("clock %v off: due below %d, want %d", jump, cut, want)
		}
	}
	r := newRig(t)
	r.settings.RemoteWrite = false // the bucket gets nothing
	p := r.open()
	want := fill(t, p, "k", 30)
	log := p.log.Load()
	cut := dueForEviction(log.Segments(), &s, now.Add(1000*time.Hour))
	if cut == 0 {
		t.Fatal("nothing is due")
	}
	if err := p.trim(t.Context(), log, &r.settings, cut); err != nil {
		t.Fatal(err)
	}
	for k, v := range want {
		if res := mustGet(t, p, k); string(res.Value) != v || res.Source != SourceLocal {
			t.Errorf("%s is gone", k)
		}
	}
}
