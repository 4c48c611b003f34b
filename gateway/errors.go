package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"keyhole/catalog"
	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

// requestError is a request that cannot be carried out as it stands: the class
// "invalid". Its message goes to the client.
type requestError struct {
	status  int
	message string
}

func (e *requestError) Error() string { return e.message }

func badRequest(message string) error {
	return &requestError{status: http.StatusBadRequest, message: message}
}

// Outcomes that are decided in this package.
var (
	// errNoRoute says that the target names nothing here.
	errNoRoute = errors.New("not found")
	// errOverloaded says that the bodies in flight use up their share of memory.
	errOverloaded = errors.New("too much request data in flight")
	// errReplica says beside another error that this node takes no writes at all.
	errReplica = errors.New("write to a read replica")
	// errPanic is what a bug leaves of a request.
	errPanic = errors.New("internal error")
)

// Reasons, the values of X-Kv-Reason and of the metrics label outcome.
const (
	reasonBadRequest  = "bad_request"
	reasonTopic       = "topic_not_found"
	reasonPartition   = "partition_not_found"
	reasonNotHosted   = "not_hosted"
	reasonNotIndexed  = "not_indexed"
	reasonNotReady    = "not_ready"
	reasonPosition    = "position_not_reached"
	reasonKey         = "key_not_found"
	reasonRemoteOff   = "remote_read_disabled"
	reasonNotRetained = "not_retained"
	reasonStore       = "store_unavailable"
	reasonOverloaded  = "overloaded"
	reasonClosing     = "closing"
	reasonDeadline    = "deadline"
	reasonCorrupt     = "corrupt"
	reasonReadOnly    = "read_only"
	reasonInternal    = "internal"
	reasonConflict    = "conflict"
	reasonMethod      = "method_not_allowed"
	reasonNoRoute     = "not_found"
)

// Values of error_code on the produce routes, as Kafka REST numbers them; where
// there is none, the status stands for itself.
const (
	kafkaTopic         = 40401
	kafkaPartition     = 40402
	kafkaInvalidRecord = 42208
	kafkaNotHosted     = 42101 // 421, first of its kind: Kafka REST, which is no node itself, has none
	kafkaUnavailable   = 50003 // retriable
)

// outcome is how an error is answered.
type outcome struct {
	// step is the row of the lookup steps that answers; of several partitions
	// asked for one key, the one with the lowest step speaks.
	step    int
	status  int
	reason  string
	message string
	// code is the error_code of the produce routes, 0: the status itself.
	code int
	// position says that the partition's applied position is known and of use.
	position bool
	// properties says what is wrong with which property.
	properties map[string]string
	// detail is one of details; empty: none.
	detail string
}

