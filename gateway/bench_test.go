package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"keyhole/record"
)

// BenchmarkGet compares a lookup of a 1 KiB value through the whole handler, with
// a partition in memory, with a bare net/http handler that writes the same value.
// Both go over real connections, 16 at a time, from a client that does as little
// as it can; so the ratio is that of the servers, the kernel included.
func BenchmarkGet(b *testing.B) {
	value := bytes.Repeat([]byte("0123456789abcdef"), 64)
	b.Run("bare", func(b *testing.B) {
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(value) })}
		l := listen(b)
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		hammer(b, l.Addr().String(), "/kv/bench/user-17")
		_ = srv.Close()
		<-done
	})
	b.Run("lookup", func(b *testing.B) {
		topic := newFakeTopic("bench", 1)
		topic.set(0, record.Record{Key: []byte("user-17"), Value: value, Timestamp: 1_700_000_000_000})
		reg := prometheus.NewRegistry()
		s := newServer(Options{Logger: slog.New(slog.DiscardHandler), Registerer: reg, Gatherer: reg}, newFakeTopics(topic))
		data, admin := listen(b), listen(b)
		s.Start(data, admin)
		hammer(b, data.Addr().String(), "/kv/bench/user-17")
		if err := s.Shutdown(b.Context()); err != nil {
			b.Error(err)
		}
	})
}

// hammer sends b.N GETs over 16 connections. All answers must be as long as the
// first, which saves the client from parsing them.
func hammer(b *testing.B, addr, target string) {
	const conns = 16
	text := []byte(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", target, addr))
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range conns {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Write(text); err != nil {
				b.Error(err)
				return
			}
			first, err := answerLength(c)
			if err != nil {
				b.Error(err)
				return
			}
			buf := make([]byte, first)
			for left.Add(-1) > 0 {
				if _, err := c.Write(text); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Error(err)
					return
				}
				if !bytes.HasPrefix(buf, []byte("HTTP/1.1 200 OK\r\n")) {
					b.Errorf("answer begins %.40q", buf)
					return
				}
			}
		})
	}
	wg.Wait()
}

// answerLength reads one answer and gives its length, head included.
func answerLength(r io.Reader) (int, error) {
	var seen bytes.Buffer
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(r, &seen)), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return seen.Len(), err
}
