package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"keyhole/recordjson"
)

// retriable is the error code of a record that may be accepted later.
const retriable = 50003

// maxRefused is how many refused records are told one by one.
const maxRefused = 10

// producer sends the records of an input. Its counters may be read at any time.
type producer struct {
	e        *endpoint
	topic    string
	name     string        // of the input, for messages
	patience time.Duration // for trouble that may pass
	timeout  time.Duration // of one request
	route    route

	accepted atomic.Int64
	bytes    atomic.Int64
	retries  atomic.Int64

	// ctx ends when nothing more can be sent; stopped is closed when nothing
	// more is to be read.
	ctx     context.Context
	stopped chan struct{}

	refused struct {
		sync.Mutex
		errs []error
		n    int64
	}
}

func newProducer(ctx context.Context, e *endpoint, topic, name string, patience, timeout time.Duration) *producer {
	return &producer{e: e, topic: topic, name: name, patience: patience, timeout: timeout, ctx: ctx, stopped: make(chan struct{})}
}

var errStopReading = errors.New("a record was refused")

// run reads r to its end and sends what it holds; it returns when every request
// is answered. finite says that reading ends by itself: a read from a terminal
// or a pipe is not waited for once there is nothing to do with its outcome.
func (p *producer) run(r *bufio.Reader, finite bool) error {
	g, ctx := errgroup.WithContext(p.ctx)
	lanes := make([]*lane, p.route.lanes)
	for i := range lanes {
		l := newLane()
		lanes[i] = l
		g.Go(func() error { return p.drain(ctx, l) })
	}
	var readErr error
	read := make(chan struct{})
	go func() {
		defer close(read)
		readErr = p.read(ctx, r, lanes)
		for _, l := range lanes {
			l.close()
		}
	}()
	if finite {
		<-read
	} else {
		select {
		case <-read:
		case <-ctx.Done():
		case <-p.stopped:
			for _, l := range lanes {
				l.close()
			}
		}
	}
	sendErr := g.Wait()
	select {
	case <-read:
	default:
		readErr = nil // whatever it is going to be, it came too late
	}
	if errors.Is(readErr, errStopReading) || errors.Is(readErr, context.Cause(ctx)) {
		readErr = nil // told by its cause
	}
	return errors.Join(readErr, p.refusal(), sendErr)
}

// read decodes the lines and puts them into lanes.
func (p *producer) read(ctx context.Context, r *bufio.Reader, lanes []*lane) error {
	err := lines(r, func(n int64, line []byte) error {
		select {
		case <-p.stopped:
			return errStopReading
		default:
		}
		rec, err := recordjson.DecodeLine(line)
		if err != nil {
			return &lineError{n, err}
		}
		l := lanes[p.route.place(rec.Key, rec.Partition)]
		return l.put(ctx, func(b *batch) { b.add(n, &rec) })
	})
	var le *lineError
	if errors.As(err, &le) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return err
}

// drain sends what comes through a lane, one batch after the other.
func (p *producer) drain(ctx context.Context, l *lane) error {
	var buf []byte
	for {
		b, err := l.take(ctx)
		if b == nil || err != nil {
			return err
		}
		records := make([]int, b.len())
		for i := range records {
			records[i] = i
		}
		if buf, err = p.send(ctx, b, records, buf); err != nil {
			return err
		}
		l.give(b)
	}
}

// send gets the given records of b accepted or refused. Trouble that may pass is
// waited out for p.patience. buf is reused for the request and given back.
func (p *producer) send(ctx context.Context, b *batch, records []int, buf []byte) ([]byte, error) {
	var since time.Time // of the trouble
	for attempt := 0; len(records) > 0; {
		buf = b.body(buf, records)
		rest, wait, err := p.post(ctx, b, records, buf)
		var status *statusError
		if errors.As(err, &status) && status.status == http.StatusRequestEntityTooLarge && len(records) > 1 {
			half := len(records) / 2
			if buf, err = p.send(ctx, b, records[:half], buf); err != nil {
				return buf, err
			}
			records, attempt, since = records[half:], 0, time.Time{}
			continue
		}
		if err != nil && wait < 0 {
			return buf, fmt.Errorf("%s: line %d: %w", p.name, b.lines[records[0]], err)
		}
		if len(rest) < len(records) {
			attempt, since = 0, time.Time{} // some went through
		}
		if records = rest; len(records) == 0 {
			break
		}
		switch {
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > p.patience:
			return buf, fmt.Errorf("%s: line %d: given up after %s: %w", p.name, b.lines[records[0]], p.patience, err)
		}
		p.retries.Add(1)
		if err := pause(ctx, backoff(attempt, wait)); err != nil {
			return buf, err
		}
		attempt++
	}
	return buf, nil
}

