package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/beat"
)

// DefaultMaxBytes is the bound of the samples of models, in memory and on disk each.
const DefaultMaxBytes = 64 << 20

// Config is the configuration of a Store.
type Config struct {
	// Dir is the directory of the files. Run makes it. If Dir is empty, the samples end with the
	// process.
	Dir string
	// MaxBytes bounds the samples of models in memory, and about so many bytes are in files. If 24
	// hours do not fit, the oldest hours of the models are dropped, never those of the sum of all.
	// 0 means DefaultMaxBytes.
	MaxBytes int64
	// Sample returns the values of now. Run calls it every ten seconds.
	Sample func() Sample
	// OnSample is told of each sample that was kept, if it is not nil.
	OnSample func(time.Time, Sample)
	// OnDamage is told of the files of a kind that Run has found damaged, if it is not nil. They
	// are not used, and lie beside the others with the suffix ".damaged".
	OnDamage func(files []string)
	// OnError is told of errors of reading and writing, if it is not nil. The samples stay in
	// memory. Of samples that cannot be written one after the other, it is told once.
	OnError func(error)
}

// Store keeps samples. Make it with New. Its methods are safe for concurrent use.
type Store struct {
	config Config

	mu sync.Mutex
	// total has the sum of all models under the name "", models has each model; guarded by mu.
	total, models archive

	// failing: the last sample could not be written. Only Run uses it.
	failing bool
}

// New returns a Store without samples. It starts nothing: Run reads the files.
func New(c Config) *Store {
	if c.MaxBytes <= 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	return &Store{config: c, total: archive{kind: "total", dir: c.Dir, maxBytes: c.MaxBytes}, models: archive{kind: "models", dir: c.Dir, maxBytes: c.MaxBytes}}
}

// Run reads the samples of before, and takes one at every full ten seconds until ctx ends. Only one
// process at a time may run a Store in a directory.
func (s *Store) Run(ctx context.Context) error {
	s.load(time.Now())
	defer s.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(Step):
			s.sample()
		}
	}
}

// load reads the files.
func (s *Store) load(now time.Time) {
	if s.config.Dir == "" {
		return
	}
	if err := os.MkdirAll(s.config.Dir, 0o700); err != nil {
		s.fail(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range []*archive{&s.total, &s.models} {
		damaged, err := a.load(momentOf(now).hour())
		s.fail(err)
		if len(damaged) > 0 && s.config.OnDamage != nil {
			s.config.OnDamage(damaged)
		}
	}
}

// sample takes a sample and keeps it.
func (s *Store) sample() {
	sample := s.config.Sample()
	now := time.Now()
	err := s.Add(now, sample)
	if err != nil && !s.failing {
		s.fail(err)
	}
	s.failing = err != nil
	if s.config.OnSample != nil {
		s.config.OnSample(momentOf(now).time(), sample)
	}
}

// Add keeps a sample of a time, which must be later than the ones before. Of each ten seconds the
// first sample is kept. The error tells that it could not be written; it is in memory then.
func (s *Store) Add(at time.Time, sample Sample) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := momentOf(at)
	return errors.Join(s.total.add(m, map[string]Values{"": sample.Total}), s.models.add(m, sample.Models))
}

func (s *Store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(errors.Join(s.total.closeFile(), s.models.closeFile()))
}

func (s *Store) fail(err error) {
	if err != nil && s.config.OnError != nil {
		s.config.OnError(fmt.Errorf("history: %w", err))
	}
}
