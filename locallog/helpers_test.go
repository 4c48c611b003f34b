package locallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"keyhole/fsync"
	"keyhole/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "data/topic/0"

// batchOf encodes one batch with offsets from 0, one record per value.
func batchOf(t testing.TB, values ...string) []byte {
	t.Helper()
	return batchWith(t, record.None, values...)
}

func batchWith(t testing.TB, codec record.Codec, values ...string) []byte {
	t.Helper()
	recs := make([]record.Record, len(values))
	for i, v := range values {
		recs[i] = record.Record{Offset: int64(i), Timestamp: 1_700_000_000_000 + int64(i), Key: []byte("k" + v), Value: []byte(v)}
	}
	b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1, Codec: codec}, recs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// batchBytes is batchOf where no test is at hand.
func batchBytes(value string) []byte {
	b, err := record.AppendBatch(nil, record.BatchOptions{LastOffset: -1}, []record.Record{{Key: []byte("k"), Value: []byte(value)}})
	if err != nil {
		panic(err) // the record is one that can be encoded
	}
	return b
}

func options(fs vfs.FS) Options { return Options{FS: fs, Dir: testDir} }

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustAppend(t testing.TB, l *Log, batches ...[]byte) []int64 {
	t.Helper()
	bases, err := l.Append(context.Background(), batches)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return bases
}

// appendValues appends one batch per value and gives the first Kafka offset.
func appendValues(t testing.TB, l *Log, values ...string) int64 {
	t.Helper()
	var batches [][]byte
	for _, v := range values {
		batches = append(batches, batchOf(t, v))
	}
	return mustAppend(t, l, batches...)[0]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// valueAt reads the record at a Kafka offset, checking the CRC on the way as a
// caller of ReadBatch has to.
func valueAt(l *Log, offset int64) (string, error) {
	return valueBy(new(record.Reader), l, offset)
}

func valueBy(r *record.Reader, l *Log, offset int64) (value string, err error) {
	err = l.ReadBatch(offset, func(batch []byte, base int64) error {
		if err := r.Reset(batch, 1<<20); err != nil {
			return err
		}
		logBase := r.Header().BaseOffset
		for r.Next() {
			if r.Record().Offset-logBase+base == offset {
				value = string(r.Record().Value)
				return nil
			}
		}
		return errors.Join(r.Err(), fmt.Errorf("batch at %d has no record at %d", base, offset))
	})
	return value, err
}

func wantValue(t testing.TB, l *Log, offset int64, want string) {
	t.Helper()
	got, err := valueAt(l, offset)
	if err != nil || got != want {
		t.Fatalf("offset %d: value %q, error %v, want %q", offset, clip(got), err, clip(want))
	}
}

func clip(s string) string { return s[:min(len(s), 40)] }

func wantErr(t testing.TB, l *Log, offset int64, want error) {
	t.Helper()
	if got, err := valueAt(l, offset); !errors.Is(err, want) {
		t.Fatalf("offset %d: value %q, error %v, want error %v", offset, clip(got), err, want)
	}
}

// scanAll gives value by Kafka offset for what Scan sees, and checks its order.
func scanAll(t testing.TB, l *Log, fromLog int64) (map[int64]string, error) {
	t.Helper()
	got := map[int64]string{}
	lastLog, lastKafka := int64(-1), int64(-1)
	var r record.Reader
	err := l.Scan(context.Background(), fromLog, func(a Appended) error {
		if a.LogBase <= lastLog || a.KafkaBase <= lastKafka {
			t.Fatalf("scan goes back: log %d after %d, Kafka %d after %d", a.LogBase, lastLog, a.KafkaBase, lastKafka)
		}
		if err := r.Reset(a.Batch, 1<<20); err != nil {
			return err
		}
		if r.Header().BaseOffset != a.LogBase {
			t.Fatalf("batch has base offset %d, Appended says %d", r.Header().BaseOffset, a.LogBase)
		}
		for r.Next() {
			lastLog = r.Record().Offset
			lastKafka = lastLog - a.LogBase + a.KafkaBase
			got[lastKafka] = string(r.Record().Value)
		}
		return r.Err()
	})
	return got, err
}

// file is the content of a file of the log.
func file(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	d := directory{fs: fs, path: testDir}
	b, err := d.read(name, math.MaxInt64)
	if err != nil || b == nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return b
}

func exists(fs vfs.FS, name string) bool {
	_, err := fs.Stat(fs.PathJoin(testDir, name))
	return err == nil
}

// setFile replaces a file of the log, behind its back.
func setFile(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	d := directory{fs: fs, path: testDir}
	must(t, d.write(name, bytes.Clone(b))) // a vfs.File may change what it is given
	must(t, d.sync())
}

// removeFile removes a file of the log, behind its back.
func removeFile(t testing.TB, fs vfs.FS, name string) {
	t.Helper()
	must(t, fs.Remove(fs.PathJoin(testDir, name)))
	must(t, fsync.Dir(fs, testDir))
}

// listing is the names of the log's files.
func listing(t testing.TB, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List(testDir)
	must(t, err)
	return names
}

// crash is the file system after a power failure that kept only synced data.
func crash(fs *vfs.MemFS) *vfs.MemFS { return fs.CrashClone(vfs.CrashCloneCfg{}) }

// batchesIn gives the positions of the batches of a segment file.
func batchesIn(t testing.TB, b []byte) (pos []int) {
	t.Helper()
	for p := 0; p < len(b); {
		h, err := record.ParseHeader(b[p:])
		must(t, err)
		pos = append(pos, p)
		p += int(h.Size())
	}
	return pos
}

func bytesOf(n int64) func() int64 { return func() int64 { return n } }

func every(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// value is a recognisable value of n bytes.
func value(i, n int) string {
	s := fmt.Sprintf("value-%d-", i)
	return s + strings.Repeat("x", max(0, n-len(s)))
}
