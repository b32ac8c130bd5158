package usage

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// month keeps hours for one day and days for thirty.
func month() Keep { return Keep{HourlyDays: 1, DailyDays: 30} }

// addDaysAgo counts one request for each number of days, so many days before now.
func addDaysAgo(t *testing.T, l *Ledger, days ...int) {
	t.Helper()
	for _, n := range days {
		l.Add(acme, OfRequest(10, 0, 0, true), today.AddDate(0, 0, -n))
	}
	flush(t, l)
}

// runOnce has Run do what it does at its start and at its end.
func runOnce(t *testing.T, l *Ledger) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// journals returns the rows of all journals in a folder.
func journals(t *testing.T, dir string) []table {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+journalSuffix))
	var all []table
	for _, name := range names {
		text, failed := os.ReadFile(name)
		if failed != nil {
			err = failed
		}
		rows, damaged := readJournal(text)
		if damaged > 0 {
			t.Errorf("%s has %d damaged lines", name, damaged)
		}
		all = append(all, rows)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// lastYear asks for the usage of the last year.
func lastYear() Question {
	return Question{From: time.Now().AddDate(-1, 0, 0), To: time.Now().Add(time.Hour)}
}

// TestB3_JournalsOfEndedProcessesAreAged: a restart leaves two journals in the folder, and a
// process continues only one of them. It drops the old rows of the other one too.
func TestB3_JournalsOfEndedProcessesAreAged(t *testing.T) {
	dir := t.TempDir()
	all := []*Ledger{open(t, dir), open(t, dir), open(t, dir)}
	addDaysAgo(t, all[0], 0, 5, 100)
	addDaysAgo(t, all[1], 0, 5, 100)
	addDaysAgo(t, all[2], 100)
	for _, l := range all {
		kill(l)
	}
	next := open(t, dir)
	next.cfg.Keep = month
	next.SetBudgets([]Budget{daily})
	next.refreshBudgets(today)
	before := next.Standings()[0].Used
	if got := sum(t, next, lastYear()).Requests; got != 4 {
		t.Errorf("%d requests before the journals are aged, want 4", got)
	}
	runOnce(t, next)
	kept := 0
	for _, rows := range journals(t, dir) {
		for k, r := range rows.all {
			kept++
			if age := time.Since(k.time()); age > 31*24*time.Hour || k.day != (age > 48*time.Hour) {
				t.Errorf("%+v is kept: %+v", k, r.Counts)
			}
		}
	}
	if kept != 4 || sum(t, next, lastYear()).Requests != 4 {
		t.Errorf("%d rows are kept, and the answer is %+v", kept, sum(t, next, lastYear()))
	}
	next.refreshBudgets(today)
	if now := next.Standings()[0].Used; now != before || now == 0 {
		t.Errorf("the budget of the day counts %v, before %v", now, before)
	}
	if n := len(journals(t, dir)); n > 3 || n == 3 && len(next.table) > 0 {
		t.Errorf("%d journals: the one without rows is not removed", n)
	}
}

// TestB3_AJournalOfALiveProcessIsLeftAlone: only the process that writes a journal drops its rows.
func TestB3_AJournalOfALiveProcessIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	live, empty := open(t, dir), open(t, dir)
	addDaysAgo(t, live, 0, 100)
	next := open(t, dir)
	next.cfg.Keep = month
	runOnce(t, next)
	if rows := journals(t, dir); len(rows) != 3 || len(rows[0])+len(rows[1])+len(rows[2]) != 2 {
		t.Errorf("the journals have become %+v", rows)
	}
	addDaysAgo(t, live, 1)
	addDaysAgo(t, empty, 1)
	if got := sum(t, next, lastYear()).Requests; got != 3 {
		t.Errorf("%d requests, want 3", got)
	}
}

