package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"
)

const (
	hotValue = 1 << 10 // bytes of every value
	hotConns = 16
)

// side is one server of the hot measurements.
type side struct {
	name  string
	proto string
	addr  string
	pid   int
}

// sample is one round of one side.
type sample struct {
	loadResult
	cpu float64 // processor time of the server per request, µs; 0: not known
}

func measureHot(ctx context.Context, b *bench) error {
	keys, value := b.scale.hotKeys, func(i int) []byte { return syntheticValue(i, hotValue) }
	n, err := b.startNode(ctx, filepath.Join(b.dir, "hot"), "")
	if err != nil {
		return err
	}
	defer n.kill()
	if err := n.createTopic(ctx, "bench", 4, nil); err != nil {
		return err
	}
	records := make([]pair, keys)
	for i := range records {
		records[i] = pair{hotKey(i), value(i)}
	}
	if err := n.produce(ctx, "bench", slices.Values(records)); err != nil {
		return err
	}
	bare, err := startBare(hotValue)
	if err != nil {
		return err
	}
	defer bare.stop()
	sides := []side{
		{"keyhole", "http", n.addr, n.pid()},
		{"bare handler", "http", bare.addr, bare.pid()},
	}
	redis, err := startRedis(ctx, b.dir, keys, value)
	switch {
	case errors.Is(err, errNoRedis):
		b.report.skip("comparison with Redis: %v", err)
	case err != nil:
		return err
	default:
		defer redis.stop()
		sides = append(sides, side{"Redis GET", "resp", redis.addr, redis.pid()})
	}
	samples, err := b.hotRounds(ctx, sides)
	if err != nil {
		return err
	}
	b.reportHot(sides, samples)
	return nil
}

// hotRounds gives the samples of each round, by side. The side that begins
// changes from round to round.
func (b *bench) hotRounds(ctx context.Context, sides []side) ([][]sample, error) {
	o := loadOptions{conns: hotConns, keys: b.scale.hotKeys, size: hotValue, warm: 300 * time.Millisecond, duration: b.scale.hotRound}
	var all [][]sample
	for r := range b.scale.hotRounds {
		samples := make([]sample, len(sides))
		for i := range sides {
			i = (i + r) % len(sides)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s := sides[i]
			o.addr, o.proto = s.addr, s.proto
			before, known := cpuTime(s.pid)
			result, err := load(o)
			if err != nil {
				return nil, err
			}
			samples[i].loadResult = result
			if after, ok := cpuTime(s.pid); ok && known {
				samples[i].cpu = float64(after-before) / 1e3 / float64(result.All)
			}
		}
		all = append(all, samples)
	}
	return all, nil
}

func (b *bench) reportHot(sides []side, samples [][]sample) {
	micros := func(d time.Duration) float64 { return float64(d) / 1e3 }
	for i := 1; i < len(sides); i++ {
		var throughput, p50, p99, cpu rounds
		for _, s := range samples {
			k, p := s[0], s[i]
			throughput.add(k.perSecond(), p.perSecond(), k.perSecond()/p.perSecond())
			p50.add(micros(k.P50), micros(p.P50), float64(k.P50)/float64(p.P50))
			p99.add(micros(k.P99), micros(p.P99), float64(k.P99)/float64(p.P99))
			if k.cpu > 0 && p.cpu > 0 {
				cpu.add(k.cpu, p.cpu, p.cpu/k.cpu)
			}
		}
		goal := ""
		if i == 1 {
			goal = "≥ 0.8"
		}
		peer := sides[i].name
		b.report.compare("throughput, 1 KiB, 16 connections", "1/s", peer, throughput, goal)
		b.report.compare("p50", "µs", peer, p50, "")
		b.report.compare("p99", "µs", peer, p99, "")
		if len(cpu.ratios) > 0 {
			b.report.compare("server's processor time a request (peer / keyhole)", "µs", peer, cpu, "")
		}
	}
}
