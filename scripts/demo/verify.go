package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// readers is how many lookups of the verification run at once.
const readers = 8

// tally counts what the verification found.
type tally struct {
	right, wrong, deleted, bytes     atomic.Int64
	fromLocal, fromCache, fromRemote atomic.Int64
}

// verify looks up every key of every source and compares.
func (d *demo) verify(ctx context.Context, inputs []*source) error {
	d.title("Every key, byte for byte against its source")
	failed := false
	for _, in := range inputs {
		before, err := d.node.storeRequests(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		var t tally
		if err := d.verifySource(ctx, in, &t); err != nil {
			return err
		}
		took := time.Since(start)
		after, err := d.node.storeRequests(ctx)
		if err != nil {
			return err
		}
		d.say("%-20s %6d right (%.1f MB), %d deleted ones absent, %d wrong", in.topic, t.right.Load(), float64(t.bytes.Load())/1e6, t.deleted.Load(), t.wrong.Load())
		d.say("%-20s %6.0f lookups/s; local %d, cache %d, remote %d; %d store requests", "",
			float64(t.right.Load()+t.deleted.Load())/took.Seconds(), t.fromLocal.Load(), t.fromCache.Load(), t.fromRemote.Load(), after-before)
		failed = failed || t.wrong.Load() > 0 || t.right.Load() == 0
	}
	if failed {
		return fmt.Errorf("not every key is right")
	}
	return nil
}

func (d *demo) verifySource(ctx context.Context, in *source, t *tally) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	err := in.truth(func(key string, value []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.Go(func() error { return d.verifyKey(ctx, in.topic, key, value, t) })
		return nil
	})
	if gerr := g.Wait(); gerr != nil {
		return gerr
	}
	return err
}

func (d *demo) verifyKey(ctx context.Context, topic, key string, value []byte, t *tally) error {
	resp, body, err := d.node.get(ctx, topic, key)
	if err != nil {
		return err
	}
	switch {
	case value == nil && resp.StatusCode == http.StatusNotFound && resp.Header.Get("X-Kv-Reason") == "key_not_found":
		t.deleted.Add(1)
		return nil
	case value == nil || resp.StatusCode != http.StatusOK || !bytes.Equal(body, value):
		t.wrong.Add(1)
		d.say("WRONG: %s/%s: HTTP %s, %d bytes, expected %d", topic, key, resp.Status, len(body), len(value))
		return nil
	}
	t.right.Add(1)
	t.bytes.Add(int64(len(body)))
	switch resp.Header.Get("X-Kv-Source") {
	case "local":
		t.fromLocal.Add(1)
	case "cache":
		t.fromCache.Add(1)
	case "remote":
		t.fromRemote.Add(1)
	}
	return nil
}
