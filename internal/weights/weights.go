// Package weights fetches the weights of models from a hub, such as huggingface.co. The launcher of
// processes (engines/local) fetches with it before it starts a replica, and `sluice up hf:…` asks
// it what a repository holds.
//
// The files lie in the layout of the hub's own cache
// (https://huggingface.co/docs/hub/local-cache), so that other programs find what Sluice has
// fetched, and Sluice finds what they have fetched:
//
//	models--ORG--NAME/refs/main                  the commit that main was when it was fetched
//	models--ORG--NAME/snapshots/COMMIT/FILE      a link to the blob; an engine gets this path
//	models--ORG--NAME/blobs/HASH                 the content, complete and verified
//	models--ORG--NAME/blobs/HASH.incomplete      the content so far; the next fetch goes on there
//	models--ORG--NAME/.sluice/COMMIT.json        what the hub said of the commit
//	models--ORG--NAME/.sluice/selections/HASH    the commit from which files were fetched
//	.locks/models--ORG--NAME/HASH.lock           held while a process fetches the blob
//
// A blob is fetched once, however many replicas and processes want it: the others wait for the
// lock. A revision whose files are complete is used without a question to the hub.
package weights

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// DefaultEndpoint is the hub when neither the source nor HF_ENDPOINT names one.
	DefaultEndpoint = "https://huggingface.co"
	// DefaultRevision is the branch that is fetched when a source names no revision.
	DefaultRevision = "main"
)

// Source says which weights are fetched, and where they are kept. The gateway sends it to nodes as
// JSON, over TLS.
type Source struct {
	// Repository is the id of the repository: ORG/NAME, or NAME.
	Repository string
	// Revision is a branch, a tag or a commit. Empty means DefaultRevision.
	Revision string `json:",omitempty"`
	// File is one file of the repository. If it is one part of a split GGUF file, all parts are
	// fetched. Empty means that Listing.Select chooses.
	File string `json:",omitempty"`
	// GGUF says that the engine loads GGUF files, so that one is chosen even where the repository
	// has safetensors too.
	GGUF bool `json:",omitempty"`
	// Endpoint is the base URL of the hub or of a mirror. Empty means HF_ENDPOINT of the process,
	// else DefaultEndpoint.
	Endpoint string `json:",omitempty"`
	// CacheDir is the directory of the cache. Empty means the hub's own: $HF_HUB_CACHE, else
	// $HF_HOME/hub, else ~/.cache/huggingface/hub.
	CacheDir string `json:",omitempty"`
	// Token is sent to the endpoint and to no other server. Empty: none is sent. It is a secret.
	Token string `json:",omitempty"`
}

// endpoint returns the base URL of the hub, without a slash at its end.
func (s Source) endpoint() string {
	return strings.TrimRight(cmp.Or(s.Endpoint, os.Getenv("HF_ENDPOINT"), DefaultEndpoint), "/")
}

func (s Source) revision() string { return cmp.Or(s.Revision, DefaultRevision) }

// Dir returns the directory of the cache.
func (s Source) Dir() (string, error) {
	if dir := cmp.Or(s.CacheDir, os.Getenv("HF_HUB_CACHE")); dir != "" {
		return filepath.Abs(dir)
	}
	if home := os.Getenv("HF_HOME"); home != "" {
		return filepath.Abs(filepath.Join(home, "hub"))
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("the directory for weights is unknown: set cache_dir of the registry: %w", err)
	}
	return filepath.Join(home, ".cache", "huggingface", "hub"), nil
}

// parallel is how many files of one repository are fetched at once.
const parallel = 4

// Fetcher fetches weights. The zero value is ready to use, from any goroutine.
type Fetcher struct {
	// Transport sends the requests. nil means a transport of its own that uses the proxy of the
	// environment.
	Transport http.RoundTripper
	// Every is the interval between two reports. 0 means 1 s.
	Every time.Duration
	// Pause is how long a fetch waits after its first failure in a row. The pause doubles after
	// each further failure, up to 30 s. 0 means 1 s.
	Pause time.Duration
	// Patience is the longest pause for which List waits before it asks the hub again. If the hub
	// wants a longer one, List fails. 0 means any.
	Patience time.Duration
	// Stall is how long a transfer may stand still before it is broken off and resumed. 0 means 1
	// min.
	Stall time.Duration
}

func (f *Fetcher) every() time.Duration { return cmp.Or(f.Every, time.Second) }
func (f *Fetcher) pause() time.Duration { return cmp.Or(f.Pause, time.Second) }
func (f *Fetcher) stall() time.Duration { return cmp.Or(f.Stall, time.Minute) }

// Fetch fetches what s selects, unless it is there, and returns the path of what an engine loads.
// That is a file if s names one or a GGUF file was chosen, else the directory of the snapshot.
// report is called now and then, never twice at once, and at least once if something has to be
// fetched; it may be nil. What was fetched when ctx ends is kept, and the next Fetch goes on there.
func (f *Fetcher) Fetch(ctx context.Context, s Source, report func(Progress)) (string, error) {
	cache, err := openCache(s)
	if err != nil {
		return "", err
	}
	if path, ok := cache.complete(s); ok {
		return path, nil
	}
	hub := f.client(s)
	defer hub.close()
	if report != nil {
		hub.report = report
	}
	hub.report(Progress{Waiting: true})
	listing, err := f.list(ctx, hub, s)
	if err != nil {
		return "", err
	}
	selection, err := listing.Select(s)
	if err != nil {
		return "", err
	}
	if err := f.describe(ctx, hub, listing, selection); err != nil {
		return "", err
	}
	release, err := cache.reserve(selection.Files)
	if err != nil {
		return "", fmt.Errorf("weights of %s: %w", s.Repository, err)
	}
	defer release()
	if err := cache.checkLinks(); err != nil {
		return "", fmt.Errorf("weights of %s: %w", s.Repository, err)
	}
	if err := cache.record(s, listing); err != nil {
		return "", err
	}
	if err := f.fetchAll(ctx, hub, cache, selection, report); err != nil {
		return "", fmt.Errorf("weights of %s: %w", s.Repository, err)
	}
	return cache.path(listing.Commit, selection), nil
}

// fetchAll fetches the missing files of the selection, and links them into the snapshot.
func (f *Fetcher) fetchAll(ctx context.Context, hub *client, c *cache, selection Selection, report func(Progress)) error {
	meter := newMeter(selection.Files)
	stop := meter.run(f.every(), report)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, file := range selection.Files {
		group.Go(func() error {
			d := download{fetcher: f, hub: hub, cache: c, file: file, commit: selection.commit, count: meter.counter(i), working: &meter.working}
			if err := d.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", file.Path, err)
			}
			return c.link(selection.commit, file)
		})
	}
	return group.Wait()
}
