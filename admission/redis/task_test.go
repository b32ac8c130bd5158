package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

func task(id, key string, lease time.Duration) admission.Claim {
	c := limited(id, 2)
	c.Tokens, c.Limits.TokensPerMinute = 100, 1000
	c.Task = &admission.TaskClaim{Key: key, Lease: lease, Lifetime: 4 * time.Hour}
	return c
}

// noCorrection is a cost that is not known.
const noCorrection = -1

func wantError(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// TestTasks: a task belongs to its tenant, and any gateway may find it, renew it, and end it once.
func TestTasks(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := stores(t, 2, Config{}, start(t)...)
			ctx := t.Context()
			wantReasons(t, acquire(all[0], task("a", "k", time.Minute)), admission.Granted)
			again := acquire(all[1], task("b", "k", time.Minute), task("c", "other", time.Minute), task("d", "", time.Minute))
			wantReasons(t, again, admission.Granted, admission.Granted, admission.ModelConcurrency)
			if found := again[0].Task; found == nil || found.ID != "a" || found.Model != "chat" || found.Tenant != "acme" || found.Tokens != 100 ||
				time.Until(found.Expires) < 30*time.Second || time.Until(found.Expires) > 61*time.Second {
				t.Errorf("the key found %+v", found)
			}
			stranger := task("e", "k", time.Minute)
			stranger.Tenant, stranger.Model = "stranger", "other"
			wantReasons(t, acquire(all[1], stranger), admission.Granted)

			_, err := all[1].Task(ctx, "stranger", "a")
			wantError(t, err, admission.ErrUnknownTask)
			wantError(t, all[1].EndTask(ctx, "stranger", "a", noCorrection), admission.ErrUnknownTask)
			_, err = all[1].RenewTask(ctx, "acme", "nobody", time.Minute)
			wantError(t, err, admission.ErrUnknownTask)
			_, err = all[1].RenewTask(ctx, "acme", "a", time.Hour)
			wantError(t, err, nil)
			got, err := all[0].Task(ctx, "acme", "a")
			if err != nil || got.Model != "chat" || got.Tokens != 100 || time.Until(got.Expires) < 59*time.Minute {
				t.Errorf("%+v, %v", got, err)
			}
			wantError(t, all[1].EndTask(ctx, "acme", "a", 30), nil)
			wantError(t, all[0].EndTask(ctx, "acme", "a", noCorrection), admission.ErrUnknownTask)
			wantReasons(t, acquire(all[0], task("f", "k", time.Minute)), admission.TaskEnded)
			next := acquire(all[0], task("g", "l", time.Minute)) // its place is free again
			wantReasons(t, next, admission.Granted)
			if next[0].Task != nil || next[0].ModelInUse != 2 {
				t.Errorf("%+v", next[0])
			}
		})
	}
}

func TestTaskEndsOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{Timeout: 2 * time.Second}, server)
	for i := range 20 {
		id := fmt.Sprint(i)
		wantReasons(t, acquire(all[0], task(id, "", time.Minute)), admission.Granted)
		var ends atomic.Int64
		var wg sync.WaitGroup
		for j := range 8 {
			wg.Go(func() {
				err := all[j%2].EndTask(t.Context(), "acme", id, 0)
				if err == nil {
					ends.Add(1)
				} else if !errors.Is(err, admission.ErrUnknownTask) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if ends.Load() != 1 {
			t.Fatalf("task %s ended %d times", id, ends.Load())
		}
	}
	wantInUse(t, server, "chat", 0)
}

// lostAnswer loses the answer of the first task script that Redis runs.
type lostAnswer struct{ lost *atomic.Bool }

func (lostAnswer) DialHook(next client.DialHook) client.DialHook { return next }

func (l lostAnswer) ProcessHook(next client.ProcessHook) client.ProcessHook {
	return func(ctx context.Context, cmd client.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 1 && args[1] == taskScript.Hash() && l.lost.CompareAndSwap(false, true) {
			err = context.DeadlineExceeded
			cmd.SetErr(err)
		}
		return err
	}
}

func (lostAnswer) ProcessPipelineHook(next client.ProcessPipelineHook) client.ProcessPipelineHook {
	return next
}

// TestW6_ARepeatedEndOfATaskSucceedsAfterALostAnswer: a task whose end got no answer has ended, and
// its caller repeats the call. Others still hear that there is no such task.
func TestW6_ARepeatedEndOfATaskSucceedsAfterALostAnswer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	other := stores(t, 1, Config{}, server)[0]
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	hook := lostAnswer{new(atomic.Bool)}
	s.redis.AddHook(hook)
	runStore(t, s)
	wantReasons(t, acquire(other, task("a", "k", time.Minute)), admission.Granted)
	eventually(t, "the end gets no answer", func() bool {
		return errors.Is(s.EndTask(t.Context(), "acme", "a", 30), admission.ErrUnavailable) && hook.lost.Load()
	})
	wantInUse(t, server, "chat", 0)
	eventually(t, "Redis is back", func() bool { return s.Status().Up })
	wantError(t, s.EndTask(t.Context(), "stranger", "a", 30), admission.ErrUnknownTask)
	wantError(t, other.EndTask(t.Context(), "acme", "a", 30), admission.ErrUnknownTask)
	wantError(t, s.EndTask(t.Context(), "acme", "a", 30), nil)
	wantError(t, s.EndTask(t.Context(), "acme", "a", 30), admission.ErrUnknownTask)
}

func TestTaskExpires(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{Lease: time.Second}, redistest.Start(t))[0]
	wantReasons(t, acquire(s, task("a", "k", 1200*time.Millisecond), task("b", "", time.Hour)), admission.Granted, admission.Granted)
	wantReasons(t, acquire(s, task("c", "", time.Minute)), admission.ModelConcurrency)
	eventually(t, "its lease ends by itself", func() bool {
		return acquire(s, task("c", "", time.Minute))[0].Reason == admission.Granted
	})
	_, err := s.Task(t.Context(), "acme", "a")
	wantError(t, err, admission.ErrUnknownTask)
}

