package locallog

// end is where the log is known to have reached, if it is.
func (r *recovery) end() anchor {
	switch {
	case r.stop != nil:
		return anchor{log: r.stop.log, kafka: r.stop.nextKafka}
	case r.o.ProvenNextKafka > 0:
		return anchor{log: r.o.ProvenNextLog, kafka: r.o.ProvenNextKafka}
	}
	return anchor{}
}

// tail reads the last segment with all its CRCs and decides what is damage in it
// and what a torn write.
func (r *recovery) tail(sc *scanner, f *logFile) (*scanned, error) {
	sc.verify = true
	res, err := sc.segment(f.baseLog, f.baseKafka, r.end())
	if err != nil {
		return nil, err
	}
	for _, h := range res.holes {
		if r.stop != nil || h.log < r.o.ProvenNextLog {
			continue
		}
		torn, err := sc.torn(h)
		if err != nil {
			return nil, err
		}
		if torn {
			sc.size = h.pos
			if res, err = sc.segment(f.baseLog, f.baseKafka, r.end()); err != nil {
				return nil, err
			}
			break
		}
	}
	r.knownEnd(f, res)
	return res, nil
}

// knownEnd marks a bad tail as a hole if it is known that the log once reached
// further.
func (r *recovery) knownEnd(f *logFile, res *scanned) {
	proven := r.o.ProvenNextLog
	switch {
	case r.stop != nil && r.stop.log > res.nextLog:
		res.fill(r.stop.log, r.stop.nextKafka)
	case r.stop == nil && res.end < f.size && proven > res.nextLog:
		kafka := r.o.ProvenNextKafka
		if kafka < res.nextKafka {
			kafka = res.nextKafka + proven - res.nextLog
		}
		res.fill(proven, kafka)
	case res.nextLog == f.baseLog:
		// The checkpoint was durable before the file had its name.
		res.fill(f.baseLog+1, res.nextKafka)
	}
}
