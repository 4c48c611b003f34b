package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hostileNode is a node without a store and with limits that a test can reach.
func hostileNode(t *testing.T, flags ...string) *node {
	t.Helper()
	t.Cleanup(client.CloseIdleConnections)
	n := startNode(t, nil, flags...)
	n.indexed("t", 1, nil)
	if a := n.do("PUT", n.kv("t", "good"), nil, []byte("value")); a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	return n
}

// gauge is one series as a number.
func (n *node) gauge(name string) float64 {
	n.t.Helper()
	v, err := strconv.ParseFloat(n.metrics()[name], 64)
	if err != nil {
		n.t.Fatalf("%s: %v", name, err)
	}
	return v
}

// atRest wants the goroutines to be about as many as before, once everybody who
// was served has gone.
func (n *node) atRest(before float64) {
	n.t.Helper()
	client.CloseIdleConnections()
	last, begun := 0.0, time.Now()
	poll(n.t, "goroutines are back where they were", func() bool {
		late := time.Since(begun) > patience/2
		if last = n.gauge("go_goroutines"); late && last > before+15 {
			n.t.Fatalf("%v goroutines, %v before", last, before)
		}
		return last <= before+15 // idle connections to the store have two each
	})
}

// conn is a socket that gives up in the end.
func (n *node) conn() net.Conn {
	n.t.Helper()
	c, err := net.DialTimeout("tcp", strings.TrimPrefix(n.data, "http://"), patience)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// wantAlive wants a lookup to be answered, and soon. On a machine that stands still
// for a moment it is not, and may be cut like that of a slow client: then the next
// ones count.
func (n *node) wantAlive(when string) {
	n.t.Helper()
	const tries = 5
	for try := 1; ; try++ {
		start := time.Now()
		a, err := n.try("GET", n.kv("t", "good"), nil, nil)
		took := time.Since(start)
		switch {
		case err == nil && took <= 5*time.Second:
			wantValue(n.t, when, a, []byte("value"), "local")
			return
		case try == tries:
			n.t.Errorf("%s: a lookup took %v, and was not better before: %v", when, took, err)
			return
		}
	}
}

// Clients that send heads and bodies one byte at a time are cut, and all others
// are served meanwhile. Case 8-14.
func TestSlowloris(t *testing.T) {
	n := hostileNode(t, "--header-timeout", "1s", "--body-grace", "1s", "--body-min-rate", "1000")
	before := n.gauge("go_goroutines")
	const each = 40
	starts := []string{
		"GET /kv/t/go",
		"GET /kv/t/good HTTP/1.1\r\nHost: x\r\nX-Slow: ",
		"PUT /kv/t/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/vnd.kafka.json.v2+json\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET /kv/t/good HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
	}
	var wg sync.WaitGroup
	begin := time.Now()
	for _, start := range starts {
		for range each {
			c := n.conn()
			wg.Go(func() {
				tick := time.NewTicker(50 * time.Millisecond)
				defer tick.Stop()
				_, err := io.WriteString(c, start)
				for err == nil {
					<-tick.C
					_, err = io.WriteString(c, "1")
				}
			})
		}
	}
	for time.Since(begin) < time.Second {
		n.wantAlive("while clients are slow")
	}
	wg.Wait()
	// Long before they give up by themselves.
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("cut after %v, want about a second", took)
	}
	n.wantAlive("afterwards")
	var a answer
	poll(t, "a lookup that is not cut", func() bool {
		var err error
		a, err = n.try("GET", n.kv("t", "slow"), nil, nil)
		return err == nil
	})
	want(t, "what slow clients sent", a, 404, "key_not_found")
	n.atRest(before)
	n.stop()
}

// endless is a body of this many bytes that takes no memory.
type endless struct {
	left int64
	sent atomic.Int64 // read by others than the transport's goroutine
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), e.left))
	for done := 0; done < n; {
		done += copy(p[done:n], manyX)
	}
	e.left -= int64(n)
	e.sent.Add(int64(n))
	return n, nil
}

var manyX = bytes.Repeat([]byte("x"), 64<<10)

// send streams a request and gives the answer, without a length unless length is
// given.
func (n *node) send(method, target string, header http.Header, body io.Reader, length int64) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return answer{}, err
	}
	req.Header, req.ContentLength = header, length
	// The connection is of no use to others once the body was refused.
	own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := own.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

