package keys

import (
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisKeys is the hash with the keys by their ids. redisVersion changes with each change of that
// hash; its braces put both on the same node of a cluster. redisUses is the sorted set with the
// names of the keys by their last uses.
const (
	redisKeys    = "sluice:keys"
	redisVersion = "sluice:keys:version{sluice:keys}"
	redisUses    = "sluice:keys:used"
)

// firstVersion begins the version that a reader gives to keys without one: there are none yet, or
// Redis has lost them. Every change makes a higher one.
const firstVersion = "0-"

var (
	//go:embed change.lua
	changeLua    string
	changeScript = redis.NewScript(changeLua)
	//go:embed restore.lua
	restoreLua    string
	restoreScript = redis.NewScript(restoreLua)
	// timeScript returns the time in seconds of the node with the key. The clocks of the nodes of a
	// cluster may differ, and TIME alone may ask any of them.
	timeScript = redis.NewScript("return tonumber(redis.call('TIME')[1])")
)

// rereadInterval is how often the keys are read although their version is the same. Gateways of
// earlier releases change the keys and not the version.
const rereadInterval = 10 * time.Second

// Redis returns a Backend in Redis. It remembers the keys that it has read, and writes them again
// if Redis has lost changes of them; restored is then told how many keys there are. restored may be
// nil.
func Redis(client redis.UniversalClient, restored func(count int)) Backend {
	return &shared{client: client, restored: restored}
}

type shared struct {
	client   redis.UniversalClient
	restored func(count int)

	mu sync.Mutex
	// texts are the last answer of Redis by the ids of the keys, with the changes of this gateway
	// since, and keys are their parsed form. Redis had the version just before that answer, which
	// came at readAt, or with the last such change. damaged says which texts cannot be parsed. All
	// are guarded by mu.
	texts   map[string]string
	keys    []Key
	damaged error
	version string
	readAt  time.Time
}

// Damaged is the error of a Load that returns all keys but some.
type Damaged struct {
	// IDs are the ids of the keys that cannot be read.
	IDs []string
}

func (d *Damaged) Error() string {
	return "damaged in Redis: " + strings.Join(d.IDs, ", ")
}

// Load implements Backend. There may be thousands of keys, so it reads them only if they may have
// changed.
func (r *shared) Load(ctx context.Context) ([]Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, count, err := r.versionLocked(ctx)
	if err != nil {
		return nil, err
	}
	if version != "" && version == r.version && count == len(r.texts) && time.Since(r.readAt) < rereadInterval {
		return r.keys, r.damaged
	}
	texts, err := r.client.HGetAll(ctx, redisKeys).Result()
	if err != nil {
		return nil, err
	}
	if !maps.Equal(texts, r.texts) {
		r.parseLocked(texts)
	}
	r.version, r.readAt = version, time.Now()
	return r.keys, r.damaged
}

// versionLocked is askVersion of a Redis that has the keys again if it had lost them. mu is held.
func (r *shared) versionLocked(ctx context.Context) (version string, count int, err error) {
	version, count, err = r.askVersion(ctx)
	if err != nil || !r.hasLostLocked(version, count) {
		return version, count, err
	}
	if err := r.restoreLocked(ctx); err != nil {
		return "", 0, fmt.Errorf("redis has lost changes of the keys, and does not take them again: %w", err)
	}
	return r.askVersion(ctx)
}

// parseLocked parses the texts of keys that have changed. A text that is damaged leaves the key as
// it was before.
func (r *shared) parseLocked(texts map[string]string) {
	before := make(map[string]Key, len(r.keys))
	for _, k := range r.keys {
		before[k.ID] = k
	}
	var was *Damaged
	errors.As(r.damaged, &was)
	var all []Key
	var damaged []string
	for id, text := range texts {
		k, known := before[id]
		if known && text == r.texts[id] && (was == nil || !slices.Contains(was.IDs, id)) {
			all = append(all, k)
			continue
		}
		k = Key{}
		if err := json.Unmarshal([]byte(text), &k); err != nil || k.ID != id {
			damaged = append(damaged, id)
			if k = before[id]; k.ID == "" {
				continue
			}
		}
		all = append(all, k)
	}
	r.texts, r.keys, r.damaged = texts, all, nil
	if len(damaged) > 0 {
		slices.Sort(damaged)
		r.damaged = &Damaged{IDs: damaged}
	}
}

// hasLostLocked reports whether Redis has lost keys or revocations that were read last. It has if
// its version is older, if it was begun anew, or if all keys have gone without a change of the
// version. A gateway of an earlier release may have removed one key so. A version of such a release
// has no number and may be newer than any other one. mu is held.
func (r *shared) hasLostLocked(version string, count int) bool {
	if version == r.version && count == 0 && len(r.texts) > 1 {
		return true
	}
	now, before := numberOf(version), numberOf(r.version)
	if version == "" || now == 0 { // a version is never removed
		return r.version != "" && version != r.version && (before > 0 || len(r.texts) > 0)
	}
	return now > 0 && now < before
}

// numberOf returns the number of a version; -1 if it has none.
func numberOf(version string) int64 {
	digits, _, _ := strings.Cut(version, "-")
	number, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return -1
	}
	return number
}

