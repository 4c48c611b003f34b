package dir_test

import (
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/dir"
	"keyhole/objstore/objstoretest"
)

func TestContract(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Bucket {
		b, err := dir.Open(t.TempDir(), dir.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
}
