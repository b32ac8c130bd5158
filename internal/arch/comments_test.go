package arch_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxCommentColumns is the greatest width of a line that holds only a comment. A tab counts as
// tabColumns.
const (
	maxCommentColumns = 100
	tabColumns        = 4
)

// A package comment begins with "Package x" or "Command x" and says what the package is. Its second
// sentence says who uses the package.
func TestPackageComments(t *testing.T) {
	faults := map[string][]string{}
	for _, p := range listPackages(t) {
		if fault := packageCommentFault(packageComment(t, p), p); fault != "" {
			faults[p.path()] = append(faults[p.path()], fault)
		}
	}
	checkAllowList(t, nil, faults)
}

// packageComment is the text of the longest package comment of p. Packages that have only tests say
// what they are in a test file.
func packageComment(t *testing.T, p goPackage) string {
	files := p.GoFiles
	if len(files) == 0 {
		files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
	}
	var longest string
	for _, name := range files {
		f := parseFile(t, token.NewFileSet(), p, name)
		if text := f.Doc.Text(); len(text) > len(longest) {
			longest = text
		}
	}
	return longest
}

var (
	sentenceEnd = regexp.MustCompile(`[.!?]["')\]]*(\s|$)`)
	// useWord is a verb that tells who uses a package.
	useWord = regexp.MustCompile(`\b(uses?|used|imports?|imported|runs?|calls?|called|starts?|started)\b`)
)

// packageCommentFault says what is wrong with the comment of p, and "" if nothing is.
func packageCommentFault(comment string, p goPackage) string {
	begin := "Package " + p.Name + " "
	switch {
	case p.Name == "main":
		begin = "Command " + filepath.Base(p.Dir) + " "
	case len(p.GoFiles) == 0:
		comment = strings.Replace(comment, "Package "+p.Name+"_test ", begin, 1)
	}
	switch {
	case comment == "":
		return fmt.Sprintf("package %s has no package comment", p.path())
	case !strings.HasPrefix(comment, begin):
		first, _, _ := strings.Cut(comment, "\n")
		return fmt.Sprintf("the comment of package %s begins with %q: begin it with %q", p.path(), first, begin)
	}
	ends := sentenceEnd.FindAllStringIndex(comment, 2)
	if len(ends) < 2 || !useWord.MatchString(comment[ends[0][1]:ends[1][1]]) {
		return fmt.Sprintf("the comment of package %s does not say in its second sentence who uses or runs the package", p.path())
	}
	return ""
}

func TestCommentWidth(t *testing.T) {
	faults := map[string][]string{}
	for _, p := range listPackages(t) {
		for _, name := range p.allFiles() {
			faults[p.path()] = append(faults[p.path()], wideCommentLines(t, p, name)...)
		}
	}
	checkAllowList(t, nil, faults)
}

