package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// File returns a Backend in a JSON file, which is replaced in one step.
func File(path string) Backend { return &file{path: path} }

type file struct {
	path string
	mu   sync.Mutex
	// info describes the file at the last read, and keys are its content; guarded by mu. If info is
	// nil, the next call reads the file.
	info os.FileInfo
	keys []Key
}

func (f *file) Load(context.Context) ([]Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadLocked()
}

// loadLocked reads the file if it has changed since the last read. mu is held.
func (f *file) loadLocked() ([]Key, error) {
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.info, f.keys = nil, nil
		return nil, nil
	}
	if err != nil || f.info != nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime()) {
		return f.keys, err
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return nil, err
	}
	var all []Key
	if err = json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", f.path, err)
	}
	f.info, f.keys = info, all
	return all, nil
}

func (f *file) Add(_ context.Context, k Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.loadLocked()
	if err != nil {
		return err
	}
	return f.saveLocked(append(slices.Clone(all), k))
}

func (f *file) Remove(_ context.Context, id string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.loadLocked()
	if err != nil {
		return false, err
	}
	rest := slices.DeleteFunc(slices.Clone(all), func(k Key) bool { return k.ID == id })
	if len(rest) == len(all) {
		return false, nil
	}
	return true, f.saveLocked(rest)
}

// saveLocked replaces the file. mu is held.
func (f *file) saveLocked(all []Key) error {
	f.info = nil
	return replace(f.path, all)
}

// usesPath is the path of the file with the last uses, in seconds since 1970.
func (f *file) usesPath() string { return strings.TrimSuffix(f.path, ".json") + ".used.json" }

// LoadUses implements Backend. A damaged file has no uses: the next SaveUses replaces it.
func (f *file) LoadUses(context.Context) (map[string]time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadUsesLocked(), nil
}

// loadUsesLocked reads the file of uses. mu is held.
func (f *file) loadUsesLocked() map[string]time.Time {
	all, seconds := map[string]time.Time{}, map[string]int64{}
	if text, err := os.ReadFile(f.usesPath()); err == nil && json.Unmarshal(text, &seconds) == nil {
		for key, at := range seconds {
			all[key] = time.Unix(at, 0).UTC()
		}
	}
	return all
}

// SaveUses implements Backend.
func (f *file) SaveUses(_ context.Context, uses map[string]time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.loadUsesLocked()
	merge(all, uses)
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return all[b].Compare(all[a]) })
	seconds := map[string]int64{}
	for _, key := range names[:min(len(names), maxUses)] {
		seconds[key] = all[key].Unix()
	}
	return replace(f.usesPath(), seconds)
}

// replace writes a value as JSON to a file, in one step.
func replace(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	w, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
