package usage

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// level returns the level of the worst budget of a tenant or key.
func level(l *Ledger, tenant, key string) Level {
	v := l.Verdict(tenant, key)
	switch {
	case v == nil:
		return Within
	case v.Hard != nil:
		return HardReached
	}
	return SoftReached
}

// wantLevels fails unless tenant acme and its key have these levels.
func wantLevels(t *testing.T, l *Ledger, tenant, key Level) {
	t.Helper()
	if a, b := level(l, acme.Tenant, ""), level(l, acme.Tenant, acme.Key); a != tenant || b != key {
		t.Errorf("the tenant is %s and the key %s, want %s and %s", a, b, tenant, key)
	}
}

// monthly is a budget of the tenant, daily one of its key.
var (
	monthly = Budget{Tenant: acme.Tenant, Per: PerMonth, Of: OfCost, Soft: 1, Hard: 2}
	daily   = Budget{Tenant: acme.Tenant, Key: acme.Key, Per: PerDay, Of: OfTokens, Hard: 100}
)

// spend counts one request of acme.
func spend(l *Ledger, tokens int64, cost float64) { spendAt(l, l.Now(), tokens, cost) }

// spendAt counts one request of acme that began at a time.
func spendAt(l *Ledger, began time.Time, tokens int64, cost float64) {
	c := OfRequest(tokens/2, 0, tokens-tokens/2, true)
	c.Cost = int64(cost * costUnit)
	l.Add(acme, c, began)
}

// A budget warns at its soft bound and refuses at its hard one, from the request on that reaches
// it, until its day or month ends. Each bound is logged once.
func TestB3_BudgetsByTheCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock begins at midnight of 1 January 2000
		core, logs := observer.New(zap.WarnLevel)
		l, err := New(Config{Dir: t.TempDir(), Log: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		defer kill(l)
		spend(l, 40, 0.5) // before there are budgets
		l.SetBudgets([]Budget{monthly, daily})
		wantLevels(t, l, Within, Within)
		spend(l, 59, 0.5)
		wantLevels(t, l, SoftReached, Within)
		spend(l, 1, 0.25)
		wantLevels(t, l, SoftReached, HardReached)
		l.SetBudgets([]Budget{monthly, daily})
		if n := logs.FilterMessage("budget reached").Len(); n != 2 {
			t.Errorf("%d lines: %v", n, logs.All())
		}
		v := l.Verdict(acme.Tenant, acme.Key)
		if v.Hard.Used != 100 || !v.Hard.Resets.Equal(time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("%+v", v.Hard)
		}
		if all := l.Standings(); len(all) != 2 || all[0].Used != 1.25 || all[0].Level != SoftReached || all[1].Key == "" {
			t.Errorf("%+v", all)
		}
		time.Sleep(24 * time.Hour)
		l.refreshBudgets(time.Now())
		wantLevels(t, l, SoftReached, Within) // the day is new, the month is not
		spend(l, 10, 0.75)
		wantLevels(t, l, HardReached, Within)
		time.Sleep(30 * 24 * time.Hour)
		l.refreshBudgets(time.Now())
		wantLevels(t, l, Within, Within)
		l.SetBudgets(nil)
		spend(l, 1000, 1000)
		wantLevels(t, l, Within, Within)
	})
}

// What was spent before a kill counts, and so does what another process of the folder counts.
func TestB3_BudgetsSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	spend(l, 60, 1.5)
	flush(t, l)
	beside := open(t, dir)
	beside.SetBudgets([]Budget{monthly, daily})
	beside.refreshBudgets(today)
	wantLevels(t, beside, SoftReached, Within)
	spend(beside, 40, 0)
	wantLevels(t, beside, SoftReached, HardReached)
	flush(t, beside)
	kill(l)
	kill(beside)
	again := open(t, dir)
	again.SetBudgets([]Budget{monthly, daily})
	again.refreshBudgets(today)
	wantLevels(t, again, SoftReached, HardReached)
}

