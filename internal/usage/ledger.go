package usage

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
)

const (
	// groupInterval is the time between two writes to the journal. All rows that changed meanwhile
	// are written at once.
	groupInterval = 100 * time.Millisecond
	// syncInterval is how often the journal is written through to the disk while it changes.
	syncInterval = 5 * time.Second
	// retryInterval is how long after a failed write the next one is tried.
	retryInterval = time.Second
	// agingInterval is how often old rows are looked for.
	agingInterval = time.Hour
)

// Config is what New needs.
type Config struct {
	// Dir is the folder of the journals. New makes it.
	Dir string
	// Keep returns how long rows are kept. It is called by Run. nil keeps everything.
	Keep func() Keep
	// Redis is where gateways share their ledgers. nil: this gateway is alone. Run closes it.
	Redis redis.UniversalClient
	// Log receives failed writes. nil: they are not logged.
	Log *zap.Logger
}

// Ledger counts usage. Make it with New, and have Run running. Its methods are safe for concurrent
// use. A nil *Ledger counts nothing.
type Ledger struct {
	cfg    Config
	writer string
	// due fires when there is something to write, at a whole multiple of groupInterval.
	due *time.Timer

	mu sync.Mutex
	// table has the rows of this writer, dirty those that are to be written; guarded by mu.
	table table
	dirty []*row
	// changed has the rows that are to be published, if the ledger is shared; guarded by mu.
	changed []rowKey
	// tallies are the sums of the rows of this writer, elsewhere those of all others that a budget
	// counts; guarded by mu.
	tallies   tallies
	elsewhere map[tallyKey]tally
	// wanted are the names of the tallies that the budgets count today; nil: not computed yet.
	// counted is the number of changes by other writers that elsewhere contains; 0: elsewhere must
	// be computed again. Guarded by mu.
	wanted  *wanted
	counted int
	// budgets are those in force; nil: there are none.
	budgets atomic.Pointer[budgets]

	// writing is held while the journal is used. It comes before mu.
	writing sync.Mutex
	// journal is guarded by writing.
	journal *journal
	// failing says that the last write failed; guarded by writing.
	failing bool

	// clock says whether old rows may be dropped. steady says in which hour a request counts, and
	// which day and month it is for budgets.
	clock  *clock
	steady *steadyClock
	// opened is the error that New returned with the ledger; nil: there was none.
	opened error
	// others are the journals of other writers. It has a lock of its own.
	others otherJournals
	// shared publishes the ledger; nil: it is not shared.
	shared *sharing
}

// New opens the ledger in its folder. It starts nothing. An error that comes with a Ledger says
// what could not be read of the journals: the ledger counts without it.
func New(c Config) (*Ledger, error) {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	clock := newClock(c.Dir, hourOf(time.Now())) // before a journal is changed
	j, t, err := claimJournal(c.Dir)
	if j == nil {
		return nil, err
	}
	writer := writerOf(j.path)
	l := &Ledger{cfg: c, writer: writer, due: time.NewTimer(time.Hour), table: t, journal: j, clock: clock, steady: newSteadyClock(),
		tallies: talliesSince(t, talliedSince(clock.now())), others: otherJournals{dir: c.Dir, own: writer, log: c.Log, clock: clock}}
	if c.Redis != nil {
		l.shared = newSharing(l, c.Redis)
	}
	l.opened = err
	return l, err
}

// Faults returns by the name of the file why a journal could not be read completely. Damaged lines
// are listed as long as the ledger lives.
func (l *Ledger) Faults() map[string]error {
	all := l.others.allFaults()
	if l.opened != nil {
		all[l.writer+journalSuffix] = l.opened
	}
	return all
}

// claimJournal opens a journal that no process writes, or a new one.
func claimJournal(dir string) (*journal, table, error) {
	names, err := journalsIn(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("usage: %w", err)
	}
	for _, name := range names {
		j, t, failed := openJournal(name)
		if j != nil {
			return j, t, errors.Join(err, failed)
		}
		if !errors.Is(failed, errLocked) {
			err = errors.Join(err, fmt.Errorf("usage: %w", failed))
		}
	}
	j, t, failed := openJournal(filepath.Join(dir, randomName()+journalSuffix))
	return j, t, errors.Join(err, failed)
}

// randomName returns a name that nobody else has.
func randomName() string {
	var random [8]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	return hex.EncodeToString(random[:])
}

// keep says how long rows are kept.
func (l *Ledger) keep() Keep {
	if l.cfg.Keep == nil {
		return Keep{HourlyDays: maxKeptDays, DailyDays: maxKeptDays}
	}
	return l.cfg.Keep()
}

// maxKeptDays is for how long a ledger keeps rows that nobody bounds.
const maxKeptDays = 36_500

// Now returns the time by which budgets begin anew. A jump of the machine's clock counts once it
// has lasted for settleTime.
func (l *Ledger) Now() time.Time { return l.steady.now() }

