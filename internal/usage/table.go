package usage

import (
	"encoding/json"
	"strconv"
	"time"
)

// maxSubjects is the greatest number of subjects in one hour or day of one writer.
const maxSubjects = 10_000

// hoursPerDay converts days to hours.
const hoursPerDay = 24

// period is an hour, or a day, in UTC.
type period struct {
	// start is in hours since 1970.
	start int64
	day   bool
}

// hourOf returns the hour of a time, in hours since 1970.
func hourOf(t time.Time) int64 { return t.Unix() / int64(time.Hour/time.Second) }

// dayOf returns the day that an hour belongs to.
func dayOf(hour int64) period { return period{start: hour - hour%hoursPerDay, day: true} }

// end returns the first hour after the period.
func (p period) end() int64 {
	if p.day {
		return p.start + hoursPerDay
	}
	return p.start + 1
}

func (p period) time() time.Time { return time.Unix(p.start*3600, 0).UTC() }

// rowKey names a row.
type rowKey struct {
	period
	Subject
}

// row is what one subject has used in one period.
type row struct {
	Counts
	key rowKey
	// head is the beginning of the row's line in the journal, up to the counts.
	head string
	// changed says that the row has changed since it was last published to other gateways.
	changed bool
	// corrected says that the row has changed without a further request.
	corrected bool
	// tallies are those that the row counts in; nil until the row changes.
	tallies rowTallies
	// dirty says that the row has changed since it was last written.
	dirty bool
}

// table has the rows of one writer. It is not safe for concurrent use.
type table map[period]map[Subject]*row

// row returns the row of a key, which it makes if there is none. In a full period a new key counts
// as Other.
func (t table) row(k rowKey) *row {
	if rows := t[k.period]; len(rows) >= maxSubjects && rows[k.Subject] == nil {
		k.Key = Other
	}
	return t.of(k)
}

// of returns the row of a key, which it makes if there is none, however many subjects there are. It
// is for rows of a journal, whose writer has bounded them and which come in any order, and for keys
// with budgets, which an operator bounds.
func (t table) of(k rowKey) *row {
	rows := t[k.period]
	if rows == nil {
		rows = map[Subject]*row{}
		t[k.period] = rows
	}
	if rows[k.Subject] == nil {
		rows[k.Subject] = &row{key: k, head: lineHead(k)}
	}
	return rows[k.Subject]
}

// day returns what a subject has used in a day.
func (t table) day(day int64, s Subject) (sum Counts) {
	if r := t[period{day, true}][s]; r != nil {
		sum.Add(r.Counts)
	}
	for hour := day; hour < day+hoursPerDay; hour++ {
		if r := t[period{start: hour}][s]; r != nil {
			sum.Add(r.Counts)
		}
	}
	return sum
}

func (t table) all(yield func(rowKey, *row) bool) {
	for p, rows := range t {
		for s, r := range rows {
			if !yield(rowKey{p, s}, r) {
				return
			}
		}
	}
}

// Keep says how long a ledger keeps its rows.
type Keep struct {
	// HourlyDays is the number of days for which hours are kept. They become days afterwards.
	HourlyDays int
	// DailyDays is the number of days for which days are kept.
	DailyDays int
}

// first returns the first hour of the oldest day that is kept at the hour now.
func (k Keep) first(now int64) int64 { return dayOf(now).start - int64(k.DailyDays)*hoursPerDay }

// age makes days of hours and drops days, by their age at the hour now. It returns whether it has
// changed something. Whole days change at once, so that no day is told by hours and as a day.
func (t table) age(now int64, keep Keep) (changed bool) {
	today := dayOf(now).start
	for p, rows := range t {
		day := dayOf(p.start)
		isOld := !p.day && day.start < today-int64(keep.HourlyDays)*hoursPerDay
		isGone := day.start < keep.first(now)
		if !isOld && !isGone {
			continue
		}
		delete(t, p)
		changed = true
		for s, r := range rows {
			if !isGone {
				t.row(rowKey{day, s}).Add(r.Counts)
			}
		}
	}
	return changed
}

// lineHead returns the beginning of a row's line: an open JSON object.
func lineHead(k rowKey) string {
	b := []byte(`{"start":`)
	b = strconv.AppendInt(b, k.start, 10)
	if k.day {
		b = append(b, `,"day":true`...)
	}
	for _, named := range [...]struct{ field, name string }{{"tenant", k.Tenant}, {"key", k.Key}, {"model", k.Model}} {
		text, _ := json.Marshal(named.name) // a string can always be encoded
		b = append(append(append(append(b, `,"`...), named.field...), `":`...), text...)
	}
	return string(append(b, `,"counts":[`...))
}