// restoreLocked writes the keys as they were read last, unless another gateway has written newer
// ones meanwhile. mu is held.
func (r *shared) restoreLocked(ctx context.Context) error {
	args := make([]any, 0, 1+2*len(r.texts))
	args = append(args, r.version)
	for id, text := range r.texts {
		args = append(args, id, text)
	}
	written, err := restoreScript.Run(ctx, r.client, []string{redisKeys, redisVersion}, args...).Bool()
	if err == nil && written && r.restored != nil {
		r.restored(len(r.texts))
	}
	return err
}

// askVersion returns the version of the keys, and how many there are. If Redis has no version, the
// result is empty, and Redis gets one. If it takes none, the keys are read each time.
func (r *shared) askVersion(ctx context.Context) (version string, count int, err error) {
	pipe := r.client.Pipeline()
	asked, counted := pipe.Get(ctx, redisVersion), pipe.HLen(ctx, redisKeys)
	if _, err = pipe.Exec(ctx); errors.Is(err, redis.Nil) {
		err = counted.Err()
		_ = r.client.SetNX(ctx, redisVersion, firstVersion+rand.Text(), 0).Err()
	}
	return asked.Val(), int(counted.Val()), err
}

// change changes one key together with the version: it gets a text, or is removed if that is empty.
// It reports whether a key was added or removed. What Redis has lost is written again before,
// because the new version is the highest one.
func (r *shared) change(ctx context.Context, id, text string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, _, err := r.versionLocked(ctx); err != nil {
		return false, err
	}
	answer, err := changeScript.Run(ctx, r.client, []string{redisKeys, redisVersion}, rand.Text(), id, text).StringSlice()
	if err != nil {
		return false, err
	}
	if before := answer[1]; before == r.version && before != "" {
		texts := map[string]string{}
		maps.Copy(texts, r.texts)
		if texts[id] = text; text == "" {
			delete(texts, id)
		}
		r.parseLocked(texts)
		r.version = answer[2]
	}
	return answer[0] == "1", nil
}

func (r *shared) Add(ctx context.Context, k Key) error {
	text, err := json.Marshal(k)
	if err == nil {
		_, err = r.change(ctx, k.ID, string(text))
	}
	return err
}

func (r *shared) Remove(ctx context.Context, id string) (bool, error) { return r.change(ctx, id, "") }

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

// SaveUses implements Backend. The clock of a gateway may be wrong, so uses are stored by that of
// Redis. A use that lies ahead of it gives way: no later one would take its place.
func (r *shared) SaveUses(ctx context.Context, uses map[string]time.Time) error {
	seconds, err := timeScript.Eval(ctx, r.client, []string{redisUses}).Int64()
	if err != nil {
		return err
	}
	now := time.Unix(seconds, 0)
	wrong := time.Until(now).Round(time.Minute) // uses are known to the minute
	add := redis.ZAddArgs{GT: true}
	for key, at := range uses {
		add.Members = append(add.Members, redis.Z{Member: key, Score: float64(at.Add(wrong).Unix())})
	}
	pipe := r.client.Pipeline()
	pipe.ZRemRangeByScore(ctx, redisUses, strconv.FormatInt(now.Add(time.Minute).Unix(), 10), "+inf")
	pipe.ZAddArgs(ctx, redisUses, add)
	pipe.ZRemRangeByRank(ctx, redisUses, 0, -maxUses-1)
	_, err = pipe.Exec(ctx)
	return err
}
