package catalog

import "time"

// guardedClock gives the earlier of the wall clock and the time of the start plus
// what the monotonic clock has measured since. What is deleted by age goes by it:
// a wall clock that is set forward makes nothing older than it is, and one that
// is set back, or a machine that slept, only makes a deletion wait.
func guardedClock() func() time.Time {
	start := time.Now()
	return func() time.Time {
		now := time.Now()
		return earlier(now.Round(0), start.Round(0).Add(now.Sub(start)))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
