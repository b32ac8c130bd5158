package redis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// budget is what a tenant's bucket has left, according to the store.
func budget(t testing.TB, s *Store, limit int) int64 {
	t.Helper()
	c := admission.Claim{ID: "probe" + fmt.Sprint(time.Now().UnixNano()), Model: "probe", Tenant: "acme",
		TenantLimits: admission.TenantLimits{TokensPerMinute: limit}}
	v := acquire(s, c)
	wantReasons(t, v, admission.Granted)
	s.Release(c.ID, 0, true)
	return v[0].Quota.Tokens.Remaining
}

// TestManyCallers: of 2,000 callers at once against a budget of 100 exactly 100 are granted,
// through one gateway or three, on one Redis or a cluster.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				t.Parallel()
				all := stores(t, n, Config{Timeout: 2 * time.Second}, start(t)...)
				var granted, refused, other atomic.Int64
				var wg sync.WaitGroup
				for i := range 2000 {
					wg.Add(1)
					c := admission.Claim{ID: fmt.Sprint(i), Model: "chat", Tenant: "acme", Limits: admission.Limits{MaxConcurrent: 100}}
					go all[i%n].Acquire([]admission.Claim{c}, func(v []admission.Verdict) {
						defer wg.Done()
						switch v[0].Reason {
						case admission.Granted:
							granted.Add(1)
						case admission.ModelConcurrency:
							refused.Add(1)
						default:
							other.Add(1)
						}
					})
				}
				wg.Wait()
				if granted.Load() != 100 || refused.Load() != 1900 {
					t.Errorf("%d granted, %d refused, %d neither", granted.Load(), refused.Load(), other.Load())
				}
			})
		}
	}
}

// TestTooLate: a script that runs after its time changes nothing, and nothing runs twice.
func TestTooLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.redis.Close() })
	if _, err := s.join(t.Context()); err != nil {
		t.Fatal(err)
	}
	form := newClaimTable([]callPart{{&call{}, []admission.Claim{limited("a", 1)}}})
	kept := change{kind: leaseAlive, claim: limited("b", 1)}
	args := s.syncArgs(batch{[]change{kept}, 1}, form, time.Second)
	args[3] = args[3].(int64) - 10_000_000
	r, err := s.runTimed(t.Context(), syncScript, time.Second, args)
	if err != nil || r.status != "late" {
		t.Fatal(r, err)
	}
	if keys := server.Client().Keys(t.Context(), "{sluice}:leases:*").Val(); len(keys) > 0 {
		t.Errorf("a late script wrote %v", keys)
	}
	// With a wrong offset of Redis' clock the sync is sent again with the right one.
	s.offset -= 10_000_000
	if r, err = s.sendSync(t.Context(), batch{}, form, time.Second); err != nil || r.status != "ok" {
		t.Error(r, err)
	}
	// The same batch is sent again.
	give := batch{[]change{{kind: bucketsCorrected, claim: admission.Claim{Model: "m", Tenant: "acme"}, tokens: -10}}, 2}
	full := admission.Claim{ID: "c", Model: "m", Tenant: "acme", Limits: admission.Limits{TokensPerMinute: 60}}
	for i, b := range []batch{{}, give, give} {
		form := newClaimTable([]callPart{{&call{}, []admission.Claim{full}}})
		if r, err = s.sendSync(t.Context(), b, form, time.Second); err != nil || r.status != "ok" {
			t.Fatal(r, err)
		}
		_, _, levels := r.numbers(), r.list(), r.numbers()
		if want := []int64{60, 50, 50}[i]; levels[0] < want || levels[0] > want+5 {
			t.Errorf("after turn %d %d tokens, want %d", i, levels[0], want)
		}
	}
}

// TestUnavailableAtOnce: without Redis claims are answered without asking, and what happens
// meanwhile counts afterwards.
func TestUnavailableAtOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	s := all[0]
	charged := func(id string) admission.Claim {
		c := limited(id, 10)
		c.Tokens, c.TenantLimits.TokensPerMinute = 100, 1000
		return c
	}
	wantReasons(t, acquire(s, charged("a"), charged("b")), admission.Granted, admission.Granted)
	server.Pause()
	wantReasons(t, acquire(s, charged("lost"), charged("kept")), admission.Unavailable, admission.Unavailable)
	if st := s.Status(); st.Up || st.Mode != "alone" || st.LastError == "" || st.Gateways != 2 {
		t.Errorf("%+v", st)
	}
	s.ReportLease(charged("kept"))
	s.ReportLease(charged("short"))
	s.Release("short", 40, false) // costs 60, though the store never knows its lease
	s.Release("a", 70, false)
	s.Correct("chat", "acme", "", 5)
	wantReasons(t, acquire(s, charged("x")), admission.Unavailable)
	server.Resume()
	eventually(t, "it is back", func() bool { return s.Status().Up && all[1].Status().Up })
	wantInUse(t, server, "chat", 2) // b and kept
	// 1000 less a, b, kept and short, and what was given back; the bucket gains 17 per second.
	const want = 1000 - 300 - 60 + 70 + 5
	if got := budget(t, all[1], 1000); got < want || got > want+150 {
		t.Errorf("%d tokens are left, want %d and what came since", got, want)
	}
}

