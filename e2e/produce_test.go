package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// placesOf reads the answer of a produce request whose records were all taken.
func placesOf(t testing.TB, a answer, records int) []place {
	t.Helper()
	var body struct {
		Offsets []struct {
			Partition *int32 `json:"partition"`
			Offset    *int64 `json:"offset"`
			Error     string `json:"error"`
		} `json:"offsets"`
	}
	if err := json.Unmarshal(a.body, &body); err != nil || a.status != 200 || len(body.Offsets) != records {
		t.Fatalf("produce %d records: %v %v", records, a, err)
	}
	places := make([]place, records)
	for i, o := range body.Offsets {
		if o.Partition == nil || o.Offset == nil {
			t.Fatalf("record %d was refused: %s", i, o.Error)
		}
		places[i] = place{*o.Partition, *o.Offset}
	}
	return places
}

// openConnections counts the connections to the listener at url, in the kernel's
// table.
func openConnections(t testing.TB, url string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Skipf("the kernel does not tell: %v", err)
	}
	var p int
	if _, err := fmt.Sscan(port, &p); err != nil {
		t.Fatal(err)
	}
	local, count := fmt.Sprintf(":%04X", p), 0
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "01" {
			count++
		}
	}
	return count
}
