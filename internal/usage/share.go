package usage

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

const (
	// shareInterval is how often rows that have changed are published to other gateways.
	shareInterval = 500 * time.Millisecond
	// shareTimeout bounds one call that publishes, and shareReadTimeout an answer.
	shareTimeout     = 2 * time.Second
	shareReadTimeout = 10 * time.Second
	// adoptInterval is how often journals are looked for whose process has died.
	adoptInterval = 5 * time.Second
	// publishBatch is the number of rows that are published in one call. It is halved after each
	// call that fails, down to smallBatch, so that a slow link carries a call within shareTimeout.
	publishBatch = 200
	smallBatch   = 10
	// silentAfter is how long after its last publication a gateway counts as silent: an answer then
	// lacks what it has counted since. goneAfter later it counts as gone.
	silentAfter = 3 * time.Second
	goneAfter   = 24 * time.Hour
	// expiryMargin is how much longer than the ledger Redis keeps rows.
	expiryMargin = 2 * 24 * time.Hour
)

// sharing publishes the rows of a ledger to Redis, and reads what others have published
// (shareread.go). Its goroutine alone uses the fields above mu.
type sharing struct {
	ledger *Ledger
	remote remote
	// session makes the marks of this process differ from those of others. sequence counts its
	// publications.
	session  string
	sequence int
	// marks are the last marks of this process, by writer.
	marks map[string]string
	// compare says that Redis may lack rows of before.
	compare bool
	// adopted are the journals of dead processes that were published, as they were then.
	adopted map[string]os.FileInfo
	// batch is the number of rows of the next call.
	batch int
	// silentAfter and timeout are the constants silentAfter and shareTimeout, but for tests.
	silentAfter, timeout time.Duration

	// wanted are the tallies that were read, and read the marks of the writers when they were.
	wanted []tallyKey
	read   map[string]string

	mu sync.Mutex
	// fault is why the last publication failed, nil if it did not; guarded by mu.
	fault error
	// spent has the wanted tallies of other writers; guarded by mu.
	spent map[string]map[tallyKey]tally
	// changed counts the changes of spent; guarded by mu.
	changed int
	// seen are the writers that Redis has had, as it had them last; guarded by mu.
	seen map[string]record
	// clock is what ClockAhead returns; guarded by mu.
	clock time.Duration
}

func newSharing(l *Ledger, client redis.UniversalClient) *sharing {
	host, _ := os.Hostname()
	return &sharing{ledger: l, remote: remote{client, strings.ReplaceAll(host, " ", "-")}, session: randomName(),
		marks: map[string]string{}, compare: true, adopted: map[string]os.FileInfo{}, silentAfter: silentAfter,
		timeout: shareTimeout, batch: publishBatch, seen: map[string]record{}}
}

// run publishes until ctx ends, and then says that the writer is closed.
func (s *sharing) run(ctx context.Context) {
	defer s.remote.client.Close() //nolint:errcheck // nothing is written after it
	publishing, adopting := time.NewTicker(shareInterval), time.NewTicker(adoptInterval)
	defer publishing.Stop()
	defer adopting.Stop()
	s.exchange(ctx)
	s.adopt(ctx)
	for {
		select {
		case <-ctx.Done():
			s.close(context.WithoutCancel(ctx))
			return
		case <-publishing.C:
			s.exchange(ctx)
		case <-adopting.C:
			s.adopt(ctx)
			s.look(ctx)
		}
	}
}

// exchange publishes what this process has counted, and reads what the others have.
func (s *sharing) exchange(ctx context.Context) {
	published, read := s.publish(ctx, whole), s.readSpent(ctx)
	s.report(cmp.Or(published, read)) // a condition shows it in one line, and both mostly say the same
	s.ledger.refreshBudgets(s.ledger.Now())
}

// close publishes what is left, and that the writer is closed. What does not fit into the time is
// published by the next process of the folder.
func (s *sharing) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	s.report(s.publish(ctx, closed))
	if s.compare { // redis was emptied
		s.report(s.publish(ctx, closed))
	}
}

// report keeps why the last publication failed, and logs the first of several failures and their
// end.
func (s *sharing) report(err error) {
	log := s.ledger.cfg.Log
	s.mu.Lock()
	failing := s.fault != nil
	s.fault = err
	s.mu.Unlock()
	switch {
	case err != nil && !failing:
		log.Warn("usage not published, other gateways do not count it until it can be", zap.Error(err))
	case err == nil && failing:
		log.Info("usage published again")
	}
}

