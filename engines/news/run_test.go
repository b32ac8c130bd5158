package news

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// fakeServers answers requests without a network, so that tests run in virtual time.
type fakeServers struct {
	mu sync.Mutex
	// status is the answer by host; 0 is 200 with the metrics of vLLM. Guarded by mu, as the rest.
	status map[string]int
	// took is how long an answer takes.
	took time.Duration
	// asked counts the requests for metrics by host. now and most count all requests at the same
	// time.
	asked     map[string]int
	now, most int
}

func (f *fakeServers) RoundTrip(q *http.Request) (*http.Response, error) {
	f.mu.Lock()
	if q.URL.Path == "/metrics" {
		f.asked[q.URL.Host]++
	}
	f.now++
	f.most = max(f.most, f.now)
	status := f.status[q.URL.Host]
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.now--; f.mu.Unlock() }()
	select {
	case <-time.After(f.took):
	case <-q.Context().Done():
		return nil, q.Context().Err()
	}
	response := &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(""))}
	if status == 0 {
		response.StatusCode, response.Body = http.StatusOK, io.NopCloser(strings.NewReader("vllm:num_requests_running 1\n"))
	}
	return response, nil
}

func (f *fakeServers) count(host string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[host]
}

func newFakeReader(f *fakeServers, c Config) *Reader {
	f.asked = map[string]int{}
	r := New(c)
	r.Set(Known{Engines: catalogue()})
	r.newClient = func(*engines.Transport) *http.Client { return &http.Client{Transport: f} }
	return r
}

// address is the address of the replica with an index.
func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
}

// fleetOf returns a fleet of n ready replicas of one model.
func fleetOf(n int) (*engines.Fleet, engines.Part) {
	part := engines.Part{Models: []engines.Model{{Name: "chat", Launcher: engines.Upstream}}}
	for i := range n {
		part.Replicas = append(part.Replicas, engines.Replica{ID: fmt.Sprint(i), Model: "chat", State: engines.Ready,
			Launcher: engines.Upstream, Address: address(i)})
	}
	fleet := engines.NewFleet()
	fleet.Set("test", part)
	return fleet, part
}

// start runs a Reader. The function that it returns ends it.
func start(r *Reader) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return func() { cancel(); <-done }
}

// TestU10_Pauses: a replica is asked every two seconds, one without metrics once a minute, and one
// that fails less and less often.
func TestU10_Pauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(4)
		f := &fakeServers{status: map[string]int{address(1).String(): 404, address(2).String(): 500, address(3).String(): 501}}
		r := newFakeReader(f, Config{Fleet: fleet})
		defer start(r)()
		time.Sleep(10 * time.Minute)
		for i, want := range [][2]int{{270, 330}, {9, 12}, {11, 18}, {9, 12}} {
			if n := f.count(address(i).String()); n < want[0] || n > want[1] {
				t.Errorf("replica %d was asked %d times in ten minutes, want %d to %d", i, n, want[0], want[1])
			}
		}
		f.mu.Lock()
		f.status = nil
		f.mu.Unlock()
		time.Sleep(70 * time.Second)
		for i := range 4 {
			if n, ok := r.News(fmt.Sprint(i)); !ok || n.Running != 1 || n.Fault != "" || time.Since(n.At) > 70*time.Second {
				t.Errorf("replica %d after all answer: %+v", i, n)
			}
		}
	})
}

// TestFewReplicasAreAskedTogether: replicas that came at different times are asked at the same
// moments, and not more often than one replica.
func TestFewReplicasAreAskedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, part := fleetOf(8)
		all := part.Replicas
		part.Replicas = all[:1]
		fleet.Set("test", part)
		f := &fakeServers{took: time.Millisecond}
		r := newFakeReader(f, Config{Fleet: fleet})
		var mu sync.Mutex
		moments := map[time.Time]int{}
		r.newClient = func(*engines.Transport) *http.Client {
			return &http.Client{Transport: roundTripper(func(q *http.Request) (*http.Response, error) {
				mu.Lock()
				moments[time.Now()]++
				mu.Unlock()
				return f.RoundTrip(q)
			})}
		}
		defer start(r)()
		time.Sleep(time.Second)
		part.Replicas = all
		fleet.Set("test", part)
		time.Sleep(5 * time.Minute)
		mu.Lock()
		clear(moments)
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		asked := 0
		for _, n := range moments {
			asked += n
		}
		if len(moments) < 270 || len(moments) > 330 || asked < 8*270 || asked > 8*330 {
			t.Errorf("8 replicas were asked %d times at %d moments in ten minutes, want about 2400 and 300", asked, len(moments))
		}
	})
}

