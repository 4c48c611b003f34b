package gateway

import (
	"context"
	"net/http"

	"github.com/gorilla/mux"

	"keyhole/catalog"
	"keyhole/partition"
)

// maxCollected bounds the objects that one answer of the clean-up lists; the
// others are counted.
const maxCollected = 10_000

// partition finds the partition that a path names.
func (a *admin) partition(r *http.Request) (*partition.Partition, error) {
	vars := mux.Vars(r)
	n, err := parsePartition(vars["partition"])
	if err != nil || n < 0 {
		return nil, badRequest("partition is not a number")
	}
	t, err := a.catalog.Topic(vars["topic"])
	if err != nil {
		return nil, err
	}
	return t.Partition(n)
}

// partitionToChange is partition for routes that a read replica refuses.
func (a *admin) partitionToChange(r *http.Request) (*partition.Partition, error) {
	if err := a.catalog.CheckWriter(); err != nil {
		return nil, err
	}
	return a.partition(r)
}

func (a *admin) tierStatus(w http.ResponseWriter, r *http.Request) int {
	p, err := a.partition(r)
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, p.Status())
}

func (a *admin) manifest(w http.ResponseWriter, r *http.Request) int {
	p, err := a.partition(r)
	if err != nil {
		return a.fail(w, r, err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.topics.LookupTimeout())
	defer cancel()
	data, err := p.Manifest(ctx)
	if err != nil {
		return a.fail(w, r, err)
	}
	return writeBody(w, http.StatusOK, jsonMedia, data)
}

func (a *admin) evict(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		LocalTargetBytes *int64 `json:"local_target_bytes"`
	}
	if err := a.decode(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	if body.LocalTargetBytes == nil || *body.LocalTargetBytes < 0 {
		return a.fail(w, r, badRequest("local_target_bytes must be a number of bytes, 0 or more"))
	}
	p, err := a.partitionToChange(r)
	if err != nil {
		return a.fail(w, r, err)
	}
	status, err := p.Evict(r.Context(), *body.LocalTargetBytes)
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, status)
}

// compact answers when both tiers are compacted and retention is applied. A client
// that leaves ends it between two segments.
func (a *admin) compact(w http.ResponseWriter, r *http.Request) int {
	if err := a.decodeOptional(w, r, &struct{}{}); err != nil {
		return a.fail(w, r, err)
	}
	p, err := a.partitionToChange(r)
	if err != nil {
		return a.fail(w, r, err)
	}
	done, err := p.Compact(r.Context())
	if err != nil {
		return a.fail(w, r, err)
	}
	return sendJSON(w, http.StatusOK, done)
}

// collected is the answer of the clean-up.
type collected struct {
	Objects []garbage          `json:"objects"` // the first ones
	Count   int64              `json:"object_count"`
	Bytes   int64              `json:"object_bytes"`
	Deleted bool               `json:"deleted"` // false: a dry run
	Failed  []collectionFailed `json:"failed"`
}

type garbage struct {
	Key   string `json:"key"`
	Size  int64  `json:"size"`
	AgeMS int64  `json:"age_ms"`
	Why   string `json:"why"`
}

type collectionFailed struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Error     string `json:"error"`
}

// collect deletes what nobody needs any more, or says what that would be.
func (a *admin) collect(w http.ResponseWriter, r *http.Request) int {
	var body struct {
		DryRun    bool    `json:"dry_run"`
		Topic     *string `json:"topic"`
		Partition *int32  `json:"partition"`
	}
	if err := a.decodeOptional(w, r, &body); err != nil {
		return a.fail(w, r, err)
	}
	o := catalog.CollectOptions{Partition: -1, DryRun: body.DryRun, Listed: maxCollected}
	if body.Topic != nil {
		if o.Topic = *body.Topic; o.Topic == "" {
			return a.fail(w, r, badRequest("topic is empty; leave it out for all topics"))
		}
	}
	if body.Partition != nil {
		if o.Partition = *body.Partition; o.Partition < 0 || o.Topic == "" {
			return a.fail(w, r, badRequest("partition must be 0 or more, and needs a topic"))
		}
	}
	got, err := a.catalog.Collect(r.Context(), o)
	if err != nil {
		return a.fail(w, r, err)
	}
	out := collected{Objects: []garbage{}, Count: got.Count, Bytes: got.Bytes, Deleted: !o.DryRun, Failed: []collectionFailed{}}
	for _, g := range got.Objects {
		out.Objects = append(out.Objects, garbage{g.Key, g.Size, g.Age.Milliseconds(), g.Why})
	}
	for _, f := range got.Failed {
		out.Failed = append(out.Failed, collectionFailed{f.Topic, f.Partition, classify(f.Err).message})
	}
	return sendJSON(w, http.StatusOK, out)
}

// decodeOptional is decode for a route whose body may be left out.
func (a *admin) decodeOptional(w http.ResponseWriter, r *http.Request, v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	return a.decode(w, r, v)
}