// Unshared returns why the other gateways do not learn what this one counts, or the other way
// round. It returns nil if they do, and for a ledger that is not shared.
func (l *Ledger) Unshared() error {
	if l == nil || l.shared == nil {
		return nil
	}
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	return l.shared.fault
}

// ClockAhead returns by how much the clock of this machine is at least ahead of that of Redis;
// negative: behind it. It returns 0 for a ledger that is not shared.
func (l *Ledger) ClockAhead() time.Duration {
	if l == nil || l.shared == nil {
		return 0
	}
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	return l.shared.clock
}

// publish publishes the rows that have changed, and that the writer is then in the state at. After
// an error the next call goes on with the rows that are left. When Redis has lost the last
// publication, the next call compares everything, and adopt compares all journals anew.
func (s *sharing) publish(ctx context.Context, at state) error {
	l := s.ledger
	l.mu.Lock()
	rows := l.changed
	l.changed = nil
	for _, k := range rows {
		if r := l.table[k.period][k.Subject]; r != nil {
			r.changed = false
		}
	}
	l.mu.Unlock()
	if s.compare {
		lacking, err := s.missing(ctx, l.writer, func(read func(table)) {
			l.mu.Lock()
			defer l.mu.Unlock()
			read(l.table)
		})
		if err != nil {
			l.markChanged(rows)
			return err
		}
		rows = append(rows, lacking...) // a row in both is published twice, which counts once
	}
	known, left, err := s.publishRows(ctx, l.writer, at, rows, func(keys []rowKey) []change {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.table.changes(keys, l.keep(), l.tallies)
	})
	if s.compare = !known; s.compare {
		clear(s.adopted) // they are compared, too
	}
	l.markChanged(left)
	return err
}

// markChanged has rows published again. A row that has changed and counts no more requests than
// before is not found by comparing.
func (l *Ledger) markChanged(rows []rowKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range rows {
		if r := l.table[k.period][k.Subject]; r != nil && !r.changed {
			r.changed = true
			l.changed = append(l.changed, k)
		}
	}
}

// publishRows publishes rows of a writer. changes returns what is to be written of some of them.
// known says that Redis has had all earlier publications, and left are the rows that it may lack
// after an error.
func (s *sharing) publishRows(ctx context.Context, writer string, at state, rows []rowKey,
	changes func([]rowKey) []change,
) (known bool, left []rowKey, err error) {
	known = true
	for first := true; first || len(rows) > 0; first = false {
		n := min(len(rows), s.batch)
		now := record{mark: s.nextMark(writer, n), state: at}
		if n < len(rows) {
			now.state = partial
		}
		had, err := s.publishOnce(ctx, publication{writer: writer, last: s.marks[writer], now: now,
			expires: time.Now().Add(s.ledger.keep().days()), changes: changes(rows[:n])})
		if err != nil {
			s.batch = max(s.batch/2, smallBatch)
			return known, rows, err
		}
		known = known && had
		if n == s.batch { // a call with fewer rows does not tell that more would be in time
			s.batch = min(2*s.batch, publishBatch)
		}
		s.marks[writer] = now.mark
		rows = rows[n:]
	}
	return known, nil, nil
}

func (s *sharing) publishOnce(ctx context.Context, p publication) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.remote.publish(ctx, p)
}

// nextMark returns the mark of a writer's next publication of n rows. A publication without rows
// keeps the mark, so other gateways do not read the writer's tallies again.
func (s *sharing) nextMark(writer string, n int) string {
	if n == 0 && s.marks[writer] != "" {
		return s.marks[writer]
	}
	s.sequence++
	return s.session + "-" + strconv.Itoa(s.sequence)
}

// isLater reports whether a mark is of a later publication of the same process as another mark.
func isLater(mark, than string) bool {
	session, number, _ := strings.Cut(mark, "-")
	sessionBefore, numberBefore, _ := strings.Cut(than, "-")
	now, _ := strconv.Atoi(number) // Redis may have something else in the place of a mark
	before, _ := strconv.Atoi(numberBefore)
	return session == sessionBefore && now > before
}

