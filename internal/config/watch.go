package config

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/lack"
)

// WatcherConfig holds what a Watcher needs.
type WatcherConfig struct {
	// Current is the configuration in force. The Watcher watches its File. A configuration without
	// a File stays in force for ever.
	Current *Config
	// Started is the configuration that Sluice was started with. nil: Current.
	Started *Config
	// Every is the pause between two reads of the file. 0 means 1s.
	Every time.Duration
	// Apply puts a new configuration in force. It is never called concurrently. When it fails, the
	// old configuration stays in force and Status shows the error as a fault. Apply must not call
	// Reload. nil: every new configuration is accepted.
	Apply func(next *Config) error
	// Confirm says why a new configuration needs the word of an operator before it is put in force:
	// a sentence without a full stop. "" means that it does not. nil: none does. It is asked about
	// every new configuration that is not forced.
	Confirm func(next *Config) string
	// OnFault is called with the Faults of the file when a content is rejected, and again when it
	// is rejected for other faults. nil: only Status shows the faults.
	OnFault func(error)
}

// Watcher replaces the configuration in force when its file changes. A file with a fault changes
// nothing: the old configuration stays in force, and Status has the faults.
//
// The Watcher compares contents, so it does not matter how the file is replaced (an editor, a
// rename, a mounted ConfigMap). A new content is loaded only when two reads in a row have returned
// it. So a file that is still being written is not loaded.
//
// What the file refers to, such as a file of env_from, is read with it and is not watched: Reload
// reads it again. A rejected content is tried again every retryEvery, because its faults may lie in
// what it refers to, or in what Apply needs.
type Watcher struct {
	config WatcherConfig

	// reloadMu is held while the file is read and while the callbacks run. It is locked before mu.
	// It guards lastRead, lastDecided and decidedAt.
	reloadMu sync.Mutex
	// lastRead is the contentID of the last read.
	lastRead string
	// lastDecided is the contentID that was last put in force or rejected.
	lastDecided string
	// decidedAt is the time of that decision.
	decidedAt time.Time

	// mu guards the fields below.
	mu sync.Mutex
	// current is the configuration in force.
	current *Config
	// status is the result of Status.
	status Status
}

// retryEvery is the pause before a rejected content is tried again.
const retryEvery = 10 * time.Second

// Status is the state of the file for the operator.
type Status struct {
	// Path is the path of the file.
	Path string `json:"path"`
	// Hash is the SHA-256 of the content in force, in hex.
	Hash string `json:"hash"`
	// LoadedAt is the time at which the content in force was loaded.
	LoadedAt time.Time `json:"loaded_at"`
	// Faults are the faults of the file's content, if that content was rejected.
	Faults Faults `json:"faults,omitempty"`
	// Held tells that the file has no fault of its own and is held back until it is forced. Faults
	// says why.
	Held bool `json:"held,omitempty"`
	// Refused tells that the file has no fault of its own and that Apply has refused it. Faults
	// says why.
	Refused bool `json:"refused,omitempty"`
	// NeedsRestart names the fields in force whose new values take effect only when Sluice is
	// restarted.
	NeedsRestart []string `json:"needs_restart,omitempty"`
}

// Messages returns one sentence for each fault.
func (s Status) Messages() []string {
	var messages []string
	for _, fault := range s.Faults {
		messages = append(messages, fault.Error())
	}
	return messages
}

// NewWatcher returns a Watcher that has not read the file yet.
func NewWatcher(c WatcherConfig) *Watcher {
	c.Every = cmp.Or(c.Every, time.Second)
	c.Started = cmp.Or(c.Started, c.Current)
	return &Watcher{
		config: c, current: c.Current, lastRead: c.Current.Hash, lastDecided: c.Current.Hash,
		status: Status{Path: c.Current.File, Hash: c.Current.Hash, LoadedAt: time.Now(), NeedsRestart: c.Started.NeedsRestart(c.Current)},
	}
}

// Run reads the file periodically until ctx is done. It returns nil.
func (w *Watcher) Run(ctx context.Context) error {
	if w.config.Current.File == "" {
		<-ctx.Done()
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(w.config.Every):
			w.poll()
		}
	}
}

// poll reads the file, and loads its content if it is the same as at the last read and is new or
// must be tried again. A machine that lacks files or memory for a read changes nothing.
func (w *Watcher) poll() {
	w.reloadMu.Lock()
	defer w.reloadMu.Unlock()
	data, err := read(w.config.Current.File, maxFile)
	if lack.IsOwn(err) {
		return // this says nothing of the file
	}
	id := contentID(data, err)
	settled := id == w.lastRead
	w.lastRead = id
	if !settled {
		return
	}
	retry := id == w.lastDecided
	if retry && !w.retryIsDue() {
		return
	}
	before := w.Status().Faults
	// the faults are in Status
	if faults := w.decideLocked(data, err, trial{again: retry}); len(faults) > 0 && !(retry && faults.Error() == before.Error()) {
		w.report(faults)
	}
}

