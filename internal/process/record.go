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
	// longestFileName leaves room for suffixes under the 255 bytes of most file systems.
	longestFileName = 200
)

// fileName makes one file name out of any name, different ones for different names.
func fileName(name string) string {
	escaped := url.PathEscape(name)
	if strings.HasPrefix(escaped, ".") {
		escaped = "%2E" + escaped[1:]
	}
	if len(escaped) > longestFileName {
		escaped = fmt.Sprintf("%s~%016x", escaped[:longestFileName-17], xxhash.Sum64String(name))
	}
	return escaped
}

func (d *Dir) recordsPath() string { return filepath.Join(d.path, "processes") }

func (d *Dir) recordPath(name string) string {
	return filepath.Join(d.recordsPath(), fileName(name)+recordSuffix)
}

// readRecords returns what is recorded, dead or alive, by name. A file that is no record is removed: the process it may
// have named is found by its marker.
func (d *Dir) readRecords() []Record {
	names, err := readNames(d.recordsPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("cannot list the recorded processes", zap.Error(err))
	}
	var records []Record
	for _, name := range names {
		if !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		r, err := readRecord(filepath.Join(d.recordsPath(), name))
		if err != nil {
			d.log.Warn("cannot read the record of a process", zap.String("file", name), zap.Error(err))
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return records
}

func readRecord(path string) (Record, error) {
	var r Record
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(data, &r)
	return r, err
}

// writeFile replaces the file in one step: after a crash there is the old one or the new one.
func writeFile(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

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

// removeRecord removes the record of this very start; a later start of the same name keeps its own.
func (d *Dir) removeRecord(r Record) {
	path := d.recordPath(r.Name)
	if now, err := readRecord(path); err == nil && now.Token != r.Token {
		return
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("cannot remove the record of a process", zap.String("process", r.Name), zap.Error(err))
	}
}

// strays returns pseudo records, nothing but tokens, for the marked processes of this directory that no given record names.
func (d *Dir) strays(recorded []Record) []Record {
	known := map[string]bool{}
	for _, r := range recorded {
		known[r.Token] = true
	}
	var strays []Record
	for _, s := range processes(0) {
		if id, token, ok := marker(s.pid); ok && id == d.id && !known[token] && s.pid != os.Getpid() {
			known[token] = true
			strays = append(strays, Record{Token: token})
		}
	}
	return strays
}

// newToken returns 128 random bits in base32.
func newToken() string { return rand.Text() }
