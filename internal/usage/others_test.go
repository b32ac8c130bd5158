package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestB3_OfTheJournalOfAnotherProcessOnlyNewLinesAreRead: a process looks twice a second at the
// journals beside its own. It reads each line once, until the journal is written anew, and has the
// same sums as if it read everything.
func TestB3_OfTheJournalOfAnotherProcessOnlyNewLinesAreRead(t *testing.T) {
	dir := t.TempDir()
	old := open(t, dir)
	for i := range int64(2000) {
		old.Add(Subject{acme.Tenant, fmt.Sprint(acme.Tenant, "/", i%50), "chat"}, OfRequest(100, 0, 20, true), today.Add(-time.Duration(i/50)*time.Hour))
	}
	flush(t, old)
	next := open(t, dir)
	next.SetBudgets([]Budget{monthly, daily})
	check := func(step string) {
		t.Helper()
		next.refreshBudgets(today)
		anew := otherJournals{dir: dir, own: next.writer, log: zap.NewNop()}
		wanted := []tallyKey{}
		anew.look()
		for _, j := range anew.read {
			for k := range j.tallies {
				wanted = append(wanted, k)
			}
		}
		read := func(o *otherJournals) (tallies map[tallyKey]string, rows map[rowKey]Counts) {
			tallies, rows = map[tallyKey]string{}, map[rowKey]Counts{}
			o.changes()
			for k, v := range o.tallies(wanted) {
				tallies[k] = v.text()
			}
			o.tables(func(t table) {
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
		next.refreshBudgets(today)
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
	text = []byte(strings.Repeat(string(line)+string(line), len(text)/len(line)))
	if err := os.WriteFile(old.journal.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	check("with other lines at all places")
	if err := os.WriteFile(old.journal.path, line, 0o600); err != nil {
		t.Fatal(err)
	}
	check("shorter")
}

// TestB3_AJournalThatCannotBeReadIsTold: a ledger counts without a journal that it cannot read. It
// says so at its start, in its log and in each answer, until it can read the journal.
func TestB3_AJournalThatCannotBeReadIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad"+journalSuffix)
	if err := os.Mkdir(bad, 0o700); err != nil { // the least that nobody can read as a file
		t.Fatal(err)
	}
	core, logged := observer.New(zap.InfoLevel)
	l, err := New(Config{Dir: dir, Log: zap.New(core)})
	if l == nil || err == nil || !strings.Contains(err.Error(), bad) {
		t.Fatalf("the start says %v", err)
	}
	l.SetBudgets([]Budget{monthly})
	for range 3 {
		l.refreshBudgets(today)
	}
	a := l.Query(t.Context(), Question{From: time.Now().Add(-time.Hour), To: time.Now()})
	if a.Complete || len(a.Missing) != 1 || !strings.Contains(a.Missing[0], bad) {
		t.Errorf("%+v", a)
	}
	if n := logged.FilterMessageSnippet("not read").Len(); n != 1 {
		t.Errorf("logged %d times: %v", n, logged.All())
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if a = l.Query(t.Context(), Question{From: time.Now().Add(-time.Hour), To: time.Now()}); !a.Complete {
		t.Errorf("%+v", a)
	}
}

// TestB3_DamagedLinesOfAnEndedProcessAreTold: a ledger counts the good lines of the journal of an
// ended process. It logs once that other lines are damaged. Faults still names the journal after
// the journal was written again.
func TestB3_DamagedLinesOfAnEndedProcessAreTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := open(t, dir)
	core, logged := observer.New(zap.InfoLevel)
	l, err := New(Config{Dir: dir, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	spend(old, 700, 0)
	flush(t, old)
	text, err := os.ReadFile(old.journal.path)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := append(append([]byte("{}\n\n"), text...), text[:len(text)/2]...) // the last line has no end yet
	if err := os.WriteFile(old.journal.path, spoiled, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		for range 2 {
			l.others.look()
		}
		if n := logged.FilterMessageSnippet("damaged lines").Len(); n != 1 {
			t.Errorf("%s: logged %d times: %v", when, n, logged.All())
		}
		name := filepath.Base(old.journal.path)
		if all := l.Faults(); len(all) != 1 || all[name] == nil || !strings.Contains(all[name].Error(), ": damaged lines: 1") {
			t.Errorf("%s: the faults are %v", when, all)
		}
	}
	check("at first")
	if err := old.journal.compact(old.table); err != nil {
		t.Fatal(err)
	}
	check("written anew")
	if sums := l.others.counted(); len(sums) != 2 {
		t.Errorf("read: %v", sums)
	}
	if next, err := New(Config{Dir: t.TempDir()}); err != nil || len(next.Faults()) != 0 {
		t.Errorf("a new ledger has faults: %v, %v", err, next.Faults())
	}
}

// TestB3_AFolderThatCannotBeListedTakesNothingAway: what was read of other journals counts while
// the folder cannot be listed, as when the process has no file left.
func TestB3_AFolderThatCannotBeListedTakesNothingAway(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "usage")
	old := open(t, dir)
	spend(old, 700, 0)
	flush(t, old)
	l := open(t, dir)
	l.SetBudgets([]Budget{{Tenant: acme.Tenant, Per: PerMonth, Of: OfTokens, Hard: 1000}})
	l.refreshBudgets(today)
	before := l.Standings()[0].Used
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	l.refreshBudgets(today)
	a := l.Query(t.Context(), Question{From: time.Now().Add(-time.Hour), To: time.Now()})
	if used := l.Standings()[0].Used; used != before || before == 0 || len(a.Items) != 1 || a.Complete {
		t.Errorf("%v before, %v now; the answer is %+v", before, used, a)
	}
}
