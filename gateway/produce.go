package gateway

import (
	"context"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"keyhole/catalog"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/recordjson"
)

// kafkaJSON is the media type of what the produce routes answer.
var kafkaJSON = []string{"application/vnd.kafka.v2+json"}

// kafkaError is the form of an error of the produce routes.
type kafkaError struct {
	Code    int    `json:"error_code"`
	Message string `json:"message"`
	Detail  string `json:"detail,omitempty"`
}

// produced is the fate of one record of a request.
type produced struct {
	Partition *int32 `json:"partition"`
	Offset    *int64 `json:"offset"`
	Code      int    `json:"error_code,omitempty"`
	Error     string `json:"error,omitempty"`
	Detail    string `json:"detail,omitempty"`

	err error
}

// produce answers POST /topics/{topic} and POST /topics/{topic}/partitions/{p}.
// Each record has a fate of its own: what is wrong with one does not keep the
// others from being written.
func (s *Server) produce(w http.ResponseWriter, r *http.Request) int {
	fates, err := s.produceAll(w, r)
	if err != nil {
		return s.failKafka(w, r, err)
	}
	accepted := 0
	for i := range fates {
		f := &fates[i]
		if f.err == nil {
			accepted++
			continue
		}
		o := classify(s.writeError(f.err))
		s.logBug(o, f.err)
		f.Partition, f.Offset = nil, nil
		f.Code, f.Error, f.Detail = o.recordCode(), o.message, o.detail
	}
	s.metrics.recordsAccepted.Add(float64(accepted))
	s.metrics.recordsRefused.Add(float64(len(fates) - accepted))
	status := http.StatusOK
	if accepted == 0 {
		o := refusal(fates)
		o.retry(w.Header())
		status = o.status
	}
	return writeJSON(w, status, kafkaJSON, map[string]any{"offsets": fates})
}

// recordCode is the error_code of one record among others.
func (o outcome) recordCode() int {
	switch {
	case o.code != 0:
		return o.code
	case o.status < http.StatusInternalServerError:
		return kafkaInvalidRecord
	}
	return o.status * 100
}

// refusal is the answer to a request of which no record was accepted: try again
// if that could help any of them, else too large or not here if all of them are,
// else unprocessable.
func refusal(fates []produced) outcome {
	tooLarge, elsewhere := true, true
	for i := range fates {
		o := classify(fates[i].err)
		switch {
		case o.code == kafkaUnavailable:
			return outcome{status: http.StatusServiceUnavailable}
		case o.status >= http.StatusInternalServerError:
			return o
		}
		tooLarge = tooLarge && o.status == http.StatusRequestEntityTooLarge
		elsewhere = elsewhere && o.status == http.StatusMisdirectedRequest
	}
	switch {
	case tooLarge:
		return outcome{status: http.StatusRequestEntityTooLarge}
	case elsewhere:
		return outcome{status: http.StatusMisdirectedRequest}
	}
	return outcome{status: http.StatusUnprocessableEntity}
}

// failKafka answers with an error that concerns the whole request.
func (s *Server) failKafka(w http.ResponseWriter, r *http.Request, err error) int {
	if s.gone(r, err) {
		return 0
	}
	o := classify(err)
	s.logBug(o, err)
	o.retry(w.Header())
	return writeJSON(w, o.status, kafkaJSON, kafkaError{Code: o.errorCode(), Message: o.message, Detail: o.detail})
}

func (s *Server) produceAll(w http.ResponseWriter, r *http.Request) ([]produced, error) {
	vars := mux.Vars(r)
	mediaType, err := produceMedia(r.Header)
	if err != nil {
		return nil, err
	}
	t, err := s.topics.TopicForWrite(r.Context(), vars["topic"])
	if err != nil {
		return nil, err
	}
	fixed := partitionByKey
	if text, ok := vars["partition"]; ok {
		// What is no number names no partition either.
		if fixed, err = parsePartition(text); err != nil || fixed < 0 {
			return nil, catalog.ErrPartitionNotFound
		}
		if _, err := t.Partition(fixed); err != nil {
			return nil, err
		}
	}
	body, release, err := s.readBody(w, r, s.o.MaxBodyBytes)
	if err != nil {
		return nil, err
	}
	defer release()
	records, err := recordjson.DecodeProduce(body, mediaType)
	if err != nil {
		return nil, &requestError{status: http.StatusUnprocessableEntity, message: err.Error()}
	}
	fates := make([]produced, len(records))
	groups := groupRecords(t, records, fixed, fates)
	appendGroups(r.Context(), groups, fates)
	return fates, nil
}

// produceMedia gives the media type of the body.
func produceMedia(h http.Header) (string, error) {
	if v := h.Get("Content-Encoding"); v != "" && v != "identity" {
		return "", &requestError{status: http.StatusUnsupportedMediaType, message: "request bodies must not be compressed"}
	}
	mediaType, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || mediaType != recordjson.MediaBinary && mediaType != recordjson.MediaJSON {
		return "", &requestError{
			status:  http.StatusUnsupportedMediaType,
			message: "Content-Type must be " + recordjson.MediaBinary + " or " + recordjson.MediaJSON,
		}
	}
	return mediaType, nil
}

// group is what one partition is to append.
type group struct {
	log     keyLog
	records []record.Record
	places  []int // of the records in the request
}

// groupRecords sorts the records that can be appended by partition, each in the
// order of the request; the others' fates are settled.
func groupRecords(t topic, records []recordjson.ProduceRecord, fixed int32, fates []produced) map[int32]*group {
	groups := make(map[int32]*group)
	now := time.Now().UnixMilli()
	for i := range records {
		rec := &records[i]
		if rec.Err != nil {
			fates[i].err = &requestError{status: http.StatusUnprocessableEntity, message: rec.Err.Error()}
			continue
		}
		n := fixed
		switch {
		case fixed >= 0 && rec.Partition >= 0 && rec.Partition != fixed:
			fates[i].err = &requestError{status: http.StatusUnprocessableEntity, message: "record names another partition than the path"}
			continue
		case rec.Key == nil:
			// Every topic here is compacted, so no partition can keep it.
			fates[i].err = partition.ErrNoKey
			continue
		case rec.Partition >= 0:
			n = rec.Partition
		case n < 0:
			n = t.PartitionFor(rec.Key)
		}
		g := groups[n]
		if g == nil {
			log, err := t.Partition(n)
			if err != nil {
				fates[i].err = err
				continue
			}
			g = &group{log: log}
			groups[n] = g
		}
		full := record.Record{Timestamp: rec.Timestamp, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
		if full.Timestamp < 0 {
			full.Timestamp = now
		}
		if err := g.log.Validate(&full); err != nil {
			fates[i].err = err
			continue
		}
		g.records = append(g.records, full)
		g.places = append(g.places, i)
	}
	return groups
}

// appendGroups appends to all partitions at once and settles the fates of their
// records.
func appendGroups(ctx context.Context, groups map[int32]*group, fates []produced) {
	var wg sync.WaitGroup
	for n, g := range groups {
		if len(g.records) == 0 {
			continue
		}
		wg.Go(func() {
			base, err := g.log.Append(ctx, g.records)
			for i, place := range g.places {
				offset := base + int64(i)
				fates[place] = produced{Partition: &n, Offset: &offset, err: err}
			}
		})
	}
	wg.Wait()
}
