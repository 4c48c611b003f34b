//go:build race

package index

// raceEnabled says that measurements mean nothing.
const raceEnabled = true
