package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// report is everything a run found, in the form of -json.
type report struct {
	Machine machine   `json:"machine"`
	Scale   string    `json:"scale"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Rows    []row     `json:"rows"`
	Tables  []table   `json:"tables,omitempty"`
	Skipped []string  `json:"skipped,omitempty"`

	section string // that runs now
}

// row is one comparison or, without a peer, one measurement.
type row struct {
	Section string  `json:"section"`
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Keyhole float64 `json:"keyhole"`
	Peer    float64 `json:"peer,omitempty"`
	PeerIs  string  `json:"peer_is,omitempty"`
	Ratio   *spread `json:"ratio,omitempty"`
	Goal    string  `json:"goal,omitempty"`
}

// table is a measurement with more than one number a line.
type table struct {
	Section string     `json:"section"`
	Name    string     `json:"name"`
	Columns []string   `json:"columns"`
	Lines   [][]string `json:"lines"`
}

// compare notes a comparison in rounds.
func (r *report) compare(name, unit, peerIs string, in rounds, goal string) {
	ratio := spreadOf(in.ratios)
	r.Rows = append(r.Rows, row{
		Section: r.section, Name: name, Unit: unit, PeerIs: peerIs, Ratio: &ratio, Goal: goal,
		Keyhole: spreadOf(in.ours).Median, Peer: spreadOf(in.peer).Median,
	})
}

// value notes a measurement that stands for itself.
func (r *report) value(name, unit string, v float64, goal string) {
	r.Rows = append(r.Rows, row{Section: r.section, Name: name, Unit: unit, Keyhole: v, Goal: goal})
}

func (r *report) table(name string, columns []string, lines [][]string) {
	r.Tables = append(r.Tables, table{Section: r.section, Name: name, Columns: columns, Lines: lines})
}

func (r *report) skip(format string, args ...any) {
	r.Skipped = append(r.Skipped, r.section+": "+fmt.Sprintf(format, args...))
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.text(w)
}

func (r *report) text(w io.Writer) error {
	fmt.Fprintf(w, "\n%s\n%s run of %s, %.0f s\n\n", r.Machine, r.Scale, r.Started.Format(time.RFC3339), r.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "measurement\tunit\tkeyhole\tpeer\tratio (lowest … highest)\tgoal")
	for _, row := range r.Rows {
		peer, ratio := "", ""
		if row.Ratio != nil {
			peer = number(row.Peer) + " " + row.PeerIs
			ratio = fmt.Sprintf("%s (%s … %s)", number(row.Ratio.Median), number(row.Ratio.Min), number(row.Ratio.Max))
		}
		fmt.Fprintf(t, "%s: %s\t%s\t%s\t%s\t%s\t%s\n", row.Section, row.Name, row.Unit, number(row.Keyhole), peer, ratio, row.Goal)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, table := range r.Tables {
		fmt.Fprintf(w, "\n%s: %s\n", table.Section, table.Name)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, line := range append([][]string{table.Columns}, table.Lines...) {
			fmt.Fprintln(t, strings.Join(line, "\t")+"\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "\nskipped: %s", s)
	}
	_, err := fmt.Fprintln(w)
	return err
}

// number writes three figures, or all before the point.
func number(v float64) string {
	switch a := max(v, -v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