// TestRestartEmpty: a Redis that has lost everything grants nothing beside the live leases, and no
// tokens that were spent.
func TestRestartEmpty(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restartEmpty(t, start(t))
		})
	}
}

func restartEmpty(t *testing.T, servers []*redistest.Server) {
	all := stores(t, 2, Config{}, servers...)
	server := slotOwner(t, servers)
	claim := func(id string) admission.Claim {
		c := limited(id, 4)
		c.Tokens, c.TenantLimits.TokensPerMinute = 200, 1000
		return c
	}
	wantReasons(t, acquire(all[0], claim("a"), claim("b")), admission.Granted, admission.Granted)
	wantReasons(t, acquire(all[1], claim("c"), claim("d")), admission.Granted, admission.Granted)
	server.Kill()
	server.Restart()
	// Claims are sent all the time. The first one that is granted anything comes after all leases
	// were reported.
	done := time.Now().Add(testPatience)
	back := func(s *Store) bool { return s.Status().Errors > 0 && s.Status().Up }
	for i := 0; !back(all[0]) || !back(all[1]); i++ {
		for j, s := range all {
			if v := acquire(s, claim(fmt.Sprint(i, "-", j))); v[0].Reason == admission.Granted {
				t.Fatal("granted beyond the limit")
			}
		}
		if time.Now().After(done) {
			t.Fatal("they do not come back")
		}
		time.Sleep(10 * time.Millisecond)
	}
	wantInUse(t, server, "chat", 4)
	wantReasons(t, acquire(all[0], claim("e")), admission.ModelConcurrency)
	// 200 were left, and at 17 per second there are not many more.
	if got := budget(t, all[0], 1000); got > 200+200 {
		t.Errorf("%d tokens are left, want those that were not spent before", got)
	}
	all[0].Release("a", 0, false)
	eventually(t, "its place is free for the other gateway", func() bool {
		return acquire(all[1], limited("e", 4))[0].Reason == admission.Granted
	})
}

// TestSlowForOne: a gateway to which Redis answers too late stays on its own. It still knows how
// many gateways there are, so it enforces no more than its share. It hears of changed limits.
func TestSlowForOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	near := stores(t, 1, Config{}, server)[0]
	if err := server.Client().Set(t.Context(), "{sluice}:limits_version", "changed", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var refreshed atomic.Int64
	far, err := New(Config{Server: Server{URL: redistest.Slow(server, 150*time.Millisecond)}, Gateway: "far", Timeout: 50 * time.Millisecond,
		Refresh: func(context.Context) (string, error) {
			refreshed.Add(1)
			return "changed", nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, far)
	eventually(t, "it counts the other one", func() bool { return far.Gateways() == 2 && near.Gateways() == 2 && refreshed.Load() > 0 })
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if far.Status().Up {
			t.Fatal("it shares a Redis that answers too late")
		}
	}
	if !near.Status().Up || far.Gateways() != 2 {
		t.Errorf("%+v, %+v", near.Status(), far.Status())
	}
}

// slotOwner is the server that has the deployment's keys.
func slotOwner(t *testing.T, servers []*redistest.Server) *redistest.Server {
	t.Helper()
	for _, s := range servers {
		if n, err := s.Client().Exists(t.Context(), "{sluice}:epoch").Result(); err == nil && n == 1 {
			return s
		}
	}
	t.Fatal("nobody has the keys")
	return nil
}

// TestFlushed: the next sync notices a database that was emptied under running gateways.
func TestFlushed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := stores(t, 1, Config{}, server)[0]
	wantReasons(t, acquire(s, limited("a", 1)), admission.Granted)
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantReasons(t, acquire(s, limited("b", 1)), admission.Unavailable)
	eventually(t, "it is back", func() bool { // Status is late when it has just gone
		return s.Status().Up && acquire(s, limited("b", 1))[0].Reason != admission.Unavailable
	})
	wantReasons(t, acquire(s, limited("b", 1)), admission.ModelConcurrency)
}

// TestFirstStart: a gateway at an empty Redis does not wait, unless it comes with leases of an
// earlier process.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	for _, leases := range []int{0, 1} {
		server := redistest.Start(t)
		s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for i := range leases {
			s.ReportLease(limited(fmt.Sprint(i), 1))
		}
		wait, err := s.join(t.Context())
		if err != nil || (wait > 0) != (leases > 0) {
			t.Errorf("with %d leases it waits %v, %v", leases, wait, err)
		}
		s.redis.Close()
	}
}

// TestReturnTogether: gateways that were without Redis agree when to share again, and the first one
// back does not go ahead with what it cannot know of the others. One that was not without it, or is
// new, does not wait.
func TestReturnTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	open := func(returning bool) (*Store, time.Duration) {
		s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.redis.Close() })
		s.wasShared = returning
		wait, err := s.join(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s, wait
	}
	first, wait := open(true)
	if wait <= 0 || first.isShared() {
		t.Fatalf("the first one back waits %v", wait)
	}
	second, wait := open(true)
	if wait <= 0 || second.resumeAt != first.resumeAt {
		t.Errorf("they return %v apart", micros(second.resumeAt-first.resumeAt))
	}
	if other, wait := open(false); wait != 0 || !other.isShared() {
		t.Errorf("a new one waits %v", wait)
	}
	eventually(t, "it is time", func() bool {
		wait, err := first.join(t.Context())
		return err == nil && wait == 0
	})
	if !first.isShared() {
		t.Error("it does not share")
	}
}

