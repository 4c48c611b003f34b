package partition

import "errors"

// Outcomes of a lookup or an append that are not a success. Damage is
// record.ErrCorrupt, trouble with the bucket one of objstore's or tiered's
// errors, and a spent deadline context.DeadlineExceeded; all three pass
// through wrapped.
var (
	// ErrNotHosted says that a newer writer owns the partition, or that this
	// disk holds a tail that the bucket has moved past.
	ErrNotHosted = errors.New("partition not hosted on this node")
	// ErrNotIndexed says that the topic has no index, or that a switch hides it.
	ErrNotIndexed = errors.New("topic not indexed")
	// ErrNotReady says that the partition is still recovering or catching up.
	ErrNotReady = errors.New("partition not ready")
	// ErrPositionNotReached says that Query.MinPosition was not applied in time.
	ErrPositionNotReached = errors.New("position not reached")
	// ErrKeyNotFound says that the key is absent or tombstoned.
	ErrKeyNotFound = errors.New("key not found")
	// ErrRemoteReadDisabled says that the record is below the local start and
	// a switch forbids reading the bucket.
	ErrRemoteReadDisabled = errors.New("record only available in tiered storage")
	// ErrNotRetained says that neither tier holds the record any more.
	ErrNotRetained = errors.New("record not retained")
	// ErrReadOnly says that a write or fsync failed; lookups go on, and the
	// partition writes again after a restart.
	ErrReadOnly = errors.New("partition is read-only")
	// ErrDiskFull says that there is no room for records; lookups go on, and so
	// do writes within seconds of there being room again.
	ErrDiskFull = errors.New("disk is full")
	// ErrClosed is what every call gives after Close.
	ErrClosed = errors.New("partition closed")
	// ErrNoKey refuses a record without a key: a compacted topic cannot keep it.
	ErrNoKey = errors.New("record has no key")
	// ErrKeyTooLong refuses a key of more than MaxKeyBytes.
	ErrKeyTooLong = errors.New("key too long")
	// ErrRecordTooLarge refuses a record larger than max.message.bytes.
	ErrRecordTooLarge = errors.New("record too large")
	// ErrRemoteWriteDisabled refuses an eviction that would need an upload.
	ErrRemoteWriteDisabled = errors.New("remote write is disabled for this topic")
	// ErrNoStore says that no object store is configured.
	ErrNoStore = errors.New("no object store configured")
)
