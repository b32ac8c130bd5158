package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/seal"
)

const (
	// responsesFile is the file of keptResponses in the state directory.
	responsesFile = "responses.json"
	// responsesVersion is the version of its content.
	responsesVersion = 1
	// responsesInterval is how often the file is written while responses are learned or used. A
	// process that is killed forgets what it has learned since.
	responsesInterval = 2 * time.Second
	// maxResponsesFile bounds the file when it is read. What a dispatcher has learned itself takes
	// at most a quarter of it.
	maxResponsesFile = 16 << 20
)

// keptResponses says which replica has which response, as it is kept over restarts.
type keptResponses struct {
	Version  int                         `json:"version"`
	Replicas []dispatch.ReplicaResponses `json:"replicas"`
}

// responseKeeper keeps which replica has which response in the state directory.
type responseKeeper struct {
	log        *zap.Logger
	dir        *process.Dir
	dispatcher *dispatch.Dispatcher
	// changes is what ResponsesChanged of the dispatcher was for the content of the file, and
	// savedAt is when that content was read. failed says that the last write has failed. Only run
	// uses these fields, and unsaved after the end of run.
	changes uint64
	savedAt time.Time
	failed  bool
}

// run writes the file when something has changed, until ctx ends, and then once more.
func (k *responseKeeper) run(ctx context.Context) error {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-beat.After(responsesInterval):
		}
		k.save()
	}
	k.save() // what was learned meanwhile
	return nil
}

// save writes the file if something has changed. Requests are served without it, so a failure is
// only logged, the first of several, and the next save tries again.
func (k *responseKeeper) save() {
	changes, now := k.dispatcher.ResponsesChanged(), time.Now()
	if changes == k.changes {
		return
	}
	data, err := json.Marshal(keptResponses{responsesVersion, k.dispatcher.Responses(time.Time{})})
	if err == nil {
		err = k.dir.WriteFile(responsesFile, append(seal.Add(data), '\n'))
	}
	switch {
	case err == nil:
		k.changes, k.savedAt = changes, now
		if k.failed {
			k.log.Info("places of stored responses written")
		}
	case !k.failed:
		k.log.Error("places of stored responses not written, Sluice tries again: until then the next process does not know them", zap.Error(err))
	}
	k.failed = err != nil
}

// restore tells the dispatcher what save has written. It must be called before the first
// configuration is put in force. A file that is damaged or of another version is renamed, and its
// responses are forgotten.
func (k *responseKeeper) restore() {
	path := filepath.Join(k.dir.Path(), responsesFile)
	kept, err := readResponses(path)
	if err != nil {
		k.log.Warn("places of stored responses not read, requests for them are refused", zap.Error(errors.Join(err, os.Rename(path, path+".bad"))))
		return
	}
	k.dispatcher.RestoreResponses(kept.Replicas)
}

// readResponses reads the file of keptResponses. A missing file has no responses.
func readResponses(path string) (kept keptResponses, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, nil
	}
	if err != nil {
		return kept, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxResponsesFile+1))
	switch {
	case err != nil:
		return kept, err
	case len(data) > maxResponsesFile:
		return kept, fmt.Errorf("%s has more than %d bytes", path, maxResponsesFile)
	}
	if err := seal.Unmarshal(data, &kept); err != nil {
		return kept, err
	}
	if kept.Version != responsesVersion {
		return kept, fmt.Errorf("%s has version %d, and this release reads version %d", path, kept.Version, responsesVersion)
	}
	return kept, nil
}

// unsaved returns the responses that the file may lack. It must be called after the end of run.
func (k *responseKeeper) unsaved() []dispatch.ReplicaResponses {
	since := k.savedAt
	if !since.IsZero() {
		since = since.Add(-responsesInterval) // an earlier process may have sent one late
	}
	return k.dispatcher.Responses(since)
}