// TestReturnWithTheLastOne: the first gateway back waits for another one that it knows, and both
// share soon after that one has come.
func TestReturnWithTheLastOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	now := func() int64 { return server.Client().Time(t.Context()).Val().UnixMicro() }
	for i := 0; ; i++ {
		open := func() *Store {
			s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Deployment: fmt.Sprint(i), Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.redis.Close() })
			s.wasShared, s.status.Gateways = true, 2
			_, err = s.join(t.Context())
			wantError(t, err, nil)
			return s
		}
		began := now()
		first := open()
		alone := first.resumeAt
		if alone-began < (3 * time.Second).Microseconds() {
			t.Fatalf("alone, the first one shares again after %v", micros(alone-began))
		}
		second := open()
		_, err := first.join(t.Context())
		wantError(t, err, nil)
		if now()-began > (600 * time.Millisecond).Microseconds() { // the machine is busy
			continue
		}
		if second.resumeAt >= alone || first.resumeAt != second.resumeAt {
			t.Errorf("with both, they return %v earlier, %v apart", micros(alone-second.resumeAt), micros(second.resumeAt-first.resumeAt))
		}
		return
	}
}

// TestCallersAfterTheEnd: calls after the end of Run are answered.
func TestCallersAfterTheEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, acquire(s, limited("a", 1)), admission.Unavailable)
	stop := runStore(t, s)
	eventually(t, "it is up", func() bool { return s.Status().Up })
	wantReasons(t, acquire(s, limited("a", 1)), admission.Granted)
	s.Release("a", 0, false)
	stop()
	wantReasons(t, acquire(s, limited("b", 1)), admission.Unavailable)
	wantInUse(t, server, "chat", 0) // the release was reported before the end
}

// TestOlderSnapshot: a Redis that comes back as it was some time ago learns from the gateways what
// it has forgotten: leases, tasks, and what was spent.
func TestOlderSnapshot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := stores(t, 2, Config{}, server)
	claim := func(id string, tokens int64) admission.Claim {
		c := limited(id, 4)
		c.Tokens, c.TenantLimits.TokensPerMinute = tokens, 1000
		return c
	}
	wantReasons(t, acquire(all[0], claim("before", 100)), admission.Granted)
	if err := server.Client().Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	made := claim("task", 300)
	made.Task = &admission.TaskClaim{Key: "key", Lease: time.Minute, Lifetime: time.Hour}
	wantReasons(t, acquire(all[0], made), admission.Granted)
	wantReasons(t, acquire(all[1], claim("after", 400)), admission.Granted)
	server.Kill()
	server.Restart()
	for i, s := range all {
		eventually(t, "it counts what it has forgotten", func() bool {
			v := acquire(s, claim(fmt.Sprint("probe", i), 0))[0]
			s.Release(fmt.Sprint("probe", i), 0, true)
			if v.Reason == admission.Granted && v.ModelInUse != 4 {
				t.Fatalf("granted as one of %d, want 4", v.ModelInUse)
			}
			return v.Reason == admission.Granted
		})
	}
	if got, err := all[1].Task(t.Context(), "acme", "task"); err != nil || got.Tokens != 300 {
		t.Errorf("%+v, %v", got, err)
	}
	again := claim("again", 300)
	again.Task = made.Task
	if v := acquire(all[1], again); v[0].Task == nil || v[0].Task.ID != "task" {
		t.Errorf("a repeated call does not find its task: %+v", v)
	}
	// 200 were left, and at 17 per second there are not many more.
	if got := budget(t, all[0], 1000); got > 200+300 {
		t.Errorf("%d tokens are left, want those that were not spent before", got)
	}
	wantError(t, all[1].EndTask(t.Context(), "acme", "task", noCorrection), nil)
	all[0].Release("before", 0, false)
	all[1].Release("after", 0, false)
	wantInUse(t, server, "chat", 0)
}

// TestStopWhileRedisHangs: a stop waits for 2 s at most, whatever Config.Timeout is, for a Redis
// that was shared before and for one that has never answered.
func TestStopWhileRedisHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and no one answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for name, url := range map[string]string{"shared": "", "never": "redis://" + silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var server *redistest.Server
			if url == "" {
				server = redistest.Start(t)
				url = redistest.URL(server)
			}
			s, err := New(Config{Server: Server{URL: url}, Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			stop := runStore(t, s)
			if server != nil {
				eventually(t, "limits are shared", func() bool { return s.Status().Up })
				server.Pause()
				defer server.Resume()
			} else {
				time.Sleep(100 * time.Millisecond) // the store connects
			}
			began := time.Now()
			stop()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the stop took %v", took)
			}
		})
	}
}
