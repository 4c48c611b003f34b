package locallog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"keyhole/record"
)

// verified is Verify's result with what it told on the way.
type verified struct {
	*Verified
	findings []Finding
	values   map[int64]string
}

func (v *verified) damaged() bool {
	return slices.ContainsFunc(v.findings, func(f Finding) bool { return f.Damage })
}

func (v *verified) has(file string, damage bool, text string) bool {
	return slices.ContainsFunc(v.findings, func(f Finding) bool {
		return f.File == file && f.Damage == damage && strings.Contains(f.Err.Error(), text)
	})
}

// contents is every file of the log with its bytes.
func contents(t testing.TB, fs vfs.FS) map[string]string {
	out := map[string]string{}
	for _, name := range listing(t, fs) {
		d := directory{fs: fs, path: testDir}
		b, err := d.read(name, 1<<30)
		must(t, err)
		out[name] = string(b)
	}
	return out
}

// mustVerify verifies a log and demands that its files stay as they are.
func mustVerify(t testing.TB, fs vfs.FS, proven, provenKafka int64) *verified {
	t.Helper()
	before := contents(t, fs)
	out := &verified{values: map[int64]string{}}
	var r record.Reader
	v, err := Verify(context.Background(), VerifyOptions{
		FS: fs, Dir: testDir, ProvenNextLog: proven, ProvenNextKafka: provenKafka,
		Report: func(f Finding) { out.findings = append(out.findings, f) },
		Batch: func(file string, pos int64, a Appended) error {
			if b := before[file]; b[pos:pos+int64(len(a.Batch))] != string(a.Batch) {
				t.Errorf("batch at offset %d is not at %s:%d", a.KafkaBase, file, pos)
			}
			if err := r.Reset(a.Batch, 1<<20); err != nil {
				t.Errorf("batch at offset %d: %v", a.KafkaBase, err)
			}
			for r.Next() {
				out.values[r.Record().Offset-a.LogBase+a.KafkaBase] = string(r.Record().Value)
			}
			return r.Err()
		},
	})
	must(t, err)
	out.Verified = v
	after := contents(t, fs)
	for name := range after {
		if before[name] != after[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d files became %d", len(before), len(after))
	}
	return out
}

// Whatever a crash or damage made of the files, Verify says what Open then makes
// of them: the same state, and the same offsets unreadable.
func TestVerifyAgreesWithOpen(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for i := range uint64(150) {
		seed := base + i
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { verifyAgainstOpen(t, seed) }) || *seedFlag != 0 {
			return
		}
	}
}

func verifyAgainstOpen(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	fs := vfs.NewCrashableMem()
	o := options(fs)
	o.SegmentBytes = bytesOf(int64(1024) << rng.IntN(4))
	var provenLog, provenKafka int64
	for range 1 + rng.IntN(3) { // runs
		l := mustOpen(t, o)
		for i := range rng.IntN(60) {
			switch p := rng.IntN(20); {
			case p < 15:
				appendValues(t, l, value(i, 10+rng.IntN(600)))
			case p < 17:
				must(t, l.Note(ctx, Note{RemoteNext: l.State().HighWatermark, ManifestGeneration: int64(i)}))
			case p < 18:
				must(t, l.Roll(ctx))
			case p < 19:
				must(t, l.TrimPrefix(ctx, min(l.State().RemoteNext, l.State().HighWatermark)))
			default:
				if st := l.State(); rng.IntN(2) == 0 {
					provenLog, provenKafka = st.NextLog, st.HighWatermark
				}
			}
		}
		if rng.IntN(2) == 0 {
			must(t, l.Close())
		} else {
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
			must(t, l.Close())
			o.FS = fs
		}
	}
	if rng.IntN(4) > 0 {
		damageSomething(t, rng, fs)
	}
	v := mustVerify(t, fs, provenLog, provenKafka)

	o.ProvenNextLog, o.ProvenNextKafka = provenLog, provenKafka
	l, err := Open(ctx, o)
	if err != nil {
		if !errors.Is(err, record.ErrCorrupt) || !v.Broken && !v.damaged() {
			t.Fatalf("open: %v; verified: %+v, %v", err, v.Verified, v.findings)
		}
		return
	}
	defer l.Close()
	st := l.State()
	if v.Files == 0 {
		return // Open begins anew, with a stand-in for what clean-stop tells of
	}
	if v.Broken || st.LocalStart != v.LocalStart || st.HighWatermark != v.HighWatermark || st.RemoteNext != v.RemoteNext || st.ManifestGeneration != v.ManifestGeneration {
		t.Fatalf("open says %+v, verify %+v; %v", st, v.Verified, v.findings)
	}
	for offset := st.LocalStart; offset < st.HighWatermark; offset++ {
		got, err := valueAt(l, offset)
		want, sound := v.values[offset]
		bad := slices.ContainsFunc(v.Unreadable, func(r Range) bool { return r.From <= offset && offset < r.Next })
		switch {
		case err == nil && (bad || !sound || got != want):
			t.Errorf("offset %d can be read, verify says unreadable %v, sound %v", offset, bad, sound)
		case err != nil && (!bad || sound):
			t.Errorf("offset %d: %v; verify says unreadable %v, sound %v", offset, err, bad, sound)
		}
	}
	if len(v.Unreadable) > 0 && !v.damaged() {
		t.Error("unreadable, and no damage reported")
	}
	if t.Failed() {
		t.Logf("%+v %v", v.Verified, v.findings)
	}
}

