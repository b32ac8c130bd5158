package redis

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

var _ limits.Backend = (*Store)(nil)
var _ admission.Shared = (*Store)(nil)

func newBackend(t testing.TB, servers ...*redistest.Server) *Store {
	t.Helper()
	s, err := New(Config{Server: Server{URL: redistest.URL(servers...)}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.redis.Close() })
	return s
}

func TestBackend(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ctx := newBackend(t, start(t)...), t.Context()
			got, version, err := s.Load(ctx)
			if err != nil || len(got) != 0 || version != "" {
				t.Fatal(got, version, err)
			}
			first := limits.Records{
				"model/a/b:{c}": {Values: limits.Values{"weight": 3, "max_tokens_per_minute": 1<<63 - 1}, File: limits.Values{"weight": 1}},
				"model/":        {Values: limits.Values{"weight": 1}, File: limits.Values{}},
				"tenant/acme":   {Values: limits.Values{}, File: limits.Values{"max_prefill": -7}},
			}
			save(t, s, first, "", true)
			save(t, s, first, "", false)
			got, version, err = s.Load(ctx)
			if diff := cmp.Diff(first, got); diff != "" || err != nil || version == "" {
				t.Fatal(diff, version, err)
			}
			save(t, s, limits.Records{"model/": {}, "tenant/acme": {Values: limits.Values{"x": 1}}}, version, true)
			save(t, s, limits.Records{"model/": {}}, version, false)
			delete(first, "model/")
			first["tenant/acme"] = limits.Record{Values: limits.Values{"x": 1}, File: limits.Values{}}
			got, next, err := s.Load(ctx)
			if diff := cmp.Diff(first, got); diff != "" || err != nil || next == version {
				t.Fatal(diff, next, err)
			}
			if _, err := s.Save(ctx, limits.Records{"leases/chat": {Values: limits.Values{"x": 1}}}, next); err == nil {
				t.Error("limits of an unknown kind were saved")
			}
		})
	}
}

func save(t testing.TB, s *Store, r limits.Records, version string, want bool) {
	t.Helper()
	if ok, err := s.Save(t.Context(), r, version); ok != want || err != nil {
		t.Fatalf("saved: %v, %v; want %v", ok, err, want)
	}
}

