package usage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
)

// otherJournals are the journals in the folder that this process does not write. It reads on in one
// when the file has grown, and reads it again when it was written anew.
type otherJournals struct {
	dir string
	// own is the writer whose journal this process writes.
	own   string
	log   *zap.Logger
	clock *clock

	mu sync.Mutex
	// read are the journals by their writers; guarded by mu.
	read map[string]*otherJournal
	// changed counts the changes of read; guarded by mu.
	changed int
	// faults say why journals cannot be read, by their writers. That of the folder has no writer;
	// guarded by mu.
	faults map[string]error
	// damaged is how many damaged lines were found, by the writers of the journals. A number stays
	// when the journal is written again without these lines; guarded by mu.
	damaged map[string]int
}

// otherJournal is the journal of another writer, as it was read.
type otherJournal struct {
	// info is the file as it was read.
	info os.FileInfo
	// whole is the length of the whole lines that were read, last the last one of these.
	whole int64
	last  []byte
	table table
	// damaged is the number of whole lines that cannot be read.
	damaged int
	// tallies are those of the table.
	tallies tallies
}

// tables calls visit with the rows of each writer. visit must neither change nor keep them. A
// journal that cannot be read counts with what was read last.
func (o *otherJournals) tables(visit func(table)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readLocked()
	for _, j := range o.read {
		visit(j.table)
	}
}

// age makes days of old hours, and drops old days, in the journals whose processes have ended. now
// is in hours since 1970. remove says that journals without rows are removed. The error has what
// failed for each journal; the others are aged all the same.
func (o *otherJournals) age(now int64, keep Keep, remove bool) error {
	var failed []error
	writers, err := o.writers()
	if err != nil {
		return err
	}
	for _, writer := range writers {
		err := ageJournal(o.path(writer), now, keep, remove)
		if !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist) { // its process ages it, or another process has removed it
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// readLocked brings the journals up to date. mu is held.
func (o *otherJournals) readLocked() {
	writers, err := o.writers()
	if err != nil {
		o.reportLocked(map[string]error{"": err})
		return
	}
	since := talliedSince(o.clock.now())
	read, faults := map[string]*otherJournal{}, map[string]error{}
	for _, writer := range writers {
		before, info := o.read[writer], o.read[writer].lastInfo()
		j, err := before.again(o.path(writer), since)
		if j != nil {
			read[writer] = j
			o.tellDamageLocked(writer, j.damaged)
		}
		if j != before || j.lastInfo() != info {
			o.changed++
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another process has removed it
			faults[writer] = err
		}
	}
	for writer := range o.read {
		if read[writer] == nil {
			o.changed++
		}
	}
	o.read = read
	o.reportLocked(faults)
}

// tellDamageLocked logs that a journal has damaged lines, and again when it has more. mu is held.
func (o *otherJournals) tellDamageLocked(writer string, lines int) {
	if lines <= o.damaged[writer] {
		return
	}
	if o.damaged == nil {
		o.damaged = map[string]int{}
	}
	o.damaged[writer] = lines
	o.log.Error("journal of usage has damaged lines, which do not count", zap.String("journal", o.path(writer)), zap.Int("lines", lines))
}

// reportLocked keeps the faults, and logs each one when it comes and when it goes. mu is held.
func (o *otherJournals) reportLocked(faults map[string]error) {
	for writer, err := range faults {
		if o.faults[writer] == nil {
			o.log.Error("journal of usage not read, what it has counted since it was read is missing", zap.String("journal", o.path(writer)), zap.Error(err))
		}
	}
	for writer := range o.faults {
		if faults[writer] == nil {
			o.log.Info("journal of usage read again", zap.String("journal", o.path(writer)))
		}
	}
	o.faults = faults
}

// look reads what is new in the journals.
func (o *otherJournals) look() { o.changes() }

// allFaults returns what was wrong with the journals, by the names of their files.
func (o *otherJournals) allFaults() map[string]error {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]error{}
	for writer, lines := range o.damaged {
		all[filepath.Base(o.path(writer))] = damagedLines(o.path(writer), lines)
	}
	for writer, err := range o.faults {
		all[filepath.Base(o.path(writer))] = err
	}
	return all
}

// missing says what the last answer lacked because journals could not be read.
func (o *otherJournals) missing() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, writer := range slices.Sorted(maps.Keys(o.faults)) {
		all = append(all, fmt.Sprintf("A journal of usage of this gateway cannot be read: %v.", o.faults[writer]))
	}
	return all
}

