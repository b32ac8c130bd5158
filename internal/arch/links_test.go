package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// markdownLink is an inline link or an image; the group is its target.
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// codeBlock is a fenced block and codeSpan is code within a line. Neither has links.
	codeBlock = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	heading   = regexp.MustCompile(`(?m)^#{1,6} +(.+)$`)
	// notInAnchor is what the anchor of a heading does not keep.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinksOfPages fails for a relative link of a Markdown page whose file or heading does not
// exist.
func TestLinksOfPages(t *testing.T) {
	root, paths := gitFiles(t)
	for _, path := range paths {
		if filepath.Ext(path) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // deleted in the working tree, and not yet in git
		}
		if err != nil {
			t.Fatal(err)
		}
		prose := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(string(text), ""), "")
		for _, link := range markdownLink.FindAllStringSubmatch(prose, -1) {
			checkLink(t, root, path, link[1])
		}
	}
}

// checkLink fails the test if the target of a link on the page is missing. Links with a scheme are
// not checked, because that needs a network.
func checkLink(t *testing.T, root, page, target string) {
	t.Helper()
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return
	}
	name, anchor, _ := strings.Cut(target, "#")
	file := filepath.Join(root, filepath.Dir(page), name)
	if name == "" {
		file = filepath.Join(root, page)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("%s links to %s, which does not exist", page, target)
		return
	}
	if anchor == "" || filepath.Ext(file) != ".md" {
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		if headingAnchor(h[1]) == anchor {
			return
		}
	}
	t.Errorf("%s links to %s, but the page has no such heading", page, target)
}

// headingAnchor is the anchor that GitHub makes of a heading.
func headingAnchor(title string) string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}
