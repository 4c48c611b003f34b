package s3test

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Stub is an S3 store in this process: path style, one bucket, as strict as the
// strictest compatible ones: it refuses chunked and trailing checksums, any
// request header it would have to know about, and a body that does not have the
// hash that was signed. It does not check signatures.
type Stub struct {
	recorder
	Endpoint string
	Server   *httptest.Server

	conns atomic.Int64
	mu    struct {
		sync.Mutex
		objects  map[string]stubObject
		fault    Fault
		pageSize int
	}
}

type stubObject struct {
	data    []byte
	etag    string
	modTime time.Time
}

// Fault sees every request first. It answers by itself, or calls next for the
// proper answer, into w or into a recorder of its own.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// StartStub runs a stub over plain HTTP until the test ends.
func StartStub(t testing.TB) *Stub { return start(t, (*httptest.Server).Start) }

// StartTLSStub runs a stub over TLS; Server.Certificate() is its authority.
func StartTLSStub(t testing.TB) *Stub { return start(t, (*httptest.Server).StartTLS) }

func start(t testing.TB, run func(*httptest.Server)) *Stub {
	s := &Stub{}
	s.mu.objects = make(map[string]stubObject)
	s.mu.pageSize = 1000
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.Server.Config.ErrorLog = log.New(io.Discard, "", 0) // aborted on purpose
	s.Server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	run(s.Server)
	t.Cleanup(func() {
		s.Server.CloseClientConnections()
		s.Server.Close()
	})
	s.Endpoint = s.Server.URL
	return s
}

// SetFault installs a fault for all later requests; nil ends it.
func (s *Stub) SetFault(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fault = f
}

// SetPageSize bounds the entries of one page of a listing.
func (s *Stub) SetPageSize(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.pageSize = n
}

// Connections is how many connections have been opened to the stub.
func (s *Stub) Connections() int { return int(s.conns.Load()) }

// Object is the content of an object, without a request.
func (s *Stub) Object(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.mu.objects[key]
	return o.data, ok
}

func (s *Stub) serve(w http.ResponseWriter, r *http.Request) {
	s.record(r)
	s.mu.Lock()
	fault := s.mu.fault
	s.mu.Unlock()
	w.Header().Set("X-Amz-Request-Id", "STUB")
	if fault != nil {
		fault(w, r, http.HandlerFunc(s.answer))
		return
	}
	s.answer(w, r)
}

// Fail answers with an S3 error.
func Fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s<Error><Code>%s</Code><Message>a message</Message></Error>", xml.Header, code)
}

func (s *Stub) answer(w http.ResponseWriter, r *http.Request) {
	if name := unknownFeature(r.Header); name != "" {
		Fail(w, http.StatusBadRequest, "InvalidRequest")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case bucket != Bucket:
		Fail(w, http.StatusNotFound, "NoSuchBucket")
	case key == "" && r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		s.list(w, r)
	case key == "":
		Fail(w, http.StatusNotImplemented, "NotImplemented")
	case r.Method == http.MethodGet:
		s.get(w, r, key)
	case r.Method == http.MethodPut:
		s.put(w, r, key)
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		delete(s.mu.objects, key)
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		Fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// unknownFeature names a header that older stores stumble over.
func unknownFeature(h http.Header) string {
	for name, values := range h {
		lower := strings.ToLower(name)
		value := strings.Join(values, ",")
		switch {
		case lower == "x-amz-trailer", lower == "x-amz-sdk-checksum-algorithm", lower == "x-amz-decoded-content-length",
			strings.HasPrefix(lower, "x-amz-checksum-"), lower == "expect",
			lower == "content-encoding" && strings.Contains(value, "aws-chunked"),
			lower == "x-amz-content-sha256" && strings.HasPrefix(value, "STREAMING"):
			return name
		}
	}
	return ""
}

func (s *Stub) get(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	o, ok := s.mu.objects[key]
	s.mu.Unlock()
	if !ok {
		Fail(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	w.Header().Set("ETag", o.etag)
	w.Header().Set("Last-Modified", o.modTime.UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/octet-stream")
	if r.Header.Get("If-None-Match") == o.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	data, status := o.data, http.StatusOK
	var first, last int
	if spec := r.Header.Get("Range"); spec != "" {
		if n, _ := fmt.Sscanf(spec, "bytes=%d-%d", &first, &last); n != 2 || first >= len(data) {
			Fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		last = min(last, len(data)-1)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)))
		data, status = data[first:last+1], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may have left
}

func (s *Stub) put(w http.ResponseWriter, r *http.Request, key string) {
	data, err := io.ReadAll(r.Body)
	if err != nil || int64(len(data)) != r.ContentLength {
		Fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	sum := sha256.Sum256(data)
	if signed := r.Header.Get("X-Amz-Content-Sha256"); signed != "UNSIGNED-PAYLOAD" && signed != hex.EncodeToString(sum[:]) {
		Fail(w, http.StatusBadRequest, "XAmzContentSHA256Mismatch")
		return
	}
	hash := md5.Sum(data)
	etag := `"` + hex.EncodeToString(hash[:]) + `"`
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.mu.objects[key]
	match := r.Header.Get("If-Match")
	switch {
	case match != "" && !exists:
		Fail(w, http.StatusNotFound, "NoSuchKey")
		return
	case match != "" && match != old.etag, r.Header.Get("If-None-Match") == "*" && exists:
		Fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	s.mu.objects[key] = stubObject{data: data, etag: etag, modTime: time.Now()}
	w.Header().Set("ETag", etag)
}

type listResult struct {
	XMLName               xml.Name     `xml:"ListBucketResult"`
	IsTruncated           bool         `xml:"IsTruncated"`
	NextContinuationToken string       `xml:"NextContinuationToken,omitempty"`
	Contents              []listEntry  `xml:"Contents"`
	CommonPrefixes        []listFolder `xml:"CommonPrefixes"`
}

type listEntry struct {
	Key          string `xml:"Key"`
	LastModified string `xml:"LastModified"`
	Size         int    `xml:"Size"`
}

type listFolder struct {
	Prefix string `xml:"Prefix"`
}

// list answers one page; the token is the last name of the page before.
func (s *Stub) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	prefix, delimiter, after := query.Get("prefix"), query.Get("delimiter"), query.Get("continuation-token")
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for key := range s.mu.objects {
		if strings.HasPrefix(key, prefix) {
			names = append(names, key)
		}
	}
	sort.Strings(names)
	var out listResult
	last, entries := after, 0
	for _, name := range names {
		folder := ""
		if delimiter != "" {
			if head, _, ok := strings.Cut(name[len(prefix):], delimiter); ok {
				folder = prefix + head + delimiter
			}
		}
		shown := name
		if folder != "" {
			shown = folder
		}
		if shown <= last {
			continue
		}
		if entries == s.mu.pageSize {
			out.IsTruncated, out.NextContinuationToken = true, last
			break
		}
		entries++
		last = shown
		if folder != "" {
			out.CommonPrefixes = append(out.CommonPrefixes, listFolder{folder})
			continue
		}
		o := s.mu.objects[name]
		out.Contents = append(out.Contents, listEntry{Key: name, LastModified: o.modTime.UTC().Format(time.RFC3339), Size: len(o.data)})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out) // the client may have left
}
