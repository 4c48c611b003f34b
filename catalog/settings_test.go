package catalog

import (
	"testing"
	"time"

	"keyhole/partition"
	"keyhole/record"
)

// settingsOf maps the properties of a topic and the cluster as a node with a
// store does.
func settingsOf(t *testing.T, topic, cluster overrides) partition.Settings {
	t.Helper()
	data := &topicData{Name: "t", ID: newID(), Partitions: 1, Revision: 1, Properties: topic}
	if err := data.validate(); err != nil {
		t.Fatal(err)
	}
	config, err := newTopicConfig(data, true)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &configData{Properties: cluster}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	return partitionSettings(config, newSwitches(cfg, true))
}

func TestSettingsOfCompactionAndCleanUp(t *testing.T) {
	s := settingsOf(t, nil, nil)
	want := s
	want.KeepCodec = true
	want.RemoteCodec, want.RemoteMerge = record.Zstd, true
	want.DirtyRatio, want.CompactionLag, want.DeleteRetention = 0.5, 0, 24*time.Hour
	want.RetentionBytes, want.RetentionAge = -1, -1
	want.GCGrace, want.ReplicaInterval = time.Hour, time.Second
	if s != want {
		t.Errorf("defaults are\n%+v, want\n%+v", s, want)
	}

	s = settingsOf(t, overrides{
		propCompression: "none", propRemoteCodec: "lz4", propDirtyRatio: "0.05", propCompactionLag: "7", propDeleteRetention: "0",
		propCleanupPolicy: "compact,delete", propRetentionBytes: "0", propRetentionAge: "9",
	}, overrides{propGCGrace: "6000", propReplicaPace: "250"})
	want = s
	want.KeepCodec = false
	want.RemoteCodec, want.RemoteMerge = record.LZ4, true
	want.DirtyRatio, want.CompactionLag, want.DeleteRetention = 0.05, 7*time.Millisecond, 0
	want.RetentionBytes, want.RetentionAge = 0, 9*time.Millisecond
	want.GCGrace, want.ReplicaInterval = 6*time.Second, 250*time.Millisecond
	if s != want {
		t.Errorf("set, they are\n%+v, want\n%+v", s, want)
	}

	for value, want := range map[string]struct {
		codec record.Codec
		merge bool
	}{"producer": {record.None, false}, "none": {record.None, true}, "gzip": {record.Gzip, true}, "snappy": {record.Snappy, true}, "zstd": {record.Zstd, true}} {
		s := settingsOf(t, overrides{propRemoteCodec: value}, nil)
		if s.RemoteCodec != want.codec || s.RemoteMerge != want.merge {
			t.Errorf("%s: codec %v, merge %v", value, s.RemoteCodec, s.RemoteMerge)
		}
	}
}

// Retention deletes what nothing else has, so it acts only on a policy that says
// so, also where a limit was kept from an earlier one.
func TestRetentionActsOnlyUnderThePolicy(t *testing.T) {
	s := settingsOf(t, overrides{propRetentionBytes: "1", propRetentionAge: "1"}, nil)
	if s.RetentionBytes >= 0 || s.RetentionAge >= 0 {
		t.Errorf("compact alone: %d bytes, %v", s.RetentionBytes, s.RetentionAge)
	}
	s = settingsOf(t, overrides{propCleanupPolicy: "compact,delete"}, nil)
	if s.RetentionBytes >= 0 || s.RetentionAge >= 0 {
		t.Errorf("no limits set: %d bytes, %v", s.RetentionBytes, s.RetentionAge)
	}
}
