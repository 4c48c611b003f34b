// Package archtest holds tests over the source of the whole module: that every
// package with goroutines looks for leaked ones, and that imports point one way:
//
//	record ◄─ objstore, index, locallog, cache, manifest ◄─ tiered ◄─ partition ◄─ catalog ◄─ gateway ◄─ cmd
//
// There is nothing else in it.
package archtest
