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
	return os.WriteFile(path, document, 0o644) //nolint:gosec // a document that everyone may read
}
