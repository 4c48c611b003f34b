package objstoretest_test

import (
	"testing"

	"keyhole/objstore"
	"keyhole/objstore/objstoretest"
)

func TestMemory(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Bucket { return objstoretest.NewMemory() })
}

func TestFaultyIsTransparent(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Bucket { return objstoretest.NewFaulty(nil) })
}