// outcomes maps every sentinel to its answer; the first that matches counts. An
// error may match several: bytes that fail a check are damage however they were
// reached, and a store that did answer is unavailable even if the deadline came
// while it was asked again.
//
// The messages are fixed, so that nothing of a path, an object name or a
// credential can reach a client through them.
var outcomes = [...]struct {
	err error
	outcome
}{
	{partition.ErrKeyNotFound, outcome{8, 404, reasonKey, "key not found", 0, true, nil, ""}},
	{catalog.ErrTopicNotFound, outcome{3, 404, reasonTopic, "topic not found", kafkaTopic, false, nil, ""}},
	{catalog.ErrPartitionNotFound, outcome{4, 404, reasonPartition, "partition not found", kafkaPartition, false, nil, ""}},
	{partition.ErrNotHosted, outcome{5, 421, reasonNotHosted, "partition not hosted on this node", kafkaNotHosted, false, nil, ""}},
	{partition.ErrNotIndexed, outcome{6, 404, reasonNotIndexed, "topic not indexed", 0, false, nil, ""}},
	{partition.ErrNotReady, outcome{7, 503, reasonNotReady, "partition not ready", kafkaUnavailable, false, nil, ""}},
	{catalog.ErrBucketUnknown, outcome{3, 503, reasonNotReady, "topics of the object store not known yet", kafkaUnavailable, false, nil, ""}},
	{partition.ErrPositionNotReached, outcome{7, 503, reasonPosition, "position not reached", kafkaUnavailable, true, nil, ""}},
	{partition.ErrRemoteReadDisabled, outcome{9, 404, reasonRemoteOff, "record only available in tiered storage", 0, true, nil, ""}},
	{partition.ErrNotRetained, outcome{10, 404, reasonNotRetained, "record not retained", 0, true, nil, ""}},

	{errNoRoute, outcome{1, 404, reasonNoRoute, "not found", 0, false, nil, ""}},
	{catalog.ErrFeatureNotFound, outcome{1, 404, reasonNoRoute, "feature not found", 0, false, nil, ""}},
	{partition.ErrNoKey, outcome{1, 400, reasonBadRequest, "record has no key", kafkaInvalidRecord, false, nil, ""}},
	{partition.ErrKeyTooLong, outcome{1, 400, reasonBadRequest, "key too long", kafkaInvalidRecord, false, nil, ""}},
	{partition.ErrRecordTooLarge, outcome{1, 413, reasonBadRequest, "record too large", kafkaInvalidRecord, false, nil, ""}},
	{catalog.ErrTopicExists, outcome{1, 409, reasonConflict, "topic already exists", 0, false, nil, ""}},
	{partition.ErrRemoteWriteDisabled, outcome{1, 409, reasonConflict, "remote write is disabled for this topic", 0, false, nil, ""}},
	{catalog.ErrReadReplica, outcome{1, 409, reasonConflict, "this node is a read replica", 0, false, nil, ""}},
	{partition.ErrNoStore, outcome{1, 409, reasonConflict, "no object store configured", 0, false, nil, ""}},

	{catalog.ErrTopicGone, outcome{12, 503, reasonReadOnly, "topic is gone from the object store", kafkaUnavailable, false, nil, ""}},
	{record.ErrCorrupt, outcome{12, 500, reasonCorrupt, "stored data is damaged", 0, false, nil, ""}},
	{objstore.ErrNotFound, outcome{12, 500, reasonCorrupt, "stored data is missing", 0, false, nil, ""}},
	{objstore.ErrRange, outcome{12, 500, reasonCorrupt, "stored data is missing", 0, false, nil, ""}},
	{partition.ErrClosed, outcome{12, 503, reasonClosing, "closing", kafkaUnavailable, false, nil, ""}},
	{catalog.ErrClosed, outcome{12, 503, reasonClosing, "closing", kafkaUnavailable, false, nil, ""}},
	{partition.ErrDiskFull, outcome{12, 503, reasonReadOnly, "partition is read-only: no space left on the disk", kafkaUnavailable, false, nil, ""}},
	{partition.ErrReadOnly, outcome{12, 503, reasonReadOnly, "partition is read-only after a failed write", kafkaUnavailable, false, nil, ""}},
	{tiered.ErrOverloaded, outcome{12, 503, reasonOverloaded, "too many reads of the object store", kafkaUnavailable, false, nil, ""}},
	{errOverloaded, outcome{12, 503, reasonOverloaded, "too much request data in flight", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrUnavailable, outcome{12, 503, reasonStore, "object store unavailable", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrDenied, outcome{12, 503, reasonStore, "object store denies access", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrMisconfigured, outcome{12, 503, reasonStore, "object store misconfigured", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrUnusable, outcome{12, 503, reasonStore, "object store gave an unusable reply", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrUnsupported, outcome{12, 503, reasonStore, "object store does not support this", kafkaUnavailable, false, nil, ""}},
	{objstore.ErrClosed, outcome{12, 503, reasonClosing, "closing", kafkaUnavailable, false, nil, ""}},
	{context.DeadlineExceeded, outcome{12, 504, reasonDeadline, "deadline exceeded", kafkaUnavailable, false, nil, ""}},
	{context.Canceled, outcome{12, 503, reasonClosing, "request canceled", kafkaUnavailable, false, nil, ""}},
}

// details say, beside the fixed message, what somebody can do about it.
var details = [...]struct {
	err  error
	text string
}{
	{catalog.ErrTakenOver, "another node has taken over partitions of this topic: change it there"},
	{catalog.ErrTopicGone, "it was there once: if it was deleted through another node, delete it here too"},
	{errReplica, "this node is a read replica: write to the gateway whose bucket it reads"},
}

// classify gives the answer to an error: the one place where a class becomes a
// status. What no row knows is a bug of ours: 500.
func classify(err error) outcome {
	var re *requestError
	var invalid *catalog.InvalidError
	for i := range outcomes {
		if errors.Is(err, outcomes[i].err) {
			o := outcomes[i].outcome
			o.detail = detailOf(err)
			return o
		}
	}
	switch {
	case errors.As(err, &re):
		return outcome{step: 1, status: re.status, reason: reasonBadRequest, message: re.message}
	case errors.As(err, &invalid):
		return outcome{step: 1, status: http.StatusBadRequest, reason: reasonBadRequest, message: invalid.Error(), properties: invalid.Properties}
	}
	return outcome{step: 12, status: http.StatusInternalServerError, reason: reasonInternal, message: "internal error"}
}

func detailOf(err error) string {
	for i := range details {
		if errors.Is(err, details[i].err) {
			return details[i].text
		}
	}
	return ""
}

// isAbsence reports whether the outcome says that this partition has nothing
// for the key, so that another one's record may be the answer.
func (o outcome) isAbsence() bool { return o.step == 8 || o.step == 10 }

func (o outcome) errorCode() int {
	if o.code != 0 {
		return o.code
	}
	return o.status
}

func (o outcome) retriable() bool { return o.status == http.StatusServiceUnavailable }

// retry sets Retry-After where repeating the same request may help.
func (o outcome) retry(h http.Header) {
	if o.retriable() {
		h["Retry-After"] = retryAfter
	}
}

// retryAfter is in whole seconds. What is not ready or overloaded may well be a
// second later; a client that backs off does so on its own account.
var retryAfter = []string{"1"}

// write answers with the outcome in the form of the lookup and admin routes.
func (o outcome) write(w http.ResponseWriter) int {
	h := w.Header()
	h["X-Kv-Reason"] = []string{o.reason}
	o.retry(h)
	return writeJSON(w, o.status, jsonMedia, errorBody{o.message, o.detail, o.properties})
}

type errorBody struct {
	Error      string            `json:"error"`
	Detail     string            `json:"detail,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
}

// writeJSON answers with v, which must be encodable, and a line feed.
func writeJSON(w http.ResponseWriter, status int, mediaType []string, v any) int {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"internal error"}`)
	}
	return writeBody(w, status, mediaType, append(body, '\n'))
}

func writeBody(w http.ResponseWriter, status int, mediaType []string, body []byte) int {
	h := w.Header()
	h["Content-Type"] = mediaType
	h["X-Content-Type-Options"] = nosniff
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone cannot be told
	return status
}
