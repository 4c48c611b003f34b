package main

import (
	"math"
	"slices"
	"time"
)

// quantile is the smallest value that at least q of all values do not exceed;
// values is sorted. 0 for none.
func quantile[T any](values []T, q float64) (v T) {
	if len(values) == 0 {
		return v
	}
	i := int(math.Ceil(q*float64(len(values)))) - 1
	return values[min(max(i, 0), len(values)-1)]
}

// latencies are the times of single operations.
type latencies []time.Duration

func (l latencies) quantile(q float64) time.Duration {
	slices.Sort(l)
	return quantile(l, q)
}

func (l latencies) mean() time.Duration {
	if len(l) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range l {
		sum += d
	}
	return sum / time.Duration(len(l))
}

// spread is a median with the range around it.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	s := slices.Sorted(slices.Values(values))
	return spread{Median: quantile(s, 0.5), Min: s[0], Max: s[len(s)-1]}
}

// rounds collects what the sides of a comparison measured, round by round.
type rounds struct{ ours, peer, ratios []float64 }

// add notes one round; quotient is the ratio that the goal is about.
func (r *rounds) add(ours, peer, quotient float64) {
	r.ours, r.peer, r.ratios = append(r.ours, ours), append(r.peer, peer), append(r.ratios, quotient)
}