// Add adds what one request has used to the hour of at, which is by the machine's clock.
func (l *Ledger) Add(s Subject, c Counts, at time.Time) {
	if l == nil {
		return
	}
	at = l.steady.correct(at)
	l.mu.Lock()
	r := l.rowLocked(rowKey{period{start: hourOf(at)}, s})
	r.Add(c)
	r.corrected = r.corrected || c.Requests == 0
	if r.tallies[0] == nil {
		r.tallies = l.tallies.of(r.key)
	}
	r.tallies.add(c)
	if l.budgets.Load() != nil {
		l.judgeLocked(s)
	}
	if !r.dirty {
		r.dirty = true
		l.dirty = append(l.dirty, r)
		if len(l.dirty) == 1 {
			l.due.Reset(beat.Until(groupInterval))
		}
	}
	if l.shared != nil && !r.changed {
		r.changed = true
		l.changed = append(l.changed, r.key)
	}
	l.mu.Unlock()
}

// rowLocked returns the row of a key. A key with a budget has its own row in a full hour, too, else
// its budget would count nothing. mu is held.
func (l *Ledger) rowLocked(k rowKey) *row {
	if l.scopes()[scopeKey{k.Tenant, k.Key}] != nil {
		return l.table.of(k)
	}
	return l.table.row(k)
}

// Run writes what Add counts, and publishes it to other gateways, until ctx ends. It then writes
// and publishes the rest.
func (l *Ledger) Run(ctx context.Context) error {
	if l == nil {
		return nil
	}
	var others sync.WaitGroup
	defer others.Wait()
	if l.shared != nil {
		others.Go(func() { l.shared.run(ctx) })
	}
	others.Go(func() { l.watchBudgets(ctx) })
	others.Go(func() { l.watchOthers(ctx) })
	l.age(time.Now())
	aging, syncing := beat.After(agingInterval), beat.After(syncInterval)
	for {
		select {
		case <-ctx.Done():
			_ = l.Flush() // there is no later try
			l.sync()
			return nil
		case <-l.due.C:
			_ = l.Flush() // it is tried again
		case <-syncing:
			syncing = beat.After(syncInterval)
			l.sync()
		case now := <-aging:
			aging = beat.After(agingInterval)
			l.age(now)
		}
	}
}

// Flush writes the rows that have changed to the journal. After an error they stay to be written.
func (l *Ledger) Flush() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	changed := l.dirty
	l.dirty = nil
	var lines []byte
	for _, r := range changed {
		lines = appendLine(lines, r)
		r.dirty = false
	}
	long := l.journal.file == nil || l.journal.isLong()
	l.mu.Unlock()
	if len(changed) == 0 {
		return nil
	}
	err := l.journal.write(lines)
	if long {
		l.mu.Lock()
		if compacted := l.journal.compact(l.table); compacted == nil {
			l.dirty, err = nil, nil
		}
		l.mu.Unlock()
	}
	l.report(err)
	if err != nil {
		l.markDirty(changed)
	}
	return err
}

// markDirty has rows written again.
func (l *Ledger) markDirty(rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		if !r.dirty {
			r.dirty = true
			l.dirty = append(l.dirty, r)
		}
	}
	l.due.Reset(retryInterval)
}

// report logs the first of several failures, and their end. writing is held.
func (l *Ledger) report(err error) {
	switch {
	case err != nil && !l.failing:
		l.cfg.Log.Error("usage not written, it is kept in memory until it can be", zap.Error(err))
	case err == nil && l.failing:
		l.cfg.Log.Info("usage written again")
	}
	l.failing = err != nil
}

// sync has the system write the journal to the disk.
func (l *Ledger) sync() {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.journal.file != nil {
		_ = l.journal.file.Sync() // the next compaction writes everything anew
	}
}

// watchOthers ages the journals that no process writes, until ctx ends. The process of such a
// journal has ended, and a process that starts continues only one of them.
func (l *Ledger) watchOthers(ctx context.Context) {
	for now := time.Now(); ; {
		l.others.look() // before damaged lines are removed
		l.ageOthers(now)
		select {
		case <-ctx.Done():
			return
		case now = <-beat.After(agingInterval):
		}
	}
}

// ageOthers makes days of old hours, and drops old days, in the journals that no process writes. It
// removes those without rows. If the ledger is shared, sharing removes them, once Redis knows that
// their processes have ended.
func (l *Ledger) ageOthers(now time.Time) {
	if l.cfg.Keep == nil || !l.clock.believes(hourOf(now)) {
		return
	}
	if err := l.others.age(hourOf(now), l.cfg.Keep(), l.shared == nil); err != nil {
		l.cfg.Log.Error("journals of ended processes not aged", zap.Error(err))
	}
}

// age makes days of old hours, and drops old days, in the journal of this process. It does nothing
// while the clock is in doubt.
func (l *Ledger) age(now time.Time) {
	believed, doubted := l.clock.tick(hourOf(now))
	if doubted {
		l.cfg.Log.Info("the clock is days ahead of when usage was last written, old usage is kept until the clock has been so for a day",
			zap.Time("clock", now))
	}
	if l.cfg.Keep == nil || !believed {
		return
	}
	keep := l.cfg.Keep()
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tallies.drop(now)
	if !l.table.age(hourOf(now), keep) {
		return
	}
	if err := l.journal.compact(l.table); err != nil {
		l.cfg.Log.Error("journal of usage not written anew after its old rows were dropped", zap.Error(err))
		return
	}
	l.dirty = nil
}
