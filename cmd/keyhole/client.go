package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// maxReply bounds an answer of the admin listener. The largest is a manifest
// with some hundred thousand segments.
const maxReply = 256 << 20

// defaultAdminURL is where serve has its admin listener unless told otherwise.
const defaultAdminURL = "http://127.0.0.1:9644"

// clientFlags say where a node is.
type clientFlags struct {
	url      string
	adminURL string
	timeout  time.Duration // 0: none
}

func (a *app) dataFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.client.url, "url", "http://127.0.0.1:8082", "data listener of the node")
}

func (a *app) adminFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.client.adminURL, "admin-url", defaultAdminURL, "admin listener of the node")
}

// timeoutFlag adds --timeout; 0 waits for ever.
func (a *app) timeoutFlag(cmd *cobra.Command, def time.Duration) {
	cmd.Flags().Duration(timeoutName, def, "how long to wait for an answer (0: for ever)")
}

const timeoutName = "timeout"

// takeTimeout takes the value that --timeout has for cmd. The flag has a default
// of its own for each command, so the commands cannot share one variable: its
// value would be the default of whichever was made last.
func (a *app) takeTimeout(cmd *cobra.Command) error {
	if cmd.Flags().Lookup(timeoutName) == nil {
		return nil
	}
	d, err := cmd.Flags().GetDuration(timeoutName)
	if err != nil {
		return err
	}
	if d < 0 {
		return misused("--%s must not be negative", timeoutName)
	}
	a.client.timeout = d
	return nil
}

// endpoint is one listener of a node.
type endpoint struct {
	base *url.URL
	flag string // names it in messages
	http *http.Client
}

func (a *app) data() (*endpoint, error)  { return newEndpoint("url", a.client.url) }
func (a *app) admin() (*endpoint, error) { return newEndpoint("admin-url", a.client.adminURL) }

func newEndpoint(flag, raw string) (*endpoint, error) {
	base, err := url.Parse(raw)
	// url.Parse errors repeat the URL, which may hold a password.
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" || base.Fragment != "" {
		return nil, misused("--%s must have the form http://host:port", flag)
	}
	base.Path = strings.TrimRight(base.Path, "/")
	base.RawPath = ""
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	return &endpoint{base: base, flag: flag, http: &http.Client{
		Transport: transport,
		// No route of ours redirects; following one could reach another key.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (e *endpoint) close() { e.http.CloseIdleConnections() }

// request makes a request whose path is exactly the joined segments, each
// percent-encoded byte by byte, so that no byte of a key is taken for syntax.
func (e *endpoint) request(ctx context.Context, method string, segments []string, query url.Values, body []byte) (*http.Request, error) {
	u := *e.base
	plain, raw := u.Path, u.EscapedPath()
	for _, s := range segments {
		plain += "/" + s
		raw += "/" + escape(s)
	}
	u.Path, u.RawPath = plain, raw
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, e.base.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL = &u
	return req, nil
}

// escape keeps the unreserved characters of RFC 3986 except ".", which would
// make dot segments that proxies fold.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '~':
			b.WriteByte(c)
		case c == '.' && s != "." && s != "..":
			b.WriteByte(c)
		default:
			b.WriteString("%" + string(hex[c>>4]) + string(hex[c&15]))
		}
	}
	return b.String()
}

// do sends req and reads the whole answer, whatever its status.
func (e *endpoint) do(req *http.Request) (*http.Response, []byte, error) {
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, nil, e.unreachable(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return nil, nil, e.unreachable(err)
	}
	if len(body) > maxReply {
		return nil, nil, fmt.Errorf("answer of %s is larger than %d bytes", e.base.Redacted(), maxReply)
	}
	return resp, body, nil
}

// unreachableError is a request that got no answer.
type unreachableError struct {
	where, flag string
	err         error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("no answer from %s: %v (is it running there? see --%s)", e.where, e.err, e.flag)
}
func (e *unreachableError) Unwrap() error { return e.err }

func (e *endpoint) unreachable(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the URL, which holds the key
	}
	return &unreachableError{where: e.base.Redacted(), flag: e.flag, err: err}
}

// statusError is an answer that says no.
type statusError struct {
	status int
	reason string // X-Kv-Reason
	text   string
	hint   string // what the caller may have got wrong
	body   []byte
}

func (e *statusError) Error() string {
	switch {
	case e.reason != "":
		return fmt.Sprintf("%s (%s, HTTP %d)%s", e.text, e.reason, e.status, e.hint)
	default:
		return fmt.Sprintf("%s (HTTP %d)%s", e.text, e.status, e.hint)
	}
}

// refusal is the error of an answer that says no. If the answer shows that
// something else than the wanted listener gave it, the error says so: the two
// addresses are easily mixed up.
func (e *endpoint) refusal(resp *http.Response, body []byte) error {
	s := newStatusError(resp, body)
	ours := s.reason != "" || s.text != http.StatusText(s.status)
	if s.reason == "not_found" && s.text == "not found" || !ours && (s.status == http.StatusNotFound || s.status == http.StatusMethodNotAllowed) {
		s.hint = fmt.Sprintf("; is %s the %s? see --%s", e.base.Redacted(), e.what(), e.flag)
	}
	return s
}

// what is the name of the listener that the endpoint should be.
func (e *endpoint) what() string {
	if e.flag == "url" {
		return "data listener"
	}
	return "admin listener"
}

// newStatusError reads the message out of any error form of the gateway:
// {"error":"…"}, {"error_code":…,"message":"…"} and a map of properties.
func newStatusError(resp *http.Response, body []byte) *statusError {
	e := &statusError{status: resp.StatusCode, reason: resp.Header.Get("X-Kv-Reason"), body: body}
	var fields map[string]any
	if json.Unmarshal(body, &fields) == nil {
		for _, name := range []string{"error", "message"} {
			switch v := fields[name].(type) {
			case string:
				e.text = v
			case map[string]any:
				fields = v
			}
			if e.text != "" {
				break
			}
		}
		if e.text == "" {
			e.text = propertyMessages(fields)
		}
	}
	if detail, ok := fields["detail"].(string); ok && e.text != "" {
		e.text += ": " + detail
	}
	if e.text == "" {
		e.text = http.StatusText(resp.StatusCode)
	}
	return e
}

func propertyMessages(fields map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if text, ok := fields[name].(string); ok {
			parts = append(parts, name+": "+text)
		}
	}
	return strings.Join(parts, "; ")
}

// call sends a request with an optional JSON body to a route and gives the body
// of a 2xx answer. Other answers are *statusError.
func (a *app) call(ctx context.Context, e *endpoint, method string, segments []string, in any) ([]byte, error) {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	req, err := e.request(ctx, method, segments, nil, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, out, err := e.do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, e.refusal(resp, out)
	}
	return out, nil
}

// withTimeout bounds ctx by --timeout.
func (a *app) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.client.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.client.timeout)
}

// adminCall is call on the admin listener.
func (a *app) adminCall(ctx context.Context, method string, segments []string, in any) ([]byte, error) {
	e, err := a.admin()
	if err != nil {
		return nil, err
	}
	defer e.close()
	return a.call(ctx, e, method, segments, in)
}

// adminGet decodes an answer of the admin listener into out as well.
func (a *app) adminGet(ctx context.Context, segments []string, out any) ([]byte, error) {
	body, err := a.adminCall(ctx, http.MethodGet, segments, nil)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return nil, fmt.Errorf("answer of the node cannot be read: %w", err)
	}
	return body, nil
}
