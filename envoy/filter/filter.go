// Package filter holds the filter that Envoy loads to have requests decided by package
// internal/frames. Package internal/gateway uses it: it has Envoy load the filter. Its sources in C
// are in src, and src/filter.c says how they work. `make module` compiles them into built, and a
// program that is built after that contains the result.
//
// The tests prove each part of Envoy's interface that src/abi.h declares, with the real Envoy.
// harness has a stand-in for Envoy, and programs that run the filter in it under sanitizers.
package filter

import (
	"embed"
	"io/fs"
)

// EnvoyVersion is the version of Envoy that the filter is made for and tested with.
const EnvoyVersion = "1.40.0"

//go:embed built
var built embed.FS

// File returns the compiled filter for an architecture in Go's terms, such as amd64. ok is false if
// this program was built without it.
func File(arch string) (content []byte, ok bool) {
	content, err := fs.ReadFile(built, "built/sluice-filter-"+arch+".so")
	return content, err == nil
}
