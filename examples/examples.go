// Package examples carries the configuration that `sluice up` runs without a file. The other folders here are for reading and for
// running with `sluice up -c`.
package examples

import _ "embed" // for the file below

// Quickstart is quickstart/sluice.yaml.
//
//go:embed quickstart/sluice.yaml
var Quickstart []byte
