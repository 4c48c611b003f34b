package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// smallDisk is a file system of its own with this many bytes, until the test ends.
// It takes root and the program mount, so elsewhere the test is skipped.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system to fill")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", bytes), "keyhole-test", dir).CombinedOutput(); err != nil {
		t.Skipf("cannot mount a small file system here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// ballast fills the rest of a disk; removing the file makes room again.
func ballast(t *testing.T, dir string) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2 // down to the last byte
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// diskNode is a node on a small disk with some keys in the bucket.
type diskNode struct {
	*node
	disk  string
	acked map[string][]byte
}

const diskTopic = "disk"

func startOnSmallDisk(t *testing.T, size int) *diskNode {
	t.Helper()
	disk := smallDisk(t, size)
	n := &diskNode{node: newNode(t, openStore(t, "aws")), disk: disk, acked: map[string][]byte{}}
	n.dir = filepath.Join(disk, "data")
	n.start()
	n.waitReady()
	n.indexed(diskTopic, 1, map[string]string{"segment.bytes": fmt.Sprint(1 << 20)})
	n.setCluster(remoteRead, true)
	for i := range 20 {
		if a := n.write(fmt.Sprintf("cold-%02d", i), 4<<10); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
	}
	n.evict(diskTopic, 1)
	for i := range 20 {
		if a := n.write(fmt.Sprintf("hot-%02d", i), 4<<10); a.status != 200 {
			t.Fatalf("put: %v", a)
		}
	}
	return n
}

// write puts a value of n bytes and remembers it if that was acknowledged.
func (n *diskNode) write(key string, size int) answer {
	n.t.Helper()
	value := bytes.Repeat(fmt.Appendf(nil, "%s %d ", key, len(n.acked)), size/16)
	a := n.do("PUT", n.kv(diskTopic, key), nil, value)
	if a.status == 200 {
		n.acked[key] = value
	}
	return a
}

// fillUp writes until it is refused.
func (n *diskNode) fillUp() {
	n.t.Helper()
	for i := range 4000 {
		if a := n.write(fmt.Sprintf("fill-%04d", i), 128<<10); a.status != 200 {
			n.wantReadOnly(a)
			return
		}
	}
	n.t.Fatal("the disk does not fill up")
}

func (n *diskNode) wantReadOnly(a answer) {
	n.t.Helper()
	want(n.t, "a write to a full disk", a, 503, "read_only")
	if a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), "space") {
		n.t.Errorf("a write to a full disk: %v: no Retry-After or no reason", a)
	}
}

func (n *diskNode) wantAll(when string) {
	n.t.Helper()
	for key, value := range n.acked {
		wantValue(n.t, when+", "+key, n.get(diskTopic, key), value, "")
	}
}

// wantDegraded wants readiness and status to say that writes are refused.
func (n *diskNode) wantDegraded(degraded bool) {
	n.t.Helper()
	var ready struct {
		Degraded []string `json:"degraded"`
	}
	n.adminJSON("GET", "/v1/status/ready", nil, 200, &ready)
	if says := strings.Contains(strings.Join(ready.Degraded, "\n"), "writes are refused"); says != degraded {
		n.t.Errorf("readiness says %q", ready.Degraded)
	}
	var status struct {
		ReadOnly string `json:"read_only"`
	}
	n.adminJSON("GET", "/v1/cloud_storage/status/"+diskTopic+"/0", nil, 200, &status)
	if (status.ReadOnly != "") != degraded {
		n.t.Errorf("status says %q", status.ReadOnly)
	}
}

// A gateway that fills its own disk stops taking records while there is a reserve,
// serves both tiers, and makes room by evicting. Cases 6-06, 6-08, 7-03.
func TestFillsItsDisk(t *testing.T) {
	n := startOnSmallDisk(t, 40<<20)
	n.fillUp()
	n.wantReadOnly(n.do("DELETE", n.kv(diskTopic, "hot-00"), nil, nil))
	a := n.do("POST", n.data+"/topics/"+diskTopic, map[string][]string{"Content-Type": {"application/vnd.kafka.json.v2+json"}},
		[]byte(`{"records":[{"key":"a","value":1}]}`))
	if a.status != 503 || !strings.Contains(string(a.body), "50003") {
		t.Errorf("produce to a full disk: %v", a)
	}
	n.wantDegraded(true)
	n.wantAll("full")
	n.evict(diskTopic, 1) // needs the reserve
	poll(t, "writes are taken again", func() bool { return n.write("after", 1000).status == 200 })
	n.wantDegraded(false)
	n.wantAll("evicted")
	n.restart()
	n.wantAll("restarted")
	n.stop()
	n.mustCheck("after a full disk")
}

// Somebody else fills the disk to the last byte while records are written. Lookups
// go on, nothing acknowledged is lost, and writes go on by themselves once there is
// room. Cases 6-06, 6-08.
func TestDiskFilledByOthers(t *testing.T) {
	n := startOnSmallDisk(t, 40<<20)
	for round := range 3 {
		// Writers in flight while the last bytes go: some meet the full disk before
		// the gateway has noticed it.
		var stop atomic.Bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; !stop.Load(); i++ {
				key := fmt.Sprintf("race-%d-%d", round, i%50)
				value := bytes.Repeat(fmt.Appendf(nil, "%s ", key), 100)
				a, err := n.try("PUT", n.kv(diskTopic, key), nil, value)
				if err != nil || a.status != 200 && (a.status != 503 || a.header.Get("X-Kv-Reason") != "read_only") {
					t.Errorf("a write while the disk fills up: %v, %v", a, err)
					return
				}
				if a.status == 200 {
					n.acked[key] = value // nobody else writes until this has ended
				} else {
					return
				}
			}
		}()
		remove := ballast(t, n.disk)
		<-ended
		stop.Store(true)
		n.wantReadOnly(n.write("refused", 100<<10))
		n.wantDegraded(true)
		n.wantAll("full")
		if round == 1 { // and it is killed, and begins on a full disk
			n.kill()
			n.start()
		}
		remove()
		n.waitReady()
		poll(t, "writes are taken again", func() bool { return n.write("after", 1000).status == 200 })
		n.wantAll("room again")
		n.evict(diskTopic, 1)
		n.wantAll("evicted")
	}
	n.restart()
	n.wantAll("restarted")
	n.stop()
	n.mustCheck("after a full disk")
}
