package config

import (
	"context"
	"sync"
	"time"
)

// WatcherConfig is what a Watcher works on.
type WatcherConfig struct {
	// Current is the configuration in force; its File is what is watched. One that did not come from a file stays in force.
	Current *Config
	// Every is the pause between two looks at the file. 0: 1s.
	Every time.Duration
	// Apply puts a new configuration in force, never twice at once. When it fails, what was in force stays in force and the error
	// is shown as a fault. It must not call Reload.
	Apply func(next *Config) error
	// OnFault is called with the Faults of the file, once for each content that is refused. nil: only Status shows them.
	OnFault func(error)
}

// Watcher keeps the configuration in force up to date with its file. A file that is at fault changes nothing: what was in force
// stays in force, and Status has the faults.
//
// The file is looked at by content, so that it does not matter how it is replaced (an editor, a rename, a mounted ConfigMap), and
// a new content is taken only when two looks in a row have found it: a file that is just being written is left alone.
type Watcher struct {
	config WatcherConfig
	start  *Config

	// reading is held while the file is looked at and the callbacks run
	reading sync.Mutex
	// seen is the hash of the content at the last look; guarded by reading
	seen string
	// judged is the hash of the content that was last taken or refused; guarded by reading
	judged string

	mu sync.Mutex
	// current is the configuration in force; guarded by mu
	current *Config
	// status is what Status returns; guarded by mu
	status Status
}

// Status is what the operator sees of the file.
type Status struct {
	// Path of the file.
	Path string `json:"path"`
	// Hash is the SHA-256 of the content in force, in hex.
	Hash string `json:"hash"`
	// LoadedAt is when it came into force.
	LoadedAt time.Time `json:"loaded_at"`
	// Faults of the content that the file has now, if that is not the one in force.
	Faults Faults `json:"faults,omitempty"`
	// NeedsRestart names the fields of the configuration in force whose new values wait for the next start.
	NeedsRestart []string `json:"needs_restart,omitempty"`
}

// Problems puts what the operator should know of the file into sentences: its faults, and what waits for the next start.
func (s Status) Problems() []string {
	var problems []string
	for _, fault := range s.Faults {
		problems = append(problems, fault.Error())
	}
	for _, field := range s.NeedsRestart {
		problems = append(problems, s.Path+": "+field+": the new value takes effect when Sluice is started again")
	}
	return problems
}

// NewWatcher returns a Watcher that has not looked at the file yet.
func NewWatcher(c WatcherConfig) *Watcher {
	if c.Every == 0 {
		c.Every = time.Second
	}
	return &Watcher{
		config: c, start: c.Current, current: c.Current, seen: c.Current.Hash, judged: c.Current.Hash,
		status: Status{Path: c.Current.File, Hash: c.Current.Hash, LoadedAt: time.Now()},
	}
}

// Run looks at the file every so often until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if w.config.Current.File == "" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(w.config.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.look()
		}
	}
}

// look takes the file when its content is new and has stayed the same since the last look.
func (w *Watcher) look() {
	w.reading.Lock()
	defer w.reading.Unlock()
	data, err := read(w.config.Current.File)
	hash := fingerprint(data, err)
	settled := hash == w.seen
	w.seen = hash
	if settled && hash != w.judged {
		_ = w.judge(data, err)
	}
}

// Reload looks at the file now, as for SIGHUP, and takes what it finds at once. The error is Faults.
func (w *Watcher) Reload() error {
	if w.config.Current.File == "" {
		return Faults{{Message: "the configuration did not come from a file, so there is nothing to read again"}}
	}
	w.reading.Lock()
	defer w.reading.Unlock()
	data, err := read(w.config.Current.File)
	w.seen = fingerprint(data, err)
	return w.judge(data, err)
}

// fingerprint tells contents apart, and reasons why there is none.
func fingerprint(data []byte, err error) string {
	if err != nil {
		return "cannot be read: " + reasonOf(err)
	}
	return hashOf(data)
}

// judge takes a content or refuses it. w.reading is held.
func (w *Watcher) judge(data []byte, unread error) error {
	w.judged = w.seen
	if faults := w.try(data, unread); len(faults) > 0 {
		w.mu.Lock()
		w.status.Faults = faults
		w.mu.Unlock()
		if w.config.OnFault != nil {
			w.config.OnFault(faults)
		}
		return faults
	}
	return nil
}

// try reads a content and puts it in force. The same content as the one in force only takes the faults back.
func (w *Watcher) try(data []byte, unread error) Faults {
	file := w.config.Current.File
	if unread != nil {
		return unreadable(file, unread)
	}
	next, err := parse(file, data)
	if err != nil {
		return err
	}
	next.File = file
	if next.Hash != w.Current().Hash && w.config.Apply != nil {
		if err := w.config.Apply(next); err != nil {
			return Faults{{File: file, Message: err.Error()}}
		}
	}
	w.take(next)
	return nil
}

func (w *Watcher) take(next *Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Faults = nil
	if w.current.Hash == next.Hash {
		return
	}
	w.current = next
	w.status.Hash, w.status.LoadedAt = next.Hash, time.Now()
	w.status.NeedsRestart = w.start.NeedsRestart(next)
}

// Current is the configuration in force.
func (w *Watcher) Current() *Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

// Status is what there is to see of the file now.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}
