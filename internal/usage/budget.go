package usage

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// Span is the time that a budget is for, in UTC.
type Span string

// The spans of budgets.
const (
	PerDay   Span = "day"
	PerMonth Span = "month"
)

// Measure is what a budget counts.
type Measure string

// The measures of budgets. Tokens are those of prompts and answers together.
const (
	OfTokens Measure = "tokens"
	OfCost   Measure = "cost"
)

// Budget bounds what a tenant, or one of its keys, uses in a day or month.
type Budget struct {
	// Tenant is the tenant, Key the name of its key; an empty Key stands for the whole tenant.
	Tenant, Key string
	Per         Span
	Of          Measure
	// Soft is warned about, and Hard refused, in tokens or in the currency of the prices. 0: not
	// so.
	Soft, Hard float64
	// Expires is when its key ends, and the budget with it. Zero: it does not end.
	Expires time.Time
}

// Level says how far a budget is used.
type Level int

// The levels of a budget.
const (
	Within Level = iota
	SoftReached
	HardReached
)

// String returns "within", "soft" or "hard".
func (l Level) String() string { return [...]string{"within", "soft", "hard"}[l] }

// Standing is how far a budget is used now.
type Standing struct {
	Budget
	// Used is in the unit of Soft and Hard.
	Used float64
	// Resets is when the day or month ends.
	Resets time.Time
	Level  Level
}

// Verdict is what the budgets of a tenant or of a key mean for its requests.
type Verdict struct {
	// Hard is the budget for which requests are refused; nil: none is.
	Hard *Standing
	// Reached are the budgets of which the soft or the hard bound is reached.
	Reached []Standing
}

// budgetState is a budget with what counts for it.
type budgetState struct {
	Budget
	name tallyKey
	// own is the ledger's own tally. elsewhere is what others have counted.
	own       *tally
	elsewhere tally
	// began and resets are when its period begins and ends.
	began, resets time.Time
	level         Level
}

// scope has the budgets of one tenant or of one key. budgets are guarded by Ledger.mu.
type scope struct {
	budgets []*budgetState
	// verdict is nil while no bound is reached.
	verdict atomic.Pointer[Verdict]
}

// scopeKey names a scope: a tenant, or one of its keys.
type scopeKey struct{ tenant, key string }

// budgets are the budgets in force, by their scopes. The map does not change.
type budgets map[scopeKey]*scope

// SetBudgets replaces the budgets. They hold for the next request.
func (l *Ledger) SetBudgets(all []Budget) {
	next := budgets{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = nil
	levels := l.levelsLocked()
	for _, b := range all {
		k := scopeKey{b.Tenant, b.Key}
		if next[k] == nil {
			next[k] = &scope{}
		}
		next[k].budgets = append(next[k].budgets, &budgetState{Budget: b, level: levels[b]})
	}
	if len(next) == 0 {
		l.budgets.Store(nil)
		return
	}
	l.budgets.Store(&next)
	l.evaluateLocked(l.Now())
}

// levelsLocked returns the levels of the budgets in force, so that a budget is logged once. mu is
// held.
func (l *Ledger) levelsLocked() map[Budget]Level {
	all := map[Budget]Level{}
	for _, s := range l.scopes() {
		for _, b := range s.budgets {
			all[b.Budget] = b.level
		}
	}
	return all
}

// scopes returns the budgets in force. nil: there are none.
func (l *Ledger) scopes() budgets {
	if b := l.budgets.Load(); b != nil {
		return *b
	}
	return nil
}

// Verdict returns what the budgets of a tenant, or of one of its keys, mean now. nil means that no
// bound is reached. An empty key stands for the whole tenant. It takes no lock.
func (l *Ledger) Verdict(tenant, key string) *Verdict {
	if l == nil {
		return nil
	}
	if s := l.scopes()[scopeKey{tenant, key}]; s != nil {
		return s.verdict.Load()
	}
	return nil
}

// HasEnded reports whether the key of the budget has expired at a time.
func (b *Budget) HasEnded(now time.Time) bool { return !b.Expires.IsZero() && !now.Before(b.Expires) }

// Standings returns how far all budgets are used, those of a tenant before those of its keys. It
// has the budgets of expired keys, too.
func (l *Ledger) Standings() []Standing {
	return l.standings(func(*scope) bool { return true })
}

// Reached returns those of Standings of which a bound is reached. It costs little if they are few.
func (l *Ledger) Reached() []Standing {
	all := l.standings(func(s *scope) bool { return s.verdict.Load() != nil })
	return slices.DeleteFunc(all, func(s Standing) bool { return s.Level == Within })
}

// standings returns how far the budgets of some scopes are used, in order.
func (l *Ledger) standings(of func(*scope) bool) []Standing {
	l.mu.Lock()
	var all []Standing
	for _, s := range l.scopes() {
		if !of(s) {
			continue
		}
		for _, b := range s.budgets {
			all = append(all, b.standing())
		}
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b Standing) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Key, b.Key),
			strings.Compare(string(a.Per), string(b.Per)), strings.Compare(string(a.Of), string(b.Of)))
	})
	return all
}