// roundTripper is an http.RoundTripper of a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// TestU10_AThousandReplicas are asked in turn, a few at once, also if many hang.
func TestU10_AThousandReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(1000)
		told := map[string]int{}
		f := &fakeServers{took: 10 * time.Millisecond}
		r := newFakeReader(f, Config{Fleet: fleet, Tell: func(replica string, n News) { told[replica] += n.Running }})
		stop := start(r)
		time.Sleep(time.Minute)
		stop()
		if f.most > r.AtOnce {
			t.Errorf("%d questions at the same time, want at most %d", f.most, r.AtOnce)
		}
		for id, n := range told {
			if n < 25 || n > 35 {
				t.Errorf("replica %s told %d times in a minute", id, n)
			}
		}
		if len(told) != 1000 {
			t.Errorf("%d replicas told", len(told))
		}
	})
}

// TestU10_HangingReplicas hold up the others only until they are asked less often.
func TestU10_HangingReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(100)
		f := &hanging{fakeServers: &fakeServers{}, from: 50}
		r := newFakeReader(f.fakeServers, Config{Fleet: fleet})
		r.newClient = func(*engines.Transport) *http.Client { return &http.Client{Transport: f} }
		defer start(r)()
		time.Sleep(5 * time.Minute)
		before := f.count(address(0).String())
		time.Sleep(time.Minute)
		if n := f.count(address(0).String()) - before; n < 25 {
			t.Errorf("a healthy replica was asked %d times in a minute beside 50 that hang", n)
		}
		if n, _ := r.News("99"); n.Fault != "no answer in time" {
			t.Errorf("%+v", n)
		}
	})
}

// hanging is fakeServers of which those with an index of from or more never answer.
type hanging struct {
	*fakeServers
	from int
}

func (h *hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	a := netip.MustParseAddrPort(q.URL.Host).Addr().As4()
	if int(a[2])<<8+int(a[3]) >= h.from {
		<-q.Context().Done()
		return nil, q.Context().Err()
	}
	return h.fakeServers.RoundTrip(q)
}

// TestU10_FollowsTheFleet: a replica that is not ready is not asked and has no news. One that has
// started again tells anew.
func TestU10_FollowsTheFleet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, part := fleetOf(3)
		f := &fakeServers{took: 100 * time.Millisecond}
		r := newFakeReader(f, Config{Fleet: fleet})
		known := catalogue()
		at := slices.IndexFunc(known, func(e Engine) bool { return e.Name == "vllm" })
		r.Set(Known{Engines: known, Models: map[string]Engine{"chat": known[at]}})
		part.Replicas[2].Launcher = engines.Local // it starts again
		fleet.Set("test", part)
		defer start(r)()
		change := func(edit func(all []engines.Replica)) {
			part.Replicas = append([]engines.Replica(nil), part.Replicas...)
			edit(part.Replicas)
			fleet.Set("test", part)
		}
		time.Sleep(5 * time.Second)
		if n, ok := r.News("1"); !ok || n.Running != 1 || n.Engine == "" {
			t.Errorf("news of a ready replica: %+v, %v", n, ok)
		}
		change(func(all []engines.Replica) { all[1].State = engines.Draining })
		time.Sleep(time.Second)
		asked := f.count(address(1).String())
		time.Sleep(time.Minute)
		if _, ok := r.News("1"); ok || f.count(address(1).String()) != asked {
			t.Errorf("a replica that drains has news (%v), or is asked", ok)
		}
		change(func(all []engines.Replica) { all[1].State, all[1].Address = engines.Ready, address(7) })
		time.Sleep(5 * time.Second)
		if n, ok := r.News("1"); !ok || n.Running != 1 || f.count(address(7).String()) == 0 {
			t.Errorf("news of a replica that came back: %+v, %v", n, ok)
		}
		f.mu.Lock()
		f.status = map[string]int{address(2).String(): 500}
		f.mu.Unlock()
		change(func(all []engines.Replica) { all[2].Since = time.Now() })
		time.Sleep(5 * time.Second)
		if n, _ := r.News("2"); n.Running != -1 || n.Fault != "/metrics answered 500" {
			t.Errorf("a replica that has started again has the news of before: %+v", n)
		}
		change(func([]engines.Replica) { part.Replicas = nil })
		time.Sleep(time.Second)
		for i := range 3 {
			if n, ok := r.News(fmt.Sprint(i)); ok {
				t.Errorf("replica %d has gone and has news: %+v", i, n)
			}
		}
	})
}

