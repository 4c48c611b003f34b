package gateway

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"keyhole/catalog"
	"keyhole/objstore"
	"keyhole/partition"
	"keyhole/record"
	"keyhole/tiered"
)

// The status and reason of every sentinel that can reach a handler, wrapped as it
// would be. What this table lacks, TestEveryOutcomeIsTested finds.
var classified = []struct {
	err    error
	status int
	reason string
	code   int // error_code of the produce routes
}{
	{partition.ErrKeyNotFound, 404, "key_not_found", 404},
	{catalog.ErrTopicNotFound, 404, "topic_not_found", 40401},
	{catalog.ErrPartitionNotFound, 404, "partition_not_found", 40402},
	{partition.ErrNotHosted, 421, "not_hosted", 42101},
	{catalog.ErrTakenOver, 421, "not_hosted", 42101},
	{partition.ErrNotIndexed, 404, "not_indexed", 404},
	{partition.ErrNotReady, 503, "not_ready", 50003},
	{catalog.ErrBucketUnknown, 503, "not_ready", 50003},
	{partition.ErrPositionNotReached, 503, "position_not_reached", 50003},
	{partition.ErrRemoteReadDisabled, 404, "remote_read_disabled", 404},
	{partition.ErrNotRetained, 404, "not_retained", 404},
	{errNoRoute, 404, "not_found", 404},
	{catalog.ErrFeatureNotFound, 404, "not_found", 404},
	{partition.ErrNoKey, 400, "bad_request", 42208},
	{partition.ErrKeyTooLong, 400, "bad_request", 42208},
	{partition.ErrRecordTooLarge, 413, "bad_request", 42208},
	{catalog.ErrTopicExists, 409, "conflict", 409},
	{partition.ErrRemoteWriteDisabled, 409, "conflict", 409},
	{catalog.ErrReadReplica, 409, "conflict", 409},
	{partition.ErrNoStore, 409, "conflict", 409},
	{catalog.ErrTopicGone, 503, "read_only", 50003},
	{record.ErrCorrupt, 500, "corrupt", 500},
	{objstore.ErrNotFound, 500, "corrupt", 500},
	{objstore.ErrRange, 500, "corrupt", 500},
	{partition.ErrClosed, 503, "closing", 50003},
	{catalog.ErrClosed, 503, "closing", 50003},
	{partition.ErrDiskFull, 503, "read_only", 50003},
	{partition.ErrReadOnly, 503, "read_only", 50003},
	{tiered.ErrOverloaded, 503, "overloaded", 50003},
	{errOverloaded, 503, "overloaded", 50003},
	{objstore.ErrUnavailable, 503, "store_unavailable", 50003},
	{objstore.ErrDenied, 503, "store_unavailable", 50003},
	{objstore.ErrMisconfigured, 503, "store_unavailable", 50003},
	{objstore.ErrUnusable, 503, "store_unavailable", 50003},
	{objstore.ErrUnsupported, 503, "store_unavailable", 50003},
	{objstore.ErrClosed, 503, "closing", 50003},
	{context.DeadlineExceeded, 504, "deadline", 50003},
	{context.Canceled, 503, "closing", 50003},
	// Not by sentinel:
	{record.Corrupt("t/0/x.log", 7, errors.New("bad CRC")), 500, "corrupt", 500},
	{&requestError{status: 415, message: "no"}, 415, "bad_request", 415},
	{&catalog.InvalidError{Properties: map[string]string{"p": "no"}}, 400, "bad_request", 400},
	{errors.New("something else"), 500, "internal", 500},
	// Several classes at once: damage is damage, and a store that did answer is
	// unavailable although the deadline came.
	{errors.Join(objstore.ErrUnavailable, record.ErrCorrupt), 500, "corrupt", 500},
	{errors.Join(context.DeadlineExceeded, objstore.ErrUnavailable), 503, "store_unavailable", 50003},
	{errors.Join(catalog.ErrBucketUnknown, objstore.ErrDenied), 503, "not_ready", 50003},
}

func TestClassify(t *testing.T) {
	for _, c := range classified {
		o := classify(fmt.Errorf("while looking: %w", c.err))
		if o.status != c.status || o.reason != c.reason || o.errorCode() != c.code || o.message == "" {
			t.Errorf("%v: %+v with code %d, want %d %s %d", c.err, o, o.errorCode(), c.status, c.reason, c.code)
		}
	}
}

func TestEveryOutcomeIsTested(t *testing.T) {
	tested := map[error]bool{}
	for _, c := range classified {
		if reflect.TypeOf(c.err).Comparable() {
			tested[c.err] = true
		}
	}
	counted := map[string]bool{}
	for _, reason := range lookupReasons {
		counted[reason] = true
	}
	for i := range outcomes {
		o := outcomes[i]
		if !tested[o.err] {
			t.Errorf("%v is in no row of the test", o.err)
		}
		if !counted[o.reason] && o.reason != reasonConflict {
			t.Errorf("a lookup that ends with %s is not counted", o.reason)
		}
	}
}
