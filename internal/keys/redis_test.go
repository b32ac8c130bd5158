package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// remembering is a store of one gateway, with the ids that are in force there.
type remembering struct {
	*Store
	ids      []string
	restored []int
}

func remember(c goredis.UniversalClient) *remembering {
	r := &remembering{}
	backend := Redis(c, func(count int) { r.restored = append(r.restored, count) })
	r.Store = New(Config{Backend: backend, Log: zap.NewNop(), Apply: func(all []Key) {
		r.ids = nil
		for _, k := range all {
			r.ids = append(r.ids, k.ID)
		}
	}})
	return r
}

// want fails unless the keys are in force at the gateway after it has read.
func (r *remembering) want(t *testing.T, when string, ids ...string) {
	t.Helper()
	if err := r.Read(t.Context()); err != nil || !slices.Equal(r.ids, ids) {
		t.Errorf("%s: %v, %v, want %v", when, r.ids, err, ids)
	}
}

func (r *remembering) must(t *testing.T, id string, add bool) {
	t.Helper()
	var err error
	if add {
		err = r.Add(t.Context(), Key{ID: id, Hash: "sha256:" + id, Tenant: "acme", Created: time.Now()})
	} else if _, err = r.Remove(t.Context(), id); err == nil {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestB4_ADamagedKeyBlocksNoOther: one entry in Redis that cannot be read leaves all other keys in
// force, at gateways that have read before and at new ones. All keys can be revoked, it too.
func TestB4_ADamagedKeyBlocksNoOther(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	a := remember(c)
	for _, id := range []string{"one", "two", "three"} {
		a.must(t, id, true)
	}
	if err := c.HSet(t.Context(), redisKeys, "two", "{", "four", `{"id":"five"}`).Err(); err != nil {
		t.Fatal(err)
	}
	b := remember(c)
	b.want(t, "a new gateway", "one", "three")
	a.want(t, "one that knew it", "one", "two", "three")
	for _, s := range []*remembering{a, b} {
		var damaged *Damaged
		if read, err := s.Fault(); !read || !errors.As(err, &damaged) || !slices.Equal(damaged.IDs, []string{"four", "two"}) {
			t.Errorf("%v, %v, want two and four", read, err)
		}
	}
	b.must(t, "one", false)
	var damaged *Damaged
	a.want(t, "after another change", "two", "three")
	if _, err := a.Fault(); !errors.As(err, &damaged) || len(damaged.IDs) != 2 {
		t.Errorf("after another change: %v, want two and four", err)
	}
	b.must(t, "two", false)
	b.must(t, "four", false)
	for _, s := range []*remembering{a, b} {
		s.want(t, "after the revocations", "three")
		if _, err := s.Fault(); err != nil {
			t.Error(err)
		}
	}
}

// clockOff has Redis tell a time that is off, as a gateway reads it whose own clock is wrong.
type clockOff time.Duration

func (clockOff) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (off clockOff) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if told, ok := cmd.(*goredis.Cmd); ok && err == nil && strings.Contains(fmt.Sprint(told.Args()[1]), "TIME") {
			seconds, _ := told.Int64()
			told.SetVal(seconds + int64(time.Duration(off).Seconds()))
		}
		return err
	}
}

func (clockOff) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// TestB4_UsesOfAGatewayWhoseClockIsWrong: a gateway whose clock is wrong stores a use when it was,
// and not when that clock says. A use that lies ahead, of an earlier release, does not stay.
func TestB4_UsesOfAGatewayWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, off := range []time.Duration{-40 * 24 * time.Hour, 0, 40 * 24 * time.Hour} {
		c := server.Client()
		c.AddHook(clockOff(off))
		minute := time.Now().Truncate(time.Minute)
		ahead := float64(time.Now().Add(off).Add(time.Hour).Unix())
		if err := c.ZAdd(t.Context(), redisUses, goredis.Z{Member: "acme/one", Score: ahead}).Err(); err != nil {
			t.Fatal(err)
		}
		b := Redis(c, nil)
		if err := b.SaveUses(t.Context(), map[string]time.Time{"acme/one": minute}); err != nil {
			t.Fatal(err)
		}
		if all, err := b.LoadUses(t.Context()); err != nil || !all["acme/one"].Equal(minute.Add(off)) {
			t.Errorf("Redis is ahead by %v: %v, %v, want %v", off, all, err, minute.Add(off))
		}
	}
}

// TestB4_AnEmptiedRedisLosesNoKey: gateways write the keys again that they remember. A key that was
// revoked does not come back, although a gateway remembers it that has not heard of that.
func TestB4_AnEmptiedRedisLosesNoKey(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	stale, b := remember(c), remember(c)
	stale.must(t, "one", true)
	stale.must(t, "two", true)
	b.want(t, "both", "one", "two")
	b.must(t, "one", false)
	b.must(t, "three", true)
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	fresh := remember(c)
	fresh.want(t, "a gateway that remembers nothing")
	stale.want(t, "one that remembers too much", "one", "two")
	b.want(t, "one that knows everything", "two", "three")
	stale.want(t, "the first one again", "two", "three")
	fresh.want(t, "the new one", "two", "three")
	if len(fresh.restored) != 0 || !slices.Equal(stale.restored, []int{2}) || !slices.Equal(b.restored, []int{2}) {
		t.Errorf("restored %v, %v and %v", fresh.restored, stale.restored, b.restored)
	}
	fresh.must(t, "four", true)
	for _, s := range []*remembering{stale, b, fresh} {
		s.want(t, "after a change", "two", "three", "four")
	}
}

