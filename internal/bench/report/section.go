package report

import (
	"fmt"
	"os"
	"strings"
)

// WriteSection replaces the section of this name in the document at path. The section is what is
// between the lines "<!-- begin NAME -->" and "<!-- end NAME -->". A document without the lines is
// an error.
func WriteSection(path, name, text string) error {
	document, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, found := strings.Cut(string(document), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no section between %q and %q", path, strings.TrimSpace(begin), end)
	}
	document = []byte(before + begin + strings.TrimSuffix(text, "\n") + "\n" + end + after)
	return Write(path, string(document))
}

// Write writes a document, a plot or figures, which everyone may read.
func Write(path, text string) error {
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // everyone may read it
}