// Bodies that are too large, too many or made to cost are refused before memory
// is spent on them. Case 8-17.
func TestHostileBodies(t *testing.T) {
	const maxBody, maxBodies = 4 << 20, 16 << 20
	n := hostileNode(t, "--max-body-bytes", strconv.Itoa(maxBody), "--max-bodies-bytes", strconv.Itoa(maxBodies))
	before, memory := n.gauge("go_goroutines"), n.gauge("process_resident_memory_bytes")
	kafka := func(form string) http.Header {
		return http.Header{"Content-Type": {"application/vnd.kafka." + form + ".v2+json"}}
	}
	var member bytes.Buffer
	z := gzip.NewWriter(&member)
	if _, err := io.Copy(z, &endless{left: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := bytes.Repeat(member.Bytes(), 2000) // a file of several members is one too
	gzipped := func(h http.Header) http.Header {
		h = h.Clone()
		h.Set("Content-Encoding", "gzip")
		return h
	}
	put, produce := n.kv("t", "huge"), n.data+"/topics/t"
	const tenGB = 10 << 30
	for _, c := range []struct {
		name, method, target string
		header               http.Header
		body                 func() io.Reader
		length               int64
		statuses             []int
	}{
		{"10 GB chunked", "PUT", put, http.Header{}, func() io.Reader { return &endless{left: tenGB} }, -1, []int{413}},
		{"10 GB chunked, produce", "POST", produce, kafka("json"), func() io.Reader { return &endless{left: tenGB} }, -1, []int{413}},
		{"10 GB announced", "PUT", put, http.Header{}, func() io.Reader { return &endless{left: tenGB} }, tenGB, []int{413}},
		{"endless string", "POST", produce, kafka("json"), func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"records":[{"key":"`), &endless{left: tenGB})
		}, -1, []int{413}},
		{"a body where none belongs", "GET", n.kv("t", "good"), http.Header{}, func() io.Reader { return &endless{left: tenGB} }, -1, []int{200, 400, 413}},
		{"gzip bomb", "POST", produce, gzipped(kafka("json")), func() io.Reader { return bytes.NewReader(bomb) }, int64(len(bomb)), []int{415}},
		{"gzip bomb as a value", "PUT", put, gzipped(http.Header{}), func() io.Reader { return bytes.NewReader(bomb) }, int64(len(bomb)), []int{400, 415}},
		{"a million records", "POST", produce, kafka("json"), func() io.Reader {
			return strings.NewReader(`{"records":[{}` + strings.Repeat(",{}", 1_000_000) + `]}`)
		}, -1, []int{422}},
		{"deep nesting", "POST", produce, kafka("json"), func() io.Reader {
			return strings.NewReader(`{"records":[{"key":"a","value":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}]}`)
		}, -1, []int{422}},
		{"deep nesting, cut", "POST", produce, kafka("binary"), func() io.Reader { return strings.NewReader(strings.Repeat(`{"records":[`, 1<<18)) }, -1, []int{422}},
		{"a million headers", "POST", produce, kafka("binary"), func() io.Reader {
			return strings.NewReader(`{"records":[{"key":"YQ==","headers":[{"name":"a"}` + strings.Repeat(`,{"name":"a"}`, 300_000) + `]}]}`)
		}, -1, []int{422}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.in(t)
			const clients = 8
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					body := c.body()
					a, err := n.send(c.method, c.target, c.header, body, c.length)
					// Eight at once are more than the bound on all bodies: some of them
					// may be told so. A client that only writes may not see the answer.
					if err == nil && !slices.Contains(c.statuses, a.status) && a.status != 503 {
						t.Errorf("%v, want one of %v", a, c.statuses)
					}
					if e, ok := body.(*endless); ok && e.sent.Load() > 1<<30 {
						t.Errorf("%d MiB were taken before the refusal", e.sent.Load()>>20)
					}
				})
			}
			wg.Wait()
			poll(t, "all bodies are let go", func() bool { return n.gauge("keyhole_http_body_bytes") == 0 })
			a, err := n.send(c.method, c.target, c.header, c.body(), c.length)
			if err != nil {
				t.Logf("the answer was lost: %v", err)
			} else if !slices.Contains(c.statuses, a.status) {
				t.Errorf("%v, want one of %v", a, c.statuses)
			}
			n.wantAlive("afterwards")
		})
	}
	if now := n.gauge("process_resident_memory_bytes"); now > memory+256<<20 {
		t.Errorf("resident memory grew from %.0f to %.0f MiB", memory/(1<<20), now/(1<<20))
	} else {
		t.Logf("resident memory grew from %.0f to %.0f MiB", memory/(1<<20), now/(1<<20))
	}
	poll(t, "no bytes of bodies are held by nobody", func() bool { return n.gauge("keyhole_http_body_bytes") == 0 })
	n.atRest(before)
	n.stop()
}

// Heads that are too long, or not HTTP at all, are refused.
func TestHostileHeads(t *testing.T) {
	n := hostileNode(t, "--header-timeout", "1m")
	before := n.gauge("go_goroutines")
	for name, c := range map[string]struct {
		head     string
		statuses []string
	}{
		"a long header":     {"GET /kv/t/good HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", []string{"431", ""}},
		"many headers":      {"GET /kv/t/good HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: b\r\n", 100_000) + "\r\n", []string{"431", ""}},
		"a long target":     {"GET /kv/t/" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", []string{"431", "414", "400", ""}},
		"TLS":               {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []string{"400", ""}},
		"HTTP/2 preface":    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"400", "404", "505", ""}},
		"two lengths":       {"PUT /kv/t/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", []string{"400"}},
		"length and chunks": {"PUT /kv/t/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []string{"200", "400"}},
		"garbage":           {strings.Repeat("\x00\xff\r\n", 1000), []string{"400", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			n.in(t)
			conn := n.conn()
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.WriteString(conn, c.head) }) // may be cut
			line, _ := bufio.NewReader(conn).ReadString('\n')     // empty: cut without an answer
			_ = conn.Close()
			wg.Wait()
			status := ""
			if f := strings.Fields(line); len(f) > 1 {
				status = f[1]
			}
			if !slices.Contains(c.statuses, status) {
				t.Errorf("answered %q, want one of %q", line, c.statuses)
			}
			n.wantAlive("afterwards")
		})
	}
	n.atRest(before)
	n.stop()
}

