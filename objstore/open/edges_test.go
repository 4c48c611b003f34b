package open_test

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keyhole/internal/s3test"
	"keyhole/objstore"
	"keyhole/objstore/open"
)

// case 4-24, 4-33: a private authority works with its file; without it the
// error names host and setting.
func TestPrivateAuthority(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		s3test.SetEnvironment(t)
		stub := s3test.StartTLSStub(t)
		host := strings.TrimPrefix(stub.Endpoint, "https://")
		url := s3test.URL(stub.Endpoint, "p", client)

		caFile := filepath.Join(t.TempDir(), "ca.pem")
		certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stub.Server.Certificate().Raw})
		if err := os.WriteFile(caFile, certificate, 0o600); err != nil {
			t.Fatal(err)
		}
		trusting := mustOpen(t, url, open.Options{CAFile: caFile})
		put(t, trusting, "doc", []byte("over TLS"))
		if data, err := trusting.ReadRange(t.Context(), "doc", 5, 3); err != nil || string(data) != "TLS" {
			t.Errorf("%q, %v", data, err)
		}
		for _, r := range stub.Requests() {
			if r.Method == http.MethodPut && r.Header.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" {
				t.Errorf("body was hashed although TLS guards it")
			}
		}

		distrusting := mustOpen(t, url, open.Options{})
		_, err := objstore.Probe(t.Context(), distrusting)
		wantIs(t, err, objstore.ErrMisconfigured)
		for _, part := range []string{host, "KEYHOLE_S3_CA_FILE"} {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("%v does not name %s", err, part)
			}
		}
		// An authority of somebody else.
		other := filepath.Join(t.TempDir(), "other.pem")
		if err := os.WriteFile(other, []byte(otherAuthority), 0o600); err != nil {
			t.Fatal(err)
		}
		wrong := mustOpen(t, url, open.Options{CAFile: other})
		_, err = wrong.ReadRange(t.Context(), "doc", 0, 1)
		wantIs(t, err, objstore.ErrMisconfigured)
		if !strings.Contains(fmt.Sprint(err), other) {
			t.Errorf("%v does not name the CA file", err)
		}

		plain := mustOpen(t, strings.Replace(url, "https%3A", "http%3A", 1), open.Options{Retry: quick})
		_, err = plain.ReadRange(t.Context(), "doc", 0, 1)
		if err == nil || errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("plain HTTP to a TLS port: %v", err)
		}
	})
}

func TestTLSToPlainPort(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		s3test.SetEnvironment(t)
		stub := s3test.StartStub(t)
		b := mustOpen(t, strings.Replace(s3test.URL(stub.Endpoint, "p", client), "http%3A", "https%3A", 1), open.Options{})
		_, err := b.ReadRange(t.Context(), "doc", 0, 1)
		wantIs(t, err, objstore.ErrMisconfigured)
	})
}

func TestUnusableCAFile(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{empty, filepath.Join(t.TempDir(), "absent.pem")} {
		_, err := open.Bucket(t.Context(), "s3://bucket?endpoint=https://localhost:1", open.Options{CAFile: file})
		wantIs(t, err, objstore.ErrMisconfigured)
		if !strings.Contains(fmt.Sprint(err), file) {
			t.Errorf("%v does not name %s", err, file)
		}
	}
}

// case 8-21: the secret, and whatever a store makes of it, is in no error.
func TestSecretsStayOut(t *testing.T) {
	const secret, session = "RECOGNISABLE/secret+key", "RECOGNISABLE/session+token"
	eachClient(t, func(t *testing.T, client string) {
		s3test.SetEnvironment(t)
		t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
		t.Setenv("AWS_SESSION_TOKEN", session)
		stub := s3test.StartStub(t)
		b := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), open.Options{Retry: quick})
		seen := false
		echo := func(status int, code string) s3test.Fault {
			return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				token := r.Header.Get("X-Amz-Security-Token")
				seen = seen || token == session
				w.WriteHeader(status)
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>bad token %s, %s</Message></Error>", code, token, secret)
			}
		}
		faults := []s3test.Fault{
			echo(403, "InvalidToken"), echo(400, session), echo(500, "InternalError"), echo(404, "NoSuchKey"), echo(200, "OK"), echo(301, secret),
			func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) },
		}
		for i, fault := range faults {
			stub.SetFault(fault)
			_, readErr := b.ReadRange(t.Context(), "k", 0, 1)
			_, _, getErr := b.Get(t.Context(), "k", 1)
			_, putErr := b.Put(t.Context(), "k", strings.NewReader("x"), 1, objstore.Condition{IfNoneMatch: true})
			listErr := b.List(t.Context(), "", func(objstore.Object) error { return nil })
			for _, err := range []error{readErr, getErr, putErr, listErr, b.Delete(t.Context(), "k")} {
				if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "RECOGNISABLE") {
					t.Errorf("fault %d: %v", i, err)
				}
			}
		}
		if !seen {
			t.Error("the session token never reached the store: the test tests nothing")
		}
	})
}

