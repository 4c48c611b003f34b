package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"keyhole/partition"
	"keyhole/record"
	"keyhole/recordjson"
)

// maxKeptBuffer bounds the buffers that are kept for the next lookup; a larger
// one was needed by a rare large value.
const maxKeptBuffer = 256 << 10

// autoLength is the size up to which net/http finds out the length of a body by
// itself, because the whole of it still is in its buffer when the handler
// returns. Leaving Content-Length out of the header map there keeps the map
// within the eight entries that need no growing.
const autoLength = 2048

// lookupBuffers are what a lookup needs and gives back.
type lookupBuffers struct {
	answer           answer
	key, value, text []byte
}

var bufferPool = sync.Pool{New: func() any { return new(lookupBuffers) }}

func (b *lookupBuffers) putBack() {
	b.answer = answer{}
	if cap(b.value) > maxKeptBuffer {
		b.value = nil
	}
	if cap(b.text) > maxKeptBuffer {
		b.text = nil
	}
	bufferPool.Put(b)
}

// answer is what a lookup found, or how far it came.
type answer struct {
	target kvTarget
	topic  topic // nil before the topic is known
	res    partition.Result
	// placed says that res.Partition is the one that answers.
	placed    bool
	read      bool // the record was read: value, timestamp and headers are known
	ambiguous bool // more than one partition has the key
	together  bool // res.Position is the smallest of all partitions asked
	json      bool // the answer is the record as JSON
}

// etag is the tag of one representation: two of them must not share one.
func (a *answer) etag(p int32, epoch, offset int64) string {
	tag := a.topic.ETag(p, epoch, offset)
	if a.json {
		return tag[:len(tag)-1] + `-json"`
	}
	return tag
}

// lookup answers GET and HEAD of /kv/{topic}/{key}.
func (s *Server) lookup(w http.ResponseWriter, r *http.Request) int {
	started := time.Now()
	buf := bufferPool.Get().(*lookupBuffers)
	defer buf.putBack()
	a := &buf.answer
	err := s.find(r, buf, started, a)
	took := time.Since(started)
	if err != nil {
		return s.lookupFailed(w, r, a, err, took)
	}
	s.metrics.lookups.hit(&a.res, took)
	return writeFound(w, r, a, buf)
}

// find goes through the steps of a lookup; the first that applies ends it. The
// steps from the index on are the partition's.
func (s *Server) find(r *http.Request, buf *lookupBuffers, started time.Time, a *answer) error {
	// 1: the request is malformed.
	var err error
	if a.target, err = parseKV(r, buf.key); err != nil {
		return err
	}
	buf.key = a.target.key[:0]
	a.json = wantsJSON(r.Header)

	// 2: the client may not read the topic. Nobody is refused yet.

	// 3: there is no such topic.
	if a.topic, err = s.topics.Topic(a.target.topic); err != nil {
		return err
	}
	deadline := started.Add(s.topics.LookupTimeout())
	if a.target.minPosition > 0 {
		// The wait that the client asks for comes on top.
		deadline = deadline.Add(a.target.wait)
	}
	ctx := withDeadline(r.Context(), deadline)
	defer ctx.release()
	q := partition.Query{
		MinPosition: a.target.minPosition,
		Wait:        a.target.wait,
		ResolveOnly: r.Method == http.MethodHead,
		Buf:         buf.value,
	}
	n := a.target.partition
	if n == partitionByKey && a.topic.Any() {
		n = partitionAny
	}
	switch n {
	case partitionAny:
		return a.findAny(ctx, r.Header, q)
	case partitionByKey:
		n = a.topic.PartitionFor(a.target.key)
	}

	// 4 and 5: there is no such partition, or not here.
	a.res.Partition, a.placed = n, true
	p, err := a.topic.Partition(n)
	if err != nil {
		return err
	}
	q.Matches = a.matcher(r.Header, n)
	if err := a.ask(ctx, p, q); err != nil {
		return err
	}
	if a.read {
		buf.value = a.res.Value[:0]
	}
	return nil
}

// ask takes the answer of one partition.
func (a *answer) ask(ctx context.Context, p keyLog, q partition.Query) (err error) {
	a.res, err = p.Lookup(ctx, a.target.key, q)
	a.read = err == nil && !q.ResolveOnly && !a.res.NotModified
	return err
}

// matcher gives the condition of If-None-Match for records of partition p, nil
// if there is none.
func (a *answer) matcher(h http.Header, p int32) func(offset, epoch int64) bool {
	tags := h["If-None-Match"]
	if len(tags) == 0 {
		return nil
	}
	return func(offset, epoch int64) bool { return noneMatch(tags, a.etag(p, epoch, offset)) }
}

