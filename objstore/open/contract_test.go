package open_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"keyhole/internal/s3test"
	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
	"keyhole/objstore/open"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var clients = []string{"aws", "minio"}

func eachClient(t *testing.T, test func(t *testing.T, client string)) {
	for _, client := range clients {
		t.Run(client, func(t *testing.T) { test(t, client) })
	}
}

func mustOpen(t *testing.T, url string, o open.Options) objstore.Bucket {
	t.Helper()
	b, err := open.Bucket(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// runContract gives each test of the suite a prefix of its own.
func runContract(t *testing.T, url func(prefix string) string) {
	s3test.SetEnvironment(t)
	n := 0
	objstoretest.Run(t, func(t *testing.T) objstore.Bucket {
		n++
		return mustOpen(t, url(fmt.Sprintf("some/prefix-%d", n)), open.Options{})
	})
}

func TestContractWithGateway(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		gateway := s3test.StartGateway(t)
		runContract(t, func(prefix string) string { return s3test.URL(gateway.Endpoint, prefix, client) })
	})
}

func TestContractWithStub(t *testing.T) {
	eachClient(t, func(t *testing.T, client string) {
		stub := s3test.StartStub(t)
		stub.SetPageSize(100)
		runContract(t, func(prefix string) string { return s3test.URL(stub.Endpoint, prefix, client) })
	})
}

func TestContractOfFolder(t *testing.T) {
	root := t.TempDir()
	runContract(t, func(prefix string) string { return "file://" + root + "/" + prefix })
}