// Each gateway enforces what all have spent, and goes on with it when Redis is lost or emptied.
func TestB3_BudgetsOfSeveralGateways(t *testing.T) {
	server := redistest.Start(t)
	dirs := []string{t.TempDir(), t.TempDir()}
	a, b := shared(t, dirs[0], server), shared(t, dirs[1], server)
	read := func(all ...*Ledger) error {
		for _, l := range all {
			if err := l.shared.readSpent(t.Context()); err != nil {
				return err
			}
			l.refreshBudgets(today)
		}
		return nil
	}
	for _, l := range []*Ledger{a, b} {
		l.SetBudgets([]Budget{monthly, daily})
	}
	spend(a, 50, 0.75)
	spend(b, 49, 0.5)
	publish(t, a, b)
	if err := read(a, b); err != nil {
		t.Fatal(err)
	}
	wantLevels(t, a, SoftReached, Within)
	wantLevels(t, b, SoftReached, Within)
	spend(b, 1, 0)
	wantLevels(t, b, SoftReached, HardReached)
	publish(t, b)
	if err := read(a); err != nil {
		t.Fatal(err)
	}
	wantLevels(t, a, SoftReached, HardReached)

	server.Client().FlushAll(t.Context())
	if err := b.shared.publish(t.Context(), whole); err != nil { // it learns by it what Redis lacks
		t.Fatal(err)
	}
	if err := read(a); err != nil {
		t.Fatal(err)
	}
	wantLevels(t, a, SoftReached, HardReached)
	publish(t, a, b)
	if err := b.shared.publish(t.Context(), closed); err != nil {
		t.Fatal(err)
	}
	kill(b) // it does not come back, and a begins anew
	flush(t, a)
	kill(a)
	a = shared(t, dirs[0], server)
	a.SetBudgets([]Budget{monthly, daily})
	wantLevels(t, a, Within, Within)
	if err := server.Client().HDel(t.Context(), keyPrefix+"writers", b.writer).Err(); err != nil { // as a day later
		t.Fatal(err)
	}
	if err := read(a); err != nil {
		t.Fatal(err)
	}
	wantLevels(t, a, SoftReached, HardReached)
	server.Kill()
	if read(a) == nil {
		t.Error("Redis was read that is gone")
	}
	a.refreshBudgets(today)
	wantLevels(t, a, SoftReached, HardReached)
}

// What other gateways have spent is read in a time that grows with the number of budgets, and not
// with its square. Thousands of keys may have budgets.
func TestB3_ManyBudgetsOfSeveralGateways(t *testing.T) {
	const keys = 100_000
	var wanted []tallyKey
	found := map[tallyKey]tally{}
	for i := range keys {
		k := tallyKey{"acme", "acme/" + strconv.Itoa(i), "2026-11-28"}
		wanted, found[k] = append(wanted, k), tally{tokens: 1}
	}
	gone := tallyKey{"acme", "acme/gone", "2026-11-28"}
	s := &sharing{spent: map[string]map[tallyKey]tally{"other": {gone: {tokens: 1}, wanted[0]: {tokens: 2}}}}
	took := testutil.ProcessorTime(t, func() { s.keepSpent(wanted, map[string]map[tallyKey]tally{"other": found}, nil) })
	if took > 5*time.Second {
		t.Errorf("took %v of a processor", took)
	}
	kept := s.spent["other"]
	if _, there := kept[gone]; len(kept) != keys || there || kept[wanted[0]].tokens != 2 {
		t.Errorf("%d tallies are kept, the first is %+v", len(kept), kept[wanted[0]])
	}
}

