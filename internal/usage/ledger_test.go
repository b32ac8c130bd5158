package usage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// noon is the moment at which the tests count.
var noon = time.Date(2026, 11, 23, 12, 30, 0, 0, time.UTC)

// acme is a subject of the tests.
var acme = Subject{Tenant: "acme", Key: "acme/12345678", Model: "chat"}

// open opens the ledger in a folder, and closes its journal when the test ends.
func open(t *testing.T, dir string) *Ledger {
	t.Helper()
	l, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	standStill(l)
	t.Cleanup(func() { kill(l) })
	return l
}

// kill frees the journal without a last write, as a kill of the process does.
func kill(l *Ledger) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.journal.file != nil {
		l.journal.file.Close()
		l.journal.file = nil
	}
}

// total returns the sum of all that the ledger has.
func total(t *testing.T, l *Ledger) Counts {
	t.Helper()
	return sum(t, l, Question{From: noon.AddDate(-10, 0, 0), To: noon.AddDate(1, 0, 0)})
}

// sum returns the answer to a question without dimensions.
func sum(t *testing.T, l *Ledger, q Question) Counts {
	t.Helper()
	a := l.Query(t.Context(), q)
	if len(a.Items) > 1 {
		t.Fatalf("%+v", a)
	}
	if len(a.Items) == 0 {
		return Counts{}
	}
	return a.Items[0].Counts
}

func flush(t *testing.T, l *Ledger) {
	t.Helper()
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestB3_WhatWasFlushedSurvivesAKill(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Add(acme, OfRequest(100, 40, 7, true), noon)
	l.Add(acme, OfRequest(10, 0, 3, false), noon)
	flush(t, l)
	l.Add(acme, OfRequest(1000, 0, 1000, true), noon)
	kill(l)
	again := open(t, dir)
	want := Counts{Requests: 2, EstimatedRequests: 1, PromptTokens: 110, CachedTokens: 40, CompletionTokens: 10,
		EstimatedPromptTokens: 10, EstimatedCompletionTokens: 3}
	if diff := cmp.Diff(want, total(t, again)); diff != "" {
		t.Error(diff)
	}
	if again.writer != l.writer {
		t.Errorf("the writer was %s and is %s", l.writer, again.writer)
	}
	again.Add(acme, OfRequest(1, 0, 1, true), noon)
	if n := total(t, again).Requests; n != 3 {
		t.Errorf("%d requests after one more", n)
	}
}

// A kill cuts the last line at any byte. The rows before it count.
func TestB3_ATornLineLosesOnlyItself(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	for n := range 3 {
		l.Add(acme, OfRequest(int64(n), 0, 1, true), noon)
		flush(t, l)
	}
	kill(l)
	text, err := os.ReadFile(l.journal.path)
	if err != nil {
		t.Fatal(err)
	}
	last := strings.LastIndex(strings.TrimSpace(string(text)), "\n") + 1
	for cut := last; cut < len(text)-1; cut++ { // without its end of line a whole line counts
		rows, damaged := readJournal(text[:cut])
		if damaged != 0 || rows.row(rowKey{period{start: hourOf(noon)}, acme}).Requests != 2 {
			t.Fatalf("cut at byte %d: %d damaged lines, %+v", cut, damaged, rows)
		}
	}
}

// A kill has cut the last line, and the disk is full when the journal is opened. The next lines are
// not spoiled.
func TestB3_ATornLineThatCannotBeRemovedSpoilsNoOther(t *testing.T) {
	for name, cut := range map[string]int{"in the line": 5, "before its end": 1} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, dir)
			l.Add(acme, OfRequest(5, 0, 5, true), noon)
			flush(t, l)
			kill(l)
			text, err := os.ReadFile(l.journal.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(l.journal.path, append(text, text[:len(text)-cut]...), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(l.journal.path+".new", 0o700); err != nil {
				t.Fatal(err)
			}
			again, err := New(Config{Dir: dir})
			if err != nil || len(again.Faults()) > 0 { // nothing of the file is lost
				t.Fatalf("%v, faults %v", err, again.Faults())
			}
			again.Add(acme, OfRequest(7, 0, 7, true), noon)
			flush(t, again)
			kill(again)
			if err := os.Remove(l.journal.path + ".new"); err != nil {
				t.Fatal(err)
			}
			if n := total(t, open(t, dir)).Requests; n != 2 {
				t.Errorf("%d requests, want 2", n)
			}
		})
	}
}

