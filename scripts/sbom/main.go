// Command sbom prints the software bill of materials of a Go program as CycloneDX 1.6 in JSON.
// scripts/dist.sh runs it for each release. The bill has the modules that the Go tool has recorded
// in the program, and the filter for Envoy that is embedded.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// bill is a bill of materials, as far as it is filled.
type bill struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

func main() {
	version := flag.String("version", "", "the version of the program")
	filter := flag.String("filter", "", "the compiled filter for Envoy that the program contains")
	flag.Parse()
	if err := run(flag.Arg(0), *version, *filter); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run prints the bill of the program at path, which contains the filter at filter.
func run(path, version, filter string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	b := bill{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{component{Type: "application", Name: info.Main.Path, Version: version}}}
	embedded, err := embeddedFilter(path, filter, version)
	if err != nil {
		return err
	}
	b.Components = append(b.Components, embedded)
	b.Components = append(b.Components, module("std", info.GoVersion[len("go"):]))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.Components = append(b.Components, module(m.Path, m.Version))
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(b)
}

// module returns a module of Go's.
func module(path, version string) component {
	return component{Type: "library", Name: path, Version: version, PURL: "pkg:golang/" + path + "@" + version}
}

// embeddedFilter returns the filter for Envoy as a part of the program.
func embeddedFilter(path, filter, version string) (component, error) {
	program, err := os.ReadFile(path)
	if err != nil {
		return component{}, err
	}
	content, err := os.ReadFile(filter)
	if err != nil {
		return component{}, err
	}
	if len(content) == 0 || !bytes.Contains(program, content) {
		return component{}, fmt.Errorf("%s does not contain the filter %s", path, filter)
	}
	sum := sha256.Sum256(content)
	return component{Type: "file", Name: filepath.Base(filter), Version: version, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}}, nil
}
