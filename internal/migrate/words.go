package migrate

import "strings"

// splitWords splits a command line as a shell does: at white space outside of quotes, with
// backslashes before line ends and special characters. Lines that begin with # are comments.
func splitWords(command string) []string {
	var lines []string
	for line := range strings.Lines(command) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			lines = append(lines, line)
		}
	}
	w := wordSplitter{}
	for _, r := range strings.ReplaceAll(strings.Join(lines, ""), "\\\n", " ") {
		w.add(r)
	}
	w.end()
	return w.words
}

// wordSplitter is the state of splitWords.
type wordSplitter struct {
	words   []string
	word    strings.Builder
	open    bool // a word has begun
	quote   rune // the quote that is open; 0: none
	escaped bool
}

func (w *wordSplitter) add(r rune) {
	switch {
	case w.escaped:
		w.word.WriteRune(r)
		w.escaped = false
	case r == '\\' && w.quote != '\'':
		w.escaped, w.open = true, true
	case w.quote != 0:
		if r == w.quote {
			w.quote = 0
		} else {
			w.word.WriteRune(r)
		}
	case r == '"' || r == '\'':
		w.quote, w.open = r, true
	case r == ' ' || r == '\t' || r == '\n' || r == '\r':
		w.end()
	default:
		w.word.WriteRune(r)
		w.open = true
	}
}

// end ends the word that has begun.
func (w *wordSplitter) end() {
	if w.open {
		w.words = append(w.words, w.word.String())
	}
	w.word.Reset()
	w.open = false
}
