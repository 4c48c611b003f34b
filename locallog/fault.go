package locallog

import (
	"errors"
	"fmt"
	"unsafe"

	"keyhole/record"
)

// A mapped file that is cut from outside, or whose disk fails, does not give an
// error but a fault at the address that was read. With debug.SetPanicOnFault the
// fault is a panic of the goroutine that read, and caught turns that into damage
// of the segment. Whoever uses mapped bytes sets it for as long as they do:
//
//	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
//	defer func() { s.caught(recover(), &err) }()

var errFault = errors.New("mapped file cannot be read")

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// caught sets *err if r is a fault inside one of the segment's mappings. Any
// other panic goes on.
func (s *segment) caught(r any, err *error) {
	if r == nil {
		return
	}
	fault, ok := r.(interface {
		error
		Addr() uintptr
	})
	if !ok || !s.holds(fault.Addr()) {
		panic(r)
	}
	*err = record.Corrupt(s.name, 0, fmt.Errorf("%w: %w", errFault, fault))
}
