package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTierCompact(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/topics/t", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"name":"t","partitions":3}`)
	})
	const body = `{"cloud_storage_mode":"full","compaction":{"local_segments":2,"local_bytes_before":5000,"local_bytes_after":900,` +
		`"cloud_segments":0,"records_removed":41,"tombstones_removed":3,"segments_expired":1}}`
	mux.HandleFunc("POST /v1/compact/t/{p}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("p") == "2" {
			http.Error(w, `{"error":"object store unavailable"}`, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, body)
	})
	node := httptest.NewServer(mux)
	defer node.Close()
	env := []string{"KEYHOLE_ADMIN_URL=" + node.URL}
	one := keyhole(t, env, nil, "tier", "compact", "t", "0")
	if want := (result{exitDone,
		"PARTITION  LOCAL SEGMENTS  BYTES        CLOUD SEGMENTS  BYTES  RECORDS REMOVED  TOMBSTONES  SEGMENTS EXPIRED\n" +
			"0          2               5000 -> 900  0               -      41               3           1\n",
		"compacted 1 partition of t: 41 records removed from either tier, local log smaller by 4.0 KiB, cloud log by 0 bytes\n",
	}); one != want {
		t.Errorf("got %+v, want %+v", one, want)
	}
	// What was done is told although the rest failed.
	all := keyhole(t, env, nil, "tier", "compact", "t", "--json")
	line := func(p int) string { return fmt.Sprintf(`{"topic":"t","partition":%d,"status":%s}`, p, body) }
	if want := (result{exitFailed, "[" + line(0) + "," + line(1) + "]\n",
		"compacted 2 partitions of t: 82 records removed from either tier, local log smaller by 8.0 KiB, cloud log by 0 bytes\n" +
			"keyhole: compact t/2: object store unavailable (HTTP 503)\n"}); all != want {
		t.Errorf("got %+v, want %+v", all, want)
	}
}

func TestTierGC(t *testing.T) {
	const nothing = `{"objects":[],"object_count":0,"object_bytes":0,"deleted":true,"failed":[]}`
	// run gives what the command did, having been answered so, and what it asked for.
	run := func(answer string, args ...string) (result, string) {
		asked := make(chan string, 1)
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			asked <- r.Method + " " + r.URL.Path + " " + string(body)
			fmt.Fprint(w, answer)
		}))
		defer node.Close()
		return keyhole(t, []string{"KEYHOLE_ADMIN_URL=" + node.URL}, nil, append([]string{"tier", "gc"}, args...)...), <-asked
	}

	answer := `{"objects":[{"key":"t/1/0/a.log","size":123,"age_ms":3661000,"why":"orphan"},{"key":"t/1/0/b\u001b.log","size":0,"age_ms":400,"why":"replaced"}],` +
		`"object_count":7,"object_bytes":2000000,"deleted":false,"failed":[]}` + "\n"
	dry, asked := run(answer, "--dry-run")
	if want := (result{exitDone,
		"AGE     BYTES  WHY       KEY\n" +
			"1h1m1s  123    orphan    t/1/0/a.log\n" +
			"0s      0      replaced  \"t/1/0/b\\x1b.log\"\n",
		"would delete 7 objects, 1.9 MiB, 5 of them not listed\n"}); dry != want {
		t.Errorf("got %+v, want %+v", dry, want)
	}
	if want := `POST /v1/cloud_storage/gc {"dry_run":true}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	got, asked := run(answer, "t", "--json")
	if got.code != exitDone || got.stdout != answer {
		t.Errorf("got %+v", got)
	}
	if want := `POST /v1/cloud_storage/gc {"dry_run":false,"topic":"t"}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}

	answer = `{"objects":[],"object_count":1,"object_bytes":5,"deleted":true,"failed":[{"topic":"t","partition":3,"error":"stored data is damaged"}]}`
	got, asked = run(answer, "t", "3")
	if want := (result{exitFailed, "",
		"deleted 1 object, 5 bytes, 1 of them not listed\nt/3 was left out: stored data is damaged\nkeyhole: clean up: 1 partition left out\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := `POST /v1/cloud_storage/gc {"dry_run":false,"partition":3,"topic":"t"}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	if got, _ := run(nothing); got != (result{exitDone, "", "deleted 0 objects, 0 bytes\n"}) {
		t.Errorf("got %+v", got)
	}
}

func TestByteSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1.0 KiB", 1536: "1.5 KiB", -1536: "-1.5 KiB",
		1<<20 - 1: "1.0 MiB", 1 << 30: "1.0 GiB", 1<<63 - 1: "8.0 EiB", -1: "-1 bytes",
	} {
		if got := byteSize(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