// TestConcurrentWriters: of writers that read, add one and write, none loses the change of another.
func TestConcurrentWriters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const writers, rounds = 6, 15
	var wg sync.WaitGroup
	for range writers {
		s := newBackend(t, server)
		wg.Go(func() {
			for range rounds {
				for saved := false; !saved; {
					records, version, err := s.Load(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					n := records["model/m"].Values["weight"] + 1
					saved, err = s.Save(t.Context(), limits.Records{"model/m": {Values: limits.Values{"weight": n}}}, version)
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	got, _, _ := newBackend(t, server).Load(t.Context())
	if n := got["model/m"].Values["weight"]; n != writers*rounds {
		t.Errorf("%d of %d were kept", n, writers*rounds)
	}
}

// TestChangedLimits: a claim with limits that another gateway has changed is not granted under the
// old ones.
func TestChangedLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	other := newBackend(t, server)
	save(t, other, limits.Records{"model/chat": {Values: limits.Values{"max_concurrent_requests": 1}}}, "", true)
	var most atomic.Int64
	var s *Store
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second, Refresh: func(ctx context.Context) (string, error) {
		records, version, err := s.Load(ctx)
		most.Store(records["model/chat"].Values["max_concurrent_requests"])
		return version, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	eventually(t, "it is up", func() bool { return s.Status().Up })
	ask := func(id string) admission.Reason {
		for {
			if v := acquire(s, limited(id, int(most.Load()))); v[0].Reason != admission.Stale {
				return v[0].Reason
			}
		}
	}
	if r := ask("0"); r != admission.Granted {
		t.Fatal(r)
	}
	for i := int64(2); i < 8; i++ {
		_, version, _ := other.Load(t.Context())
		if r := ask(fmt.Sprint("over", i)); r != admission.ModelConcurrency {
			t.Fatalf("reason %d over a limit of %d", r, most.Load())
		}
		save(t, other, limits.Records{"model/chat": {Values: limits.Values{"max_concurrent_requests": i}}}, version, true)
		if r := ask(fmt.Sprint(i)); r != admission.Granted {
			t.Fatalf("reason %d at once after the limit became %d", r, i)
		}
	}
}

// sharedOverrides returns limits of the file, with overrides in the server, of a gateway that runs.
func sharedOverrides(t *testing.T, server *redistest.Server) *limits.Overrides {
	t.Helper()
	var overrides *limits.Overrides
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second, Refresh: func(ctx context.Context) (string, error) {
		err := overrides.Reload(ctx)
		return overrides.Version(), err
	}})
	if err != nil {
		t.Fatal(err)
	}
	overrides = limits.New(limits.Config{Backend: s})
	file := map[string]limits.Values{"model/chat": {"weight": 1, "max_concurrent_requests": 8, "max_tokens_per_minute": 0}}
	if err := overrides.Sync(t.Context(), file, nil); err != nil {
		t.Fatal(err)
	}
	runStore(t, s)
	eventually(t, "it is up", func() bool { return s.Status().Up })
	return overrides
}

// override sets a limit at run time.
func override(t *testing.T, o *limits.Overrides, value int64) {
	t.Helper()
	if _, err := o.Patch(t.Context(), "model/chat", map[string]*int64{"max_concurrent_requests": &value}); err != nil {
		t.Fatal(err)
	}
}

func holds(o *limits.Overrides, want int64) bool {
	e, ok := o.Get("model/chat")
	return ok && e.Values["max_concurrent_requests"] == want
}

// TestOverridesAreShared: a limit that an operator changes at one gateway is in force at the other
// after a heartbeat. The change survives both gateways.
func TestOverridesAreShared(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, two := sharedOverrides(t, server), sharedOverrides(t, server)
	override(t, one, 3)
	eventually(t, "the other one has it", func() bool { return holds(two, 3) })
	if !holds(sharedOverrides(t, server), 3) {
		t.Error("a new gateway does not have it")
	}
	got := server.Client().HGet(t.Context(), "{sluice}:model:chat", "max_concurrent_requests").Val()
	if got != "3" {
		t.Errorf("in Redis it is %q", got)
	}
}

// TestOverridesOutliveALoss: a limit that was set at run time is written again to a Redis that was
// emptied, or that came back from an older snapshot.
func TestOverridesOutliveALoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client()
	one, two := sharedOverrides(t, server), sharedOverrides(t, server)
	override(t, one, 4)
	eventually(t, "the other one has it", func() bool { return holds(two, 4) })
	if err := c.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	override(t, one, 3)
	eventually(t, "the other one has it", func() bool { return holds(two, 3) })
	version := c.Get(t.Context(), "{sluice}:limits_version").Val()
	for name, lose := range map[string]func(){
		"emptied": func() {
			if err := c.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"snapshot": func() { server.Kill(); server.Restart() },
	} {
		lose()
		eventually(t, name+": both have asked Redis since", func() bool {
			return one.Version() != version && one.Version() == two.Version()
		})
		if !holds(one, 3) || !holds(two, 3) || !holds(sharedOverrides(t, server), 3) {
			one, _ := one.Get("model/chat")
			t.Errorf("%s: %v", name, one.Values)
		}
		version = one.Version()
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                       "[h:6379] 0  false false",
		"redis://h:1/2":                   "[h:1] 2  false false",
		"redis://u:p@h:1":                 "[h:1] 0 u/p false false",
		"redis://:p%40x@h:1/":             "[h:1] 0 /p@x false false",
		"rediss://u:p,q@h:1,i:2,[::1]:3":  "[h:1 i:2 [::1]:3] 0 u/p,q true true",
		"redis://h:1,i":                   "[h:1 i:6379] 0  true false",
		"redis://h,i/3":                   "",
		"http://h":                        "",
		"redis://":                        "",
		"redis://h,":                      "",
		"redis://:secret@h:port":          "",
		"redis://:secret@h/x":             "",
		"redis://:secret@h?password=what": "",
		"secret":                          "",
	} {
		o, err := Server{URL: url}.options()
		if want == "" {
			if err == nil {
				t.Errorf("%s was taken", url)
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error tells: %v", url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		who := ""
		if o.Password != "" {
			who = o.Username + "/" + o.Password
		}
		if got := fmt.Sprint(o.Addrs, " ", o.DB, " ", who, " ", o.IsClusterMode, " ", o.Dialer != nil); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}

// TestDamagedLimits: a limit in Redis that is no number leaves the others in force, and gateways go
// on sharing.
func TestDamagedLimits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := New(Config{Server: Server{URL: redistest.URL(server)}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.redis.Close() })
	good := limits.Record{Values: limits.Values{"requests_per_minute": 1}, File: limits.Values{}}
	if saved, err := s.Save(t.Context(), limits.Records{"tenant/a": good, "tenant/b": good}, ""); !saved || err != nil {
		t.Fatal(saved, err)
	}
	if err := server.Client().HSet(t.Context(), "{sluice}:tenant:b", "requests_per_minute", "many").Err(); err != nil {
		t.Fatal(err)
	}
	records, _, err := s.Load(t.Context())
	if err != nil || len(records) != 1 || records["tenant/a"].Values["requests_per_minute"] != 1 {
		t.Errorf("%v, %v", records, err)
	}
}
