package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	// File is the name that the file was read under.
	File string `json:"file"`
	// Line in the file, from 1; 0 when the fault has no place in it.
	Line int `json:"line,omitempty"`
	// Path of the field, such as models[chat].replicas.max. Items of a list go by their name where they have one. Empty when the
	// fault is about the file as a whole.
	Path string `json:"path,omitempty"`
	// Message says what is wrong and what would be right. It never holds a key, a value of env, or the user part of a URL.
	Message string `json:"message"`
}

// Error is the fault as one line: file:line: path: message.
func (f Fault) Error() string {
	line := f.File
	if f.Line > 0 {
		line = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	if f.Path != "" {
		line += ": " + f.Path
	}
	return line + ": " + f.Message
}

// Faults are all faults of a file, by line. As an error they are one fault a line.
type Faults []Fault

// Error is one fault a line.
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
