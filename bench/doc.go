// Command bench measures keyhole against peers that do the least that could be
// done, in one run, and prints the ratios:
//
//	go run ./bench [-quick|-full] [-only hot,cold,…] [-json]     (make bench)
//
//	          ┌ load (process) ─► keyhole (process) ─┐
//	rounds ─► ┼ load (process) ─► bare net/http       ├─► ratio of neighbours ─► median
//	          └ load (process) ─► redis-server        ┘
//	cold: client ─► keyhole ─► proxy (latency, rate) ─► versitygw
//	      client ─────── SDK ─► proxy ─► versitygw       the same ranges
//
// Absolute numbers of a shared machine mean little. So whatever is compared runs
// in turns, A B A B, a ratio is taken of neighbours only, and the median of the
// ratios is what counts; their range is printed beside it. No number makes the
// program fail: it exits with 1 only if something could not be measured.
//
// What is measured and where each comparison may be unfair is told in
// docs/benchmarks.md, with results.
package main