// Each damaged byte is noticed: its line does not count, and the file is kept.
func TestB3_ADamagedLineIsNotBelieved(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Add(acme, OfRequest(5, 0, 5, true), noon)
	flush(t, l)
	l.Add(Subject{Tenant: "other", Model: "chat"}, OfRequest(7, 0, 7, true), noon)
	flush(t, l)
	kill(l)
	text, err := os.ReadFile(l.journal.path)
	if err != nil {
		t.Fatal(err)
	}
	end := strings.IndexByte(string(text), '\n')
	for at := range end {
		bad := []byte(string(text))
		bad[at] ^= 1
		rows, damaged := readJournal(bad)
		if damaged == 0 || len(rows[period{start: hourOf(noon)}]) != 1 {
			t.Fatalf("byte %d: %d damaged lines, %d rows", at, damaged, len(rows[period{start: hourOf(noon)}]))
		}
	}
	text[end-10] ^= 1
	if err := os.WriteFile(l.journal.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := New(Config{Dir: dir})
	if err == nil || again == nil {
		t.Fatalf("a damaged journal was not reported: %v", err)
	}
	defer kill(again)
	if all := again.Faults(); len(all) != 1 || all[filepath.Base(l.journal.path)] == nil {
		t.Errorf("the faults are %v", all)
	}
	if n := total(t, again).PromptTokens; n != 7 {
		t.Errorf("%d tokens of the good line", n)
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, "*.damaged-*")); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
}

// Two processes of a restart write beside each other. Each answers with the usage of both.
func TestB3_TwoProcessesCountBesideEachOther(t *testing.T) {
	dir := t.TempDir()
	old := open(t, dir)
	old.Add(acme, OfRequest(1, 0, 1, true), noon)
	flush(t, old)
	next := open(t, dir)
	if old.writer == next.writer {
		t.Fatal("both have one journal")
	}
	next.Add(acme, OfRequest(10, 0, 10, true), noon)
	old.Add(acme, OfRequest(100, 0, 100, true), noon)
	flush(t, old)
	flush(t, next)
	for name, l := range map[string]*Ledger{"old": old, "next": next} {
		if got := total(t, l); got.Requests != 3 || got.PromptTokens != 111 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	kill(old)
	kill(next)
	if got := total(t, open(t, dir)); got.Requests != 3 || got.PromptTokens != 111 {
		t.Errorf("after both: %+v", got)
	}
}

func TestB3_HoursBecomeDaysAndDaysEnd(t *testing.T) {
	keep := Keep{HourlyDays: 2, DailyDays: 10}
	rows := table{}
	now := hourOf(noon)
	for hoursAgo := range int64(20 * hoursPerDay) {
		rows.row(rowKey{period{start: now - hoursAgo}, acme}).Requests = 1
	}
	if !rows.age(now, keep) {
		t.Fatal("nothing has changed")
	}
	hours, days, requests := 0, 0, int64(0)
	for k, r := range rows.all {
		requests += r.Requests
		switch {
		case k.day:
			days++
			if r.Requests != hoursPerDay {
				t.Errorf("day %v has %d requests", k.time(), r.Requests)
			}
		default:
			hours++
		}
	}
	if wantHours := 2*hoursPerDay + 13; hours != wantHours || days != 8 || requests != int64(wantHours+8*hoursPerDay) {
		t.Errorf("%d hours, %d days, %d requests", hours, days, requests)
	}
	if rows.age(now, keep) {
		t.Error("a second time has changed something")
	}
}

func TestB3_AgedRowsAreWritten(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.cfg.Keep = func() Keep { return Keep{HourlyDays: 1, DailyDays: 30} }
	l.Add(acme, OfRequest(3, 0, 4, true), noon.AddDate(0, 0, -5))
	l.Add(acme, OfRequest(3, 0, 4, true), noon)
	flush(t, l)
	l.age(noon)
	kill(l)
	again := open(t, dir)
	if len(again.table) != 2 || again.table[dayOf(hourOf(noon.AddDate(0, 0, -5)))] == nil || total(t, again).Requests != 2 {
		t.Errorf("%+v", again.table)
	}
}

func TestB3_AnHourHasABoundedNumberOfKeys(t *testing.T) {
	rows := table{}
	for n := range maxSubjects + 100 {
		rows.row(rowKey{period{start: 1}, Subject{"acme", fmt.Sprint(n), "chat"}}).Requests++
	}
	other := rows.row(rowKey{period{start: 1}, Subject{"acme", Other, "chat"}})
	if len(rows[period{start: 1}]) != maxSubjects+1 || other.Requests != 100 {
		t.Errorf("%d keys, %d requests of others", len(rows[period{start: 1}]), other.Requests)
	}
}

// TestB3_AJournalOfAFullHourLosesNothing: the rows of a journal have no order, so the rows of other
// keys may come before those that filled the hour.
func TestB3_AJournalOfAFullHourLosesNothing(t *testing.T) {
	rows := table{}
	for n := range maxSubjects + 100 {
		rows.row(rowKey{period{start: 1}, Subject{"acme", fmt.Sprint(n), []string{"chat", "embed"}[n%2]}}).Requests++
	}
	var first, last []byte
	for k, r := range rows.all {
		if k.Key == Other {
			first = appendLine(first, r)
		} else {
			last = appendLine(last, r)
		}
	}
	read, damaged := readJournal(append(first, last...))
	var requests int64
	for _, r := range read.all {
		requests += r.Requests
	}
	if requests != maxSubjects+100 || damaged > 0 || len(read[period{start: 1}]) != len(rows[period{start: 1}]) {
		t.Errorf("%d requests of %d, %d lines damaged, %d rows", requests, maxSubjects+100, damaged, len(read[period{start: 1}]))
	}
}

func TestB3_AnAnswerIsGrouped(t *testing.T) {
	l := open(t, t.TempDir())
	for n, s := range []Subject{acme, acme, {"acme", "acme/ffffffff", "chat"}, {"acme", acme.Key, "embed"}, {"beta", "beta/1", "chat"}} {
		l.Add(s, OfRequest(int64(n+1), 0, 1, true), noon.Add(time.Duration(n)*time.Hour))
	}
	ask := func(from, to time.Time, by ...Dimension) []string {
		a := l.Query(context.Background(), Question{From: from, To: to, By: by})
		if !a.Complete {
			t.Fatal(a)
		}
		var got []string
		for _, item := range a.Items {
			got = append(got, fmt.Sprintf("%s=%d", strings.Join(item.Values, " "), item.PromptTokens))
		}
		return got
	}
	day := noon.Add(24 * time.Hour)
	for _, c := range []struct {
		got  []string
		want []string
	}{
		{ask(noon, day, ByTenant), []string{"acme=10", "beta=5"}},
		{ask(noon, day, ByModel, ByTenant), []string{"chat acme=6", "chat beta=5", "embed acme=4"}},
		{ask(noon, noon.Add(time.Hour), ByHour), []string{"2026-11-23T12:00:00Z=1", "2026-11-23T13:00:00Z=2"}},
		{ask(noon, day, ByMonth), []string{"2026-11=15"}},
		{ask(noon.AddDate(0, 0, 2), noon.AddDate(0, 0, 3), ByDay), nil},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Error(diff)
		}
	}
}

