package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"text/tabwriter"
)

// printBody writes a JSON answer as it came, and a line feed.
func (a *app) printBody(body []byte) error {
	_, err := fmt.Fprintf(a.out, "%s\n", bytes.TrimRight(body, "\n"))
	return err
}

// printJSON writes v as one line of JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printTable writes rows with aligned columns. An empty header is left out.
func (a *app) printTable(header []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(cells []string) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	if len(header) > 0 {
		line(header)
	}
	for _, r := range rows {
		line(r)
	}
	return w.Flush()
}

// countOf renders a number of things.
func countOf(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// byteSize renders a number of bytes for reading, with one decimal.
func byteSize(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	if n > -1024 && n < 1024 {
		return countOf(n, "byte")
	}
	size, unit := float64(n)/1024, 0
	for (size >= 1023.95 || size <= -1023.95) && unit < len(units)-1 {
		size /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}

// printable keeps control characters of stored text from the terminal.
func printable(s string) string {
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}