// TestU10_ALateAnswer: a replica that leaves the fleet while it is asked has no news afterwards.
func TestU10_ALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, part := fleetOf(1)
		f := &fakeServers{took: 900 * time.Millisecond}
		r := newFakeReader(f, Config{Fleet: fleet})
		defer start(r)()
		for f.count(address(0).String()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		fleet.Set("test", engines.Part{Models: part.Models})
		time.Sleep(time.Minute)
		if n, ok := r.News("0"); ok || f.count(address(0).String()) != 1 {
			t.Errorf("%+v after %d questions", n, f.count(address(0).String()))
		}
	})
}

// TestU1_ABusyServerKeepsItsEngine: a server that failed and is ready again, but has not answered
// the first question since, is not said to be of an unknown engine.
func TestU1_ABusyServerKeepsItsEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, part := fleetOf(1)
		f := &fakeServers{}
		var told []News
		r := newFakeReader(f, Config{Fleet: fleet, Tell: func(_ string, n News) { told = append(told, n) }})
		stop := start(r)
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		f.took = 1500 * time.Millisecond // longer than Timeout
		f.mu.Unlock()
		for _, s := range []engines.State{engines.Failed, engines.Ready} {
			part.Replicas = slices.Clone(part.Replicas)
			part.Replicas[0].State, part.Replicas[0].Since = s, time.Now()
			fleet.Set("test", part)
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		if n, ok := r.News("0"); !ok || n.Fault == "" {
			t.Errorf("the busy server has the news %+v", n)
		}
		stop()
		for _, n := range told {
			if n.Engine != "vllm" {
				t.Errorf("told %+v", n)
			}
		}
	})
}

// TestU10_AServerThatRefuses: a server that shows its metrics to nobody is told of as one of an
// unknown engine, and not as one that was not asked yet. One that fails is not.
func TestU10_AServerThatRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, _ := fleetOf(4)
		f := &fakeServers{status: map[string]int{address(0).String(): 401, address(1).String(): 302, address(2).String(): 503, address(3).String(): 429}}
		told := map[string]bool{}
		r := newFakeReader(f, Config{Fleet: fleet, Tell: func(id string, n News) { told[id] = n.Engine == "" }})
		stop := start(r)
		time.Sleep(time.Minute)
		stop()
		if len(told) != 2 || !told["0"] || !told["1"] {
			t.Errorf("told of %v, want of 0 and 1 as unknown", told)
		}
	})
}

// TestU10_SinceOfAServer: a server that someone else runs and that stays ready keeps its news when
// the time changes since which it is ready. Each of its models may have a time of its own.
func TestU10_SinceOfAServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fleet, part := fleetOf(1)
		f := &fakeServers{}
		r := newFakeReader(f, Config{Fleet: fleet})
		defer start(r)()
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		f.took = 1500 * time.Millisecond // longer than Timeout
		f.mu.Unlock()
		part.Replicas = slices.Clone(part.Replicas)
		part.Replicas[0].Since = time.Now()
		fleet.Set("test", part)
		time.Sleep(5 * time.Second)
		if n, _ := r.News("0"); n.Engine != "vllm" || n.Running != 1 || n.Fault == "" {
			t.Errorf("%+v", n)
		}
	})
}
