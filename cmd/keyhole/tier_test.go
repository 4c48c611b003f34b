package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Status and evict print one shape, whether one partition is named or all are
// meant; what was done is told although the rest failed.
func TestTierJSON(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/topics/t", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"name":"t","partitions":2}`)
	})
	state := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.PathValue("p") == "1" {
			http.Error(w, `{"error":"object store unavailable"}`, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, `{"cloud_storage_mode":"full","high_watermark":7,"index_keys":3,"new":true}`)
	}
	mux.HandleFunc("GET /v1/cloud_storage/status/t/{p}", state)
	mux.HandleFunc("POST /v1/cloud_storage/evict/t/{p}", state)
	node := httptest.NewServer(mux)
	defer node.Close()
	env := []string{"KEYHOLE_ADMIN_URL=" + node.URL}

	line := func(p int) string {
		return fmt.Sprintf(`{"topic":"t","partition":%d,"status":{"cloud_storage_mode":"full","high_watermark":7,"index_keys":3,"new":true}}`, p)
	}
	for args, want := range map[[4]string]result{
		{"tier", "status", "t"}:      {exitDone, "[" + line(0) + "," + line(1) + "]\n", ""},
		{"tier", "status", "t", "1"}: {exitDone, "[" + line(1) + "]\n", ""},
		{"tier", "evict", "t", "0"}:  {exitDone, "[" + line(0) + "]\n", ""},
		{"tier", "evict", "t"}:       {exitFailed, "[" + line(0) + "]\n", "keyhole: evict t/1: object store unavailable (HTTP 503)\n"},
		{"tier", "evict", "t", "1"}:  {exitFailed, "", "keyhole: evict t/1: object store unavailable (HTTP 503)\n"},
	} {
		n := len(args)
		if args[3] == "" {
			n = 3
		}
		if got := keyhole(t, env, nil, append(args[:n:n], "--json")...); got != want {
			t.Errorf("%v: got %+v, want %+v", args, got, want)
		}
	}
	keyhole(t, env, nil, "tier", "status", "t").want(t, exitDone, "  ~3\n", "")
}

func TestTierStatusSaysFenced(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/cloud_storage/status/t/0", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `{"cloud_storage_mode":"full","fenced":true}`)
	})
	node := httptest.NewServer(mux)
	defer node.Close()
	keyhole(t, []string{"KEYHOLE_ADMIN_URL=" + node.URL}, nil, "tier", "status", "t", "0").want(t, exitDone, "full, fenced", "")
}