// TestB4_AnOlderSnapshotRevivesNoKey: Redis comes back from a snapshot that has a revoked key and
// lacks a new one.
func TestB4_AnOlderSnapshotRevivesNoKey(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	a := remember(c)
	a.must(t, "one", true)
	snapshot := snapshotOf(t, c)
	a.must(t, "two", true)
	a.must(t, "one", false)
	snapshot.restore(t, c)
	a.want(t, "after the snapshot", "two")
	remember(c).want(t, "a new gateway", "two")
	// An earlier release gives the keys a version without a number.
	if err := c.Set(t.Context(), redisVersion, "EARLIER", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.HDel(t.Context(), redisKeys, "two").Err(); err != nil {
		t.Fatal(err)
	}
	a.want(t, "after an earlier release has revoked it")
	if !slices.Equal(a.restored, []int{1}) {
		t.Errorf("restored %v", a.restored)
	}
}

// TestB4_AChangeOfAnEmptiedRedisLosesNoKey: the first call to a Redis that was emptied, or that
// came back from an older snapshot, makes or revokes a key. The change counts, and so do those
// before.
func TestB4_AChangeOfAnEmptiedRedisLosesNoKey(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	a, b := remember(c), remember(c)
	a.must(t, "one", true)
	snapshot := snapshotOf(t, c)
	for _, id := range []string{"two", "three"} {
		a.must(t, id, true)
	}
	a.must(t, "one", false)
	b.want(t, "before", "two", "three")
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if found, err := b.Remove(t.Context(), "two"); !found || err != nil {
		t.Errorf("revoked: %v, %v", found, err)
	}
	for _, s := range []*remembering{a, b, remember(c)} {
		s.want(t, "after the revocation", "three")
	}
	snapshot.restore(t, c)
	b.must(t, "four", true)
	for _, s := range []*remembering{a, b, remember(c)} {
		s.want(t, "after the new key", "three", "four")
	}
}

// TestB4_ALostHashOfKeysIsWrittenAgain: Redis has dropped the keys and not their version, by itself
// or by hand. A gateway that remembers them writes them again, before it reads and before it makes
// a change. No key comes back that was revoked.
func TestB4_ALostHashOfKeysIsWrittenAgain(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	a, b := remember(c), remember(c)
	for _, id := range []string{"one", "two", "three"} {
		a.must(t, id, true)
	}
	drop := func() {
		if err := c.Del(t.Context(), redisKeys).Err(); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	b.want(t, "a gateway that remembers nothing")
	a.want(t, "one that knows them", "one", "two", "three")
	b.want(t, "the other one", "one", "two", "three")
	drop()
	b.must(t, "one", false)
	for _, s := range []*remembering{a, b, remember(c)} {
		s.want(t, "after a revocation", "two", "three")
	}
	b.must(t, "two", false)
	b.must(t, "three", false)
	a.want(t, "all are revoked")
	b.want(t, "all are revoked")
	if !slices.Equal(a.restored, []int{3}) || !slices.Equal(b.restored, []int{3}) {
		t.Errorf("restored %v and %v", a.restored, b.restored)
	}
}

// TestB4_ARevocationIsRememberedBeforeAReading: Redis loses its data just after it has taken two
// changes, before their gateway has read the keys again. Another gateway's change came between.
func TestB4_ARevocationIsRememberedBeforeAReading(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	a, b := remember(c), remember(c)
	a.want(t, "at first")
	a.want(t, "when there is a version")
	for _, id := range []string{"one", "two"} {
		a.must(t, id, true)
	}
	b.want(t, "before", "one", "two")
	for _, id := range []string{"one", "none"} {
		if _, err := a.Backend.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Backend.Add(t.Context(), Key{ID: "three", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	a.want(t, "after the loss", "two", "three")
	b.must(t, "two", false)
	if err := a.Backend.Add(t.Context(), Key{ID: "four", Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	a.want(t, "after changes of both", "three", "four")
}

// TestB4_KeysOfAnEarlierReleaseOutliveAnEmptiedRedis: no key was made or revoked since the upgrade,
// so the version has no number.
func TestB4_KeysOfAnEarlierReleaseOutliveAnEmptiedRedis(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client()
	for _, version := range []string{"EARLIER", firstVersion + "FIRST"} {
		remember(c).must(t, "one", true)
		if err := c.Set(t.Context(), redisVersion, version, 0).Err(); err != nil {
			t.Fatal(err)
		}
		a, b, fresh := remember(c), remember(c), remember(c)
		a.want(t, "before", "one")
		b.want(t, "before", "one")
		if err := c.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		fresh.want(t, "a gateway that remembers nothing")
		for _, s := range []*remembering{a, b, fresh, a} {
			s.want(t, version, "one")
		}
		b.must(t, "one", false)
		a.want(t, version+", revoked")
		if !slices.Equal(a.restored, []int{1}) || len(b.restored)+len(fresh.restored) != 0 {
			t.Errorf("%s: restored %v, %v and %v", version, a.restored, b.restored, fresh.restored)
		}
	}
}

// snapshot is what Redis had of the keys.
type snapshot map[string]string

func snapshotOf(t *testing.T, c goredis.UniversalClient) snapshot {
	t.Helper()
	s := snapshot{}
	for _, key := range []string{redisKeys, redisVersion} {
		s[key] = c.Dump(t.Context(), key).Val()
	}
	return s
}

func (s snapshot) restore(t *testing.T, c goredis.UniversalClient) {
	t.Helper()
	for key, text := range s {
		if err := c.RestoreReplace(t.Context(), key, 0, text).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
