package process

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"go.uber.org/zap"
)

const (
	recordSuffix = ".json"
	// maxFileName leaves room for suffixes within the 255 bytes of most file systems.
	maxFileName = 200
)

// fileName returns a file name for any name. Different names have different file names.
func fileName(name string) string {
	escaped := url.PathEscape(name)
	if strings.HasPrefix(escaped, ".") {
		escaped = "%2E" + escaped[1:]
	}
	if len(escaped) > maxFileName {
		escaped = fmt.Sprintf("%s~%016x", escaped[:maxFileName-17], xxhash.Sum64String(name))
	}
	return escaped
}

// recordsPath is the directory of the records.
func (d *Dir) recordsPath() string { return filepath.Join(d.path, "processes") }

// recordPath is the path of the record of the process with that name.
func (d *Dir) recordPath(name string) string {
	return filepath.Join(d.recordsPath(), fileName(name)+recordSuffix)
}

// readRecords returns all records, of live and dead processes, by name. It skips a file that is no
// record: its process is found by the marker.
func (d *Dir) readRecords() []Record {
	names, err := listDirectory(d.recordsPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("listing the recorded processes failed", zap.Error(err))
	}
	var records []Record
	for _, name := range names {
		if !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		r, err := readRecord(filepath.Join(d.recordsPath(), name))
		if err != nil {
			d.log.Warn("reading the record of a process failed", zap.String("file", name), zap.Error(err))
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return records
}

// readRecord reads one record.
func readRecord(path string) (Record, error) {
	var r Record
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(data, &r)
	return r, err
}

// writeFile replaces a file in one step: after a crash the file has the old or the new content.
func writeFile(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// writeRecord writes the record of a process in one step.
func (d *Dir) writeRecord(r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.recordsPath(), 0o700); err != nil {
		return err
	}
	return writeFile(d.recordPath(r.Name), append(data, '\n'))
}

// removeRecord removes the record of this start. It keeps the record of a later start of the same
// name.
func (d *Dir) removeRecord(r Record) {
	path := d.recordPath(r.Name)
	if current, err := readRecord(path); err == nil && current.Token != r.Token {
		return
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("removing the record of a process failed", zap.String("process", r.Name), zap.Error(err))
	}
}

// unrecordedProcesses finds processes with a marker of this directory that none of the records
// names. It returns records that have only a token.
func (d *Dir) unrecordedProcesses(recorded []Record) []Record {
	known := map[string]bool{}
	for _, r := range recorded {
		known[r.Token] = true
	}
	var strays []Record
	for _, s := range listProcesses(0) {
		if id, token, ok := readMarker(s.pid); ok && id == d.id && !known[token] && s.pid != os.Getpid() {
			known[token] = true
			strays = append(strays, Record{Token: token})
		}
	}
	return strays
}

// newToken returns 128 random bits in base32.
func newToken() string { return rand.Text() }
