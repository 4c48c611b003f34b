package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"
)

// childLoad makes this program a load generator: it sends GETs for random keys
// over persistent connections, one at a time on each, reads as little of the
// answers as it may, and prints a loadResult. It runs on one processor (set by
// whoever starts it), because it shares the machine with what it measures, and
// is the same for all sides but for the bytes of request and answer.
const childLoad = "child-load"

type loadOptions struct {
	addr     string
	proto    string // http or resp
	conns    int
	keys     int
	size     int // of every value
	warm     time.Duration
	duration time.Duration
}

// loadResult is what a load generator saw.
type loadResult struct {
	All      int           // requests, those of the warm-up included
	Requests int           // in the measured time
	Took     time.Duration // the measured time
	P50, P99 time.Duration
}

func (r loadResult) perSecond() float64 { return float64(r.Requests) / r.Took.Seconds() }

// load runs a generator as a process.
func load(o loadOptions) (loadResult, error) {
	var r loadResult
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.Command(self, childLoad, "-addr", o.addr, "-proto", o.proto, "-conns", strconv.Itoa(o.conns), "-keys", strconv.Itoa(o.keys),
		"-size", strconv.Itoa(o.size), "-warm", o.warm.String(), "-duration", o.duration.String())
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("load generator: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}

func runLoad(args []string) error {
	var o loadOptions
	flags := flag.NewFlagSet(childLoad, flag.ContinueOnError)
	flags.StringVar(&o.addr, "addr", "", "")
	flags.StringVar(&o.proto, "proto", "http", "")
	flags.IntVar(&o.conns, "conns", 1, "")
	flags.IntVar(&o.keys, "keys", 1, "")
	flags.IntVar(&o.size, "size", 0, "")
	flags.DurationVar(&o.warm, "warm", 0, "")
	flags.DurationVar(&o.duration, "duration", time.Second, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	requests, answer := httpRequests(o), httpAnswer
	if o.proto == "resp" {
		requests, answer = respRequests(o), respAnswer
	}
	clients := make([]client, o.conns)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range clients {
		c := &clients[i]
		*c = client{o: o, requests: requests, answer: answer, from: began.Add(o.warm), to: began.Add(o.warm + o.duration)}
		wg.Go(func() { c.err = c.run(uint64(i)) })
	}
	wg.Wait()
	r := loadResult{Took: o.duration}
	var all latencies
	for _, c := range clients {
		if c.err != nil {
			return c.err
		}
		r.All += c.all
		all = append(all, c.times...)
	}
	r.Requests = len(all)
	slices.Sort(all)
	r.P50, r.P99 = quantile(all, 0.5), quantile(all, 0.99)
	return json.NewEncoder(os.Stdout).Encode(r)
}

// client is one connection of a load generator.
type client struct {
	o        loadOptions
	requests [][]byte
	answer   func(b []byte, size int) (length int, err error)
	from, to time.Time // what is counted

	all   int
	times latencies
	err   error
}

func (c *client) run(seed uint64) error {
	conn, err := net.Dial("tcp", c.o.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	c.times = make(latencies, 0, 1<<20)
	random := rand.New(rand.NewPCG(seed, 1))
	buf := make([]byte, c.o.size+4<<10)
	for {
		start := time.Now()
		if start.After(c.to) {
			return nil
		}
		if _, err := conn.Write(c.requests[random.IntN(len(c.requests))]); err != nil {
			return err
		}
		for n, want := 0, 0; want == 0 || n < want; {
			m, err := conn.Read(buf[n:])
			if err != nil {
				return err
			}
			if n += m; want == 0 {
				if want, err = c.answer(buf[:n], c.o.size); err != nil {
					return err
				}
			}
			if want > 0 && n > want {
				return fmt.Errorf("%d bytes where an answer of %d ends", n, want)
			}
		}
		c.all++
		if start.After(c.from) {
			c.times = append(c.times, time.Since(start))
		}
	}
}

// hotKey is the name of a key of the hot measurements.
func hotKey(i int) string { return fmt.Sprintf("key-%09d", i) }

// maxRequests bounds the prepared requests; of more keys than that, so many random
// ones are asked for.
const maxRequests = 200_000

func httpRequests(o loadOptions) [][]byte {
	all := make([][]byte, min(o.keys, maxRequests))
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for n := range all {
		i := n
		if o.keys > maxRequests {
			i = random.IntN(o.keys)
		}
		all[n] = fmt.Appendf(nil, "GET /kv/bench/%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", hotKey(i), o.addr)
	}
	return all
}

var (
	statusOK = []byte("HTTP/1.1 200 OK\r\n")
	headEnd  = []byte("\r\n\r\n")
)

// httpAnswer gives the length of an answer from its beginning; 0: not yet known.
func httpAnswer(b []byte, size int) (int, error) {
	head := bytes.Index(b, headEnd)
	switch {
	case head < 0:
		return 0, nil
	case !bytes.HasPrefix(b, statusOK):
		return 0, fmt.Errorf("answer begins %.40q", b)
	}
	// Every value has the same size, so Content-Length need not be read.
	return head + len(headEnd) + size, nil
}

func respRequests(o loadOptions) [][]byte {
	all := make([][]byte, o.keys)
	for i := range all {
		key := hotKey(i)
		all[i] = fmt.Appendf(nil, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len(key), key)
	}
	return all
}

var errNotBulk = errors.New("answer is not the bulk string that was expected")

func respAnswer(b []byte, size int) (int, error) {
	end := bytes.IndexByte(b, '\n')
	switch {
	case end < 0:
		return 0, nil
	case b[0] != '$':
		return 0, errNotBulk
	}
	if n, err := strconv.Atoi(string(b[1 : end-1])); err != nil || n != size {
		return 0, errNotBulk
	}
	return end + 1 + size + 2, nil
}

// readLine reads up to a newline, byte by byte: what follows is not touched.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
	}
}
