package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Texts of the YAML parser's errors.
const (
	noKey       = "did not find expected key"
	noIndicator = "did not find expected '-' indicator"
	noToken     = "found character that cannot start any token"
	noAnchor    = "unknown anchor"
	tabBetween  = "found a tab character"
	noUTF8      = "UTF-8"
	noText      = "control characters are not allowed"
)

// parserTexts are the errors that yaml.v3 gives with a line counted from 0. It counts from 1 in the
// errors of its scanner.
var parserTexts = []string{
	noKey, noIndicator, "did not find expected ',' or ']'", "did not find expected ',' or '}'",
	"did not find expected node content", "did not find expected <document start>",
}

// blockTexts are the errors whose line is that of the whole mapping or list, and one without a
// line. Errors of the encoding have no line either.
var blockTexts = []string{noKey, noIndicator, noAnchor}

// syntaxHints say what to do about an error of the YAML parser. The first whose text begins the
// error counts.
var syntaxHints = []struct{ text, hint string }{
	{noKey, "the line is indented otherwise than those above it, or has text after a value in quotes"},
	{noIndicator, "the line is indented otherwise than those above it"},
	{"did not find expected ',' or ']'", "a [ is not closed, or a comma is missing"},
	{"did not find expected ',' or '}'", "a { is not closed, or a comma is missing"},
	{"mapping values are not allowed in this context",
		"the line is indented too far, its value has a colon and must be in quotes, or the line above lacks its colon"},
	{"could not find expected ':'", "a colon and a space must follow the name of a field"},
	{"found unexpected end of stream", "a quote is not closed"},
	{noToken, "a value that begins with %, @ or ` must be in quotes"},
	{tabBetween, "a tab indents the line, and YAML takes only spaces"},
	{noText, "the line has a character that is no text: remove it"},
}

// lineOfError matches the line in the text of an error of the YAML parser.
var lineOfError = regexp.MustCompile(`^line (\d+): `)

// syntaxError returns the line and the text of an error of the YAML parser. The line is 0 where the
// parser tells none.
func syntaxError(err error) (line int, text string) {
	text = strings.TrimPrefix(err.Error(), "yaml: ")
	if m := lineOfError.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	return line, text
}

// explainSyntax returns the line of the file that an error of the YAML parser is about, and a
// message that says what to do.
func explainSyntax(data []byte, err error) (line int, message string) {
	line, text := syntaxError(err)
	lines := bytes.SplitAfter(bytes.TrimRight(data, "\r\n"), []byte("\n"))
	begins := func(beginning string) bool { return strings.HasPrefix(text, beginning) }
	switch {
	case slices.ContainsFunc(blockTexts, begins), begins(noText), strings.Contains(text, noUTF8):
		line = firstLineWith(data, lines, text)
	case begins(tabBetween):
		line = firstTabAfter(lines, line)
	case slices.ContainsFunc(parserTexts, begins):
		line++
	case line == 0:
		line = 1 // the parser gives no line for an error in the first line
	}
	line = min(line, len(lines)) // the parser counts one more line for an error at the end
	hint := ""
	for _, h := range syntaxHints {
		if begins(h.text) {
			hint = ": " + h.hint
			break
		}
	}
	switch {
	case begins(noToken) && beginsWithTab(lines[line-1]):
		hint = ": a tab indents the line, and YAML takes only spaces"
	case strings.Contains(text, noUTF8):
		hint = ": save the file in the encoding UTF-8"
	}
	return line, "not valid YAML: " + text + hint
}

// firstLineWith returns the number of the first line up to which the file has the error. The parser
// finds an error of a block only when it reads the line at fault.
func firstLineWith(data []byte, lines [][]byte, text string) int {
	end := 0
	ends := make([]int, len(lines))
	for i, line := range lines {
		end += len(line)
		ends[i] = end
	}
	return 1 + sort.Search(len(lines)-1, func(i int) bool {
		err := parseAll(data[:ends[i]])
		if err == nil {
			return false
		}
		_, found := syntaxError(err)
		return found == text
	})
}

// firstTabAfter returns the number of the first line after the given one that a tab indents. The
// parser tells the line of the value before it.
func firstTabAfter(lines [][]byte, line int) int {
	for i := line; i < len(lines); i++ {
		if beginsWithTab(lines[i]) {
			return i + 1
		}
	}
	return max(line, 1)
}

// parseAll returns the first error of the YAML parser in any document of the text.
func parseAll(text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// beginsWithTab reports whether there is a tab in the white space at the beginning of a line.
func beginsWithTab(line []byte) bool {
	text := bytes.TrimLeft(line, " \t-")
	return bytes.ContainsRune(line[:len(line)-len(text)], '\t')
}
