package process

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gateway/sluice/internal/seal"
)

const (
	recordSuffix = ".json"
	// copySuffix is the end of the name of a record's copy, which is read if the record is damaged.
	copySuffix = ".copy"
	// maxFileName leaves room for suffixes within the 255 bytes of most file systems.
	maxFileName = 200
)

// fileName returns a file name for any name. Different names have different file names.
func fileName(name string) string {
	escaped := escapeName(name)
	if strings.HasPrefix(escaped, ".") {
		escaped = "%2E" + escaped[1:]
	}
	if len(escaped) > maxFileName {
		escaped = fmt.Sprintf("%s~%016x", escaped[:maxFileName-17], xxhash.Sum64String(name))
	}
	return escaped
}

func (d *Dir) recordsPath() string { return filepath.Join(d.path, "processes") }

// escapeName escapes a name as url.PathEscape does. Package net/url needs net/netip, which is
// initialised after much that a guard does not need.
func escapeName(name string) string {
	const plain, digits = "-_.~$&+=:@", "0123456789ABCDEF"
	var escaped strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(plain, c) >= 0 {
			escaped.WriteByte(c)
		} else {
			escaped.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return escaped.String()
}

// recordPath is the path of the record of the process with that name.
func (d *Dir) recordPath(name string) string {
	return filepath.Join(d.recordsPath(), fileName(name)+recordSuffix)
}

// readRecords returns the records, of live and dead processes, by name. It reads those files whose
// names begin with a prefix. It skips a file that is no record: its process is found by the marker.
func (d *Dir) readRecords(prefix string) []Record {
	names, err := listDirectory(d.recordsPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("listing the recorded processes failed", errorField(err))
	}
	var records []Record
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		r, err := readRecord(filepath.Join(d.recordsPath(), name))
		if err != nil {
			d.log.Warn("reading the record of a process failed", textField("file", name), errorField(err))
			continue
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return records
}

// readRecord reads one record. It reads the copy if the record is damaged. The error is that of the
// record.
func readRecord(path string) (Record, error) {
	r, _, err := readRecordFile(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if r, _, errCopy := readRecordFile(path + copySuffix); errCopy == nil {
		return r, nil
	}
	return Record{}, err
}

// readRecordFile reads a record or a copy. It returns the content too.
func readRecordFile(path string) (Record, []byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, nil, err
	}
	var r Record
	if err := seal.Unmarshal(data, &r); err != nil {
		return Record{}, nil, err
	}
	return r, data, nil
}

// repairRecords replaces each damaged record by its copy, and each damaged copy by its record. A
// file that cannot be written stays as it is: readRecord reads the other one.
func (d *Dir) repairRecords() {
	names, _ := listDirectory(d.recordsPath()) // readRecords reports the error
	for _, name := range names {
		if !strings.HasSuffix(name, recordSuffix) {
			continue
		}
		path := filepath.Join(d.recordsPath(), name)
		_, record, errRecord := readRecordFile(path)
		_, backup, errCopy := readRecordFile(path + copySuffix)
		var err error
		switch {
		case errRecord != nil && errCopy == nil:
			d.log.Warn("damaged record of a process replaced by its copy", textField("file", path), errorField(errRecord))
			err = writeFile(path, backup)
		case errRecord == nil && errCopy != nil:
			err = writeFile(path+copySuffix, record)
		}
		if err != nil {
			d.log.Warn("repair of the record of a process failed", textField("file", path), errorField(err))
		}
	}
}

// writeFile replaces a file in one step: after a crash the file has the old or the new content.
func writeFile(path string, data []byte) error {
	temporary := path + ".tmp"
	err := os.WriteFile(temporary, data, 0o600)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // on a full disk a part of it takes room
	}
	return err
}

// writeRecord writes the record of a process in one step, and then its copy. A missing copy is no
// fault.
func (d *Dir) writeRecord(r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.recordsPath(), 0o700); err != nil {
		return err
	}
	path, data := d.recordPath(r.Name), append(seal.Add(data), '\n')
	if err := writeFile(path, data); err != nil {
		return err
	}
	if err := writeFile(path+copySuffix, data); err != nil {
		d.log.Warn("writing the copy of a record failed", textField("process", r.Name), errorField(err))
	}
	return nil
}

// removeRecord removes the record of this start. It keeps the record of a later start of the same
// name.
func (d *Dir) removeRecord(r Record) {
	path := d.recordPath(r.Name)
	if current, err := readRecord(path); err == nil && current.Token != r.Token {
		return
	}
	_ = os.Remove(path + copySuffix) // a copy without a record is not read
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("removing the record of a process failed", textField("process", r.Name), errorField(err))
	}
}

// unrecordedProcesses finds processes with a marker of this directory that none of the records
// names. It returns records that have only a token, and an error if there may be others.
func (d *Dir) unrecordedProcesses(recorded []Record) ([]Record, error) {
	known := map[string]bool{}
	for _, r := range recorded {
		known[r.Token] = true
	}
	var strays []Record
	all, err := listProcesses(0)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		id, token, err := findMarker(s.pid)
		if err != nil {
			return nil, err
		}
		if token != "" && id == d.id && !known[token] && s.pid != os.Getpid() {
			known[token] = true
			strays = append(strays, Record{Token: token})
		}
	}
	return strays, nil
}

// newToken returns 128 random bits in base32.
func newToken() string { return rand.Text() }