// retryIsDue tells that the last content was rejected retryEvery ago, and not for want of a word of
// an operator. w.reloadMu is held.
func (w *Watcher) retryIsDue() bool {
	status := w.Status()
	return len(status.Faults) > 0 && !status.Held && time.Since(w.decidedAt) >= retryEvery
}

// Reload reads the file now, as for SIGHUP. It loads the content at once, even if it is the one in
// force, because what the file refers to may have changed. force means that an operator has
// confirmed what Confirm asks. The error is Faults.
func (w *Watcher) Reload(force bool) error {
	if w.config.Current.File == "" {
		return Faults{{Message: "cannot be reloaded, because the configuration did not come from a file: start Sluice with -c FILE"}}
	}
	w.reloadMu.Lock()
	defer w.reloadMu.Unlock()
	data, err := read(w.config.Current.File, maxFile)
	w.lastRead = contentID(data, err)
	if faults := w.decideLocked(data, err, trial{again: true, force: force}); len(faults) > 0 {
		w.report(faults)
		return faults
	}
	return nil
}

// Next returns the configuration of a content of the file, without putting it in force.
// An empty content is that of the file now. needsForce is what Confirm says of it. The error is
// Faults.
func (w *Watcher) Next(data []byte) (next *Config, needsForce string, err error) {
	current := w.Current()
	if current.File == "" {
		return nil, "", Faults{{Message: "there is nothing to compare with, because the configuration did not come from a file: start Sluice with -c FILE"}}
	}
	if len(data) == 0 {
		if data, err = read(current.File, maxFile); err != nil {
			return nil, "", unreadableFile(current.File, err)
		}
	}
	next, faults := parseWithFields(current.File, data, w.config.Started.fields)
	if len(faults) > 0 {
		return nil, "", faults
	}
	next.File = current.File
	return next, w.reasonToAsk(next), nil
}

// contentID identifies a content by its hash, or the reason why there is none.
func contentID(data []byte, err error) string {
	if err != nil {
		return "cannot be read: " + reasonOf(err)
	}
	return hashOf(data)
}

// trial says how a content is tried.
type trial struct {
	// again means that Apply gets the content even if it is the one in force.
	again bool
	// force means that Confirm is not asked.
	force bool
}

// decideLocked puts the last read content in force, or rejects it and returns its faults.
// w.reloadMu is held.
func (w *Watcher) decideLocked(data []byte, readErr error, t trial) Faults {
	w.lastDecided, w.decidedAt = w.lastRead, time.Now()
	faults, held, refused := w.loadLocked(data, readErr, t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Faults, w.status.Held, w.status.Refused = faults, held, refused
	return faults
}

func (w *Watcher) report(faults Faults) {
	if w.config.OnFault != nil {
		w.config.OnFault(faults)
	}
}

// loadLocked parses a content and puts it in force, unless it is the one in force and need not be
// tried again. held tells that only the word of an operator is missing, and refused that Apply has
// failed. w.reloadMu is held.
func (w *Watcher) loadLocked(data []byte, readErr error, t trial) (faults Faults, held, refused bool) {
	file := w.config.Current.File
	if readErr != nil {
		return unreadableFile(file, readErr), false, false
	}
	next, faults := parseWithFields(file, data, w.config.Current.fields)
	if len(faults) > 0 {
		return faults, false, false
	}
	next.File = file
	same := next.Hash == w.Current().Hash
	if same && !t.again {
		return nil, false, false
	}
	if reason := w.reasonToAsk(next); reason != "" && !same && !t.force {
		return Faults{{File: file, Message: reason + confirmation}}, true, false
	}
	if w.config.Apply != nil {
		if err := w.config.Apply(next); err != nil {
			return Faults{{File: file, Message: err.Error()}}, false, true
		}
	}
	w.setCurrent(next)
	return nil, false, false
}

// confirmation tells what an operator does about a file that is held back.
const confirmation = "; the file is held back: correct it, or confirm it with `sluice reload --force` or on the page"

// reasonToAsk says why next needs confirmation. It is empty if next does not.
func (w *Watcher) reasonToAsk(next *Config) string {
	if w.config.Confirm == nil {
		return ""
	}
	return w.config.Confirm(next)
}

// setCurrent makes next the configuration in force and clears the faults.
func (w *Watcher) setCurrent(next *Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Faults, w.status.Held, w.status.Refused = nil, false, false
	w.current = next
	w.status.Hash, w.status.LoadedAt = next.Hash, time.Now()
	w.status.NeedsRestart = w.config.Started.NeedsRestart(next)
}

// Current returns the configuration in force.
func (w *Watcher) Current() *Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

// Status returns the state of the file. The caller must not change it.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}
