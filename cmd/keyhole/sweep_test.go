package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"keyhole/internal/s3test"
)

// What a deleted topic has in an S3 bucket goes after the grace period, over many
// pages of its listing and over a restart, and nothing else does.
func TestDeletedTopicLeavesNoObject(t *testing.T) {
	gateway := s3test.StartGateway(t)
	dir := filepath.Join(t.TempDir(), "data")
	args := []string{"--data-dir", dir, "--object-store", s3test.URL(gateway.Endpoint, "p", "aws")}
	s := startServe(t, s3test.Environment(), args...)
	s.waitReady()
	do := func(args ...string) string {
		t.Helper()
		r := keyhole(t, s.env(), nil, args...)
		r.want(t, exitDone, "", "")
		return r.stdout
	}
	do("config", "set", "kv_index_lookup_timeout_ms", "1000")
	do("config", "set", "cloud_storage_gc_grace_ms", "3600000")
	ids := make(map[string]string)
	for _, name := range []string{"gone", "gone2"} {
		var made struct{ ID string }
		if err := json.Unmarshal([]byte(do("topic", "create", name, "--json")), &made); err != nil {
			t.Fatal(err)
		}
		ids[name] = made.ID
	}
	bucket := filepath.Join(gateway.Dir, s3test.Bucket, "p")
	const objects = 1100 // a page of S3 has 1000
	folder := filepath.Join(bucket, "gone", ids["gone"], "0")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range objects {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%020d-x.log", n)), []byte("data"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	below := func(name string) (files int) {
		t.Helper()
		err := filepath.WalkDir(filepath.Join(bucket, name), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files++
			}
			if os.IsNotExist(err) {
				return nil // it goes while we look
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	do("topic", "delete", "gone")
	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	if got := below("gone"); got <= objects {
		t.Fatalf("before the grace period is over %d files are left of more than %d", got, objects)
	}

	s = startServe(t, s3test.Environment(), args...)
	s.waitReady()
	do("config", "set", "cloud_storage_gc_grace_ms", "1000")
	eventually(t, "nothing left", func() bool { return below("gone") == 0 })
	if _, err := os.Stat(filepath.Join(bucket, "gone2", ids["gone2"], "topic.json")); err != nil {
		t.Errorf("the other topic: %v", err)
	}
	eventually(t, "deletion forgotten", func() bool {
		names, err := os.ReadDir(filepath.Join(dir, "deleted"))
		return err == nil && len(names) == 0
	})
	s.signal(syscall.SIGTERM)
	s.wantEnd(exitDone)
	if strings.Contains(s.output(), `"level":"ERROR"`) {
		t.Errorf("log:\n%s", s.output())
	}
}
