package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"keyhole/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// errReply is what a client sees when the reply to its request went missing.
var errReply = errors.New("connection reset")

// memStore is a bucket with one manifest in it.
type memStore struct {
	conditional bool

	mu       sync.Mutex
	data     []byte // nil: absent
	version  int
	loads    int
	replaces int
	moved    int // bytes that loads have returned
	failLoad error
	// before runs ahead of the next Replace and may change the store.
	before func(s *memStore)
	// lose says what becomes of the next Replace's reply.
	lose loss
}

type loss int

const (
	nothing       loss = iota
	replyLost          // stored, but the client sees errReply
	replyConflict      // stored, the client's own repetition was refused
	requestLost        // not stored, the client sees errReply
)

func (s *memStore) etag() string { return fmt.Sprintf("v%d", s.version) }

func (s *memStore) Load(context.Context) ([]byte, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	if s.failLoad != nil {
		return nil, "", s.failLoad
	}
	if s.data == nil {
		return nil, "", manifest.ErrAbsent
	}
	s.moved += len(s.data)
	return append([]byte(nil), s.data...), s.etag(), nil
}

func (s *memStore) LoadIfChanged(ctx context.Context, etag string) ([]byte, string, error) {
	s.mu.Lock()
	same := s.failLoad == nil && s.data != nil && s.etag() == etag
	if same {
		s.loads++
	}
	s.mu.Unlock()
	if same {
		return nil, "", manifest.ErrUnchanged
	}
	return s.Load(ctx)
}

func (s *memStore) Replace(_ context.Context, data []byte, etag string) (string, error) {
	if before := s.before; before != nil {
		s.before = nil
		before(s)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaces++
	lose := s.lose
	s.lose = nothing
	if lose == requestLost {
		return "", errReply
	}
	if s.conditional && (etag == "") != (s.data == nil) || s.conditional && etag != "" && etag != s.etag() {
		return "", manifest.ErrConflict
	}
	s.data = append([]byte(nil), data...)
	s.version++
	switch lose {
	case replyLost:
		return "", errReply
	case replyConflict:
		return "", manifest.ErrConflict
	}
	return s.etag(), nil
}

// stored decodes what the bucket holds.
func (s *memStore) stored(t testing.TB) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Decode("bucket", s.data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newFS(t testing.TB) vfs.FS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("p", 0o755); err != nil {
		t.Fatal(err)
	}
	return fs
}

func options(s *memStore, fs vfs.FS, writer string) manifest.Options {
	return manifest.Options{
		Store: s, Object: "orders/id1/3/manifest.json", FS: fs, Path: "p/manifest.json",
		Topic: "orders", TopicID: "id1", Partition: 3, Writer: writer,
		Conditional: s.conditional, Logger: slog.New(slog.DiscardHandler),
	}
}

// claimed opens a handle with a disk of its own and claims.
func claimed(t testing.TB, s *memStore, writer string) *manifest.Handle {
	t.Helper()
	h := manifest.Open(options(s, newFS(t), writer))
	if _, err := h.Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	return h
}

func segment(base, last int64, id string) manifest.Segment {
	return manifest.Segment{BaseOffset: base, LastOffset: last, UploadID: id, Size: 100, IndexSize: 80,
		TableBytes: 60, Records: last - base + 1, MaxTimestamp: 1_700_000_000_000, Epoch: 1}
}

func epochSegment(base, last int64, id string, epoch int64) manifest.Segment {
	s := segment(base, last, id)
	s.Epoch = epoch
	return s
}

func adding(segs ...manifest.Segment) func(*manifest.Manifest) (*manifest.Manifest, error) {
	return func(m *manifest.Manifest) (*manifest.Manifest, error) { return m.With(segs...) }
}

// wantRanges checks the segments of a manifest by base and last offset.
func wantRanges(t testing.TB, m *manifest.Manifest, want ...[2]int64) {
	t.Helper()
	var got [][2]int64
	for _, s := range m.Segments {
		got = append(got, [2]int64{s.BaseOffset, s.LastOffset})
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("segments %v, want %v", got, want)
	}
}
