// Package history keeps what the gateway has done in the last 24 hours: one sample of each model
// and of the sum of all models every ten seconds. Package internal/gateway runs a Store and says
// what a sample is. The admin listener answers questions about it.
//
// Read series.go (what is kept), value.go (a value has two bytes), hour.go (one hour in memory),
// file.go (one hour on disk), archive.go (all hours, and their bound), store.go (Store), query.go.
// Traffic (traffic.go) counts what ends between two samples.
//
// A value that has not changed takes no room. An hour has a file in the state directory, to which
// each sample is appended at once, so that the samples outlive the process and kill -9. Each record
// of a file has a checksum.
package history