// lookupFailed answers a lookup that found nothing to send.
func (s *Server) lookupFailed(w http.ResponseWriter, r *http.Request, a *answer, err error, took time.Duration) int {
	o := classify(err)
	if s.gone(r, err) {
		o.reason = outcomeCanceled
	}
	s.metrics.lookups.miss(o, took)
	if a.placed {
		w.Header()["X-Kv-Partition"] = []string{strconv.Itoa(int(a.res.Partition))}
	}
	if o.position && (a.placed || a.together) {
		w.Header()["X-Kv-Position"] = []string{strconv.FormatInt(a.res.Position, 10)}
	}
	return s.fail(w, r, err)
}

// fail answers with an error, unless the client has gone.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) int {
	if s.gone(r, err) {
		return 0
	}
	o := classify(err)
	s.logBug(o, err)
	return o.write(w)
}

// gone reports whether err is only that the client did not wait. Its request is
// also canceled when this server is closed before it was done; that is answered.
func (s *Server) gone(r *http.Request, err error) bool {
	return errors.Is(err, context.Canceled) && r.Context().Err() != nil && s.ctx.Err() == nil
}

// logBug logs what no row of the outcomes explains. What they do explain is
// either the client's to know or logged where it happened.
func (s *Server) logBug(o outcome, err error) {
	if o.reason == reasonInternal {
		s.o.Logger.LogAttrs(context.Background(), slog.LevelError, "request failed for an unexpected reason", slog.Any("err", err))
	}
}

// Header values that never change. net/http only reads them.
var (
	octetStream  = []string{"application/octet-stream"}
	jsonMedia    = []string{"application/json"}
	nosniff      = []string{"nosniff"}
	yes          = []string{"true"}
	sourceValues = [...][]string{
		partition.SourceLocal:  {partition.SourceLocal.String()},
		partition.SourceCache:  {partition.SourceCache.String()},
		partition.SourceRemote: {partition.SourceRemote.String()},
	}
)

// writeFound answers 200 or 304.
func writeFound(w http.ResponseWriter, r *http.Request, a *answer, buf *lookupBuffers) int {
	h, head := w.Header(), r.Method == http.MethodHead
	if a.placed {
		a.setPlace(h, buf)
	}
	if a.ambiguous {
		h["X-Kv-Ambiguous"] = yes
	}
	if a.res.NotModified {
		w.WriteHeader(http.StatusNotModified)
		return http.StatusNotModified
	}
	h["Content-Type"] = octetStream
	if a.json {
		h["Content-Type"] = jsonMedia
	}
	h["X-Content-Type-Options"] = nosniff
	if head {
		w.WriteHeader(http.StatusOK)
		return http.StatusOK
	}
	if len(a.res.Headers) > 0 {
		h["X-Kv-Headers"] = []string{recordjson.EncodeHeaders(a.res.Headers)}
	}
	body := a.res.Value
	if a.json {
		buf.text = recordjson.AppendRecord(buf.text[:0], a.target.topic, a.res.Partition, &record.Record{
			Offset: a.res.Offset, Timestamp: a.res.Timestamp, Key: a.target.key, Value: a.res.Value, Headers: a.res.Headers,
		})
		body = buf.text
	}
	if len(body) > autoLength {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	_, _ = w.Write(body) // a client that has gone cannot be told
	return http.StatusOK
}

// setPlace sets the headers that say where the record is. All numbers share one
// string and all values one array, since each would be an allocation of its own.
func (a *answer) setPlace(h http.Header, buf *lookupBuffers) {
	t := strconv.AppendInt(buf.text[:0], int64(a.res.Partition), 10)
	offset := len(t)
	t = strconv.AppendInt(t, a.res.Offset, 10)
	position := len(t)
	t = strconv.AppendInt(t, a.res.Position, 10)
	timestamp := len(t)
	t = strconv.AppendInt(t, a.res.Timestamp, 10)
	buf.text = t
	text := string(t)
	v := &[...]string{
		text[:offset], text[offset:position], text[position:timestamp], text[timestamp:],
		a.etag(a.res.Partition, a.res.Epoch, a.res.Offset),
	}
	h["X-Kv-Partition"] = v[0:1:1]
	h["X-Kv-Offset"] = v[1:2:2]
	h["X-Kv-Position"] = v[2:3:3]
	if a.read {
		h["X-Kv-Timestamp"] = v[3:4:4]
	}
	h["Etag"] = v[4:5:5]
	h["X-Kv-Source"] = sourceValues[a.res.Source]
}
