package usage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// readSpent reads the tallies of other writers that the budgets count. What Redis has lost stays as
// it was known.
func (s *sharing) readSpent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	wanted := s.ledger.wantedTallies(s.ledger.Now())
	if len(wanted) == 0 {
		return nil
	}
	all, now, err := s.remote.writers(ctx)
	if err != nil {
		return err
	}
	s.remember(all, now)
	marks := map[string]string{}
	for writer, r := range all {
		marks[writer] = r.mark
	}
	if !slices.Equal(wanted, s.wanted) { // then writers count too that have closed or are gone
		s.read = map[string]string{}
		if err := s.remote.addWriters(ctx, wanted, marks); err != nil {
			return err
		}
	}
	own := s.ledger.others.counted()
	maps.DeleteFunc(marks, func(writer, mark string) bool {
		was, known := s.read[writer]
		return own[writer] || known && was == mark
	})
	spent, err := s.remote.spent(ctx, wanted, slices.Collect(maps.Keys(marks)))
	if err != nil {
		return err
	}
	s.keepSpent(wanted, spent, marks)
	maps.Copy(s.read, marks)
	s.wanted = wanted
	return nil
}

// keepSpent keeps what writers have spent, by their marks. A tally is smaller than before if a
// request has used less than was estimated, or because Redis was emptied or has lost publications.
// Only a later publication of the same process makes a tally smaller.
func (s *sharing) keepSpent(wanted []tallyKey, spent map[string]map[tallyKey]tally, marks map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent == nil {
		s.spent = map[string]map[tallyKey]tally{}
	}
	if len(spent) == 0 {
		return
	}
	s.changed++
	isWanted := make(map[tallyKey]bool, len(wanted))
	for _, k := range wanted {
		isWanted[k] = true
	}
	for writer, found := range spent {
		later := isLater(marks[writer], s.read[writer])
		for k, before := range s.spent[writer] {
			if now, there := found[k]; !there || !later {
				found[k] = tally{max(before.tokens, now.tokens), max(before.cost, now.cost)}
			}
		}
		maps.DeleteFunc(found, func(k tallyKey, _ tally) bool { return !isWanted[k] })
		s.spent[writer] = found
	}
}

// changes returns how often what other writers have spent has changed.
func (s *sharing) changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// tallies returns the sums of what other writers have spent.
func (s *sharing) tallies() map[tallyKey]tally {
	own := s.ledger.others.counted()
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := map[tallyKey]tally{}
	for writer, found := range s.spent {
		if own[writer] {
			continue
		}
		for k, t := range found {
			sums[k] = sums[k].plus(t)
		}
	}
	return sums
}

// remoteUsage adds the usage of the other gateways to an answer. before is what Redis told of the
// writers before: the rows that are read after it have at least that.
func (s *sharing) remoteUsage(ctx context.Context, before listing, a *Answer, sums *groups) {
	own, after, damaged := s.ledger.others.counted(), before, 0
	if before.err == nil {
		damaged, after.err = s.remote.rows(ctx, s.daysOf(sums, before.at), own, sums.addRow)
	}
	if after.err == nil {
		after = s.remote.list(ctx)
	}
	if after.err != nil {
		a.AsOf = time.Time{}
		a.Missing = append(a.Missing, fmt.Sprintf("Redis does not answer, so the usage of other gateways is missing: %s.",
			strings.TrimSuffix(after.err.Error(), "."))) // errors of Redis may end with one
		return
	}
	switch {
	case damaged == 1:
		a.Missing = append(a.Missing, "1 row of another gateway is damaged in Redis.")
	case damaged > 1:
		a.Missing = append(a.Missing, fmt.Sprintf("%d rows of other gateways are damaged in Redis.", damaged))
	}
	s.remember(before.writers, before.at)
	a.Missing = append(a.Missing, s.remember(after.writers, after.at)...)
	for writer, r := range after.writers {
		if was, known := before.writers[writer]; known && r.state != partial {
			r = was
		}
		if r.state == closed || own[writer] || before.at.Sub(r.at) > goneAfter {
			continue
		}
		if a.AsOf.IsZero() || r.at.Before(a.AsOf) {
			a.AsOf = r.at.UTC()
		}
		switch silent := before.at.Sub(r.at).Round(time.Second); {
		case r.state == partial:
			a.Missing = append(a.Missing, fmt.Sprintf("Gateway %s on %s has not published all of its usage yet.", writer, r.name))
		case silent >= s.silentAfter && hourOf(r.at) < sums.to:
			a.Missing = append(a.Missing, fmt.Sprintf("Gateway %s on %s has published nothing for %s.", writer, r.name, silent))
		}
	}
	slices.Sort(a.Missing)
}

// remember keeps which writers Redis has. It returns what an answer lacks because Redis has lost
// others, which it had before.
func (s *sharing) remember(all map[string]record, now time.Time) (lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.seen, func(_ string, r record) bool { return r.state == closed || now.Sub(r.at) > goneAfter })
	for writer, r := range s.seen {
		if _, there := all[writer]; !there {
			lost = append(lost, fmt.Sprintf("Redis has lost the usage of gateway %s on %s, which has not published it again.", writer, r.name))
		}
	}
	maps.Copy(s.seen, all)
	return lost
}

// look remembers which writers Redis has, and has it forget those that are gone. Their rows stay.
// It also compares the clocks: Redis has read its own one between the two readings here.
func (s *sharing) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	before := time.Now()
	all, now, err := s.remote.writers(ctx)
	if err != nil {
		return // the next publication reports it
	}
	after := time.Now()
	s.remember(all, now)
	s.mu.Lock()
	s.clock = max(before.Sub(now), min(after.Sub(now), 0))
	s.mu.Unlock()
	for writer, r := range all {
		if now.Sub(r.at) > goneAfter {
			_ = s.remote.forget(ctx, writer) // the next look tries it again
		}
	}
}

// daysOf returns the days of the sums for which a ledger may have rows. redis is the time by Redis'
// clock. The clock of another gateway may be ahead of that of this machine.
func (s *sharing) daysOf(sums *groups, redis time.Time) (days []int64) {
	now := s.ledger.clock.now()
	first := max(dayOf(sums.from).start, dayOf(hourOf(now.Add(-s.ledger.keep().days()))).start)
	for day := first; day < min(sums.to, hourOf(later(now, redis))+hoursPerDay); day += hoursPerDay {
		days = append(days, day)
	}
	return days
}
