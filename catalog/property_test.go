package catalog

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestCanonicalValues(t *testing.T) { // case 8-05
	tests := []struct {
		table    table
		property string
		in       any
		want     string // empty: refused
	}{
		{clusterTable, propIndexEnabled, true, "true"},
		{clusterTable, propIndexEnabled, "TRUE", "true"},
		{clusterTable, propIndexEnabled, " false ", "false"},
		{clusterTable, propIndexEnabled, "yes", ""},
		{clusterTable, propIndexEnabled, 1.0, ""},
		{clusterTable, propIndexEnabled, "", ""},
		{clusterTable, propIndexEnabled, []any{true}, ""},
		{clusterTable, propCacheSize, 1048576.0, "1048576"},
		{clusterTable, propCacheSize, "1048576", "1048576"},
		{clusterTable, propCacheSize, json.Number("1048576"), "1048576"},
		{clusterTable, propCacheSize, json.Number("1e6"), "1000000"},
		{clusterTable, propCacheSize, 1048576, "1048576"},
		{clusterTable, propCacheSize, int64(7), "7"},
		{clusterTable, propCacheSize, "+7", "7"},
		{clusterTable, propCacheSize, "1e6", ""},
		{clusterTable, propCacheSize, "0x10", ""},
		{clusterTable, propCacheSize, "", ""},
		{clusterTable, propCacheSize, 1.5, ""},
		{clusterTable, propCacheSize, math.NaN(), ""},
		{clusterTable, propCacheSize, math.Inf(1), ""},
		{clusterTable, propCacheSize, 1e300, ""},
		{clusterTable, propCacheSize, json.Number("1e999"), ""},
		{clusterTable, propCacheSize, "9223372036854775808", ""},
		{clusterTable, propCacheSize, -1, ""},
		{clusterTable, propCacheSize, "-1", ""},
		{clusterTable, propCacheSize, true, ""},
		{clusterTable, propCacheSize, map[string]any{}, ""},
		{clusterTable, propChunkSize, 16383, ""},
		{clusterTable, propChunkSize, 16384, "16384"},
		{clusterTable, propChunkSize, 8 << 20, "8388608"},
		{clusterTable, propChunkSize, 8<<20 + 1, ""},
		{topicTable, propSegmentBytes, "1023", ""},
		{topicTable, propSegmentBytes, "1024", "1024"},
		{topicTable, propSegmentBytes, "1073741824", "1073741824"},
		{topicTable, propSegmentBytes, "1073741825", ""},
		{topicTable, propMaxMessageBytes, "67108864", "67108864"},
		{topicTable, propMaxMessageBytes, "67108865", ""},
		{topicTable, propLocalBytes, "-1", "-1"},
		{topicTable, propLocalBytes, "0", "0"},
		{topicTable, propLocalBytes, "-2", ""},
		{topicTable, propDeleteRetention, "-1", ""},
		{topicTable, propRetentionAge, "9223372036854775807", ""}, // would overflow a duration
		{topicTable, propCompression, "zstd", "zstd"},
		{topicTable, propCompression, "ZSTD", ""},
		{topicTable, propCompression, 4.0, ""},
		{topicTable, propCleanupPolicy, "compact", "compact"},
		{topicTable, propCleanupPolicy, "delete, compact", "compact,delete"},
		{topicTable, propCleanupPolicy, "compact,compact", "compact"},
		{topicTable, propCleanupPolicy, []any{"delete", "compact"}, "compact,delete"},
		{topicTable, propCleanupPolicy, []any{1.0}, ""},
		{topicTable, propCleanupPolicy, []any{}, ""},
		{topicTable, propCleanupPolicy, "compact,", ""},
		{topicTable, propCleanupPolicy, "", ""},
		{topicTable, propCleanupPolicy, true, ""},
		{topicTable, propDirtyRatio, "0.5", "0.5"},
		{topicTable, propDirtyRatio, ".50", "0.5"},
		{topicTable, propDirtyRatio, 0.25, "0.25"},
		{topicTable, propDirtyRatio, json.Number("5e-1"), "0.5"},
		{topicTable, propDirtyRatio, 1, "1"},
		{topicTable, propDirtyRatio, int64(0), "0"},
		{topicTable, propDirtyRatio, "-0", "0"},
		{topicTable, propDirtyRatio, "1.0000001", ""},
		{topicTable, propDirtyRatio, "-0.1", ""},
		{topicTable, propDirtyRatio, "0x1p-2", ""},
		{topicTable, propDirtyRatio, "NaN", ""},
		{topicTable, propDirtyRatio, math.NaN(), ""},
		{topicTable, propDirtyRatio, "Inf", ""},
		{topicTable, propDirtyRatio, "", ""},
		{topicTable, propDirtyRatio, "half", ""},
		{topicTable, propDirtyRatio, true, ""},
		{topicTable, propRemoteCodec, "producer", "producer"},
		{topicTable, propRemoteCodec, "uncompressed", ""},
		{clusterTable, propReplicaPace, 9, ""},
		{clusterTable, propReplicaPace, 10, "10"},
		{topicTable, propPartitioner, "crc32", "crc32"},
		{topicTable, propPartitioner, "random", ""},
	}
	for _, tt := range tests {
		p := tt.table.find(tt.property)
		got, err := p.canonical(tt.in)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s = %#v: got %q, %v; want %q", tt.property, tt.in, got, err, tt.want)
		}
	}
}

