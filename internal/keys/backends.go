package keys

import (
	"context"
	"crypto/rand"
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

	"github.com/redis/go-redis/v9"
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

// redisKeys is the hash with the keys by their ids. redisVersion changes with each change of that
// hash; its braces put both on the same node of a cluster. redisUses is the sorted set with the
// names of the keys by their last uses.
const (
	redisKeys    = "sluice:keys"
	redisVersion = "sluice:keys:version{sluice:keys}"
	redisUses    = "sluice:keys:used"
)

// rereadInterval is how often the keys are read although their version is the same. Gateways of
// earlier releases change the keys and not the version.
const rereadInterval = 10 * time.Second

// Redis returns a Backend in Redis.
func Redis(client redis.UniversalClient) Backend { return &shared{client: client} }

type shared struct {
	client redis.UniversalClient

	mu sync.Mutex
	// texts are the last answer of Redis, and keys are its parsed form. Redis had the version just
	// before that answer, which came at readAt. All are guarded by mu.
	texts   []string
	keys    []Key
	version string
	readAt  time.Time
}

// Load implements Backend. There may be thousands of keys, so it reads them only if they may have
// changed.
func (r *shared) Load(ctx context.Context) ([]Key, error) {
	version, count, err := r.askVersion(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if version != "" && version == r.version && count == len(r.texts) && time.Since(r.readAt) < rereadInterval {
		return r.keys, nil
	}
	texts, err := r.client.HVals(ctx, redisKeys).Result()
	if err != nil {
		return nil, err
	}
	if !slices.Equal(texts, r.texts) {
		var all []Key
		for _, text := range texts {
			var k Key
			if err := json.Unmarshal([]byte(text), &k); err != nil {
				return nil, fmt.Errorf("a key in Redis is damaged: %w", err)
			}
			all = append(all, k)
		}
		r.texts, r.keys = texts, all
	}
	r.version, r.readAt = version, time.Now()
	return r.keys, nil
}

// askVersion returns the version of the keys, and how many there are. If Redis has no version, the
// result is empty, and Redis gets one. If it takes none, the keys are read each time.
func (r *shared) askVersion(ctx context.Context) (version string, count int, err error) {
	pipe := r.client.Pipeline()
	asked, counted := pipe.Get(ctx, redisVersion), pipe.HLen(ctx, redisKeys)
	if _, err = pipe.Exec(ctx); errors.Is(err, redis.Nil) {
		err = counted.Err()
		_ = r.client.SetNX(ctx, redisVersion, rand.Text(), 0).Err()
	}
	return asked.Val(), int(counted.Val()), err
}

// change changes the keys together with their version.
func (r *shared) change(ctx context.Context, do func(redis.Pipeliner)) error {
	_, err := r.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		do(pipe)
		pipe.Set(ctx, redisVersion, rand.Text(), 0)
		return nil
	})
	return err
}

func (r *shared) Add(ctx context.Context, k Key) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return r.change(ctx, func(pipe redis.Pipeliner) { pipe.HSet(ctx, redisKeys, k.ID, text) })
}

func (r *shared) Remove(ctx context.Context, id string) (bool, error) {
	var removed *redis.IntCmd
	err := r.change(ctx, func(pipe redis.Pipeliner) { removed = pipe.HDel(ctx, redisKeys, id) })
	return removed.Val() > 0, err
}

// LoadUses implements Backend.
func (r *shared) LoadUses(ctx context.Context) (map[string]time.Time, error) {
	found, err := r.client.ZRangeWithScores(ctx, redisUses, 0, -1).Result()
	if err != nil {
		return nil, err
	}
	all := make(map[string]time.Time, len(found))
	for _, z := range found {
		if key, ok := z.Member.(string); ok {
			all[key] = time.Unix(int64(z.Score), 0).UTC()
		}
	}
	return all, nil
}

// SaveUses implements Backend.
func (r *shared) SaveUses(ctx context.Context, uses map[string]time.Time) error {
	add := redis.ZAddArgs{GT: true}
	for key, at := range uses {
		add.Members = append(add.Members, redis.Z{Member: key, Score: float64(at.Unix())})
	}
	if err := r.client.ZAddArgs(ctx, redisUses, add).Err(); err != nil {
		return err
	}
	return r.client.ZRemRangeByRank(ctx, redisUses, 0, -maxUses-1).Err()
}