func damageSomething(t *testing.T, rng *rand.Rand, fs vfs.FS) {
	names := listing(t, fs)
	slices.Sort(names)
	name := names[rng.IntN(len(names))]
	b := file(t, fs, name)
	if len(b) == 0 {
		return
	}
	switch rng.IntN(5) {
	case 0:
		removeFile(t, fs, name)
	case 1:
		setFile(t, fs, name, b[:rng.IntN(len(b))])
	case 2:
		setFile(t, fs, name, append(b, make([]byte, 1+rng.IntN(300))...))
	default:
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		setFile(t, fs, name, b)
	}
}

func TestVerifyNames(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := options(fs)
	o.SegmentBytes = bytesOf(8 << 10)
	l := mustOpen(t, o)
	for i := range 60 {
		appendValues(t, l, value(i, 500))
	}
	must(t, l.Close())
	if v := mustVerify(t, fs, 0, 0); len(v.findings) > 0 || len(v.values) != 60 || v.Files < 3 {
		t.Fatalf("%+v, %d values, %v", v.Verified, len(v.values), v.findings)
	}
	first := l.view.Load().sealed[0].name

	// An index whose checksums hold and that leads elsewhere is damage: nobody
	// would rebuild it.
	b := file(t, fs, first+indexSuffix)
	h, err := decodeIndexHeader(b, int64(len(b)))
	must(t, err)
	var shifted table
	for i := range table(b[indexHeaderSize:]).len() {
		e := table(b[indexHeaderSize:]).at(i)
		e.pos += int64(min(i, 1))
		shifted = shifted.append(e)
	}
	setFile(t, fs, first+indexSuffix, encodeIndex(h, shifted))
	if v := mustVerify(t, fs, 0, 0); !v.has(first+indexSuffix, true, "does not lead") || len(v.findings) != 1 {
		t.Errorf("%v", v.findings)
	}
	setFile(t, fs, first+indexSuffix, b)

	setFile(t, fs, "foreign", []byte("x"))
	setFile(t, fs, "00000000000000000007-0.index", []byte("x"))
	setFile(t, fs, stopFile, []byte("x"))
	setFile(t, fs, truncateFile, []byte("x"))
	v := mustVerify(t, fs, 0, 0)
	for _, name := range []string{"foreign", "00000000000000000007-0.index", stopFile, truncateFile} {
		if !v.has(name, false, "") {
			t.Errorf("%s is not named", name)
		}
	}
	if len(v.findings) != 4 {
		t.Errorf("%v", v.findings)
	}
}

func TestVerifyNothing(t *testing.T) {
	if v, err := Verify(context.Background(), VerifyOptions{FS: vfs.NewMem(), Dir: "nowhere", Report: func(f Finding) { t.Error(f) }}); err != nil || v.Files != 0 || v.NextLog != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	fs := vfs.NewCrashableMem()
	l := mustOpen(t, options(fs))
	appendValues(t, l, "a", "b")
	must(t, l.Close())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Verify(ctx, VerifyOptions{FS: fs, Dir: testDir, Report: func(Finding) {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	enough := errors.New("enough")
	if _, err := Verify(context.Background(), VerifyOptions{FS: fs, Dir: testDir, Report: func(Finding) {}, Batch: func(string, int64, Appended) error { return enough }}); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}
