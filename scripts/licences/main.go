// Command licences prints the licences and notices of what a release of Sluice contains of others.
// scripts/dist.sh runs it for each release, because these licences ask that copies carry them. It
// reads the modules whose packages the Go tool links into the program, Go's own library, and the
// files given as arguments. Texts that several of them share appear once.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// legal is the name of a file with a licence, a notice or a grant of patents.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

func main() {
	arch := flag.String("arch", "amd64", "the architecture of the static program for Linux")
	flag.Parse()
	if err := run(os.Stdout, *arch, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// run prints the texts of the modules in the program for arch, and the files at paths.
func run(out io.Writer, arch string, paths []string) error {
	files, err := linked(arch)
	if err != nil {
		return err
	}
	for _, path := range paths {
		files[path] = strings.TrimSuffix(filepath.Base(path), ".LICENSE")
	}
	owners := map[string][]string{} // by text, who has it
	for path, owner := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		key := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
		if !slices.Contains(owners[key], owner) {
			owners[key] = append(owners[key], owner)
		}
	}
	return write(out, owners)
}

// write prints each text below the names of its owners.
func write(out io.Writer, owners map[string][]string) error {
	blocks := make([]string, 0, len(owners))
	for text, names := range owners {
		slices.Sort(names)
		blocks = append(blocks, strings.Join(names, "\n")+"\n\n"+text+"\n")
	}
	slices.Sort(blocks)
	line := "\n" + strings.Repeat("=", 80) + "\n\n"
	_, err := io.WriteString(out, "This release of Sluice contains what the following authors have written.\n"+line+strings.Join(blocks, line))
	return err
}

// linkedPackage is what `go list` says of a package.
type linkedPackage struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// linked returns the legal files of all modules of the program for arch and of Go, and the owner of
// each. A folder of a package may have files of its own, below those of the module. It is an error
// if a module has none.
func linked(arch string) (map[string]string, error) {
	list := exec.Command("go", "list", "-deps", "-json=Dir,Standard,Module", "-tags", "grpcnotrace", "./cmd/sluice")
	list.Env, list.Stderr = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch), os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	goRoot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	files := map[string]string{filepath.Join(strings.TrimSpace(string(goRoot)), "LICENSE"): "Go's standard library"}
	found := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p linkedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		owner := p.Module.Path + " " + p.Module.Version
		found[owner] = found[owner] || false
		for _, path := range above(p.Dir, p.Module.Dir) {
			files[path], found[owner] = owner, true
		}
	}
	for owner, has := range found {
		if !has {
			return nil, fmt.Errorf("%s has no file with a licence", owner)
		}
	}
	return files, nil
}

// above returns the legal files of a folder and of those above it, up to the root.
func above(dir, root string) (paths []string) {
	for ; len(dir) >= len(root); dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return paths
		}
		for _, e := range entries {
			if !e.IsDir() && legal.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	return paths
}