// TestB3_ADamagedJournalIsKeptBeforeItIsAged: the lines that cannot be read stay in a copy.
func TestB3_ADamagedJournalIsKeptBeforeItIsAged(t *testing.T) {
	dir := t.TempDir()
	old, next := open(t, dir), open(t, dir)
	addDaysAgo(t, old, 0, 100)
	if _, err := old.journal.file.WriteString("{}\n"); err != nil {
		t.Fatal(err)
	}
	kill(old)
	next.cfg.Keep = month
	runOnce(t, next)
	if kept, _ := filepath.Glob(filepath.Join(dir, "*.damaged-*")); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
	if got := sum(t, next, lastYear()).Requests; got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

// TestB3_AJournalThatCannotBeAgedIsTold: a journal that is damaged or cannot be read is not removed
// although it has no row. The other journals are aged all the same.
func TestB3_AJournalThatCannotBeAgedIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	damaged, next, aged := open(t, dir), open(t, dir), open(t, dir)
	addDaysAgo(t, aged, 100)
	if _, err := damaged.journal.file.WriteString("{}\n"); err != nil {
		t.Fatal(err)
	}
	kill(damaged)
	kill(aged)
	unreadable := filepath.Join(dir, "bad"+journalSuffix)
	if err := os.Mkdir(unreadable, 0o700); err != nil { // the least that nobody can read as a file
		t.Fatal(err)
	}
	core, logged := observer.New(zap.ErrorLevel)
	next.cfg.Keep, next.cfg.Log = month, zap.New(core)
	next.ageOthers(time.Now())
	if all := logged.FilterMessage("journals of ended processes not aged").All(); len(all) != 1 || !strings.Contains(all[0].ContextMap()["error"].(string), unreadable) {
		t.Errorf("logged %v", logged.All())
	}
	for path, want := range map[string]bool{damaged.journal.path: true, unreadable: true, aged.journal.path: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestB3_AnEmptyJournalGoesOnceRedisKnows: other gateways would miss a writer whose journal is
// removed before Redis knows that its process has ended.
func TestB3_AnEmptyJournalGoesOnceRedisKnows(t *testing.T) {
	server := redistest.Start(t)
	dir := t.TempDir()
	old, next := shared(t, dir, server), shared(t, dir, server)
	publish(t, old, next)
	kill(old)
	next.ageOthers(time.Now())
	if n := len(journals(t, dir)); n != 2 {
		t.Errorf("%d journals before Redis knows, want 2", n)
	}
	next.shared.adopt(t.Context())
	if n := len(journals(t, dir)); n != 1 {
		t.Errorf("%d journals, want 1", n)
	}
	if all, _, err := next.shared.remote.writers(t.Context()); err != nil || all[old.writer].state != closed {
		t.Errorf("%+v, %v", all, err)
	}
	wantRequests(t, 0, next)
}

// TestB3_AWrongClockDropsNothing: a clock that is ahead by years at a start, or for some hours, is
// not believed. One that stays is.
func TestB3_AWrongClockDropsNothing(t *testing.T) {
	dir := t.TempDir()
	old, l := open(t, dir), open(t, dir)
	addDaysAgo(t, old, 0, 5)
	addDaysAgo(t, l, 0, 5)
	kill(old)
	l.cfg.Keep = month
	logs, observed := observer.New(zap.InfoLevel)
	l.cfg.Log = zap.New(logs)
	wrong := time.Now().AddDate(4, 0, 0)
	for range 5 {
		l.age(wrong)
		l.ageOthers(wrong)
	}
	if got := sum(t, l, lastYear()).Requests; got != 4 || observed.Len() != 1 {
		t.Errorf("%d requests after hours of a wrong clock, want 4, and %d lines in the log", got, observed.Len())
	}
	l.age(time.Now())
	l.ageOthers(time.Now())
	kill(l)
	next := open(t, dir) // at a start, before anything was believed
	next.cfg.Keep = month
	next.age(wrong)
	next.ageOthers(wrong)
	if got := sum(t, next, lastYear()).Requests; got != 4 || len(next.tallies) == 0 {
		t.Errorf("%d requests after a start with a wrong clock, want 4; budgets: %v", got, next.tallies)
	}
	for range clockTicks {
		next.age(wrong)
	}
	next.ageOthers(wrong)
	if got := sum(t, next, lastYear()).Requests; got != 0 {
		t.Errorf("%d requests after a day of the clock, want 0", got)
	}
}

// TestB3_TheClockIsThatOfTheJournals: a start is judged by when the journals were written.
func TestB3_TheClockIsThatOfTheJournals(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	addDaysAgo(t, l, 0)
	kill(l)
	written := time.Now().AddDate(-4, 0, 0) // as if the clock were four years ahead now
	if err := os.Chtimes(l.journal.path, written, written); err != nil {
		t.Fatal(err)
	}
	if c := newClock(dir, hourOf(time.Now())); c.believes(hourOf(time.Now())) || !c.believes(hourOf(written.AddDate(0, 0, 2))) {
		t.Errorf("%+v", c)
	}
}

// TestB3_AWrongClockForgetsNothingOfOthers: the clock is ahead by months. What other processes of
// the folder have counted stays in the budgets and in answers, also in what is published of one
// that has ended.
func TestB3_AWrongClockForgetsNothingOfOthers(t *testing.T) {
	dir := t.TempDir()
	old := open(t, dir)
	then := time.Now().AddDate(0, -4, 0) // as if the clock were four months ahead now
	old.Add(acme, OfRequest(70, 0, 0, true), then)
	flush(t, old)
	l := open(t, dir)
	l.clock.last = hourOf(then)
	month := tallyKey{acme.Tenant, "", then.UTC().Format("2006-01")}
	l.others.changes()
	if got := l.others.tallies([]tallyKey{month})[month].tokens; got != 70 {
		t.Errorf("the budget has %d tokens, want 70", got)
	}
	if a := l.Query(t.Context(), Question{From: then.Add(-time.Hour), To: then.Add(time.Hour)}); len(a.Items) != 1 {
		t.Errorf("%+v", a)
	}
	text, err := os.ReadFile(old.journal.path)
	if err != nil {
		t.Fatal(err)
	}
	l.cfg.Keep = func() Keep { return Keep{HourlyDays: 1, DailyDays: 30} }
	rows, sums, _ := l.readAged(text)
	if sums[month] == nil || sums[month].tokens != 70 || len(rows) != 1 {
		t.Errorf("published are %v and %v", rows, sums)
	}
}
