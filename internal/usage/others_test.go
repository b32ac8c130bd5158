package usage

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestB3_OfTheJournalOfAnotherProcessOnlyNewLinesAreRead: a process looks twice a second at the
// journals beside its own. It reads each line once, until the journal is written anew, and has the
// same sums as if it read everything.
func TestB3_OfTheJournalOfAnotherProcessOnlyNewLinesAreRead(t *testing.T) {
	dir := t.TempDir()
	old := open(t, dir)
	for i := range int64(2000) {
		old.Add(Subject{acme.Tenant, fmt.Sprint(acme.Tenant, "/", i%50), "chat"}, OfRequest(100, 0, 20, true), time.Now().Add(-time.Duration(i/50)*time.Hour))
	}
	flush(t, old)
	next := open(t, dir)
	next.SetBudgets([]Budget{monthly, daily})
	check := func(step string) {
		t.Helper()
		next.refreshBudgets(time.Now())
		anew := otherJournals{dir: dir}
		wanted := []tallyKey{}
		anew.tables(next.writer, func(table) {})
		for _, j := range anew.read {
			for k := range j.tallies {
				wanted = append(wanted, k)
			}
		}
		read := func(o *otherJournals) (tallies map[tallyKey]string, rows map[rowKey]Counts) {
			tallies, rows = map[tallyKey]string{}, map[rowKey]Counts{}
			for k, v := range o.tallies(next.writer, wanted) {
				tallies[k] = v.text()
			}
			o.tables(next.writer, func(t table) {
				for k, r := range t.all {
					rows[k] = r.Counts
				}
			})
			return tallies, rows
		}
		tallies, rows := read(&next.others)
		wantTallies, wantRows := read(&anew)
		if diff := cmp.Diff(wantTallies, tallies) + cmp.Diff(wantRows, rows); diff != "" || len(tallies) == 0 {
			t.Errorf("%s: %s", step, diff)
		}
	}
	check("at first")
	if n := testing.AllocsPerRun(5, func() {
		spend(old, 10, 0.5)
		flush(t, old)
		next.refreshBudgets(time.Now())
	}); n > 500 {
		t.Errorf("one new line costs %v allocations", n)
	}
	check("after more lines")

	spend(old, 1000, 2)
	old.mu.Lock()
	line := appendLine(nil, old.dirty[0])
	old.mu.Unlock()
	write := func(text []byte) {
		if _, err := old.journal.file.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	write(line[:len(line)/2])
	check("with half a line")
	write(line[len(line)/2:])
	check("with the rest of it")
	if err := old.journal.compact(old.table); err != nil {
		t.Fatal(err)
	}
	check("written anew")
	spend(old, 7, 0)
	flush(t, old)
	check("after one more line")

	text, err := os.ReadFile(old.journal.path)
	if err == nil {
		err = os.WriteFile(old.journal.path, append(line, text...), 0o600) // longer, and the same file
	}
	if err != nil {
		t.Fatal(err)
	}
	check("with other lines")
}
