package console

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/sys/unix"
	"golang.org/x/text/width"
)

const (
	// defaultColumns and defaultRows are the size of a terminal that does not say its size.
	defaultColumns, defaultRows = 80, 24
	// minColumns is the least width that is believed.
	minColumns = 20
)

// Screen is a terminal with lines that stay and, below them, a few that are replaced: the status.
// It is safe for concurrent use.
type Screen struct {
	out io.Writer
	// width returns the number of columns.
	width func() int
	// colour says that the terminal shows colours and moves its cursor on demand.
	colour, moves bool

	mu sync.Mutex
	// status holds the lines that stand below the last one; guarded by mu.
	status []string
}

// Open returns the screen of a file. It is nil if the file is no terminal. With NO_COLOR there are
// no colours, and on a dumb terminal also no status.
func Open(file *os.File) *Screen {
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	term := os.Getenv("TERM")
	moves := term != "dumb" && term != ""
	return &Screen{out: file, width: func() int { return columns(file) }, moves: moves, colour: moves && os.Getenv("NO_COLOR") == ""}
}

// Colour reports whether lines may have colours.
func (s *Screen) Colour() bool { return s.colour }

// Printf prints text above the status. The text ends with a line feed. It has no control characters
// but those of the Screen.
func (s *Screen) Printf(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// Write prints whole lines above the status.
func (s *Screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	s.clearLocked(&b)
	b.Write(text)
	s.drawLocked(&b)
	if _, err := s.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Sync does nothing, because nothing is kept back.
func (s *Screen) Sync() error { return nil }

// SetStatus replaces the status. Without lines there is none.
func (s *Screen) SetStatus(lines ...string) {
	if !s.moves {
		return
	}
	most := s.width() - 1
	for i, line := range lines {
		lines[i] = Clip(plain(line), most)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(lines, s.status) {
		return
	}
	var b bytes.Buffer
	s.clearLocked(&b)
	s.status = lines
	s.drawLocked(&b)
	_, _ = s.out.Write(b.Bytes()) // a terminal that is gone misses nothing
}

// clearLocked erases the status. The cursor is then where the next line begins.
func (s *Screen) clearLocked(b *bytes.Buffer) {
	if !s.moves {
		return
	}
	if up := len(s.status) - 1; up > 0 {
		fmt.Fprintf(b, "\x1b[%dA", up)
	}
	if len(s.status) > 0 {
		b.WriteString("\r\x1b[J")
	}
}

// drawLocked writes the status, without a line feed at its end.
func (s *Screen) drawLocked(b *bytes.Buffer) { b.WriteString(strings.Join(s.status, "\n")) }

// Size returns the columns and rows of the terminal that a file is. ok is false if it is none. A
// terminal that does not say its size has 80 columns and 24 rows.
func Size(file *os.File) (columns, rows int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	columns, rows = int(size.Col), int(size.Row)
	if columns < minColumns {
		columns = defaultColumns
	}
	rows = cmp.Or(rows, defaultRows)
	return columns, rows, true
}

func columns(terminal *os.File) int {
	n, _, ok := Size(terminal)
	if !ok {
		return defaultColumns
	}
	return n
}

// Columns returns how many columns of a terminal a text takes. Characters of East Asia and emoji
// take two, and marks that are set upon another character none.
func Columns(text string) (n int) {
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) || r == '\u200b' || r == '\u200d' { // marks; a space and a joiner without width
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Clip cuts a line to so many columns. A line that is cut ends with an ellipsis.
func Clip(line string, most int) string {
	if Columns(line) <= most {
		return line
	}
	n := 1 // the ellipsis
	for i, r := range line {
		if n += columnsOf(r); n > most {
			return line[:i] + strings.Repeat("…", min(most, 1))
		}
	}
	return line
}

func (s *Screen) bold(text string) string  { return s.styled("1", text) }
func (s *Screen) green(text string) string { return s.styled("32", text) }
func (s *Screen) red(text string) string   { return s.styled("31", text) }

// styled returns text without control characters of its own, in a style of ECMA-48 if there are
// colours.
func (s *Screen) styled(style, text string) string {
	if text = plain(text); !s.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}