// A journal that is full of old values is written anew, and says the same.
func TestB3_AJournalStaysSmall(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	for n := range 20_000 {
		l.Add(acme, OfRequest(1, 0, 1, true), noon)
		if n%2 == 0 {
			flush(t, l)
		}
	}
	flush(t, l)
	if l.journal.size > 2*minCompaction {
		t.Errorf("the journal has %d bytes", l.journal.size)
	}
	kill(l)
	if n := total(t, open(t, dir)).Requests; n != 20_000 {
		t.Errorf("%d requests", n)
	}
}

func TestB3_AFailedWriteIsRepeated(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Add(acme, OfRequest(1, 0, 1, true), noon)
	l.journal.file.Close()
	if l.Flush() == nil {
		t.Fatal("a closed file was written")
	}
	l.journal.file = nil
	flush(t, l)
	kill(l)
	if n := total(t, open(t, dir)).Requests; n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestB3_RunWritesWhatIsCounted(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	for range 8 {
		running.Go(func() {
			for range 1000 {
				l.Add(acme, OfRequest(2, 1, 3, true), noon)
			}
		})
	}
	for total(t, l).Requests < 8000 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	running.Wait()
	kill(l)
	if got := total(t, open(t, dir)); got.Requests != 8000 || got.CompletionTokens != 24000 {
		t.Errorf("%+v", got)
	}
}

// What cannot be written, neither at the end of the journal nor as a new one, is written later.
func TestB3_AFailedCompactionLosesNothing(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Add(acme, OfRequest(1, 0, 1, true), noon)
	kill(l)
	if err := os.Mkdir(l.journal.path+nextSuffix, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if l.Flush() == nil {
			t.Error("a journal was written without a file")
		}
	}
	if err := os.Remove(l.journal.path + nextSuffix); err != nil {
		t.Fatal(err)
	}
	flush(t, l)
	kill(l)
	if n := total(t, open(t, dir)).Requests; n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Run writes what was counted soon, although nobody asks for it.
func TestB3_RunWritesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		for n := range int64(3) {
			l.Add(acme, OfRequest(1, 0, 1, true), today)
			l.Add(Subject{Tenant: "other"}, OfRequest(1, 0, 1, true), today)
			time.Sleep(groupInterval)
			synctest.Wait()
			text, err := os.ReadFile(l.journal.path)
			rows, damaged := readJournal(text)
			if got := rows.row(rowKey{period{start: hourOf(today)}, acme}).Requests; err != nil || damaged > 0 || got != n+1 {
				t.Errorf("the journal has %d requests, want %d; %v", got, n+1, err)
			}
		}
		cancel()
		<-ended
	})
}

