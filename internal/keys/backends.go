package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// File returns a Backend in a JSON file, which is replaced in one step.
func File(path string) Backend { return &file{path: path} }

type file struct {
	path string
	mu   sync.Mutex
}

func (f *file) Load(context.Context) ([]Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadLocked()
}

// loadLocked reads the file. mu is held.
func (f *file) loadLocked() ([]Key, error) {
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []Key
	if err == nil {
		if err = json.Unmarshal(text, &all); err != nil {
			err = fmt.Errorf("%s is damaged: %w", f.path, err)
		}
	}
	return all, err
}

func (f *file) Add(_ context.Context, k Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.loadLocked()
	if err != nil {
		return err
	}
	return f.saveLocked(append(all, k))
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
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	w, err := os.OpenFile(f.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	if err = errors.Join(err, w.Sync(), w.Close()); err != nil {
		return err
	}
	return os.Rename(f.path+".new", f.path)
}

// redisKeys is the hash with the keys by their ids.
const redisKeys = "sluice:keys"

// Redis returns a Backend in Redis.
func Redis(client redis.UniversalClient) Backend { return &shared{client} }

type shared struct{ client redis.UniversalClient }

func (r *shared) Load(ctx context.Context) ([]Key, error) {
	texts, err := r.client.HVals(ctx, redisKeys).Result()
	if err != nil {
		return nil, err
	}
	var all []Key
	for _, text := range texts {
		var k Key
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			return nil, fmt.Errorf("a key in Redis is damaged: %w", err)
		}
		all = append(all, k)
	}
	return all, nil
}

func (r *shared) Add(ctx context.Context, k Key) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return r.client.HSet(ctx, redisKeys, k.ID, text).Err()
}

func (r *shared) Remove(ctx context.Context, id string) (bool, error) {
	n, err := r.client.HDel(ctx, redisKeys, id).Result()
	return n > 0, err
}