// case 4-20: a rewritten credentials file is read again; without credentials
// the error says so.
func TestCredentialSources(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		s3test.SetEnvironment(t)
		t.Setenv("AWS_ACCESS_KEY_ID", "")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "")
		stub := s3test.StartStub(t)
		none := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), open.Options{})
		_, err := none.ReadRange(t.Context(), "k", 0, 1)
		wantIs(t, err, objstore.ErrDenied)
		if n := stub.Count(nil); n != 0 {
			t.Errorf("%d requests without credentials", n)
		}

		file := filepath.Join(t.TempDir(), "credentials")
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id=FROMFILE\naws_secret_access_key=s\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
		b := mustOpen(t, s3test.URL(stub.Endpoint, "p", client), open.Options{})
		put(t, b, "k", []byte("x"))
		requests := stub.Requests()
		if auth := requests[len(requests)-1].Header.Get("Authorization"); !strings.Contains(auth, "Credential=FROMFILE/") {
			t.Errorf("signed as %s", auth)
		}
	})
}

// case 4-03: reading writes no line anywhere. Both libraries write to standard
// error if they write.
func TestNoLogLines(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr := os.Stderr
		os.Stderr = w
		defer func() { os.Stderr = stderr }()
		_, b, data := faulty(t, client, open.Options{})
		for i := range int64(1000) {
			if got, err := b.ReadRange(t.Context(), "seg.log", i, 10); err != nil || !bytes.Equal(got, data[i:i+10]) {
				t.Fatal(err)
			}
		}
		os.Stderr = stderr
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if out, err := io.ReadAll(r); err != nil || len(out) != 0 {
			t.Errorf("standard error: %q, %v", out, err)
		}
	})
}

// A failure is reported when it happens: neither library pauses behind it.
func TestFailuresAreQuick(t *testing.T) {
	const calls = 40
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{Retry: objstore.RetryOptions{Repeats: -1}})
		stub.SetFault(refuse(http.StatusServiceUnavailable, "SlowDown"))
		// minio-go pauses 100 ms on average. A machine that stands still for a moment
		// delays few calls, and a busy one is not so in all rounds.
		const soon, rounds = 50 * time.Millisecond, 5
		for round := 1; ; round++ {
			stub.ResetRequests()
			took := make([]time.Duration, calls)
			for i := range took {
				start := time.Now()
				_, err := b.ReadRange(t.Context(), "seg.log", 0, 1)
				took[i] = time.Since(start)
				wantIs(t, err, objstore.ErrUnavailable)
			}
			if n := stub.Count(nil); n != calls {
				t.Errorf("%d requests for %d calls", n, calls)
			}
			slices.Sort(took)
			if took[calls/2] <= soon {
				break
			}
			if round == rounds {
				t.Fatalf("half of %d calls took longer than %v", calls, took[calls/2])
			}
		}
	})
}

// case 4-23: path style is used for every kind of call, and no other requests
// are made (bucket location, HEAD).
func TestOneRequestPerCall(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub, b, _ := faulty(t, client, open.Options{})
		calls := []func() error{
			func() error { _, err := b.ReadRange(t.Context(), "seg.log", 0, 1); return err },
			func() error { _, _, err := b.Get(t.Context(), "seg.log", 1<<20); return err },
			func() error {
				_, err := b.Put(t.Context(), "m", strings.NewReader("x"), 1, objstore.Condition{IfNoneMatch: true})
				return err
			},
			func() error { return b.List(t.Context(), "", func(objstore.Object) error { return nil }) },
			func() error { return b.ListPrefixes(t.Context(), "", func(string) error { return nil }) },
			func() error { return b.Delete(t.Context(), "m") },
		}
		for i, call := range calls {
			stub.ResetRequests()
			if err := call(); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
			if n := stub.Count(nil); n != 1 {
				t.Errorf("call %d made %d requests", i, n)
			}
		}
		if n := stub.Count(func(r s3test.Request) bool { return r.Method == http.MethodHead }); n != 0 {
			t.Errorf("%d HEAD requests", n)
		}
	})
}

// otherAuthority is a self-signed certificate that signed nothing here.
const otherAuthority = `-----BEGIN CERTIFICATE-----
MIIBhzCCAS2gAwIBAgIUDLapcP06xYOZxTMS/yyivwGH0LQwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNc29tZWJvZHkgZWxzZTAgFw0yNjExMjkyMjIwMjdaGA8yMTI2
MTEwNTIyMjAyN1owGDEWMBQGA1UEAwwNc29tZWJvZHkgZWxzZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABFixz+5DhZtu3/k3xXyvb5DBuXITzyygZPZEgqU7QINO
tvCIEsFVfLGEoMc8wgZ6ZqbvAwq90Srv6tYP63cgzMOjUzBRMB0GA1UdDgQWBBSH
L6b7xESVZX2T4u8GtPwn7lhNRjAfBgNVHSMEGDAWgBSHL6b7xESVZX2T4u8GtPwn
7lhNRjAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIDMrc7tb3Dfp
OiYplgsFymvGm/EciOnlc0xmv7K8iJgCAiEA6hmEvOLHXJMsbL9JW6l5wvCcj6bK
yCtIbkL/aKqzyZg=
-----END CERTIFICATE-----
`
