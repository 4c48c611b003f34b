package tiered

import "time"

// Collected says what Collect has deleted, or would have.
type Collected struct {
	Objects []Garbage
}

// Garbage is an object that nobody needs any more.
type Garbage struct {
	Key  string
	Size int64 // bytes; 0 if not known
	Age  time.Duration
	Why  string // "replaced" or "orphan"
}
