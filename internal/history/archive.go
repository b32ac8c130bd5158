package history

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive has the samples of the last hours, in memory and in files.
type archive struct {
	// dir is the directory of the files; empty: there are none. kind begins their names.
	dir, kind string
	// maxBytes bounds the samples in memory, and about so many bytes are in files. When they are
	// more, the oldest hours are dropped.
	maxBytes int64
	// hours are in the order of time. The last one may get further samples.
	hours []*hour
	// out is the file of the last hour; nil: none is open.
	out *writer
	// buffer is used again for each record.
	buffer []byte
	// back counts the samples, one after the other, that are older than the last one.
	back int
}

// trusted is how many samples of a time make it true. A sample that is far from the others may be
// that of a wrong clock, and nothing is dropped for it.
const trusted = 30

// damagedSuffix is added to the name of a file that is damaged.
const damagedSuffix = ".damaged"

// load reads the files. now is the current hour, by a clock that may be wrong: hours that are far
// from it are dropped when samples have come. A damaged file is renamed, and its name is in
// damaged.
func (a *archive) load(now int64) (damaged []string, err error) {
	if a.dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, entry := range entries { // in the order of their names, which is that of time
		number, ok := fileHour(a.kind, entry.Name())
		if !ok {
			failed = append(failed, a.removeLeftover(entry.Name(), now))
			continue
		}
		path := filepath.Join(a.dir, entry.Name())
		switch err := a.loadFile(path, number, number == now); {
		case errors.Is(err, errDamaged):
			damaged = append(damaged, entry.Name())
			failed = append(failed, os.Rename(path, path+damagedSuffix))
		case err != nil:
			failed = append(failed, err)
		}
	}
	if n := len(a.hours); n > 0 && a.hours[n-1].number > now {
		failed = append(failed, a.closeFile()) // only the file of the last hour is open
	}
	failed = append(failed, a.bound())
	return damaged, errors.Join(failed...)
}

// removeLeftover removes a damaged file of before the last 24 hours, and a file that a crash has
// kept from replacing another one.
func (a *archive) removeLeftover(file string, now int64) error {
	name, isNext := strings.CutSuffix(file, nextSuffix)
	name, isDamaged := strings.CutSuffix(name, damagedSuffix)
	number, isOurs := fileHour(a.kind, name)
	if isOurs && (isNext || isDamaged && number <= now-kept) {
		return remove(filepath.Join(a.dir, file))
	}
	return nil
}

// loadFile reads the file of an hour. Of the current hour it is then open for further samples,
// unless it is damaged.
func (a *archive) loadFile(path string, number int64, current bool) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	h := newHour(number)
	good, err := h.load(data)
	a.hours = append(a.hours, h)
	if err != nil || !current {
		h.close()
		return err
	}
	if good > 0 {
		a.out, err = openWriter(path, int64(good))
	}
	return err
}

// add adds a sample. It does nothing if the archive has a sample of that moment or of a later one.
// The sample is in memory even if the error tells that it could not be written.
func (a *archive) add(m moment, models map[string]Values) error {
	h, err := a.hourFor(m)
	if h == nil || m.slot() < h.next {
		return err
	}
	err = errors.Join(err, a.dropWhile(func() bool { return a.hours[0].number <= h.number-kept && h.samples() >= trusted }))
	a.buffer = h.appendRecord(a.buffer[:0], m.slot(), models)
	return errors.Join(err, a.write(h), a.bound())
}

// write writes the record in the buffer, or all records of the hour if its file is not open. After
// an error the next call writes all.
func (a *archive) write(h *hour) (err error) {
	switch {
	case a.dir == "":
		return nil
	case a.out == nil:
		a.out, err = createWriter(a.path(h), h.encode())
		return err
	}
	if err = a.out.write(a.buffer); err != nil {
		err = errors.Join(err, a.closeFile())
	}
	return err
}

// hourFor returns the hour of a moment, and begins it if it is new; nil if it is over. It drops
// samples that are ahead for long, which are those of a wrong clock.
func (a *archive) hourFor(m moment) (h *hour, err error) {
	number := m.hour()
	if n := len(a.hours); n > 0 && a.hours[n-1].isAfter(m) {
		a.back++
	} else {
		a.back = 0
	}
	if a.back >= trusted {
		err = a.dropFrom(m)
	}
	if n := len(a.hours); n > 0 {
		switch last := a.hours[n-1]; {
		case last.number > number:
			return nil, err
		case last.number == number:
			return last, err
		default:
			last.close()
		}
	}
	h = newHour(number)
	a.hours = append(a.hours, h)
	return h, errors.Join(err, a.closeFile())
}

// dropFrom drops the samples from a moment on. It removes the files of the hours after it. The next
// sample writes the file of its own hour anew.
func (a *archive) dropFrom(m moment) error {
	var failed []error
	for n := len(a.hours); n > 0 && a.hours[n-1].number > m.hour(); n-- {
		failed = append(failed, a.closeFile(), a.removeFile(a.hours[n-1]))
		a.hours = a.hours[:n-1]
	}
	if n := len(a.hours); n > 0 && a.hours[n-1].isAfter(m) {
		failed = append(failed, a.closeFile())
		a.hours[n-1] = a.hours[n-1].before(m.slot())
	}
	return errors.Join(failed...)
}

// removeFile removes the file of an hour, if there are files.
func (a *archive) removeFile(h *hour) error {
	if a.dir == "" {
		return nil
	}
	return remove(a.path(h))
}

// bound drops the oldest hours while all need more than maxBytes. The last hour stays.
func (a *archive) bound() error {
	var all int64
	for _, h := range a.hours {
		all += h.bytes
	}
	return a.dropWhile(func() bool {
		if all <= a.maxBytes {
			return false
		}
		all -= a.hours[0].bytes
		return true
	})
}

// dropWhile drops the oldest hours with their files while old reports true. The last hour stays.
func (a *archive) dropWhile(old func() bool) error {
	var failed []error
	for len(a.hours) > 1 && old() {
		failed = append(failed, a.removeFile(a.hours[0]))
		a.hours = slices.Delete(a.hours, 0, 1)
	}
	return errors.Join(failed...)
}

func (a *archive) path(h *hour) string { return filepath.Join(a.dir, fileName(a.kind, h.number)) }

func (a *archive) closeFile() error {
	if a.out == nil {
		return nil
	}
	err := a.out.file.Close()
	a.out = nil
	return err
}

// each calls yield with each sample of a model from one moment to before another.
func (a *archive) each(model string, from, to moment, yield func(m moment, codes *[seriesCount]code)) {
	for _, h := range a.hours {
		if h.number < from.hour() || h.number > to.hour() {
			continue
		}
		h.each(model, func(m moment, codes *[seriesCount]code) {
			if m >= from && m < to {
				yield(m, codes)
			}
		})
	}
}

// knows reports whether the archive has a sample of a model.
func (a *archive) knows(model string) bool {
	return slices.ContainsFunc(a.hours, func(h *hour) bool { _, ok := h.byName[model]; return ok })
}
