package gateway

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of writing to a client.
const (
	// writePiece is how much may be handed to the kernel under one deadline.
	writePiece = 64 << 10
	// deadlineSlack is by how much a write deadline may be earlier than
	// writeStall promises, so that a busy connection does not move its timer
	// with every answer.
	deadlineSlack = 5 * time.Second
	// linger is how long a refused client that is still sending is listened to.
	linger = time.Second
	// refusalsAtOnce bounds the connections that are being told that there are too
	// many; one more is closed without a word.
	refusalsAtOnce = 64
)

// tooMany is the answer to a connection beyond the bound.
const tooMany = "HTTP/1.1 503 Service Unavailable\r\nX-Kv-Reason: " + reasonOverloaded + "\r\nRetry-After: 1\r\n" +
	"Content-Type: application/json\r\nContent-Length: 33\r\nConnection: close\r\n\r\n" + `{"error":"too many connections"}` + "\n"

// slowListener accepts connections whose writes have a deadline by progress: a
// client that takes nothing for the time of stall is cut, one that keeps taking
// is not, however long the whole answer lasts. A deadline for the whole answer,
// as http.Server.WriteTimeout sets it, cannot do both.
//
// At most max of its connections are open at once. Whoever comes then is told so,
// rather than left to wait until a place is free: behind a bound the queue would
// only grow.
type slowListener struct {
	net.Listener
	stall time.Duration
	log   *slog.Logger

	max      int64
	open     atomic.Int64
	refusals chan struct{}   // holds one element for each that is being told
	telling  *sync.WaitGroup // of their goroutines
	refused  prometheus.Counter
}

// Accept implements net.Listener. It logs what keeps it from accepting, such as
// too many open files: net/http repeats the call, and would say so only in the
// log that also holds every oddity of a client.
func (l *slowListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				l.log.Warn("cannot accept a connection", "listener", l.Addr().String(), "err", err)
			}
			return nil, err
		}
		conn := &slowConn{Conn: c, stall: l.stall}
		if l.open.Add(1) <= l.max {
			conn.closed = func() { l.open.Add(-1) }
			return conn, nil
		}
		l.open.Add(-1)
		l.refused.Inc()
		l.refuse(conn)
	}
}

// refuse tells a client that there are too many, and closes its connection. It
// does not keep the listener waiting.
func (l *slowListener) refuse(c *slowConn) {
	select {
	case l.refusals <- struct{}{}:
	default:
		_ = c.Close() // nothing to be lost
		return
	}
	l.telling.Go(func() {
		defer func() { <-l.refusals }()
		defer c.Close()
		// Once the client has begun to ask: some take an answer before that for an
		// error of the connection.
		_ = c.SetDeadline(time.Now().Add(linger))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return
		}
		if _, err := io.WriteString(c.Conn, tooMany); err == nil {
			_ = c.CloseWrite() // the client has been told, or has gone
		}
	})
}

type slowConn struct {
	net.Conn
	stall  time.Duration
	set    atomic.Int64 // when the deadline was last moved, Unix nanoseconds
	once   sync.Once
	closed func() // called by the first Close; may be nil
}

// Close implements net.Conn; net/http may call it more than once.
func (c *slowConn) Close() error {
	err := c.Conn.Close()
	if c.closed != nil {
		c.once.Do(c.closed)
	}
	return err
}

// Write sends b piece by piece, each with a deadline of its own.
func (c *slowConn) Write(b []byte) (int, error) {
	sent := 0
	for {
		if err := c.moveDeadline(); err != nil {
			return sent, err
		}
		n, err := c.Conn.Write(b[sent:min(len(b), sent+writePiece)])
		sent += n
		if err != nil || sent >= len(b) {
			return sent, err
		}
	}
}

func (c *slowConn) moveDeadline() error {
	now := time.Now()
	if now.UnixNano()-c.set.Load() < int64(min(deadlineSlack, c.stall/4)) {
		return nil
	}
	c.set.Store(now.UnixNano())
	return c.Conn.SetWriteDeadline(now.Add(c.stall))
}

// CloseWrite is what net/http calls before it closes a connection whose client
// may still be sending, after a refusal. What arrives is read and thrown away
// for a moment: closing over unread bytes would reset the connection, and the
// client would lose the answer that says why.
func (c *slowConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(linger)); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, c.Conn)
	return err
}
