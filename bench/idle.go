package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// measureIdle makes a topic of many partitions, over a store in a folder, and
// looks at the memory of the process, before and after each has had a record.
func measureIdle(ctx context.Context, b *bench) error {
	folder := filepath.Join(b.dir, "idle-store")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	n, err := b.startNode(ctx, filepath.Join(b.dir, "idle"), "file://"+folder)
	if err != nil {
		return err
	}
	defer n.kill()
	empty, ok := residentMiB(n.pid())
	if !ok {
		b.report.skip("the memory of a process is not known on this system")
		return nil
	}
	count := b.scale.idlePartitions
	start := time.Now()
	if err := n.createTopic(ctx, "idle", count, nil); err != nil {
		return err
	}
	b.report.value(fmt.Sprintf("%d partitions made and ready", count), "s", time.Since(start).Seconds(), "")
	goal := ""
	if count == 1000 {
		goal = "< 512"
	}
	fresh, err := n.settledMiB(ctx)
	if err != nil {
		return err
	}
	b.report.value("memory of a node without topics", "MiB", empty, "")
	b.report.value(fmt.Sprintf("memory with %d idle partitions", count), "MiB", fresh, goal)

	records := make([]pair, 20*count) // so that hardly any partition goes without
	for i := range records {
		records[i] = pair{hotKey(i), syntheticValue(i, 100)}
	}
	if err := n.produce(ctx, "idle", slices.Values(records)); err != nil {
		return err
	}
	used, err := n.settledMiB(ctx)
	if err != nil {
		return err
	}
	b.report.value("the same after 20 records in each", "MiB", used, goal)
	return nil
}

// settledMiB is the resident memory once it no longer changes much.
func (n *node) settledMiB(ctx context.Context) (float64, error) {
	last, same := 0.0, 0
	err := poll(ctx, 30*time.Second, "memory settles", func() (bool, error) {
		now, ok := residentMiB(n.pid())
		if !ok {
			return false, fmt.Errorf("process %d has no memory", n.pid())
		}
		if d := now - last; d < 1 && d > -1 {
			same++
		} else {
			last, same = now, 0
		}
		return same > 50, nil
	})
	return last, err
}