// counted returns own and the writers whose journals were read.
func (o *otherJournals) counted() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]bool{o.own: true}
	for writer := range o.read {
		all[writer] = true
	}
	return all
}

// path returns the file of a writer, or the folder if writer is empty.
func (o *otherJournals) path(writer string) string {
	if writer == "" {
		return o.dir
	}
	return filepath.Join(o.dir, writer+journalSuffix)
}

// writers returns the writers of the journals.
func (o *otherJournals) writers() (all []string, err error) {
	names, err := journalsIn(o.dir)
	for _, name := range names {
		if writer := writerOf(name); writer != o.own {
			all = append(all, writer)
		}
	}
	return all, err
}

// journalsIn returns the paths of all journals in a folder.
func journalsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), journalSuffix) {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	return all, nil
}

// lastInfo returns the file as it was read; nil if it was never read.
func (j *otherJournal) lastInfo() os.FileInfo {
	if j == nil {
		return nil
	}
	return j.info
}

// again returns the journal as it is now; nil if it was never read. It may change j. After an error
// it is as it was read last. Rows before the hour since are in no tally.
func (j *otherJournal) again(path string, since int64) (*otherJournal, error) {
	info, err := os.Stat(path)
	if err != nil || j != nil && info.Size() == j.info.Size() && info.ModTime().Equal(j.info.ModTime()) {
		return j, err
	}
	file, err := os.Open(path)
	if err != nil {
		return j, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return j, err
	}
	text, ok := j.added(file, info)
	if !ok {
		if text, err = io.ReadAll(file); err != nil {
			return j, err
		}
		j = &otherJournal{table: table{}, tallies: tallies{}}
	}
	j.info = info
	j.add(text, since)
	return j, nil
}

// added returns what the file has after the whole lines that were read; false if it has not only
// grown since.
func (j *otherJournal) added(file *os.File, info os.FileInfo) ([]byte, bool) {
	if j == nil || !os.SameFile(info, j.info) || info.Size() < j.whole {
		return nil, false
	}
	from := j.whole - int64(len(j.last))
	text := make([]byte, info.Size()-from)
	if _, err := file.ReadAt(text, from); err != nil {
		return nil, false
	}
	return bytes.CutPrefix(text, j.last)
}

// add adds lines that follow those that were read. The last one may not be whole yet; then it comes
// again. Rows before the hour since are in no tally.
func (j *otherJournal) add(text []byte, since int64) {
	for part := range bytes.Lines(text) {
		switch k, counts, err := parseLine(part); {
		case err == nil:
			j.set(k, counts, since)
		case isWhole(part):
			j.damaged++
		}
	}
	if whole := bytes.LastIndexByte(text, '\n') + 1; whole > 0 {
		j.whole += int64(whole)
		j.last = bytes.Clone(text[bytes.LastIndexByte(text[:whole-1], '\n')+1 : whole])
	}
}

// set sets the counts of a row, and brings its tallies up to date.
func (j *otherJournal) set(k rowKey, c Counts, since int64) {
	r := j.table.of(k)
	if k.start >= since && r.tallies[0] == nil {
		r.tallies = j.tallies.of(k)
	}
	r.tallies.replace(r.Counts, c)
	r.Counts = c
}

// changes brings the journals up to date, and returns how often one of them has changed.
func (o *otherJournals) changes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readLocked()
	return o.changed
}

// tallies returns what the journals have counted, as they were read last.
func (o *otherJournals) tallies(wanted []tallyKey) map[tallyKey]tally {
	sums := map[tallyKey]tally{}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.read {
		for _, k := range wanted {
			if found := j.tallies[k]; found != nil {
				sums[k] = sums[k].plus(*found)
			}
		}
	}
	return sums
}
