package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/ray"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestO5_LoadedCountsEachStartOnce: a start is counted when its replica becomes ready, and only
// then.
func TestO5_LoadedCountsEachStartOnce(t *testing.T) {
	t.Parallel()
	with := func(state engines.State, load time.Duration) *engines.Snapshot {
		return &engines.Snapshot{Models: map[string]*engines.ModelSnapshot{"chat": {Replicas: []engines.Replica{{ID: "chat-0", Model: "chat", State: state, LoadTime: load}}}}}
	}
	for name, c := range map[string]struct {
		before, after *engines.Snapshot
		want          int
	}{
		"it becomes ready":           {with(engines.Starting, 0), with(engines.Ready, time.Second), 1},
		"it still starts":            {with(engines.Starting, 0), with(engines.Starting, 0), 0},
		"it was adopted":             {&engines.Snapshot{}, with(engines.Ready, time.Second), 0},
		"it was busy for a moment":   {with(engines.Failed, time.Second), with(engines.Ready, time.Second), 0},
		"it was started once more":   {with(engines.Starting, time.Second), with(engines.Ready, 2*time.Second), 1},
		"its time is not known":      {with(engines.Starting, 0), with(engines.Ready, 0), 0},
		"its model is there no more": {with(engines.Starting, 0), &engines.Snapshot{}, 0},
	} {
		if got := loaded(c.before, c.after); len(got) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestO5_MetricsKnowModelsAndPools: the metrics have the own names of models and the names of
// pools, which the file bounds, and no other name that clients may use.
func TestO5_MetricsKnowModelsAndPools(t *testing.T) {
	t.Parallel()
	g := &Gateway{fleet: engines.NewFleet()}
	g.settings.first = &config.Config{Pools: []config.Pool{{Name: "pool", Models: []string{"chat"}}}}
	g.fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat", Aliases: []string{"talk"}}}})
	swept := g.names().Models
	for name, want := range map[string]bool{"chat": true, "pool": true, "talk": false, "x": false} {
		if g.knownModel(name) != want || swept[name] != want {
			t.Errorf("%s: known %v, kept %v, want %v", name, g.knownModel(name), swept[name], want)
		}
	}
}

// The switch of the benchmark turns the observers of requests off, and the sample alone.
func TestObservationCanBeOff(t *testing.T) {
	for value, want := range map[string][2]bool{"": {true, true}, "unsampled": {true, false}, "off": {false, false}} {
		t.Setenv("SLUICE_OBSERVE", value)
		if got := [2]bool{observes(), samples()}; got != want {
			t.Errorf("SLUICE_OBSERVE=%s: requests are observed and responses read: %v, want %v", value, got, want)
		}
	}
}

// TestU2_AFailureSparesTheLastServerThatIsNotDrained: one 503 does not take the last server out
// that an operator has left to a model.
func TestU2_AFailureSparesTheLastServerThatIsNotDrained(t *testing.T) {
	t.Parallel()
	var urls []string
	for range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[{"id":"chat"}]}`) }))
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	path := t.TempDir()
	c := parse(t, path, fmt.Sprintf("upstreams: [%s, %s]\n", urls[0], urls[1]))
	g := newGateway(t, claimed(t, path), c)
	g.launchers.upstream.Set(upstreams(c))
	g.launchers.upstream.CheckOnce(t.Context())
	servers := g.fleet.Snapshot().Models["chat"].Replicas
	g.operator.DrainReplica(servers[0].ID, true)
	g.launchers.upstream.RecordFailure(servers[1].ID, "chat", "answered 503")
	for _, r := range g.fleet.Snapshot().Models["chat"].Replicas {
		if r.State != engines.Ready {
			t.Errorf("not ready: %+v", r)
		}
	}
}

// A stuck replica is restarted, but none that is drained, that is not ready or that someone else
// runs. A gateway that does not write to Ray says nothing about one there.
func TestAStuckReplicaIsRestarted(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	core, logs := observer.New(zap.WarnLevel)
	g, err := New(claimed(t, path), Options{Config: parse(t, path, "upstreams: []\n"), Version: "test", Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	replica := func(id string, launcher engines.Launcher, state engines.State) engines.Replica {
		return engines.Replica{ID: id, Model: "chat", Launcher: launcher, State: state}
	}
	g.fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}, Replicas: []engines.Replica{
		replica("chat-0", engines.Local, engines.Ready), replica("chat-1", engines.Local, engines.Ready),
		replica("chat-2", engines.Local, engines.Starting), replica("server", engines.Upstream, engines.Ready),
		replica("chat-ray", engines.Ray, engines.Ready),
	}})
	g.launchers.ray = ray.New(ray.Config{Fleet: g.fleet}) // it does not run, so it may not write
	g.operator.DrainReplica("chat-1", true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			(<-g.operator.work)(t.Context())
		}
	}()
	for _, id := range []string{"unknown", "server", "chat-2", "chat-1", "chat-ray", "chat-0"} {
		g.failed("chat", id, dispatch.Stuck, "left several requests in a row without an answer")
	}
	select {
	case <-done:
	case <-time.After(testutil.Patience):
		t.Fatal("no replica was restarted")
	}
	var restarted []string
	for _, e := range logs.FilterMessageSnippet("that answers no request").All() {
		t.Errorf("logged: %s %v", e.Message, e.ContextMap())
	}
	for _, e := range logs.FilterMessageSnippet("restarting it").All() {
		restarted = append(restarted, e.ContextMap()["replica"].(string))
	}
	if !slices.Equal(restarted, []string{"chat-0"}) {
		t.Errorf("%v were restarted", restarted)
	}
}

// The final entry of a request of before a restart is known also if the clock of the machine was
// set back during the request, by its duration.
func TestX13_RequestsOfBeforeAreKnownByAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		time.Sleep(time.Minute)
		for _, c := range []struct {
			began, took time.Duration // after the start of the process
			before      bool
		}{
			{-time.Second, time.Second, true}, {-time.Second, 0, true}, {time.Second, 59 * time.Second, false}, {0, time.Minute, false},
			{time.Hour, 61 * time.Second, true}, {time.Hour, 59 * time.Second, false},
		} {
			e := request.Entry{Start: started.Add(c.began).Round(0), Duration: c.took}
			if got := beganBefore(&e, started); got != c.before {
				t.Errorf("began %v after the start and took %v: %v, want %v", c.began, c.took, got, c.before)
			}
		}
	})
}

// TestAStuckReplicaDelaysNoRequest: the end of a request reports a stuck replica. It does not wait
// for those that restart replicas, who are busy or gone while a gateway is upgraded.
func TestAStuckReplicaDelaysNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := engines.NewFleet()
		fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}},
			Replicas: []engines.Replica{{ID: "chat-0", Model: "chat", Launcher: engines.Local, State: engines.Ready}}})
		o := &operator{log: zap.NewNop(), launchers: &launchers{fleet: fleet}, work: make(chan func(context.Context)),
			dispatcher: dispatch.New(dispatch.Config{Fleet: fleet, Admission: admission.New(admission.Config{})})}
		began := time.Now()
		o.restartStuck("chat", "chat-0")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited for %v", waited)
		}
		<-o.work
	})
}
