// Package archtest holds the test that imports point one way:
//
//	record ◄─ objstore, index, locallog, cache, manifest ◄─ tiered ◄─ partition ◄─ catalog ◄─ gateway ◄─ cmd
//
// There is nothing else in it.
package archtest
