package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A file has the samples of one hour: a header, then a record for each sample. A record is its
// length in four bytes, its content, and the XXH64 of the content. The content is the slot in two
// bytes and an entry for each model that has changed. An entry has the index of the model, its name
// if the index is new, and the change (hour.go).
const (
	formatVersion = 1
	lengthBytes   = 4
	sumBytes      = 8
	// maxName is the length in bytes at which the name of a model is not kept.
	maxName = 512
)

var header = fmt.Appendf(nil, "sluice history %d\n", formatVersion)

// errDamaged means that a file is not what Sluice has written.
var errDamaged = errors.New("the content does not fit its checksum")

// appendRecord appends the record of a sample to b, and adds the sample to h.
func (h *hour) appendRecord(b []byte, slot int, models map[string]Values) []byte {
	start := beginRecord(&b, slot)
	for model, values := range models {
		if len(model) <= maxName {
			b = h.appendEntry(b, slot, model, &values)
		}
	}
	for i := range h.tracks { // models that are gone have no values from now on
		if _, ok := models[h.tracks[i].name]; !ok {
			values := None()
			b = h.appendEntry(b, slot, h.tracks[i].name, &values)
		}
	}
	h.sampled[slot], h.next = true, slot+1
	return endRecord(b, start)
}

// encode returns the content of the file of the hour.
func (h *hour) encode() []byte {
	b := bytes.Clone(header)
	rest := make([][]byte, len(h.tracks)) // of the changes
	for i := range h.tracks {
		rest[i] = h.tracks[i].changes
	}
	named := 0
	for slot := range slotsPerHour {
		if !h.sampled[slot] {
			continue
		}
		start := beginRecord(&b, slot)
		for i := range rest {
			if len(rest[i]) < 2 || int(binary.LittleEndian.Uint16(rest[i])) != slot {
				continue
			}
			var codes [seriesCount]code
			n := 2 + readChange(rest[i][2:], &codes)
			b = h.appendIndex(b, i, i == named)
			b = append(b, rest[i][2:n]...)
			rest[i] = rest[i][n:]
			named = max(named, i+1)
		}
		b = endRecord(b, start)
	}
	return b
}

// beginRecord appends the beginning of a record to b, and returns where it begins.
func beginRecord(b *[]byte, slot int) (start int) {
	start = len(*b)
	*b = append(*b, 0, 0, 0, 0) // endRecord writes the length
	*b = binary.LittleEndian.AppendUint16(*b, uint16(slot))
	return start
}

// endRecord completes the record that begins at start.
func endRecord(b []byte, start int) []byte {
	content := b[start+lengthBytes:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(content)))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(content))
}

// appendIndex appends the index of a model, and its name if the file has not named it yet.
func (h *hour) appendIndex(b []byte, index int, isNew bool) []byte {
	b = binary.AppendUvarint(b, uint64(index))
	if name := h.tracks[index].name; isNew {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
	}
	return b
}

// appendEntry appends the entry of a model if it has changed.
func (h *hour) appendEntry(b []byte, slot int, model string, values *Values) []byte {
	index, isNew := h.name(model)
	codes := encodeAll(values)
	start := len(b)
	b = h.appendIndex(b, index, isNew)
	at := len(b)
	if b = h.tracks[index].diff(b, &codes); len(b) == at {
		return b[:start]
	}
	h.add(index, slot, b[at:])
	return b
}

// load adds the records of a file. good is how many bytes of it are whole records: what follows was
// being written when the process was killed. The error is errDamaged; what comes before the damage
// has been added.
func (h *hour) load(data []byte) (good int, err error) { return h.loadBefore(data, slotsPerHour) }

// loadBefore is load of the samples before a slot.
func (h *hour) loadBefore(data []byte, slot int) (good int, err error) {
	if len(data) < len(header) {
		return 0, nil
	}
	if string(data[:len(header)]) != string(header) {
		return 0, errDamaged
	}
	good = len(header)
	for {
		rest := data[good:]
		if len(rest) < lengthBytes {
			return good, nil
		}
		length := int(binary.LittleEndian.Uint32(rest))
		if length > len(rest)-lengthBytes-sumBytes {
			return good, nil
		}
		content := rest[lengthBytes : lengthBytes+length]
		if length >= 2 && int(binary.LittleEndian.Uint16(content)) >= slot && slot < slotsPerHour {
			return good, nil
		}
		if binary.LittleEndian.Uint64(rest[lengthBytes+length:]) != xxhash.Sum64(content) || !h.loadRecord(content) {
			return good, errDamaged
		}
		good += lengthBytes + length + sumBytes
	}
}

// before returns the samples of the hour before a slot.
func (h *hour) before(slot int) *hour {
	earlier := newHour(h.number)
	_, _ = earlier.loadBefore(h.encode(), slot) // what encode returns is not damaged
	return earlier
}

// loadRecord adds the content of a record, and reports whether it was one.
func (h *hour) loadRecord(content []byte) bool {
	if len(content) < 2 {
		return false
	}
	slot := int(binary.LittleEndian.Uint16(content))
	if slot < h.next || slot >= slotsPerHour {
		return false
	}
	content = content[2:]
	for len(content) > 0 {
		n := h.loadEntry(slot, content)
		if n == 0 {
			return false
		}
		content = content[n:]
	}
	h.sampled[slot], h.next = true, slot+1
	return true
}

// loadEntry adds the entry at the beginning of b and returns its length; 0 if there is none.
func (h *hour) loadEntry(slot int, b []byte) int {
	index, n := binary.Uvarint(b)
	if n <= 0 || index > uint64(len(h.tracks)) {
		return 0
	}
	if index == uint64(len(h.tracks)) {
		length, m := binary.Uvarint(b[n:])
		if m <= 0 || length > maxName || length > uint64(len(b)-n-m) {
			return 0
		}
		n += m
		if _, isNew := h.name(string(b[n : n+int(length)])); !isNew {
			return 0
		}
		n += int(length)
	}
	change := h.add(int(index), slot, b[n:])
	if change == 0 {
		return 0
	}
	return n + change
}

// writer appends records to the file of an hour.
type writer struct {
	file *os.File
	// size is the length of the whole records in the file.
	size int64
}

// openWriter opens the file at path for records after its first size bytes, and cuts off the rest.
func openWriter(path string, size int64) (*writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &writer{f, size}, nil
}

// nextSuffix ends the name of a file that replaces another one when it is complete.
const nextSuffix = ".new"

// createWriter makes a file with content, and opens it for further records. A file that is there
// already stays as it is until the new one is complete, as on a full disk. createWriter makes the
// directory of the file if it is missing.
func createWriter(path string, content []byte) (*writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+nextSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	w := &writer{file: f}
	if err = w.write(content); err == nil {
		err = os.Rename(path+nextSuffix, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path+nextSuffix))
	}
	return w, nil
}

// write appends a record, or nothing at all.
func (w *writer) write(record []byte) error {
	if _, err := w.file.WriteAt(record, w.size); err != nil {
		return errors.Join(err, w.file.Truncate(w.size))
	}
	w.size += int64(len(record))
	return nil
}

// fileTime is how the name of a file writes its hour.
const fileTime = "2006-01-02T15"

func fileName(kind string, number int64) string {
	return kind + "-" + time.Unix(number*3600, 0).UTC().Format(fileTime) + ".history"
}

func fileHour(kind, name string) (number int64, ok bool) {
	t, err := time.Parse(kind+"-"+fileTime+".history", name)
	return t.Unix() / 3600, err == nil
}

// remove removes a file if it exists.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
