package s3test_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"keyhole/internal/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func do(t *testing.T, method, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// The stub is as strict as it says.
func TestStub(t *testing.T) {
	stub := s3test.StartStub(t)
	object := stub.Endpoint + "/" + s3test.Bucket + "/a/b"
	for _, c := range []struct {
		method, body string
		header       []string
		status       int
		want         string
	}{
		{"GET", "", nil, 404, "NoSuchKey"},
		{"PUT", "0123456789", []string{"If-Match", `"x"`}, 404, "NoSuchKey"},
		{"PUT", "0123456789", nil, 200, ""},
		{"PUT", "other", []string{"If-None-Match", "*"}, 412, "PreconditionFailed"},
		{"PUT", "other", []string{"If-Match", `"x"`}, 412, "PreconditionFailed"},
		{"PUT", "other", []string{"X-Amz-Trailer", "x-amz-checksum-crc32"}, 400, "InvalidRequest"},
		{"PUT", "other", []string{"Content-Encoding", "aws-chunked"}, 400, "InvalidRequest"},
		{"PUT", "other", []string{"X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, 400, "InvalidRequest"},
		{"PUT", "other", []string{"X-Amz-Content-Sha256", strings.Repeat("0", 64)}, 400, "XAmzContentSHA256Mismatch"},
		{"GET", "", nil, 200, "0123456789"},
		{"GET", "", []string{"Range", "bytes=2-4"}, 206, "234"},
		{"GET", "", []string{"Range", "bytes=8-20"}, 206, "89"},
		{"GET", "", []string{"Range", "bytes=10-20"}, 416, "InvalidRange"},
		{"POST", "", nil, 405, "MethodNotAllowed"},
		{"DELETE", "", nil, 204, ""},
		{"DELETE", "", nil, 204, ""},
		{"GET", "", nil, 404, "NoSuchKey"},
	} {
		status, body := do(t, c.method, object, c.body, c.header...)
		if status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %v: %d %q, want %d %q", c.method, c.header, status, body, c.status, c.want)
		}
	}
	if n := stub.Count(s3test.Request.IsRange); n != 3 {
		t.Errorf("%d ranged reads counted", n)
	}
}

// The proxy is transparent, counts and delays.
func TestProxy(t *testing.T) {
	stub := s3test.StartStub(t)
	proxy := s3test.StartProxy(t, stub.Endpoint)
	object := proxy.Endpoint + "/" + s3test.Bucket + "/k"
	if status, _ := do(t, "PUT", object, "content"); status != 200 {
		t.Fatalf("put: %d", status)
	}
	const delay = 30 * time.Millisecond
	proxy.SetDelay(delay)
	start := time.Now()
	if status, body := do(t, "GET", object, "", "Range", "bytes=0-2"); status != 206 || body != "con" {
		t.Errorf("get: %d %q", status, body)
	}
	if took := time.Since(start); took < delay {
		t.Errorf("took %v", took)
	}
	if status, _ := do(t, "GET", proxy.Endpoint+"/"+s3test.Bucket+"?list-type=2", ""); status != 200 {
		t.Errorf("list: %d", status)
	}
	got := fmt.Sprint(proxy.Count(nil), proxy.Count(s3test.Request.IsRange), proxy.Count(s3test.Request.IsList))
	if got != "3 1 1" {
		t.Errorf("counted %s", got)
	}
	if host := stub.Requests()[0].Header.Get("X-Forwarded-For"); host != "" {
		t.Errorf("proxy adds headers: %s", host)
	}
	proxy.ResetRequests()
	if n := proxy.Count(nil); n != 0 {
		t.Errorf("%d requests after a reset", n)
	}
}

func TestGateway(t *testing.T) {
	gateway := s3test.StartGateway(t)
	if status, _ := do(t, "GET", gateway.Endpoint+"/"+s3test.Bucket+"/k", ""); status != 403 {
		t.Errorf("unsigned request: %d", status)
	}
}
