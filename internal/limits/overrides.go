package limits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// tries bounds how often one change is begun anew because somebody else was faster.
const maxTries = 16

var errContended = errors.New("the limits are being changed by too many at once")

// Config of a Book.
type Config struct {
	// Backend keeps what was patched. Nil: nothing outlives the process.
	Backend Backend
	// Log hears of changes; nil: nobody does.
	Log *zap.Logger
}

// Book holds the limits in force. It is safe for concurrent use.
type Overrides struct {
	backend Backend
	log     *zap.Logger
	kinds   map[string]rules
	current atomic.Pointer[snapshot]

	// turn holds one token: whoever has it may use what follows.
	updating chan struct{}
	// file is what the file says, with nil for what it does not name; settled is the file that the backend has heard of, nil for none.
	file, reconciled map[string]Values
	// records are the backend's, as far as is known.
	records Records
}

// page is what Get reads. It is never changed.
type snapshot struct {
	entries map[string]Entry
	version string
}

// New returns a Book that knows nothing until its first Sync.
func New(c Config) *Overrides {
	if c.Backend == nil {
		c.Backend = &memoryBackend{}
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	b := &Overrides{backend: c.Backend, log: c.Log, kinds: patchableLimits(), updating: make(chan struct{}, 1)}
	b.current.Store(&snapshot{})
	b.updating <- struct{}{}
	return b
}

// Get says what holds for the key; false when the last Sync did not name it. It takes no lock.
func (b *Overrides) Get(key string) (Entry, bool) {
	e, ok := b.current.Load().entries[key]
	return e, ok
}

// Version is another after every change of what was kept, by whomever, that this Book has seen. It is the backend's.
func (b *Overrides) Version() string { return b.current.Load().version }

// Sync tells what the file says now, by key, with all models and tenants of each kind that it tells of; what was told of other
// kinds stays. A field whose value in the file has changed takes that value, whatever was patched. What the file does not name any
// more is forgotten, and its patches with it.
//
// A nil Values stands for a model that the file does not name and that is there all the same: it can be patched, and its patches
// are kept while it is away. A missing field has its usual value: weight 1, no limit for all others.
//
// When the backend fails, the file and the patches that are known hold, the error is returned, and the next Sync, Patch or Reload
// tries again. Sync waits for a change that is under way even when ctx has ended: the file is heard in any case.
func (b *Overrides) Sync(ctx context.Context, file map[string]Values) error {
	said := map[string]Values{}
	for key, values := range file {
		rs, ok := b.kinds[kindOf(key)]
		if !ok {
			return fmt.Errorf("limits: %q is of no known kind", key)
		}
		for field := range values {
			if _, ok := rs[field]; !ok {
				return &Invalid{field, "is no limit of " + key}
			}
		}
		said[key] = rs.complete(values)
	}
	<-b.updating
	defer b.unlock()
	b.mergeFile(said)
	if err := b.update(ctx, nil); err != nil {
		known := b.records.clone()
		b.reconcile(known)
		b.publish(known, b.Version())
		return fmt.Errorf("limits: cannot keep what was changed at run time: %w", err)
	}
	return nil
}

// hear replaces what is known of the kinds that are told of.
func (b *Overrides) mergeFile(said map[string]Values) {
	told := map[string]bool{}
	for key := range said {
		told[kindOf(key)] = true
	}
	for key, values := range b.file {
		if !told[kindOf(key)] {
			said[key] = values
		}
	}
	b.file = said
}

// Patch changes fields of one model or tenant; nil takes the file's value again. All changes are made, or none. It fails with
// ErrUnknown, with *Invalid, or with the backend's error; after that the change may have been kept or not.
func (b *Overrides) Patch(ctx context.Context, key string, changes map[string]*int64) (Entry, error) {
	rs := b.kinds[kindOf(key)]
	if err := b.lock(ctx); err != nil {
		return Entry{}, err
	}
	defer b.unlock()
	file, ok := b.file[key]
	if !ok || rs == nil {
		return Entry{}, ErrUnknown
	}
	if fault := rs.check(changes); fault != nil {
		return Entry{}, fault
	}
	err := b.update(ctx, func(records Records) {
		r, ok := records[key]
		if !ok {
			r = rs.newRecord(file)
		}
		rs.repair(&r)
		for field, v := range changes {
			if v == nil {
				r.Values[field] = rs[field].valueIn(r.File, field)
			} else {
				r.Values[field] = *v
			}
		}
		b.putOrDelete(records, key, r)
	})
	if err != nil {
		return Entry{}, fmt.Errorf("limits: cannot keep the change: %w", err)
	}
	e, _ := b.Get(key)
	b.log.Info("limits changed at run time", zap.String("of", key), zap.Any("values", e.Values), zap.Strings("patched", e.Patched))
	return e, nil
}

// Reload reads what others have changed. A backend that has lost everything is told again what is known here.
func (b *Overrides) Reload(ctx context.Context) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if err := b.update(ctx, nil); err != nil {
		return fmt.Errorf("limits: cannot read what was changed at run time: %w", err)
	}
	return nil
}

