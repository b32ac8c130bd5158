// Package loglines reads the log of an engine for an operator: its last lines, those that contain a
// text, and those that come. The launchers use it for their replicas. Package process shows the
// last lines of a start with Printable and Cut.
package loglines

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/sluice-gateway/sluice/internal/redact"
)

const (
	// maxLine is the length at which a line is cut, in bytes.
	maxLine = 8 << 10
	// maxSearched is how much of the end of a file is searched, in bytes.
	maxSearched = 32 << 20
	// pollInterval is how often a followed file is read.
	pollInterval = 250 * time.Millisecond
)

// Query says which lines of a log are wanted.
type Query struct {
	// Tail is the number of the last lines; 0: none.
	Tail int
	// Search is a text that each line contains, in any case. It is empty for all lines.
	Search string
	// Follow: the lines that come are wanted as well, until the context ends.
	Follow bool
}

// Filter returns the line as an operator sees it, without secrets and control characters. It
// returns false if the line is not wanted. The redactor may be nil.
func (q Query) Filter(line string, r *redact.Redactor) (string, bool) {
	line = Printable(line)
	if line == "" {
		return "", false
	}
	line = r.Text(line) // before the search, which must not tell a secret
	if q.Search != "" && !strings.Contains(strings.ToLower(line), strings.ToLower(q.Search)) {
		return "", false
	}
	return Cut(line, maxLine), true
}

// Cut returns a line with most bytes at most, and a mark if it is longer.
func Cut(line string, most int) string {
	if len(line) > most {
		return strings.ToValidUTF8(line[:most], "") + "…"
	}
	return line
}

// Printable returns a line as a terminal would show it in the end. It lacks the control characters
// of progress bars and colours, its line break, and the spaces at its end.
func Printable(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "\uFFFD"))
	return strings.TrimRight(line, " ")
}

// CopyFile writes the wanted lines of a file to w. A file that does not exist is empty. A followed
// file may be rotated: when it shrinks, it is read from its beginning. The error is that of the
// file or of w; the end of ctx is none.
func CopyFile(ctx context.Context, w io.Writer, path string, q Query, r *redact.Redactor) error {
	at, err := q.copyTail(w, path, r)
	if err != nil || !q.Follow {
		return err
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if at, err = q.copyNew(w, path, at, r); err != nil {
			return err
		}
	}
}

// copyTail writes the last wanted lines. It returns the offset up to which the file was read.
func (q Query) copyTail(w io.Writer, path string, r *redact.Redactor) (int64, error) {
	data, from, err := read(path, -maxSearched)
	if err != nil {
		return 0, err
	}
	if !q.Follow && len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n') // the last line is not complete yet
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	kept := q.Last(bytes.NewReader(data[:end]), r)
	_, err = io.WriteString(w, strings.Join(kept, ""))
	return from + int64(end), err
}

// copyNew writes the wanted lines that are complete after the offset, and returns the offset after
// them.
func (q Query) copyNew(w io.Writer, path string, at int64, r *redact.Redactor) (int64, error) {
	data, from, err := read(path, at)
	if err != nil {
		return at, err
	}
	end := bytes.LastIndexByte(data, '\n') + 1
	all := Query{Tail: len(data), Search: q.Search}
	_, err = io.WriteString(w, strings.Join(all.Last(bytes.NewReader(data[:end]), r), ""))
	return from + int64(end), err
}

// Last returns the last wanted lines of a text, each with its newline.
func (q Query) Last(text io.Reader, r *redact.Redactor) []string {
	var kept []string
	lines := bufio.NewReader(text)
	for {
		line, err := lines.ReadString('\n')
		if line, ok := q.Filter(line, r); ok && q.Tail > 0 {
			kept = append(kept, line+"\n")
			if len(kept) >= 2*q.Tail {
				kept = append([]string(nil), kept[len(kept)-q.Tail:]...)
			}
		}
		if err != nil {
			return kept[max(len(kept)-q.Tail, 0):]
		}
	}
}

// Copy writes the wanted lines of a stream as they come, until the stream ends. The error is that
// of the stream or of w.
func (q Query) Copy(w io.Writer, stream io.Reader, r *redact.Redactor) error {
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadString('\n')
		if line, ok := q.Filter(line, r); ok {
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// read returns the content of a file from an offset on, at most maxSearched bytes, and the offset
// at which it begins. A negative offset counts from the end. A file that is shorter than the offset
// was rotated and is read from its beginning.
func read(path string, at int64) ([]byte, int64, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer file.Close() //nolint:errcheck // the file is only read
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	if at < 0 {
		at = max(size+at, 0)
	}
	if at > size {
		at = 0
	}
	data, err := io.ReadAll(io.NewSectionReader(file, at, min(size-at, maxSearched)))
	return data, at, err
}
