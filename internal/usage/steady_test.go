package usage

import (
	"testing"
	"time"
)

// machineClock is the clock of a machine that a test sets.
type machineClock struct {
	wall    time.Time
	elapsed time.Duration
}

// pass lets time pass.
func (m *machineClock) pass(d time.Duration) { m.wall, m.elapsed = m.wall.Add(d), m.elapsed+d }

// steady has a ledger use the clock.
func (m *machineClock) steady(l *Ledger) {
	l.steady = &steadyClock{wall: m.wall, read: func() (time.Time, time.Duration) { return m.wall, m.elapsed }}
}

// today is the time of the ledgers of tests. It stands still, so that no test goes over the end of
// an hour, a day or a month.
var today = time.Now().Round(0)

// standStill has a ledger count in the hour of today.
func standStill(l *Ledger) { (&machineClock{wall: today}).steady(l) }

// A clock that is wrong for a moment, forward or back, changes no verdict and moves no usage into
// another month. A clock that stays as it was set is believed.
func TestB3_AClockThatJumpsForAMoment(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for name, jump := range map[string]time.Duration{"forward": 40 * 24 * time.Hour, "back": -40 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			l, machine := open(t, t.TempDir()), &machineClock{wall: noon}
			machine.steady(l)
			l.SetBudgets([]Budget{monthly, daily})
			spendNow := func(tokens int64) {
				l.Add(acme, OfRequest(tokens, 0, 0, true), machine.wall)
				l.refreshBudgets(l.Now())
			}
			spendNow(60)
			machine.wall = machine.wall.Add(jump)
			spendNow(39)
			wantLevels(t, l, Within, Within)
			spendNow(1) // it counts in the day in which it was used
			wantLevels(t, l, Within, HardReached)
			machine.pass(settleTime - time.Second)
			spendNow(0)
			wantLevels(t, l, Within, HardReached)
			machine.wall = machine.wall.Add(-jump)
			spendNow(0)
			wantLevels(t, l, Within, HardReached)
			machine.wall = machine.wall.Add(jump)
			spendNow(0)
			machine.pass(settleTime)
			spendNow(1)
			wantLevels(t, l, Within, Within)
			if now := l.Now(); !now.Equal(machine.wall) {
				t.Errorf("it is %v, want %v", now, machine.wall)
			}
		})
	}
}

// A clock that is adjusted a little is believed at once.
func TestB3_AClockThatIsAdjusted(t *testing.T) {
	l, machine := open(t, t.TempDir()), &machineClock{wall: time.Date(2026, 11, 28, 23, 59, 30, 0, time.UTC)}
	machine.steady(l)
	for _, by := range []time.Duration{maxSlip, -maxSlip / 2, 0} {
		machine.pass(time.Hour)
		machine.wall = machine.wall.Add(by)
		if now := l.Now(); !now.Equal(machine.wall) {
			t.Errorf("it is %v, want %v", now, machine.wall)
		}
	}
}

// While the ledger does not believe a clock that is set back, an answer until now has the requests
// of now.
func TestB3_AnAnswerWhileTheClockIsSetBack(t *testing.T) {
	now := time.Now()
	l, machine := open(t, t.TempDir()), &machineClock{wall: now.Add(3 * time.Hour)}
	machine.steady(l)
	machine.wall = now
	spendAt(l, now, 10, 0)
	a := l.Query(t.Context(), Question{From: now.Add(-24 * time.Hour), By: []Dimension{ByTenant}})
	if len(a.Items) != 1 || a.Items[0].Requests != 1 {
		t.Errorf("%+v", a)
	}
}

// After a restart with a clock that was set back, an answer without an end has the usage of the
// hours to come. One with an end has none of later hours.
func TestB3_UsageOfAClockThatWasAhead(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	ahead := now.Add(50 * time.Hour)
	l := open(t, dir)
	(&machineClock{wall: ahead}).steady(l)
	spendAt(l, ahead, 10, 0)
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	kill(l)
	l = open(t, dir)
	ask := func(to time.Time) Answer {
		return l.Query(t.Context(), Question{From: now.Add(-24 * time.Hour), To: to, By: []Dimension{ByHour}})
	}
	if a := ask(time.Time{}); len(a.Items) != 1 || a.Items[0].Values[0] != ahead.UTC().Truncate(time.Hour).Format(time.RFC3339) || a.To.Before(ahead) {
		t.Errorf("%+v", a)
	}
	if a := ask(now); len(a.Items) != 0 || a.To.Sub(now) > time.Hour {
		t.Errorf("until now: %+v", a)
	}
}
