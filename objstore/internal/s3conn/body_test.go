package s3conn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"keyhole/objstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseContentRange(t *testing.T) {
	for s, want := range map[string][3]int64{
		"bytes 0-0/1":      {0, 0, 1},
		"bytes 5-9/10":     {5, 9, 10},
		"bytes 5-9/*":      {5, 9, -1},
		"bytes 0-99/10000": {0, 99, 10000},
	} {
		first, last, total, ok := parseContentRange(s)
		if got := [3]int64{first, last, total}; !ok || got != want {
			t.Errorf("%q: %v, %v", s, got, ok)
		}
	}
	for _, s := range []string{
		"", "bytes", "bytes ", "bytes */10", "bytes 0--1/0", "bytes 5-4/10", "bytes 5-10/10", "bytes -5-9/10",
		"bytes +5-9/10", "bytes 5-9", "bytes 5/10", "items 5-9/10", "bytes 5-9/x", "bytes 5-99999999999999999999/*", "bytes 0x1-2/3",
	} {
		if _, _, _, ok := parseContentRange(s); ok {
			t.Errorf("%q accepted", s)
		}
	}
}

// replyOf is a finished Reply, as the transport leaves it.
func replyOf(status int, contentRange, contentLength, encoding string) *Reply {
	r := &Reply{}
	h := http.Header{}
	for name, value := range map[string]string{"Content-Range": contentRange, "Content-Length": contentLength, "Content-Encoding": encoding} {
		if value != "" {
			h.Set(name, value)
		}
	}
	r.set(status, h, "", "", nil)
	return r
}

// FuzzReadRange: whatever a store answers to a ranged read of an object whose
// content is known, the result is an error or those bytes of what was sent that
// the headers claim them to be, in a slice of the length asked for.
func FuzzReadRange(f *testing.F) {
	f.Add(206, "bytes 2-5/10", "4", "", []byte("cdef"), int64(2), int64(4))
	f.Add(200, "", "10", "", []byte("abcdefghij"), int64(2), int64(4))
	f.Add(206, "bytes 0--1/0", "", "", []byte(""), int64(0), int64(1))
	f.Add(206, "bytes 2-5/10", "", "gzip", []byte("cdef"), int64(2), int64(4))
	f.Add(200, "bytes 2-5/10", "-4", "", []byte("cdef"), int64(2), int64(4))
	f.Add(206, "bytes 2-5/*", "", "", []byte("cdefg"), int64(2), int64(4))
	f.Fuzz(func(t *testing.T, status int, contentRange, contentLength, encoding string, body []byte, off, n int64) {
		if n > 1<<20 || objstore.CheckRange("k", off, n) != nil {
			t.Skip("a range that no caller may ask for, or a large one")
		}
		data, err := ReadRange(t.Context(), "read", "k", replyOf(status, contentRange, contentLength, encoding),
			io.NopCloser(bytes.NewReader(body)), off, n)
		if err != nil {
			if data != nil {
				t.Fatal("bytes and an error")
			}
			return
		}
		var want []byte
		switch status {
		case http.StatusPartialContent:
			want = body
			if !strings.HasPrefix(contentRange, "bytes ") {
				t.Fatalf("accepted the range %q", contentRange)
			}
		case http.StatusOK:
			want = body[off:]
		default:
			t.Fatalf("accepted status %d", status)
		}
		if int64(len(data)) != n || !bytes.Equal(data, want[:n]) {
			t.Fatalf("%d bytes of %d", len(data), n)
		}
	})
}

// Memory is bounded by what was asked for, whatever a store claims.
func TestReadAllBounds(t *testing.T) {
	endless := io.NopCloser(strings.NewReader(strings.Repeat("x", 1000)))
	_, err := ReadAll(t.Context(), "get", "k", replyOf(200, "", "", ""), endless, 999)
	if !errors.Is(err, objstore.ErrTooLarge) {
		t.Errorf("body without a length: %v", err)
	}
	_, err = ReadAll(t.Context(), "get", "k", replyOf(200, "", "9223372036854775807", ""), endless, 999)
	if !errors.Is(err, objstore.ErrTooLarge) {
		t.Errorf("body with a huge length: %v", err)
	}
	_, err = ReadAll(t.Context(), "get", "k", replyOf(200, "", "5", ""), io.NopCloser(strings.NewReader("four")), 999)
	if !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("short body: %v", err)
	}
	_, err = ReadAll(t.Context(), "get", "k", replyOf(200, "", "4", "gzip"), io.NopCloser(strings.NewReader("four")), 999)
	if !errors.Is(err, objstore.ErrUnusable) {
		t.Errorf("coded body: %v", err)
	}
}

// slowReader is in Read until it is released.
type slowReader struct {
	io.ReadSeeker
	entered, release chan struct{}
	once             sync.Once
}

func (s *slowReader) Read(p []byte) (int, error) {
	s.once.Do(func() { close(s.entered) })
	<-s.release
	return s.ReadSeeker.Read(p)
}

// After TakeBack nobody is inside of the caller's body, and nobody gets in.
func TestUploadTakeBack(t *testing.T) {
	body := &slowReader{ReadSeeker: strings.NewReader("content"), entered: make(chan struct{}), release: make(chan struct{})}
	u := NewUpload(body, 7)
	read := make(chan error)
	go func() {
		_, err := u.Read(make([]byte, 3))
		read <- err
	}()
	<-body.entered
	back := make(chan struct{})
	go func() {
		u.TakeBack()
		close(back)
	}()
	select {
	case <-back:
		t.Error("taken back during a read")
	default:
	}
	close(body.release)
	if err := <-read; err != nil {
		t.Error(err)
	}
	<-back
	if _, err := u.Read(make([]byte, 3)); err == nil {
		t.Error("read after it was taken back")
	}
	if _, err := u.Seek(0, io.SeekStart); err == nil {
		t.Error("moved after it was taken back")
	}
}

func TestToken(t *testing.T) {
	for s, want := range map[string]string{"NoSuchKey": "NoSuchKey", "eu-west-1": "eu-west-1", "a b": "", "x\n": "", strings.Repeat("a", 65): "", "": ""} {
		if got := token(s); got != want {
			t.Errorf("%q: %q", s, got)
		}
	}
	if got := fmt.Sprint(&objstore.OpError{Op: "get", Key: "a\nb", Kind: objstore.ErrDenied, Status: 403, Code: "AccessDenied"}); got !=
		`get "a\nb": object store denies access (status 403, code AccessDenied)` {
		t.Error(got)
	}
}