func (b *Overrides) lock(ctx context.Context) error {
	select {
	case <-b.updating:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Overrides) unlock() { b.updating <- struct{}{} }

// update brings the backend to what the file says, as far as it has not heard of it, and makes the change, if there is one. It begins
// anew while others are faster.
func (b *Overrides) update(ctx context.Context, change func(Records)) error {
	for try := range maxTries {
		kept, version, err := b.load(ctx)
		if err != nil {
			return err
		}
		next := kept.clone()
		if version == "" && len(b.records) > 0 {
			next = b.records.clone() // the backend has lost everything
		}
		replaced := b.reconcile(next)
		if change != nil {
			change(next)
		}
		changed := difference(kept, next)
		saved := true
		if len(changed) > 0 {
			saved, err = b.backend.Save(ctx, changed, version)
		}
		if err != nil {
			return err
		}
		if !saved {
			if err := pause(ctx, try); err != nil {
				return err
			}
			continue
		}
		if len(changed) > 0 {
			next, version = b.reloadVersion(ctx, next, version)
		}
		b.reconciled = b.file
		b.publish(next, version)
		for _, what := range replaced {
			b.log.Info("the file's new value replaces what was set at run time", zap.String("limit", what))
		}
		return nil
	}
	return errContended
}

// pause lets the others finish: up to 1 ms after the first try, and twice as long after each other up to 64 ms.
func pause(ctx context.Context, try int) error {
	select {
	case <-time.After(rand.N(time.Millisecond << min(try, 6))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *Overrides) load(ctx context.Context) (Records, string, error) {
	records, version, err := b.backend.Load(ctx)
	maps.DeleteFunc(records, func(_ string, r Record) bool { return r.Values == nil })
	return records, version, err
}

// again reads what was just saved, for the sake of its version. Nothing is lost when that fails: the version is then one that the
// backend never gives, and the next Reload mends it.
func (b *Overrides) reloadVersion(ctx context.Context, saved Records, version string) (Records, string) {
	if records, v, err := b.load(ctx); err == nil && v != "" {
		return records, v
	}
	return saved, version + "+"
}

// accept makes the records those in force.
func (b *Overrides) publish(records Records, version string) {
	b.records = records
	entries := make(map[string]Entry, len(b.file))
	for key, file := range b.file {
		rs := b.kinds[kindOf(key)]
		r, ok := records[key]
		if !ok {
			r = rs.newRecord(file)
		}
		r = r.clone()
		rs.repair(&r)
		e := Entry{Values: Values{}, Patched: rs.patched(r)}
		if len(r.File) > 0 {
			e.File = Values{}
		}
		for field := range rs {
			e.Values[field] = r.Values[field]
			if e.File != nil {
				e.File[field] = r.File[field]
			}
		}
		entries[key] = e
	}
	b.current.Store(&snapshot{entries, version})
}

func (r Records) clone() Records {
	out := make(Records, len(r))
	for key, record := range r {
		out[key] = record.clone()
	}
	return out
}

// difference is what a Save must be told to get from one to the other.
func difference(from, to Records) Records {
	changed := Records{}
	for key, r := range to {
		if old, ok := from[key]; !ok || !r.equal(old) {
			changed[key] = r
		}
	}
	for key := range from {
		if _, ok := to[key]; !ok {
			changed[key] = Record{}
		}
	}
	return changed
}

// memory is the backend of a Book that has none.
type memoryBackend struct {
	mu      sync.Mutex
	records Records
	saves   int
}

func (m *memoryBackend) Load(context.Context) (Records, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records.clone(), m.versionLocked(), nil
}

func (m *memoryBackend) versionLocked() string {
	if m.saves == 0 {
		return ""
	}
	return strconv.Itoa(m.saves)
}

func (m *memoryBackend) Save(_ context.Context, changed Records, version string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if version != m.versionLocked() {
		return false, nil
	}
	m.records = m.records.clone()
	m.records.apply(changed)
	m.saves++
	return true, nil
}

// put makes the changes of a Save.
func (r Records) apply(changed Records) {
	for key, record := range changed {
		if record.Values == nil {
			delete(r, key)
		} else {
			r[key] = record.clone()
		}
	}
}