func TestTablesAgreeWithThemselves(t *testing.T) {
	for _, tbl := range []table{clusterTable, topicTable} {
		seen := map[string]bool{}
		for i := range tbl {
			p := &tbl[i]
			if seen[p.Name] {
				t.Errorf("%s is in its table twice", p.Name)
			}
			seen[p.Name] = true
			if p.Doc == "" {
				t.Errorf("%s has no doc", p.Name)
			}
			for _, store := range []bool{false, true} {
				d := p.defaultValue(store)
				if c, err := p.canonical(d); err != nil || c != d {
					t.Errorf("%s: its default %q is not canonical: %q, %v", p.Name, d, c, err)
				}
			}
			if p.Kind != intKind && p.Kind != ratioKind && (p.Unit != "" || p.Unlimited || p.Min != 0 || p.Max != 0) {
				t.Errorf("%s has bounds and is no number", p.Name)
			}
		}
	}
}

func TestEditIsAllOrNothing(t *testing.T) { // case 8-05
	old := overrides{propCacheSize: "7"}
	next, changes, err := clusterTable.edit(old, map[string]any{
		propIndexEnabled: "maybe",
		propCacheSize:    "1048576",
		"kv_indx":        true,
		propRemoteReads:  0,
	}, []string{"nothing", propCacheSize}, false)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || next != nil || changes != nil {
		t.Fatalf("got %v, %v, %v", next, changes, err)
	}
	want := map[string]string{
		propIndexEnabled: "must be true or false",
		"kv_indx":        "no such property",
		propRemoteReads:  "must be from 1 to 65536",
		"nothing":        "no such property",
		propCacheSize:    "is both set and removed",
	}
	for name, message := range want {
		if invalid.Properties[name] != message {
			t.Errorf("%s: %q, want %q", name, invalid.Properties[name], message)
		}
		if !strings.Contains(err.Error(), name+": "+message) {
			t.Errorf("%q lacks %s", err, name)
		}
	}
	if len(invalid.Properties) != len(want) {
		t.Errorf("refused %v", invalid.Properties)
	}
	if len(old) != 1 || old[propCacheSize] != "7" {
		t.Errorf("old overrides became %v", old)
	}
}

func TestEditSetsAndRemoves(t *testing.T) {
	old := overrides{propCacheSize: "7", propRemoteReads: "3"}
	next, changes, err := clusterTable.edit(old, map[string]any{propIndexEnabled: "True", propRemoteReads: nil, propChunkSize: "32768"}, []string{propCacheSize}, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(next) != 2 || next[propIndexEnabled] != "true" || next[propChunkSize] != "32768" {
		t.Errorf("next is %v", next)
	}
	want := []change{{propCacheSize, "7", "268435456"}, {propIndexEnabled, "false", "true"}, {propRemoteReads, "3", "64"}}
	if len(changes) != len(want) {
		t.Fatalf("changes are %v", changes)
	}
	for i := range want {
		if changes[i] != want[i] {
			t.Errorf("change %d is %v, want %v", i, changes[i], want[i])
		}
	}
}

func TestTopicNames(t *testing.T) {
	for _, name := range []string{"x", "x.tmp", "x.part", "a.b_c-D9", "...", "topics", "LOCK", strings.Repeat("n", 249)} {
		if err := checkTopicName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "a b", "ä", "a\x00", "~probe", "a:b", `a\b`, "cluster.json", strings.Repeat("n", 250)} {
		if checkTopicName(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}
