package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one error in a configuration file.
type Fault struct {
	// File is the name that the file was read under.
	File string `json:"file"`
	// Line is the line in the file, from 1. It is 0 when the fault has no place in the file.
	Line int `json:"line,omitempty"`
	// Path is the path of the field, such as models[chat].replicas.max. Items of a list appear by
	// their name where they have one. It is empty when the fault concerns the whole file.
	Path string `json:"path,omitempty"`
	// Message says what is wrong and what to do. It never contains a key, a value of env, or the
	// user part of a URL.
	Message string `json:"message"`
}

// Error returns the fault as one line: file:line: path: message.
func (f Fault) Error() string {
	line := f.File
	if f.Line > 0 {
		line = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	parts := slices.DeleteFunc([]string{line, f.Path, f.Message}, func(part string) bool { return part == "" })
	return strings.Join(parts, ": ")
}

// Faults are all faults of a file, sorted by line. As an error they are one line per fault.
type Faults []Fault

// Error returns one line per fault.
func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

func (fs Faults) sort() {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Message, b.Message))
	})
}
