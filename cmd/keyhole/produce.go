package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"keyhole/partitioner"
)

// maxLanes bounds the requests in flight, and so the memory: a lane holds two
// batches.
const maxLanes = 8

func (a *app) newProduce() *cobra.Command {
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "produce TOPIC [FILE|-]",
		Short: "Write records from NDJSON",
		Long: `Writes records, one JSON object a line, from a file or standard input; gzip is
recognised. Fields: key, value (null: tombstone), and if wanted timestamp (Unix
ms), partition and headers ([{"name":…,"value":…}]). A string is its UTF-8 bytes,
{"base64":"…"} is bytes, anything else its JSON text exactly as it stands. (POST
/topics takes another form, where a JSON string keeps its quotes: docs/http.md.)

Records of one partition are written in the order of the input; what is answered
with "try again" is sent again for --retry-timeout, so that after a broken
connection a record may be written twice. At the first line that cannot be read
or is refused, reading stops: what stood before it is written, its number is
told, and the exit code is 1.`,
		Example: `  keyhole produce prices prices.ndjson.gz
  echo '{"key":"apple","value":{"eur":2.49}}' | keyhole produce prices
  echo '{"key":"apple","value":null}' | keyhole produce prices -`,
		Args:              between(1, 2, "TOPIC [FILE|-]"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			if patience < 0 {
				return misused("--retry-timeout must not be negative")
			}
			in, err := a.openInput(args[1:])
			if err != nil {
				return err
			}
			defer in.close()
			return a.produce(cmd.Context(), args[0], in, patience)
		},
	}
	cmd.Flags().DurationVar(&patience, "retry-timeout", time.Minute, "how long to repeat a request that fails for reasons that may pass")
	a.dataFlag(cmd)
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, time.Minute)
	a.jsonFlag(cmd)
	return cmd
}

// produceSummary is the result of produce.
type produceSummary struct {
	Topic            string  `json:"topic"`
	Records          int64   `json:"records"`
	Bytes            int64   `json:"bytes"` // keys, values and headers
	Retries          int64   `json:"retries"`
	Seconds          float64 `json:"seconds"`
	RecordsPerSecond float64 `json:"records_per_second"`
}

func (a *app) produce(ctx context.Context, topic string, in *input, patience time.Duration) error {
	e, err := a.data()
	if err != nil {
		return err
	}
	defer e.close()
	bar := a.newProgress("producing", "bytes", in.size)
	defer bar.finish()
	in.read.onRead = bar.add

	start := time.Now()
	p := newProducer(ctx, e, topic, in.name, patience, a.client.timeout)
	p.route = a.router(ctx, topic)
	readErr := p.run(in.reader, in.size >= 0)
	bar.finish()

	s := produceSummary{Topic: topic, Records: p.accepted.Load(), Bytes: p.bytes.Load(), Retries: p.retries.Load(), Seconds: time.Since(start).Seconds()}
	s.RecordsPerSecond = float64(s.Records) / max(s.Seconds, 1e-9)
	if a.json {
		err = a.printJSON(s)
	} else {
		_, err = fmt.Fprintf(a.out, "produced %d records (%.1f MB) to %s in %.2f s: %.0f records/s\n",
			s.Records, float64(s.Bytes)/1e6, topic, s.Seconds, s.RecordsPerSecond)
	}
	return errors.Join(readErr, err)
}

// route says in which of how many lanes a record goes, so that records of one
// partition stay in one lane.
type route struct {
	lanes int
	place func(key []byte, partition int32) int
}

// router asks the admin listener how many partitions there are. If that is not
// known, because the listener is not open to this client or the topic does not
// exist yet, one lane keeps every order.
func (a *app) router(ctx context.Context, topic string) route {
	one := route{1, func([]byte, int32) int { return 0 }}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	t, _, err := a.describeTopic(ctx, topic)
	if err != nil || t.Partitions < 2 {
		return one
	}
	name := t.Configs["keyhole.partitioner"].Value
	if name == "any" { // then writes go by the default
		name = "murmur2"
	}
	place, err := partitioner.For(name)
	if err != nil {
		return one
	}
	lanes := min(int(t.Partitions), maxLanes)
	return route{lanes, func(key []byte, p int32) int {
		if p < 0 {
			p = place(key, t.Partitions)
		}
		return int(p) % lanes
	}}
}

// openInput opens the file that args name; none or "-" is standard input.
func (a *app) openInput(args []string) (*input, error) {
	if len(args) == 0 || args[0] == "-" {
		return newInput("stdin", a.in, -1)
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	size := info.Size()
	if !info.Mode().IsRegular() {
		size = -1
	}
	in, err := newInput(args[0], f, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	in.file = f
	return in, nil
}