// standing returns how far the budget is used.
func (b *budgetState) standing() Standing {
	used := float64(b.own.tokens + b.elsewhere.tokens)
	if b.Of == OfCost {
		used = float64(b.own.cost+b.elsewhere.cost) / costUnit
	}
	s := Standing{Budget: b.Budget, Used: used, Resets: b.resets}
	switch {
	case b.Hard > 0 && used >= b.Hard:
		s.Level = HardReached
	case b.Soft > 0 && used >= b.Soft:
		s.Level = SoftReached
	}
	return s
}

// evaluateLocked finds out what counts for each budget at a time, and how far it is used. mu is
// held.
func (l *Ledger) evaluateLocked(now time.Time) {
	for _, s := range l.scopes() {
		for _, b := range s.budgets {
			b.begin(now)
			if b.own = l.tallies[b.name]; b.own == nil {
				b.own = new(tally)
				l.tallies[b.name] = b.own
			}
			b.elsewhere = l.elsewhere[b.name]
		}
		s.judge(l.cfg.Log)
	}
}

// begin sets the period of the budget. It may be an earlier one than before, if the clock has gone
// back.
func (b *budgetState) begin(now time.Time) {
	now = now.UTC()
	if !now.Before(b.began) && now.Before(b.resets) {
		return
	}
	year, month, day := now.Date()
	form := time.DateOnly
	b.began, b.resets = time.Date(year, month, day, 0, 0, 0, 0, time.UTC), time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC)
	if b.Per == PerMonth {
		form = "2006-01"
		b.began, b.resets = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC), time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC)
	}
	b.name = tallyKey{b.Tenant, b.Key, now.Format(form)}
	b.own, b.elsewhere = new(tally), tally{} // what was used belongs to another period
}

// endsAfter reports whether s ends after other. A month ends after a day if both end at once.
func (s *Standing) endsAfter(other *Standing) bool {
	return cmp.Or(s.Resets.Compare(other.Resets), strings.Compare(string(s.Per), string(other.Per))) > 0
}

// judge sets the verdict, and logs each bound once when it is reached.
func (s *scope) judge(log *zap.Logger) {
	var v *Verdict
	for _, b := range s.budgets {
		now := b.standing()
		if now.Level > b.level {
			log.Warn("budget reached", zap.String("tenant", b.Tenant), zap.String("key", b.Key), zap.String("per", string(b.Per)),
				zap.String("of", string(b.Of)), zap.Stringer("bound", now.Level), zap.Float64("used", now.Used),
				zap.Float64("soft", b.Soft), zap.Float64("hard", b.Hard), zap.Time("resets", b.resets))
		}
		b.level = now.Level
		if now.Level == Within {
			continue
		}
		if v == nil {
			v = &Verdict{}
		}
		v.Reached = append(v.Reached, now)
		if now.Level == HardReached && (v.Hard == nil || now.endsAfter(v.Hard)) {
			v.Hard = &now
		}
	}
	if v != nil || s.verdict.Load() != nil {
		s.verdict.Store(v)
	}
}

// judgeLocked judges the budgets that a request of a subject counts for. mu is held.
func (l *Ledger) judgeLocked(s Subject) {
	for _, k := range [...]scopeKey{{s.Tenant, ""}, {s.Tenant, s.Key}} {
		if found := l.scopes()[k]; found != nil {
			found.judge(l.cfg.Log)
		}
	}
}

// wanted are the tallies that the budgets in force count in one day. It is immutable.
type wanted struct {
	day period
	// names are in order.
	names []tallyKey
}

// wantedTallies returns the names of the tallies that the budgets in force count at a time, in
// order. They depend on the budgets and on the day alone. The caller must not change the slice.
func (l *Ledger) wantedTallies(now time.Time) []tallyKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wantedLocked(now).names
}

// wantedLocked is wantedTallies with the day. mu is held.
func (l *Ledger) wantedLocked(now time.Time) *wanted {
	day := dayOf(hourOf(now))
	if l.wanted != nil && l.wanted.day == day {
		return l.wanted
	}
	all := map[tallyKey]bool{}
	for _, s := range l.scopes() {
		for _, b := range s.budgets {
			b.begin(now)
			all[b.name] = true
		}
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b tallyKey) int {
		return cmp.Or(strings.Compare(a.period, b.period), strings.Compare(a.tenant, b.tenant), strings.Compare(a.key, b.key))
	})
	l.wanted = &wanted{day, names}
	l.counted = 0
	return l.wanted
}

// refreshBudgets brings the budgets up to date with the clock and with the other processes of this
// folder. It runs often and there may be thousands of budgets, so it does nothing if neither has
// changed.
func (l *Ledger) refreshBudgets(now time.Time) {
	if len(l.scopes()) == 0 {
		return
	}
	changes := 1 + l.others.changes()
	if l.shared != nil {
		changes += l.shared.changes()
	}
	l.mu.Lock()
	wanted := l.wantedLocked(now)
	known := l.counted == changes
	l.mu.Unlock()
	if known {
		return
	}
	all := l.others.tallies(wanted.names)
	if l.shared != nil {
		for k, t := range l.shared.tallies() {
			all[k] = all[k].plus(t)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.elsewhere = all
	l.evaluateLocked(now)
	if l.wanted == wanted { // else other budgets have come meanwhile
		l.counted = changes
	}
}

// watchBudgets keeps the budgets up to date until ctx ends.
func (l *Ledger) watchBudgets(ctx context.Context) {
	for {
		l.refreshBudgets(l.Now())
		select {
		case <-ctx.Done():
			return
		case <-beat.After(shareInterval):
		}
	}
}
