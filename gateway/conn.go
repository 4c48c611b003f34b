package gateway

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
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
)

// slowListener accepts connections whose writes have a deadline by progress: a
// client that takes nothing for the time of stall is cut, one that keeps taking
// is not, however long the whole answer lasts. A deadline for the whole answer,
// as http.Server.WriteTimeout sets it, cannot do both.
type slowListener struct {
	net.Listener
	stall time.Duration
	log   *slog.Logger
}

// Accept implements net.Listener. It logs what keeps it from accepting, such as
// too many open files: net/http repeats the call, and would say so only in the
// log that also holds every oddity of a client.
func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			l.log.Warn("cannot accept a connection", "listener", l.Addr().String(), "err", err)
		}
		return nil, err
	}
	return &slowConn{Conn: c, stall: l.stall}, nil
}

type slowConn struct {
	net.Conn
	stall time.Duration
	set   atomic.Int64 // when the deadline was last moved, Unix nanoseconds
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