// Run repeats a write that has failed, although nothing more is counted.
func TestB3_RunRepeatsAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, t.TempDir())
		kill(l)
		next := l.journal.path + nextSuffix
		if err := os.Mkdir(next, 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		l.Add(acme, OfRequest(1, 0, 1, true), today)
		time.Sleep(groupInterval)
		synctest.Wait()
		if err := os.Remove(next); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryInterval)
		synctest.Wait()
		text, err := os.ReadFile(l.journal.path)
		if rows, _ := readJournal(text); err != nil || len(rows) != 1 {
			t.Errorf("the journal is %q, %v", text, err)
		}
		cancel()
		<-ended
	})
}

func TestB3_DimensionsOfAQuestion(t *testing.T) {
	for text, want := range map[string][]Dimension{
		"tenant": {ByTenant}, "model,key,hour": {ByModel, ByKey, ByHour}, "": nil, "tenant,": nil, "tenant,tenant": nil, "week": nil, "Tenant": nil,
	} {
		if by, ok := ParseDimensions(text); ok != (want != nil) || !slices.Equal(by, want) {
			t.Errorf("%q: %v, %v", text, by, ok)
		}
	}
	for _, d := range Dimensions() {
		if by, ok := ParseDimensions(string(d)); !ok || len(by) != 1 || !strings.Contains(DimensionsRule, string(d)) {
			t.Errorf("%s: %v, %v", d, by, ok)
		}
	}
}

// The bound of an hour holds for what is counted, too.
func TestB3_AnHourCountsABoundedNumberOfKeys(t *testing.T) {
	l := open(t, t.TempDir())
	for n := range maxSubjects + 5 {
		l.Add(Subject{"acme", fmt.Sprint(n), "chat"}, OfRequest(1, 0, 1, true), noon)
	}
	rows := l.table[period{start: hourOf(noon)}]
	if other := rows[Subject{"acme", Other, "chat"}]; len(rows) != maxSubjects+1 || other == nil || other.Requests != 5 {
		t.Errorf("%d rows, and %+v of others", len(rows), other)
	}
}

// A ledger that does not exist counts nothing.
func TestB3_NoLedger(t *testing.T) {
	var l *Ledger
	l.Add(acme, OfRequest(1, 0, 1, true), noon)
	if err := l.Run(t.Context()); err != nil || l.Unshared() != nil {
		t.Errorf("%v, %v", err, l.Unshared())
	}
}

// TestB3_NoFolder: a ledger without a place for its journal does not begin.
func TestB3_NoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := New(Config{Dir: dir}); l != nil || err == nil {
		t.Errorf("%v, %v", l, err)
	}
}

// TestB3_RunFollowsOthersInBudgets: what another process of the folder counts reaches the budgets.
func TestB3_RunFollowsOthersInBudgets(t *testing.T) {
	dir := t.TempDir()
	other, l := open(t, dir), open(t, dir)
	l.SetBudgets([]Budget{monthly})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	spend(other, 1, 5)
	flush(t, other)
	testutil.Eventually(t, "the budget is used up", func() bool { return level(l, acme.Tenant, "") == HardReached })
	cancel()
	running.Wait()
	wantLevels(t, l, HardReached, Within)
}

func BenchmarkAdd(b *testing.B) {
	l, err := New(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = l.Run(ctx); close(done) }()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Add(acme, OfRequest(2, 1, 3, true), noon)
		}
	})
	cancel()
	<-done
}

// What an answer has told is in the journal, although no write was due yet.
func TestB3_WhatAnAnswerHasToldSurvivesAKill(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.Add(acme, OfRequest(100, 0, 7, true), noon)
	if n := total(t, l).Requests; n != 1 {
		t.Fatalf("%d requests", n)
	}
	kill(l)
	if n := total(t, open(t, dir)).Requests; n != 1 {
		t.Errorf("%d requests after the kill", n)
	}
}