// TestTasksAlone: a task that was admitted without Redis can be ended without it; other tasks
// cannot. A task that was ended at another gateway does not come back with a gateway that remembers
// it.
func TestTasksAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	s, ctx := all[0], t.Context()
	wantReasons(t, acquire(s, task("stored", "", time.Minute), task("gone", "", time.Minute)), admission.Granted, admission.Granted)
	wantError(t, all[1].EndTask(ctx, "acme", "gone", noCorrection), nil)
	server.Pause()
	wantReasons(t, acquire(s, limited("x", 2)), admission.Unavailable)
	for _, id := range []string{"ended", "renewed"} {
		s.ReportLease(task(id, "key of "+id, time.Minute))
	}
	s.ReportLease(task("gone", "", time.Minute)) // as a gateway does after it has read its journal
	wantError(t, s.EndTask(ctx, "acme", "stored", noCorrection), admission.ErrUnavailable)
	_, err := s.Task(ctx, "acme", "nobody")
	wantError(t, err, admission.ErrUnavailable)
	_, err = s.Task(ctx, "stranger", "renewed")
	wantError(t, err, admission.ErrUnavailable)
	_, err = s.RenewTask(ctx, "acme", "renewed", time.Hour)
	wantError(t, err, nil)
	wantError(t, s.EndTask(ctx, "acme", "ended", noCorrection), nil)
	server.Resume()
	eventually(t, "they are back", func() bool { return s.Status().Up && all[1].Status().Up })
	wantInUse(t, server, "chat", 2) // stored, renewed
	got, err := all[1].Task(ctx, "acme", "renewed")
	if err != nil || time.Until(got.Expires) < 50*time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
	again := acquire(all[1], task("y", "key of renewed", time.Minute))
	if again[0].Task == nil || again[0].Task.ID != "renewed" {
		t.Errorf("its key is not known: %+v", again[0])
	}
	for _, id := range []string{"ended", "gone"} {
		_, err = all[1].Task(ctx, "acme", id)
		wantError(t, err, admission.ErrUnknownTask)
	}
	wantError(t, all[1].EndTask(ctx, "acme", "renewed", noCorrection), nil)
	wantError(t, s.EndTask(ctx, "acme", "renewed", noCorrection), admission.ErrUnknownTask)
}

// TestForeignTaskFrees: a gateway that ends a task of another gateway is itself told that there is
// room now.
func TestForeignTaskFrees(t *testing.T) {
	t.Parallel()
	all := stores(t, 2, Config{}, redistest.Start(t))
	heard := &recordingSubscriber{}
	all[1].Subscribe(heard)
	wantReasons(t, acquire(all[0], task("a", "", time.Minute), task("b", "", time.Minute)), admission.Granted, admission.Granted)
	wantReasons(t, acquire(all[1], limited("c", 2)), admission.ModelConcurrency)
	wantError(t, all[1].EndTask(t.Context(), "acme", "a", noCorrection), nil)
	eventually(t, "it is told", func() bool { return heard.freed("chat") > 0 })
}

// TestARenewalAtTheEndOfATask: a task whose time is over is not renewed, although Redis still has
// its record, and a request may still hold its lease.
func TestARenewalAtTheEndOfATask(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	wantReasons(t, acquire(s, task("a", "k", time.Minute)), admission.Granted)
	until := server.Client().Time(t.Context()).Val().UnixMilli()
	if err := server.Client().HSet(t.Context(), "{sluice}:task:a", "until", until).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := s.RenewTask(t.Context(), "acme", "a", time.Minute)
	wantError(t, err, admission.ErrUnknownTask)
}

// TestReleasedTask: a task that was released unused leaves nothing behind.
func TestReleasedTask(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	wantReasons(t, acquire(s, task("a", "k", time.Minute)), admission.Granted)
	s.Release("a", 100, true)
	wantInUse(t, server, "chat", 0)
	_, err := s.Task(t.Context(), "acme", "a")
	wantError(t, err, admission.ErrUnknownTask)
	v := acquire(s, task("b", "k", time.Minute))
	if wantReasons(t, v, admission.Granted); v[0].Task != nil {
		t.Errorf("%+v", v[0])
	}
}
