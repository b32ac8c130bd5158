package limits

import (
	"cmp"
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

// maxTries is how often a change is tried while others change the limits too.
const maxTries = 16

var errContended = errors.New("the limits were changed by others at each of 16 tries: try again")

// Config is what New needs.
type Config struct {
	// Backend stores the limits. nil means that overrides are lost with the process.
	Backend Backend
	// Log gets a line for each change. nil means no log.
	Log *zap.Logger
}

// Overrides holds the limits in force. It is safe for concurrent use.
type Overrides struct {
	backend Backend
	log     *zap.Logger
	kinds   map[string]rules
	current atomic.Pointer[snapshot]

	// updating holds one token. The goroutine that has taken it may use the fields below.
	updating chan struct{}
	// file is the file's values, nil for a model that the file does not name. reconciled is the
	// file that the backend last had; nil means none.
	file, reconciled map[string]Values
	// mayReturn came with file, couldReturn with reconciled. See Sync.
	mayReturn, couldReturn func(key string) bool
	// records are those of the backend, as last seen.
	records Records
}

// snapshot is what Get reads. It is immutable.
type snapshot struct {
	entries map[string]Entry
	version string
}

// New returns an Overrides that knows no limits before its first Sync.
func New(c Config) *Overrides {
	if c.Backend == nil {
		c.Backend = &memoryBackend{}
	}
	c.Log = cmp.Or(c.Log, zap.NewNop())
	b := &Overrides{backend: c.Backend, log: c.Log, kinds: patchableLimits(), updating: make(chan struct{}, 1)}
	b.current.Store(&snapshot{})
	b.updating <- struct{}{}
	return b
}

// Get returns what is in force for the key, and false if the last Sync did not name it. It takes no
// lock.
func (o *Overrides) Get(key string) (Entry, bool) {
	e, ok := o.current.Load().entries[key]
	return e, ok
}

// Version returns the backend's version of the limits, as last seen. Every change by any gateway
// makes another version.
func (o *Overrides) Version() string { return o.current.Load().version }

// Sync sets the file's values by key, for all models and tenants of each kind that it contains.
// Kinds that it does not contain keep theirs. A field whose value in the file has changed takes the
// new value, also if it was patched. What the file no longer names is forgotten, with its patches.
//
// nil Values stand for a model that exists without the file naming it. It can be patched, and its
// patches are kept while the model is away. A missing field has its default: weight 1, and no limit
// for all others.
//
// mayReturn reports whether a model may exist without the file naming it, although file lacks it
// now. The patches of such a model are kept while the model is away, also if file had values for
// the model. nil stands for a function that returns false. Sync keeps mayReturn, which must always
// return the same for a key.
//
// If the backend fails, Sync returns the error. The file and the known patches are then in force,
// and the next Sync, Patch or Reload tries again. Sync waits for a change that is under way, even
// if ctx has ended, so the file always takes effect.
func (o *Overrides) Sync(ctx context.Context, file map[string]Values, mayReturn func(key string) bool) error {
	all := map[string]Values{}
	for key, values := range file {
		rs, ok := o.kinds[kindOf(key)]
		if !ok {
			return fmt.Errorf("limits: the key %q is not model/<name> or tenant/<name>", key)
		}
		for field := range values {
			if _, ok := rs[field]; !ok {
				return &Invalid{field, "is no limit of " + key}
			}
		}
		all[key] = rs.complete(values)
	}
	<-o.updating
	defer o.unlock()
	o.mergeFile(all)
	o.mayReturn = mayReturn
	if err := o.update(ctx, nil); err != nil {
		known := o.records.clone()
		o.reconcile(known)
		o.publish(known, o.Version())
		return fmt.Errorf("limits: cannot store overrides: %w", err)
	}
	return nil
}

// mergeFile replaces the values of the kinds of key that file contains.
func (o *Overrides) mergeFile(file map[string]Values) {
	kinds := kindsOf(file)
	for key, values := range o.file {
		if !kinds[kindOf(key)] {
			file[key] = values
		}
	}
	o.file = file
}

// Patch changes fields of one model or tenant; nil restores the file's value. Patch makes all
// changes or none. It fails with ErrUnknown, with *Invalid, or with the backend's error. After a
// backend's error the change may be stored or not.
func (o *Overrides) Patch(ctx context.Context, key string, changes map[string]*int64) (Entry, error) {
	rs := o.kinds[kindOf(key)]
	if err := o.lock(ctx); err != nil {
		return Entry{}, err
	}
	defer o.unlock()
	file, ok := o.file[key]
	if !ok || rs == nil {
		return Entry{}, ErrUnknown
	}
	if fault := rs.check(changes); fault != nil {
		return Entry{}, fault
	}
	err := o.update(ctx, func(records Records) {
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
		o.putOrDelete(records, key, r)
	})
	if err != nil {
		return Entry{}, fmt.Errorf("limits: cannot store the change: %w", err)
	}
	e, _ := o.Get(key)
	o.log.Info("limits changed at run time", zap.String("of", key), zap.Any("values", e.Values), zap.Strings("patched", e.Patched))
	return e, nil
}

// Reload reads what other gateways have changed. If the backend has lost changes, Reload stores
// what is known here.
func (o *Overrides) Reload(ctx context.Context) error {
	if err := o.lock(ctx); err != nil {
		return err
	}
	defer o.unlock()
	if err := o.update(ctx, nil); err != nil {
		return fmt.Errorf("limits: cannot read overrides: %w", err)
	}
	return nil
}

func (o *Overrides) lock(ctx context.Context) error {
	select {
	case <-o.updating:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *Overrides) unlock() { o.updating <- struct{}{} }

// update writes the file to the backend where the backend does not have it yet, and makes the
// change, if there is one. It starts again while others change the limits.
func (o *Overrides) update(ctx context.Context, change func(Records)) error {
	for try := range maxTries {
		kept, version, err := o.load(ctx)
		if err != nil {
			return err
		}
		next := kept.clone()
		if len(o.records) > 0 && o.backend.HasLost(version, o.Version()) {
			next = o.records.clone()
		}
		replaced := o.reconcile(next)
		if change != nil {
			change(next)
		}
		if changed := difference(kept, next); len(changed) > 0 {
			saved, err := o.backend.Save(ctx, changed, version)
			if err != nil {
				return err
			}
			if !saved {
				if err := pause(ctx, try); err != nil {
					return err
				}
				continue
			}
			next, version = o.reloadVersion(ctx, next, version)
		}
		o.reconciled, o.couldReturn = o.file, o.mayReturn
		o.publish(next, version)
		for _, what := range replaced {
			o.log.Info("override replaced by the new value of the file", zap.String("limit", what))
		}
		return nil
	}
	return errContended
}

// pause gives others time to finish: up to 1 ms after the first try, twice as long after each
// further one, at most 64 ms.
func pause(ctx context.Context, try int) error {
	select {
	case <-time.After(rand.N(time.Millisecond << min(try, 6))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *Overrides) load(ctx context.Context) (Records, string, error) {
	records, version, err := o.backend.Load(ctx)
	maps.DeleteFunc(records, func(_ string, r Record) bool { return r.Values == nil })
	return records, version, err
}

// reloadVersion reads the version of what was just saved. If that fails, nothing is lost: it
// returns a version that the backend never gives, and the next Reload corrects it.
func (o *Overrides) reloadVersion(ctx context.Context, saved Records, version string) (Records, string) {
	if records, v, err := o.load(ctx); err == nil && v != "" {
		return records, v
	}
	return saved, version + "+"
}

// publish puts the records in force.
func (o *Overrides) publish(records Records, version string) {
	o.records = records
	entries := make(map[string]Entry, len(o.file))
	for key, file := range o.file {
		rs := o.kinds[kindOf(key)]
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
	o.current.Store(&snapshot{entries, version})
}

func (r Records) clone() Records {
	out := make(Records, len(r))
	for key, record := range r {
		out[key] = record.clone()
	}
	return out
}

// difference returns what Save needs to get from one set of records to the other.
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

// memoryBackend is the backend of an Overrides without one.
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

func (m *memoryBackend) HasLost(version, _ string) bool { return version == "" }

func (r Records) apply(changed Records) {
	for key, record := range changed {
		if record.Values == nil {
			delete(r, key)
		} else {
			r[key] = record.clone()
		}
	}
}
