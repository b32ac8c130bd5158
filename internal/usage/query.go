package usage

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"
)

// Dimension is what an answer is grouped by.
type Dimension string

// The dimensions. Times are in UTC.
const (
	ByTenant Dimension = "tenant"
	ByKey    Dimension = "key"
	ByModel  Dimension = "model"
	ByHour   Dimension = "hour"
	ByDay    Dimension = "day"
	ByMonth  Dimension = "month"
)

// Dimensions returns all dimensions, in the order of an answer's columns.
func Dimensions() []Dimension {
	return []Dimension{ByHour, ByDay, ByMonth, ByTenant, ByKey, ByModel}
}

// ParseDimensions reads a list of dimensions with commas. ok is false if one is unknown or is given
// twice.
func ParseDimensions(text string) (by []Dimension, ok bool) {
	for name := range strings.SplitSeq(text, ",") {
		d := Dimension(name)
		if !slices.Contains(Dimensions(), d) || slices.Contains(by, d) {
			return nil, false
		}
		by = append(by, d)
	}
	return by, true
}

// DimensionsRule says in words what ParseDimensions takes.
const DimensionsRule = "must be a list of tenant, key, model, hour, day and month, each at most once"

// Question asks what was used.
type Question struct {
	// From and To are the period. Usage is kept by the hour, so From is taken as the beginning of
	// its hour, or of its day where only days are kept. To is taken as the end of its hour. A zero
	// To is now, by the clock of the machine, of the ledger or of Redis, whichever is ahead. The
	// answer then also has what was counted by a clock that is or was ahead. Of other gateways it
	// has a day of that.
	From, To time.Time
	// By are the dimensions that the answer is grouped by.
	By []Dimension
}

// Item is the usage of one group of an answer. Values has the group's value of each dimension of
// the question.
type Item struct {
	Values []string
	Counts
}

// Answer is the answer to a Question: its items in the order of their values.
type Answer struct {
	// From and To are the period that the answer counts.
	From, To time.Time
	Items    []Item
	// Complete says that the usage of all gateways until AsOf is in the answer. Missing says
	// otherwise what is not.
	Complete bool
	Missing  []string
	// AsOf is the time until which the usage of all gateways is in the answer; zero if it is not
	// known.
	AsOf time.Time
}

// MissingHeader is the header of an answer in CSV that has Answer.Missing. A complete answer has no
// such header.
const MissingHeader = "X-Sluice-Usage-Missing"

// Query answers a question. A request is in the answer as soon as Add has counted it. What an
// answer has of this ledger is in the journal before, so that a kill does not take it back.
func (l *Ledger) Query(ctx context.Context, q Question) Answer {
	ctx, cancel := context.WithTimeout(ctx, shareReadTimeout)
	defer cancel()
	now, others := later(time.Now(), l.Now()), listing{} // a request may count in an hour that the machine's clock has not reached again
	if l.shared != nil {
		others = l.shared.remote.list(ctx)
		now = later(now, others.at)
	}
	untilNow := q.To.IsZero()
	if untilNow {
		q.To = later(now, q.From)
	}
	from, to := hourOf(q.From), hourOf(q.To.Add(time.Hour-1))
	first := max(from, l.keep().first(hourOf(l.clock.now()))) // a journal may have older rows until they are dropped
	sums := &groups{by: q.By, from: first, to: to, end: to, sums: map[string]*Item{}}
	if untilNow {
		sums.to = math.MaxInt64
	}
	l.others.tables(sums.addTable)
	l.mu.Lock()
	sums.addTable(l.table)
	l.mu.Unlock()
	_ = l.Flush() // it has logged its error; the answer is right without the journal
	a := Answer{From: period{start: from}.time(), AsOf: time.Now().UTC(), Missing: l.others.missing()}
	if l.shared != nil {
		l.shared.remoteUsage(ctx, others, &a, sums)
	}
	a.To, a.Items, a.Complete = period{start: sums.end}.time(), sums.items(), len(a.Missing) == 0
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// groups adds up the rows of the hours from from to before to, by the values of some dimensions.
type groups struct {
	by       []Dimension
	from, to int64
	// end is the end of the period in hours. A row that ends later moves it.
	end  int64
	sums map[string]*Item
}

// addTable adds the rows of the hours. A day counts if it has one of them.
func (g *groups) addTable(t table) {
	for k, r := range t.all {
		g.addRow(k, r.Counts)
	}
}

// addRow adds a row if its hour or day has one of the hours.
func (g *groups) addRow(k rowKey, c Counts) {
	if k.end() > g.from && k.start < g.to {
		g.end = max(g.end, min(k.end(), g.to))
		g.add(k, c)
	}
}

func (g *groups) add(k rowKey, c Counts) {
	values := make([]string, len(g.by))
	name := ""
	for i, by := range g.by {
		values[i] = k.value(by)
		name += values[i] + "\x00"
	}
	item := g.sums[name]
	if item == nil {
		item = &Item{Values: values}
		g.sums[name] = item
	}
	item.Add(c)
}

// value returns the row's value of a dimension. A row of a day has no hour: the first one stands
// for it.
func (k rowKey) value(by Dimension) string {
	switch by {
	case ByTenant:
		return k.Tenant
	case ByKey:
		return k.Key
	case ByModel:
		return k.Model
	case ByHour:
		return k.time().Format(time.RFC3339)
	case ByDay:
		return k.time().Format(time.DateOnly)
	case ByMonth:
		return k.time().Format("2006-01")
	}
	return ""
}

// items returns the groups in the order of their values.
func (g *groups) items() []Item {
	items := make([]Item, 0, len(g.sums))
	for _, item := range g.sums {
		items = append(items, *item)
	}
	slices.SortFunc(items, func(a, b Item) int { return slices.Compare(a.Values, b.Values) })
	return items
}
