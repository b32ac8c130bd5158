// Package examples contains the configuration that `sluice up` uses without a file. The command
// sluice uses it; the other folders are examples to read and to run with `sluice up -c`.
package examples

import _ "embed" // for Quickstart

// Quickstart is the content of quickstart/sluice.yaml.
//
//go:embed quickstart/sluice.yaml
var Quickstart []byte
