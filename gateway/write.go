package gateway

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"keyhole/partition"
	"keyhole/record"
	"keyhole/recordjson"
)

// put answers PUT of /kv/{topic}/{key}: the body becomes the key's value.
func (s *Server) put(w http.ResponseWriter, r *http.Request) int {
	return s.writeKey(w, r, func(rec *record.Record, limit int64) (release func(), err error) {
		if r.ContentLength > limit {
			return nil, partition.ErrRecordTooLarge
		}
		body, release, err := s.readBody(w, r, min(limit, s.o.MaxBodyBytes))
		if err != nil {
			return nil, err
		}
		rec.Value = body
		return release, nil
	})
}

// delete answers DELETE of /kv/{topic}/{key}: it appends a tombstone, also for a
// key that has no value.
func (s *Server) delete(w http.ResponseWriter, r *http.Request) int {
	return s.writeKey(w, r, func(*record.Record, int64) (func(), error) { return func() {}, nil })
}

// writeKey writes one record. fill sets its value; limit is what is left for it
// in bytes of the topic's limit.
func (s *Server) writeKey(w http.ResponseWriter, r *http.Request, fill func(rec *record.Record, limit int64) (release func(), err error)) int {
	n, offset, err := s.appendKey(r, fill)
	if n >= 0 {
		w.Header()["X-Kv-Partition"] = []string{strconv.Itoa(int(n))}
	}
	if err != nil {
		s.metrics.recordsRefused.Inc()
		return s.fail(w, r, s.writeError(err))
	}
	s.metrics.recordsAccepted.Inc()
	w.Header()["X-Kv-Offset"] = []string{strconv.FormatInt(offset, 10)}
	// What is appended is applied, in order, before Append returns.
	w.Header()["X-Kv-Position"] = []string{strconv.FormatInt(offset+1, 10)}
	w.WriteHeader(http.StatusOK)
	return http.StatusOK
}

// writeError adds to the error of a write that this node takes none at all.
func (s *Server) writeError(err error) error {
	if errors.Is(err, partition.ErrNotHosted) && s.topics.CheckWriter() != nil {
		return errors.Join(err, errReplica)
	}
	return err
}

// appendKey gives the partition as soon as it is known (-1 before) and the
// offset of the record.
func (s *Server) appendKey(r *http.Request, fill func(*record.Record, int64) (func(), error)) (n int32, offset int64, err error) {
	target, err := parseKV(r, nil)
	if err != nil {
		return -1, 0, err
	}
	if target.partition == partitionAny {
		return -1, 0, badRequest("partition=any cannot be written to")
	}
	rec := record.Record{Key: target.key}
	if err := recordFromHeaders(r.Header, &rec); err != nil {
		return -1, 0, err
	}
	t, err := s.topics.TopicForWrite(r.Context(), target.topic)
	if err != nil {
		return -1, 0, err
	}
	n = target.partition
	if n == partitionByKey {
		n = t.PartitionFor(target.key)
	}
	p, err := t.Partition(n)
	if err != nil {
		return n, 0, err
	}
	limit := t.MaxRecordBytes() - int64(rec.Size())
	if limit < 0 {
		return n, 0, partition.ErrRecordTooLarge
	}
	release, err := fill(&rec, limit)
	if err != nil {
		return n, 0, err
	}
	defer release()
	offset, err = p.Append(r.Context(), []record.Record{rec})
	return n, offset, err
}

// unsupportedOnWrite are request headers that would change what a write means.
// Ignoring them would store something that the client did not ask for.
var unsupportedOnWrite = [...]string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Content-Range", "Content-Encoding"}

// recordFromHeaders takes timestamp and record headers from a request.
func recordFromHeaders(h http.Header, rec *record.Record) error {
	for _, name := range unsupportedOnWrite {
		if v := h[name]; len(v) > 0 && !(name == "Content-Encoding" && len(v) == 1 && v[0] == "identity") {
			return badRequest(name + " is not supported on a write")
		}
	}
	rec.Timestamp = time.Now().UnixMilli()
	switch v := h["X-Kv-Timestamp"]; {
	case len(v) > 1:
		return badRequest("X-Kv-Timestamp is given more than once")
	case len(v) == 1:
		ms, err := decimal(v[0], math.MaxInt64)
		if err != nil {
			return badRequest("X-Kv-Timestamp is not a decimal number of milliseconds")
		}
		rec.Timestamp = ms
	}
	switch v := h["X-Kv-Headers"]; {
	case len(v) > 1:
		return badRequest("X-Kv-Headers is given more than once")
	case len(v) == 1:
		headers, err := recordjson.DecodeHeaders(v[0])
		if err != nil {
			return badRequest("X-Kv-Headers is not the base64url of a JSON list of headers")
		}
		rec.Headers = headers
	}
	return nil
}
