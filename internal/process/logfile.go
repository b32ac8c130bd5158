package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

const (
	// largestLog is how far a log file may have grown to be continued at the next start, in bytes.
	largestLog = 10 << 20
	// tailBytes is how much of a log's end is looked at for its last lines.
	tailBytes = 64 << 10
	// tailLine is where a line is cut, in bytes.
	tailLine = 400
)

// openLog opens a log file to append to it, and tells where its end is. One that has grown too large becomes <path>.1.
func openLog(path string) (*os.File, int64, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, 0, fmt.Errorf("make the folder of the log file: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() > largestLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("rotate the log file: %w", err)
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the log file: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, fmt.Errorf("open the log file: %w", err)
	}
	return file, info.Size(), nil
}

// tail returns the last n lines that are not empty, from the given offset on. What cannot be read has no lines.
func tail(path string, from int64, n int) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	begin := max(from, size-tailBytes)
	data, err := io.ReadAll(io.NewSectionReader(file, begin, max(size-begin, 0)))
	if err != nil {
		return nil
	}
	if begin > from { // it begins in the middle of a line
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if line = readable(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(len(lines)-n, 0):]
}

// readable makes a line fit to be shown: progress bars and colours come with control characters.
func readable(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:] // what a terminal would show in the end
	}
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "\uFFFD"))
	if len(line) > tailLine {
		line = strings.ToValidUTF8(line[:tailLine], "") + "…"
	}
	return strings.TrimSpace(line)
}
