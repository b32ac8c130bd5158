package usage

import (
	"os"
	"path/filepath"
	"sync"
	"time"
)

// otherJournals are the journals in the folder that this process does not write. It reads one again
// when the file has changed.
type otherJournals struct {
	dir string

	mu sync.Mutex
	// read are the journals by their writers; guarded by mu.
	read map[string]otherJournal
}

// otherJournal is the journal of another writer, as it was read.
type otherJournal struct {
	size  int64
	at    time.Time
	table table
	// tallies are those of the table.
	tallies tallies
}

// tables returns the rows of all writers but own, by writer. The rows must not be changed. A
// journal that cannot be read counts with what was read last.
func (o *otherJournals) tables(own string) map[string]table {
	names, _ := filepath.Glob(filepath.Join(o.dir, "*"+journalSuffix)) // the pattern is valid
	o.mu.Lock()
	defer o.mu.Unlock()
	all, read := map[string]table{}, map[string]otherJournal{}
	for _, name := range names {
		writer, _ := writerOf(name)
		if writer == own {
			continue
		}
		known, ok := o.read[writer]
		known = known.again(name)
		if ok || known.size > 0 {
			read[writer], all[writer] = known, known.table
		}
	}
	o.read = read
	return all
}

// path returns the file of a writer.
func (o *otherJournals) path(writer string) string {
	return filepath.Join(o.dir, writer+journalSuffix)
}

// writers returns the writers of all journals in the folder.
func (o *otherJournals) writers() map[string]bool {
	names, _ := filepath.Glob(filepath.Join(o.dir, "*"+journalSuffix)) // the pattern is valid
	all := map[string]bool{}
	for _, name := range names {
		writer, _ := writerOf(name)
		all[writer] = true
	}
	return all
}

// again returns the journal as it is now.
func (j otherJournal) again(path string) otherJournal {
	info, err := os.Stat(path)
	if err != nil || info.Size() == j.size && info.ModTime().Equal(j.at) {
		return j
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return j
	}
	t, _ := readJournal(text)
	return otherJournal{size: info.Size(), at: info.ModTime(), table: t, tallies: talliesSince(t, talliedSince(time.Now()))}
}

// tallies returns what the writers other than own have counted.
func (o *otherJournals) tallies(own string, wanted []tallyKey) map[tallyKey]tally {
	sums := map[tallyKey]tally{}
	if len(o.tables(own)) == 0 {
		return sums
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, j := range o.read {
		for _, k := range wanted {
			if found := j.tallies[k]; found != nil {
				sum := sums[k]
				sums[k] = tally{sum.tokens + found.tokens, sum.cost + found.cost}
			}
		}
	}
	return sums
}
