package catalog

import (
	"fmt"
	"strings"

	"keyhole/partition"
)

// Readiness is the body of the readiness route.
type Readiness struct {
	Ready bool `json:"ready"`
	// NotReady lists the partitions that do not serve yet, and why. An entry
	// without a topic is the node itself.
	NotReady []NotReady `json:"not_ready"`
	// Degraded says what an operator should look at although the node serves.
	Degraded []string `json:"degraded"`
	// Damaged lists what answers with errors until somebody mends it. It does
	// not make the node unready: its other keys are served.
	Damaged []Damaged `json:"damaged"`
}

// NotReady is a partition that does not serve yet.
type NotReady struct {
	Topic     string `json:"topic,omitempty"`
	Partition *int32 `json:"partition,omitempty"`
	Reason    string `json:"reason"`
}

// Damaged is a partition with damage, or a topic that cannot be opened.
type Damaged struct {
	Topic     string `json:"topic"`
	Partition *int32 `json:"partition,omitempty"`
	Error     string `json:"error"`
}

// maxNamed bounds how many partitions one line names.
const maxNamed = 20

// Ready reports whether every partition here serves. A store that is away makes
// the node degraded; it makes it unready only while the node has no topic at
// all and so cannot tell what it is missing.
func (c *Catalog) Ready() Readiness {
	r := Readiness{NotReady: []NotReady{}, Degraded: []string{}, Damaged: []Damaged{}}
	if c.closed.Load() {
		r.NotReady = append(r.NotReady, NotReady{Reason: "closing"})
		return r
	}
	s := c.snap.Load()
	store, disk := partitionTrouble{what: "object store"}, partitionTrouble{what: "writes are refused"}
	var lost []string
	for _, t := range s.sorted {
		if t.isGone() {
			r.Degraded = append(r.Degraded, t.advice())
		}
		for _, p := range t.partitions {
			r.add(t, p)
			store.add(t, p, p.StoreTrouble())
			disk.add(t, p, p.ReadOnly())
			if p.TakenOver() != nil {
				lost = append(lost, fmt.Sprintf("%s/%d", t.name, p.ID()))
			}
		}
	}
	for name, err := range s.broken {
		r.Damaged = append(r.Damaged, Damaged{Topic: name, Error: err.Error()})
	}
	if !s.known {
		reason := c.remote.unknown().Error()
		r.Degraded = append(r.Degraded, reason)
		if len(s.byName) == 0 {
			r.NotReady = append(r.NotReady, NotReady{Reason: reason})
		}
	}
	if waiting, err := c.keeper.trouble(); err != nil {
		r.Degraded = append(r.Degraded, fmt.Sprintf("descriptions of %d topics wait for the object store: %v", waiting, err))
	}
	if n := len(lost); n > 0 {
		named := strings.Join(lost[:min(n, maxNamed)], ", ")
		if n > maxNamed {
			named += fmt.Sprintf(" and %d more", n-maxNamed)
		}
		r.Degraded = append(r.Degraded, "taken over by another node: "+named)
	}
	r.Degraded = append(r.Degraded, disk.lines()...)
	r.Degraded = append(r.Degraded, store.lines()...)
	notes, _ := c.remote.trouble()
	r.Degraded = append(r.Degraded, notes...)
	r.Ready = len(r.NotReady) == 0
	return r
}

func (r *Readiness) add(t *Topic, p *partition.Partition) {
	ready, reason, damaged := p.State()
	n := p.ID()
	if damaged != nil {
		r.Damaged = append(r.Damaged, Damaged{Topic: t.name, Partition: &n, Error: damaged.Error()})
		return
	}
	if !ready {
		r.NotReady = append(r.NotReady, NotReady{Topic: t.name, Partition: &n, Reason: reason})
	}
}

// partitionTrouble makes one line of what one cause does to a thousand partitions.
type partitionTrouble struct {
	what  string
	first string
	count int
}

func (s *partitionTrouble) add(t *Topic, p *partition.Partition, err error) {
	if err == nil {
		return
	}
	if s.count == 0 {
		s.first = fmt.Sprintf("%s/%d: %v", t.name, p.ID(), err)
	}
	s.count++
}

func (s *partitionTrouble) lines() []string {
	switch s.count {
	case 0:
		return nil
	case 1:
		return []string{s.what + ": " + s.first}
	}
	return []string{fmt.Sprintf("%s: %s (and %d more partitions)", s.what, s.first, s.count-1)}
}