// wideCommentLines describes the lines of a file that hold only a comment and are too wide.
// Generated files, directives and lines that are one URL have none.
func wideCommentLines(t *testing.T, p goPackage, name string) (faults []string) {
	fset := token.NewFileSet()
	f := parseFile(t, fset, p, name)
	if ast.IsGenerated(f) {
		return nil
	}
	source, err := os.ReadFile(filepath.Join(p.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(source), "\n")
	for _, group := range f.Comments {
		for _, comment := range group.List {
			first, last := fset.Position(comment.Pos()), fset.Position(comment.End())
			for n := first.Line; n <= last.Line; n++ {
				line := lines[n-1]
				trailing := n == first.Line && strings.TrimSpace(line[:first.Column-1]) != ""
				if !trailing && !mayBeWide(line) && columns(line) > maxCommentColumns {
					faults = append(faults, fmt.Sprintf("%s/%s:%d: the comment is %d columns wide, more than %d",
						p.path(), name, n, columns(line), maxCommentColumns))
				}
			}
		}
	}
	return faults
}

// mayBeWide reports whether a comment line cannot be wrapped: a directive of a tool, or one word
// that is a URL.
func mayBeWide(line string) bool {
	text := strings.TrimSpace(line)
	if strings.HasPrefix(text, "//go:") || strings.HasPrefix(text, "//nolint") {
		return true
	}
	words := strings.Fields(strings.TrimLeft(text, "/*#-"))
	return len(words) == 1 && strings.Contains(words[0], "://")
}

func columns(line string) int {
	tabs := strings.Count(line, "\t")
	return utf8.RuneCountInString(line) + tabs*(tabColumns-1)
}

// commentMarks are the beginnings of lines that hold only a comment, by the ends of names of files.
var commentMarks = map[string][]string{
	".c":   {"//", "/*", "* "},
	".css": {"/*", "* "},
	".h":   {"//", "/*", "* "},
	".js":  {"//", "/*", "* "},
	".lua": {"--"},
	".mjs": {"//", "/*", "* "},
	".s":   {"//"},
	".sh":  {"#"},
}

// TestCommentWidthOfOtherLanguages checks the files that are not Go, but for those that others have
// written.
func TestCommentWidthOfOtherLanguages(t *testing.T) {
	root, paths := gitFiles(t)
	found := 0
	for _, path := range paths {
		marks := commentMarks[filepath.Ext(path)]
		if marks == nil || strings.HasPrefix(path, "internal/admin/page/lib/") {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(source)) {
			n++
			line = strings.TrimRight(line, "\n")
			if !isCommentLine(line, marks) {
				continue
			}
			found++
			if !mayBeWide(line) && columns(line) > maxCommentColumns {
				t.Errorf("%s:%d: the comment is %d columns wide, more than %d", path, n, columns(line), maxCommentColumns)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d lines of comments were found", found)
	}
}

func isCommentLine(line string, marks []string) bool {
	text := strings.TrimSpace(line)
	return slices.ContainsFunc(marks, func(mark string) bool { return strings.HasPrefix(text, mark) })
}

func TestPackageCommentFault(t *testing.T) {
	library := goPackage{ImportPath: module + "/ringhash", Name: "ringhash", Dir: "/src/ringhash"}
	command := goPackage{ImportPath: module + "/cmd/sluice", Name: "main", Dir: "/src/cmd/sluice"}
	for _, test := range []struct {
		of      goPackage
		comment string
		ok      bool
	}{
		{library, "Package ringhash is a ring. Dispatch uses it.\n", true},
		{library, "Package ringhash is a ring.\n\nDispatch uses it.\n", true},
		{library, "Package ringhash is a ring.\n", false},
		{library, "Package ringhash is a ring. Rings are round.\n", false},
		{library, "Package ring is a ring. Dispatch uses it.\n", false},
		{library, "", false},
		{command, "Command sluice is a gateway. Operators run it.\n", true},
		{command, "Package main is a gateway. Operators run it.\n", false},
	} {
		if fault := packageCommentFault(test.comment, test.of); (fault == "") != test.ok {
			t.Errorf("comment %q of package %s: fault %q", test.comment, test.of.path(), fault)
		}
	}
}

func TestCommentLinesThatMayBeWide(t *testing.T) {
	for line, may := range map[string]bool{
		"\t// https://example.com/a/long/path":      true,
		"\t// see https://example.com/a/long/path":  false,
		"//go:generate go tool something":           true,
		"// generate":                               false,
		"//nolint:errcheck // nothing can be done":  true,
		"// A sentence. https://example.com/a/path": false,
		"# https://example.com/a/long/path":         true,
		"# A sentence. https://example.com/a/path":  false,
	} {
		if mayBeWide(line) != may {
			t.Errorf("mayBeWide(%q) = %v", line, !may)
		}
	}
	if n := columns("\t// ä"); n != 8 {
		t.Errorf("a tab and four characters are %d columns wide, want 8", n)
	}
}