// missing returns the rows of the days that Redis has not as the table has them, and the corrected
// ones. Redis may have these as they were before, with as many requests.
func (s *sharing) missing(ctx context.Context, writer string, with func(func(table))) (rows []rowKey, err error) {
	var periods []period
	with(func(t table) { periods = slices.Collect(maps.Keys(t)) })
	hours, days := map[int64]int64{}, map[int64]int64{}
	for _, p := range periods {
		with(func(t table) { // one period at a time: no request waits for the whole ledger
			day := dayOf(p.start).start
			for _, r := range t[p] {
				days[day] += r.Requests
				if !p.day {
					hours[day] += r.Requests
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(ctx, shareReadTimeout)
	defer cancel()
	there, err := s.remote.sums(ctx, writer, slices.Collect(maps.Keys(days)))
	if err != nil {
		return nil, err
	}
	s.marks[writer] = there.mark
	for _, p := range periods {
		day := dayOf(p.start).start
		same := there.days[day] == days[day] && there.hours[day] >= hours[day]
		with(func(t table) {
			for s, r := range t[p] {
				if !same || r.corrected {
					rows = append(rows, rowKey{p, s})
				}
			}
		})
	}
	return rows, nil
}

// adopt publishes the journals of the folder whose processes have died without a last publication.
func (s *sharing) adopt(ctx context.Context) {
	writers, err := s.ledger.others.writers()
	if err != nil {
		return // reading the journals reports it
	}
	for _, writer := range writers {
		if s.ledger.Unshared() != nil {
			return
		}
		path := s.ledger.others.path(writer)
		info, err := os.Stat(path)
		if old := s.adopted[writer]; err != nil || old != nil && old.Size() == info.Size() && old.ModTime().Equal(info.ModTime()) {
			continue
		}
		if s.adoptOne(ctx, writer, path) == nil {
			s.adopted[writer] = info
		}
	}
}

// adoptOne publishes the journal of a writer, unless a process writes it. Between two calls it
// publishes the own rows. It removes a journal without rows.
func (s *sharing) adoptOne(ctx context.Context, writer, path string) error {
	j, text, err := lockJournal(path, 0)
	if err != nil {
		return err
	}
	defer j.file.Close()
	t, sums, damaged := s.ledger.readAged(text)
	rows, err := s.missing(ctx, writer, func(read func(table)) { read(t) })
	if err != nil {
		return err
	}
	changes := func(keys []rowKey) []change {
		s.exchange(ctx) // a long journal takes minutes on a slow link, and the own rows do not wait for it
		return t.changes(keys, s.ledger.keep(), sums)
	}
	known, left, err := s.publishRows(ctx, writer, closed, rows, changes)
	for err != nil && len(left) < len(rows) { // a call has failed after others: it goes on with fewer rows
		rows = left
		var had bool
		had, left, err = s.publishRows(ctx, writer, closed, rows, changes)
		known = known && had
	}
	if err == nil && !known {
		err = errors.New("redis was emptied meanwhile")
	}
	if err == nil && len(t) == 0 && damaged == 0 {
		err = removeJournal(path)
	}
	return err
}

// readAged returns the rows of a journal whose process has ended, as far as they are kept, and
// their tallies. damaged is the number of lines that cannot be read.
func (l *Ledger) readAged(text []byte) (t table, sums tallies, damaged int) {
	t, damaged = readJournal(text)
	now := l.clock.now()
	sums = talliesSince(t, talliedSince(now))
	t.age(hourOf(now), l.keep())
	return t, sums, damaged
}

// changes returns what Redis is to have of some rows.
func (t table) changes(keys []rowKey, keep Keep, sums tallies) []change {
	hashes, days, tallied := map[string]*change{}, map[rowKey]bool{}, map[tallyKey]bool{}
	add := func(kind, period string, expires time.Time, field, value string) {
		one := hashes[kind+period]
		if one == nil {
			one = &change{kind: kind, period: period, expires: expires.Unix()}
			hashes[kind+period] = one
		}
		one.fields = append(one.fields, field, value)
	}
	for _, k := range keys {
		day := rowKey{dayOf(k.start), k.Subject}
		name, begin := dayName(day.start), day.time()
		if r := t[k.period][k.Subject]; r != nil && !k.day {
			add(kindHours, name, begin.Add(keep.hours()), r.head, string(r.appendTo(nil)))
		}
		if !days[day] {
			days[day] = true
			sum := t.day(day.start, k.Subject)
			add(kindDays, name, begin.Add(keep.days()), lineHead(day), string(sum.appendTo(nil)))
		}
		sums.changes(k, tallied, add)
	}
	var all []change
	for _, one := range hashes {
		all = append(all, *one)
	}
	return all
}

// hours and days return how long Redis keeps hours and days.
func (k Keep) hours() time.Duration {
	return time.Duration(k.HourlyDays)*hoursPerDay*time.Hour + expiryMargin
}

func (k Keep) days() time.Duration {
	return time.Duration(k.DailyDays)*hoursPerDay*time.Hour + expiryMargin
}