// backoff is how long to wait before the next attempt: what the node asked for,
// else 50 ms doubled up to 3 s, with jitter.
func backoff(attempt int, asked time.Duration) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 10), 3*time.Second)
	return max(asked, d/2+rand.N(d/2))
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

type produceReply struct {
	Offsets []struct {
		Offset    *int64 `json:"offset"`
		ErrorCode int    `json:"error_code"`
		Error     string `json:"error"`
	} `json:"offsets"`
}

// post makes one request. rest are the records that have to be sent again, wait
// how long the node asks to wait before; wait < 0: it would be in vain. err is
// why.
func (p *producer) post(ctx context.Context, b *batch, records []int, body []byte) (rest []int, wait time.Duration, err error) {
	rctx, cancel := ctx, context.CancelFunc(func() {})
	if p.timeout > 0 {
		rctx, cancel = context.WithTimeout(ctx, p.timeout)
	}
	defer cancel()
	req, err := p.e.request(rctx, http.MethodPost, []string{"topics", p.topic}, nil, body)
	if err != nil {
		return records, -1, err
	}
	req.Header.Set("Content-Type", recordjson.MediaBinary)
	resp, answer, err := p.e.do(req)
	if err != nil {
		if ctx.Err() != nil {
			return records, -1, context.Cause(ctx)
		}
		// The request may have been carried out. Sending it again writes the
		// same records in the same order once more: the last one still wins.
		return records, 0, err
	}
	wait = retryAfter(resp)
	var reply produceReply
	if json.Unmarshal(answer, &reply) == nil && len(reply.Offsets) == len(records) {
		rest, err := p.settle(b, records, reply)
		return rest, wait, err
	}
	switch resp.StatusCode {
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests, http.StatusBadGateway:
		return records, wait, p.e.refusal(resp, answer)
	case http.StatusOK:
		return records, -1, fmt.Errorf("the node answered %d records with %d offsets", len(records), len(reply.Offsets))
	}
	return records, -1, p.e.refusal(resp, answer)
}

// settle books what became of each record. From the first record on that has to
// be sent again, all are sent again, accepted or not: otherwise an older record
// of a key could end up behind a newer one.
func (p *producer) settle(b *batch, records []int, reply produceReply) (rest []int, why error) {
	for i, o := range reply.Offsets {
		r := records[i]
		switch {
		case o.Offset == nil && o.ErrorCode != retriable:
			p.refuse(&lineError{b.lines[r], fmt.Errorf("refused: %s (%d)", o.Error, o.ErrorCode)})
		case rest == nil && o.Offset != nil:
			p.accepted.Add(1)
			p.bytes.Add(b.sizes[r])
		default:
			if rest == nil {
				why = fmt.Errorf("%s (%d)", o.Error, o.ErrorCode)
			}
			rest = append(rest, r)
		}
	}
	return rest, why
}

// retryAfter is the wait that the node asks for; 0 if it asks for none.
func retryAfter(resp *http.Response) time.Duration {
	n, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// refuse notes a refused record and ends the reading.
func (p *producer) refuse(err error) {
	p.refused.Lock()
	defer p.refused.Unlock()
	if p.refused.n == 0 {
		close(p.stopped)
	}
	if p.refused.n++; len(p.refused.errs) < maxRefused {
		p.refused.errs = append(p.refused.errs, fmt.Errorf("%s: %w", p.name, err))
	}
}

// refusal is the error of all refused records.
func (p *producer) refusal() error {
	p.refused.Lock()
	defer p.refused.Unlock()
	errs := p.refused.errs
	if more := p.refused.n - int64(len(errs)); more > 0 {
		errs = append(errs, fmt.Errorf("%s: %d more records were refused", p.name, more))
	}
	return errors.Join(errs...)
}
