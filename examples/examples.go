// Package examples contains the configuration that `sluice up` uses without a file, and the JSON
// Schema of such files. The command sluice uses both. The other folders are examples to read and to
// run with `sluice up -c`.
package examples

import _ "embed" // for Quickstart and Schema

// Quickstart is the content of quickstart/sluice.yaml.
//
//go:embed quickstart/sluice.yaml
var Quickstart []byte

// Schema is the JSON Schema of the configuration file. A test of package internal/config generates
// it.
//
//go:embed sluice.schema.json
var Schema []byte
