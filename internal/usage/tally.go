package usage

import (
	"strconv"
	"strings"
	"time"
)

// kindSpent is the kind of the hashes with tallies.
const kindSpent = "spent"

// tallyKey names a tally: a tenant, or one of its keys, in a day or month.
type tallyKey struct {
	// key is empty for a tally of the whole tenant.
	tenant, key string
	// period is a day such as 2026-11-23, or a month such as 2026-11.
	period string
}

// tally is what was used: tokens, and their cost as in Counts.
type tally struct{ tokens, cost int64 }

func (t *tally) add(c Counts) {
	t.tokens += c.PromptTokens + c.CompletionTokens
	t.cost += c.Cost
}

// plus returns the sum of two tallies.
func (t tally) plus(o tally) tally { return tally{t.tokens + o.tokens, t.cost + o.cost} }

// replace replaces counts that were added by others.
func (t *tally) replace(before, after Counts) {
	t.add(after)
	t.tokens -= before.PromptTokens + before.CompletionTokens
	t.cost -= before.Cost
}

// rowTallies are the tallies that a row counts in: of its tenant and of its key, for its day and
// its month. Those of the key are nil for a row without a key.
type rowTallies [4]*tally

// tallies are sums of rows. It is not safe for concurrent use.
type tallies map[tallyKey]*tally

func (k rowKey) tallies() []tallyKey {
	day := dayName(dayOf(k.start).start)
	month := day[:len("2006-01")]
	all := []tallyKey{{k.Tenant, "", day}, {k.Tenant, "", month}}
	if k.Key != "" {
		all = append(all, tallyKey{k.Tenant, k.Key, day}, tallyKey{k.Tenant, k.Key, month})
	}
	return all
}

// of returns the tallies of a row, which it makes if there are none.
func (a tallies) of(k rowKey) (found rowTallies) {
	for i, name := range k.tallies() {
		if found[i] = a[name]; found[i] == nil {
			found[i] = new(tally)
			a[name] = found[i]
		}
	}
	return found
}

func (r *rowTallies) add(c Counts) {
	for _, t := range r {
		if t != nil {
			t.add(c)
		}
	}
}

// replace replaces counts that were added to the tallies of a row.
func (r *rowTallies) replace(before, after Counts) {
	for _, t := range r {
		if t != nil {
			t.replace(before, after)
		}
	}
}

// talliesSince returns the tallies of the rows of a table from an hour on, and gives them to the
// rows.
func talliesSince(t table, hour int64) tallies {
	all := tallies{}
	for k, r := range t.all {
		if k.start >= hour {
			r.tallies = all.of(k)
			r.tallies.add(r.Counts)
		}
	}
	return all
}

// talliedSince returns the first hour of the month before a time. Older rows are in no budget.
func talliedSince(now time.Time) int64 {
	year, month, _ := now.UTC().Date()
	return hourOf(time.Date(year, month-1, 1, 0, 0, 0, 0, time.UTC))
}

// drop drops the tallies of periods before the month before a time. Their rows have ended.
func (a tallies) drop(now time.Time) {
	first := period{start: talliedSince(now)}.time().Format("2006-01")
	for k := range a {
		if k.period < first {
			delete(a, k)
		}
	}
}

// field names a tally in its hash.
func (k tallyKey) field() string {
	if k.key == "" {
		return "tenant/" + k.tenant
	}
	return "key/" + k.key
}

// text is a tally as Redis has it.
func (t *tally) text() string {
	return strconv.FormatInt(t.tokens, 10) + "," + strconv.FormatInt(t.cost, 10)
}

// parseTally is the inverse of text. What is no tally is zero.
func parseTally(text any) (t tally) {
	s, _ := text.(string)
	tokens, cost, _ := strings.Cut(s, ",")
	t.tokens, _ = strconv.ParseInt(tokens, 10, 64)
	t.cost, _ = strconv.ParseInt(cost, 10, 64)
	return t
}

// changes adds the tallies of a row to what Redis is to have. done has those that were added.
func (a tallies) changes(k rowKey, done map[tallyKey]bool, add func(kind, period string, expires time.Time, field, value string)) {
	for _, name := range k.tallies() {
		t := a[name]
		if t == nil || done[name] {
			continue
		}
		done[name] = true
		const longestMonth = 31 * hoursPerDay * time.Hour
		add(kindSpent, name.period, period{start: k.start}.time().Add(longestMonth+expiryMargin), name.field(), t.text())
	}
}