// Ten thousand keys, paths and odd methods add no series. Case 8-11.
func TestSeriesAreBounded(t *testing.T) {
	n := hostileNode(t)
	n.get("t", "absent")
	n.do("GET", n.data+"/nowhere", nil, nil)
	before := sorted(n.metrics())
	items := make([]int, 10_000)
	for i := range items {
		items[i] = i
	}
	parallel(8, items, func(i int) {
		method := "GET"
		if i%100 == 0 {
			method = fmt.Sprint("ODD", i)
		}
		for _, target := range []string{n.kv("t", fmt.Sprint("key", i)), n.data + fmt.Sprint("/path/", i)} {
			if _, err := n.try(method, target, http.Header{fmt.Sprint("X-", i): {"x"}}, nil); err != nil {
				t.Errorf("%s %s: %v", method, target, err)
			}
		}
	})
	if after := sorted(n.metrics()); !slices.Equal(before, after) {
		t.Errorf("%d series before, %d after", len(before), len(after))
	}
	n.stop()
}

// Connections have a bound. Those that idle within it cost nothing that lasts, and
// the admin listener has a bound of its own.
func TestManyConnections(t *testing.T) {
	const bound = 300
	n := hostileNode(t, "--max-connections", strconv.Itoa(bound), "--idle-timeout", "1h")
	client.CloseIdleConnections()
	before := n.gauge("go_goroutines")
	served, told, cut := 0, 0, 0
	var open []net.Conn
	for range bound + 100 {
		c := n.conn()
		open = append(open, c)
		_, err := io.WriteString(c, "GET /kv/t/good HTTP/1.1\r\nHost: x\r\n\r\n")
		if err != nil {
			cut++
			continue
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		switch {
		case err != nil:
			cut++
		case strings.Contains(line, " 200 "):
			served++
		case strings.Contains(line, " 503 "):
			told++
		default:
			t.Errorf("answered %q", line)
		}
	}
	if served < bound-10 || served > bound || told == 0 {
		t.Errorf("%d served, %d told to come later, %d cut; the bound is %d", served, told, cut, bound)
	}
	n.adminJSON("GET", "/v1/status/ready", nil, 200, nil)
	if refused := n.gauge("keyhole_http_connections_refused_total"); int(refused) != told+cut {
		t.Errorf("%v refusals counted, %d seen", refused, told+cut)
	}
	for _, c := range open {
		_ = c.Close()
	}
	poll(t, "there is room for connections again", func() bool {
		a, err := n.try("GET", n.kv("t", "good"), nil, nil)
		return err == nil && a.status == 200
	})
	n.atRest(before)
	n.stop()
}

// Clients that ask for large values and take nothing are cut, and leave nothing
// behind; one that reads slowly but steadily gets all of it. Case 8-15.
func TestClientsThatDoNotRead(t *testing.T) {
	n := hostileNode(t, "--write-stall-timeout", "2s")
	large := bytes.Repeat([]byte("0123456789abcdef"), 7<<20/16)
	if a := n.do("PUT", n.kv("t", "large"), nil, large); a.status != 200 {
		t.Fatalf("put: %v", a)
	}
	before := n.gauge("go_goroutines")
	ask := func() net.Conn {
		c := n.conn()
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(16 << 10)
		}
		if _, err := io.WriteString(c, "GET /kv/t/large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for range 50 {
		ask()
	}
	for try := 1; !n.readsSlowly(ask(), len(large)); try++ {
		if try == 10 {
			t.Fatal("no reader was steady")
		}
	}
	n.wantAlive("while others do not read")
	n.atRest(before)
	n.stop()
}

// readsSlowly takes an answer of some length a little at a time, and wants to get all
// of it. It gives false if it was cut, and no wonder: it had paused for too long.
func (n *node) readsSlowly(c net.Conn, length int) bool {
	n.t.Helper()
	r := bufio.NewReaderSize(c, 4<<10)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	begin, got := time.Now(), 0
	last, longest := begin, time.Duration(0)
	buf := make([]byte, 32<<10)
	for {
		read, err := io.ReadFull(r, buf)
		got += read
		longest, last = max(longest, time.Since(last)), time.Now()
		if err != nil {
			break
		}
		<-tick.C
	}
	took := time.Since(begin)
	if got < length && longest > time.Second/2 {
		return false
	}
	if got < length {
		n.t.Errorf("a slow reader got %d of %d bytes in %v, with %v between two reads at most", got, length, took, longest)
	}
	if took < 3*time.Second {
		n.t.Errorf("only %v: not a slow reader", took)
	}
	return true
}
