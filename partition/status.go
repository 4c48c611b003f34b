package partition

import (
	"context"
	"errors"
	"time"

	"keyhole/locallog"
	"keyhole/tiered"
)

// Status is the partition's place in both tiers. Offsets are Kafka offsets, last
// ones inclusive; what is not known, or does not exist, is left out.
type Status struct {
	Mode                  string  `json:"cloud_storage_mode"`
	LocalStart            *int64  `json:"local_log_start_offset,omitempty"`
	LocalLast             *int64  `json:"local_log_last_offset,omitempty"`
	HighWatermark         *int64  `json:"high_watermark,omitempty"`
	CloudStart            *int64  `json:"cloud_log_start_offset,omitempty"`
	CloudLast             *int64  `json:"cloud_log_last_offset,omitempty"`
	LocalSegments         int     `json:"local_log_segment_count"`
	LocalBytes            int64   `json:"local_log_size_bytes"`
	CloudSegments         int     `json:"cloud_log_segment_count"`
	CloudBytes            int64   `json:"cloud_log_size_bytes"`
	RemovedSegments       int     `json:"cloud_log_removed_segment_count"` // replaced or expired, their objects wait for deletion
	RemovedBytes          int64   `json:"cloud_log_removed_size_bytes"`
	SinceManifestUploadMS *int64  `json:"ms_since_last_manifest_upload,omitempty"`
	IndexLastApplied      *int64  `json:"index_last_applied,omitempty"`
	IndexKeys             *int64  `json:"index_keys,omitempty"`
	IndexBytes            *int64  `json:"index_size_bytes,omitempty"`
	Fenced                bool    `json:"fenced,omitempty"`
	SingleWriter          bool    `json:"single_writer,omitempty"`
	StoreError            *string `json:"store_error,omitempty"`
	ReadOnly              *string `json:"read_only,omitempty"`
}

// Modes of a partition towards the bucket.
const (
	modeDisabled  = "disabled"
	modeReadOnly  = "read_only"
	modeWriteOnly = "write_only"
	modeFull      = "full"
)

func (s *Settings) mode(store bool) string {
	switch {
	case !store || !s.RemoteRead && !s.RemoteWrite:
		return modeDisabled
	case !s.RemoteWrite:
		return modeReadOnly
	case !s.RemoteRead:
		return modeWriteOnly
	}
	return modeFull
}

// Status reads what is in memory; it asks the store for nothing.
func (p *Partition) Status() Status {
	s := p.settings.Load()
	st := Status{Mode: s.mode(p.o.remote()), Fenced: p.fenced.Load()}
	if err := p.StoreTrouble(); err != nil {
		text := err.Error()
		st.StoreError = &text
	}
	if err := p.ReadOnly(); err != nil {
		text := err.Error()
		st.ReadOnly = &text
	}
	if log := p.log.Load(); log != nil {
		localStatus(&st, log)
	} else if !p.o.Replica {
		return st
	}
	if p.o.Replica && p.serving.Load() == nil {
		return st // the tier may not be open yet
	}
	if p.tier != nil {
		p.remoteStatus(&st)
	}
	if v := p.serving.Load(); v != nil {
		if next := v.ix.Applied().NextKafka; next > 0 {
			last := next - 1
			st.IndexLastApplied = &last
		}
		keys, size := v.ix.EstimatedKeys(), v.ix.DiskBytes()
		st.IndexKeys, st.IndexBytes = &keys, &size
	}
	return st
}

func localStatus(st *Status, log *locallog.Log) {
	ls := log.State()
	st.LocalStart, st.HighWatermark = &ls.LocalStart, &ls.HighWatermark
	if ls.HighWatermark > ls.LocalStart {
		last := ls.HighWatermark - 1
		st.LocalLast = &last
	}
	for _, seg := range log.Segments() {
		st.LocalSegments++
		st.LocalBytes += seg.Bytes
	}
}

func (p *Partition) remoteStatus(st *Status) {
	m := p.tier.Snapshot()
	st.SingleWriter = p.tier.SingleWriter()
	for _, seg := range m.Segments {
		st.CloudSegments++
		st.CloudBytes += seg.Size
	}
	for _, r := range m.Removed {
		st.RemovedSegments++
		st.RemovedBytes += r.Size
	}
	if len(m.Segments) > 0 {
		start, last := m.Start(), m.Next()-1
		st.CloudStart, st.CloudLast = &start, &last
	}
	if at := p.tier.LastCommit(); !at.IsZero() {
		ms := time.Since(at).Milliseconds()
		st.SinceManifestUploadMS = &ms
	}
}

// Manifest is the manifest as it is in the bucket now.
func (p *Partition) Manifest(ctx context.Context) ([]byte, error) {
	if p.log.Load() == nil && !(p.o.Replica && p.serving.Load() != nil) {
		return nil, p.notServing()
	}
	if p.tier == nil {
		return nil, ErrNoStore
	}
	data, err := p.tier.RawManifest(ctx)
	if errors.Is(err, tiered.ErrClosed) {
		return nil, ErrClosed
	}
	return data, err
}