// Thousands of budgets cost a gateway nearly nothing while nothing changes. They are looked at all
// the time.
func TestB3_ManyBudgetsCostNothingWhileNothingChanges(t *testing.T) {
	server := redistest.Start(t)
	l, other := shared(t, t.TempDir(), server), shared(t, t.TempDir(), server)
	spend(other, 10, 0)
	all := []Budget{monthly}
	for n := range 20_000 {
		all = append(all, Budget{Tenant: acme.Tenant, Key: "acme/" + strconv.Itoa(n), Per: PerDay, Of: OfTokens, Hard: 1})
	}
	l.SetBudgets(all)
	look := func() {
		publish(t, other)
		if err := l.shared.readSpent(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.refreshBudgets(today)
		_ = l.Reached()
	}
	look()
	if n := testing.AllocsPerRun(10, look); n > 1000 {
		t.Errorf("%v allocations", n)
	}
	spend(other, 10, 0)
	look()
	if used := l.Standings()[0].Used; used != 0 {
		t.Errorf("%v are used, want no cost", used)
	}
	spend(other, 10, 3)
	look()
	if all := l.Reached(); len(all) != 1 || all[0].Used != 3 {
		t.Errorf("%+v", all)
	}
}

// The budget of a key counts in an hour that has all the subjects that it may have, and afterwards.
func TestB3_BudgetsInAFullHour(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	l.SetBudgets([]Budget{daily})
	for i := range maxSubjects {
		l.Add(Subject{daily.Tenant, "acme/" + strconv.Itoa(i), "chat"}, OfRequest(1, 0, 0, true), today)
	}
	spend(l, 100, 0)
	wantLevels(t, l, Within, HardReached)
	flush(t, l)
	kill(l)
	again := open(t, dir)
	again.SetBudgets([]Budget{daily})
	wantLevels(t, again, Within, HardReached)
}

// A request asks for its verdict without a lock and without memory.
func TestB3_AVerdictCostsNothing(t *testing.T) {
	l := open(t, t.TempDir())
	all := []Budget{monthly, daily}
	for n := range 1000 {
		all = append(all, Budget{Tenant: fmt.Sprint("t", n), Per: PerDay, Of: OfTokens, Hard: 1})
	}
	l.SetBudgets(all)
	spend(l, 1000, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() { _ = l.Verdict(acme.Tenant, acme.Key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The clock is in a later month for a moment, and goes back. The budget counts this month again.
func TestB3_BudgetsOfAClockThatGoesBack(t *testing.T) {
	l := open(t, t.TempDir())
	l.SetBudgets([]Budget{monthly, daily})
	spend(l, 200, 3)
	wantLevels(t, l, HardReached, HardReached)
	l.refreshBudgets(today.AddDate(1, 0, 0))
	wantLevels(t, l, Within, Within)
	l.refreshBudgets(today)
	wantLevels(t, l, HardReached, HardReached)
}

// Budgets that come later in the day count what other processes have used before.
func TestB3_NewBudgetsCountWhatOthersHaveUsed(t *testing.T) {
	dir := t.TempDir()
	other, l := open(t, dir), open(t, dir)
	spend(other, 100, 1.5)
	flush(t, other)
	l.SetBudgets([]Budget{monthly})
	l.refreshBudgets(today)
	wantLevels(t, l, SoftReached, Within)
	l.SetBudgets([]Budget{monthly, daily})
	l.refreshBudgets(today)
	wantLevels(t, l, SoftReached, HardReached)
}

// A tenant may have several budgets. That of its refusal is the one that ends last, also on the
// last day of a month.
func TestB3_SeveralBudgetsOfATenant(t *testing.T) {
	day := Budget{Tenant: acme.Tenant, Per: PerDay, Of: OfTokens, Hard: 100}
	tokens := Budget{Tenant: acme.Tenant, Per: PerMonth, Of: OfTokens, Soft: 1000}
	for _, now := range []time.Time{time.Date(2026, 11, 12, 8, 0, 0, 0, time.UTC), time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)} {
		for _, all := range [][]Budget{{monthly, day, tokens}, {tokens, day, monthly}} {
			l := open(t, t.TempDir())
			l.SetBudgets(all)
			if n := len(l.Standings()); n != 3 {
				t.Errorf("%d budgets, want 3", n)
			}
			spendAt(l, now, 100, 2)
			l.refreshBudgets(now)
			v := l.Verdict(acme.Tenant, "")
			if v == nil || v.Hard == nil || v.Hard.Per != PerMonth || len(v.Reached) != 2 {
				t.Fatalf("%s: %+v", now, v)
			}
			want := []Level{HardReached, HardReached, Within} // the order is day, month by cost, month by tokens
			for i, s := range l.Standings() {
				if s.Level != want[i] {
					t.Errorf("%s: budget %d: %+v", now, i, s)
				}
			}
			if n := len(l.Reached()); n != 2 {
				t.Errorf("%s: %d budgets are reached, want 2", now, n)
			}
		}
	}
}

// The budget of a key ends with its key. A ledger that does not exist has no budgets.
func TestB3_BudgetsEndWithTheirKeys(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		expires time.Time
		want    bool
	}{{time.Time{}, false}, {now.Add(1), false}, {now, true}, {now.Add(-1), true}} {
		if b := (Budget{Expires: c.expires}); b.HasEnded(now) != c.want {
			t.Errorf("a key that ends %v after now: %v", c.expires.Sub(now), !c.want)
		}
	}
	if v := (*Ledger)(nil).Verdict(acme.Tenant, ""); v != nil {
		t.Errorf("%+v", v)
	}
}

// A day and a month begin and end by UTC, whatever zone the time is in.
func TestB3_PeriodsOfBudgets(t *testing.T) {
	now := time.Date(2026, 12, 31, 20, 0, 0, 0, time.FixedZone("", -5*3600)) // 1 January in UTC
	for per, want := range map[Span]struct {
		name   string
		resets time.Time
	}{
		PerDay:   {"2027-01-01", time.Date(2027, 1, 2, 0, 0, 0, 0, time.UTC)},
		PerMonth: {"2027-01", time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC)},
	} {
		b := &budgetState{Budget: Budget{Tenant: "acme", Per: per}}
		b.begin(now)
		if s := b.standing(); b.name != (tallyKey{"acme", "", want.name}) || !s.Resets.Equal(want.resets) || !b.began.Equal(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("a %s: %+v from %v to %v", per, b.name, b.began, s.Resets)
		}
		b.own, b.elsewhere = &tally{tokens: 5}, tally{tokens: 7}
		if b.begin(now.Add(time.Hour)); b.standing().Used != 12 {
			t.Errorf("a %s an hour later: %+v", per, b.standing())
		}
		if b.begin(now.AddDate(0, 2, 0)); b.standing().Used != 0 {
			t.Errorf("the next %s begins with %v", per, b.standing().Used)
		}
	}
}
