package dispatch

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// A replica that has too much to do gets no new request for a while, and the last one of a model
// goes on.
func TestR9_Rest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ asks, rests time.Duration }{
		{0, time.Second}, {3 * time.Second, 3 * time.Second}, {time.Hour, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(Policy{Strategy: RoundRobin})
			s.put("m", replicas("a", "b")...)
			s.Rest("nobody", c.asks)
			s.Rest("a", c.asks)
			s.Rest("b", c.asks)           // the last one
			s.Rest("a", time.Millisecond) // does not shorten the rest
			time.Sleep(c.rests - time.Millisecond)
			for range 4 {
				if ticket := s.must(t, newRequest("m", "k")); ticket.Replica() != "b" || ticket.HasFallback() {
					t.Errorf("asks for %v: it went to %s, %s", c.asks, ticket.Replica(), ticket.Endpoints())
				}
			}
			time.Sleep(2 * time.Millisecond)
			if a, b := s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k")); a.Replica() == b.Replica() {
				t.Errorf("asks for %v: both went to %s after the rest", c.asks, a.Replica())
			}
		})
	}
}

// Requests that wait because all others are full go on when the rest is over.
func TestR9_WaitersAfterTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		s.put("m", replicas("a", "b")...)
		began := time.Now()
		s.Rest("a", 2*time.Second)
		first := s.must(t, newRequest("m", "k"))
		waiting := s.queue("m")
		time.Sleep(time.Second)
		s.Rest("a", 3*time.Second) // it rests for longer
		if second := <-waiting; first.Replica() != "b" || second.Replica() != "a" || time.Since(began) < 4*time.Second {
			t.Errorf("%s, then %s after %v", first.Replica(), second.Replica(), time.Since(began))
		}
	})
}

func TestR9_WhoRests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry request.Entry
		rests bool
	}{
		{request.Entry{Log: headers.LogAttempts, Status: 429}, true},
		{request.Entry{Log: headers.LogRequests, Status: 429}, false}, // its attempt has told
		{request.Entry{Log: headers.LogAttempts, Status: 503}, false},
		{request.Entry{Log: headers.LogAttempts, Status: 503, RetryAfter: time.Second}, true},
		{request.Entry{Log: headers.LogAttempts, Status: 500, RetryAfter: time.Second}, false},
		{request.Entry{Log: headers.LogAttempts, Interim: true}, false},
	} {
		if got := RestOf(&c.entry); got != c.rests {
			t.Errorf("%+v: rests %v", c.entry, got)
		}
	}
}

// What is learned of a replica makes the requests of its models managed, until its process is
// another one.
func TestX6_CloseDelimitedReplicas(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Way: WayPolicy{Mode: ModeNative}})
	all := launched("a", "b")
	s.put("m", all...)
	s.put("other", launched("c")...)
	ways := func(when string, want way) {
		t.Helper()
		for _, stream := range []bool{true, false} {
			r := newRequest("m", "k")
			r.Stream = stream
			if got := s.way(r); got.way != want {
				t.Errorf("%s, stream %v: way %d, want %d", when, stream, got.way, want)
			}
		}
		if got := s.way(newRequest("other", "k")); got.way != native {
			t.Errorf("%s: another model has way %d", when, got.way)
		}
		if v := s.Replica("m", "b"); v.CloseDelimited != (want == managed) || s.Replica("m", "a").CloseDelimited {
			t.Errorf("%s: %+v", when, v)
		}
	}
	ways("before", native)
	s.LearnCloseDelimited("m", "nobody")
	s.LearnCloseDelimited("nothing", "b")
	ways("what nobody has", native)
	s.LearnCloseDelimited("m", "b")
	ways("learned", managed)
	if all := s.CloseDelimited(); len(all) != 1 || len(all["b"]) != 1 || all["b"][0] != "m" {
		t.Errorf("%v", all)
	}
	s.Failed("b", Connect, "refused")
	s.EndSuspension("b")
	ways("after a suspension", managed)
	all[1].PID, all[1].Restarts = 500, 1
	s.put("m", all...)
	ways("restarted", native)
	all[1].CloseDelimited = true
	s.put("m", all...)
	ways("seen by its launcher", managed)
}

// Embeddings are managed when the engine of a replica is known to refuse long ones as if it failed.
func TestX6_EngineThatRefusesAsFailure(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{Way: WayPolicy{Mode: ModeNative}})
	s.put("m", launched("a", "b")...)
	for _, c := range []struct {
		engine string
		want   way
	}{{"", native}, {"vllm", native}, {"llama-cpp", managed}} {
		s.SetEngineNews("b", EngineNews{Engine: c.engine})
		for e, want := range map[openai.Endpoint]way{openai.Embeddings: c.want, openai.Rerank: c.want, openai.Chat: native} {
			r := newRequest("m", "k")
			r.Endpoint = e
			if got := s.way(r); got.way != want {
				t.Errorf("%v at %q: way %d, want %d", e, c.engine, got.way, want)
			}
		}
	}
	s.SetRules(Rules{Models: map[string]Policy{"l": {Way: WayPolicy{Mode: ModeNative, RefusesAsFailure: true}}}})
	s.put("l", launched("l")...)
	for e, want := range map[openai.Endpoint]way{openai.Embeddings: managed, openai.Chat: native} {
		r := newRequest("l", "k")
		r.Endpoint = e
		if got := s.way(r); got.way != want {
			t.Errorf("%v at a launched engine that has not been asked yet: way %d, want %d", e, got.way, want)
		}
	}
	long := newRequest("u", "k")
	long.Endpoint = openai.Embeddings
	server := launched("u")
	server[0].Launcher = engines.Upstream
	s.put("u", server...)
	if got := s.way(long); got.way != managed {
		t.Errorf("a server that has not been asked yet: way %d, want %d", got.way, managed)
	}
	s.SetEngineNews("u", EngineNews{})
	if got := s.way(long); got.way != native {
		t.Errorf("a server that is of no known engine: way %d, want %d", got.way, native)
	}
}

// The access log tells of a response without a length only for replicas.
func TestX6_ClosesOf(t *testing.T) {
	t.Parallel()
	e := request.Entry{Log: headers.LogAttempts, CloseDelimited: true, Model: "m", Replica: "a"}
	own := e
	own.Model = ""
	if !ClosesOf(&e) || ClosesOf(&own) || ClosesOf(&request.Entry{Model: "m", Replica: "a"}) {
		t.Error("ClosesOf")
	}
}

// A client that disconnects while its request waits is told of no timeout of its own.
func TestADisconnectIsNoTimeout(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{MaxPerReplica: 1})
	s.put("m", replicas("a")...)
	s.must(t, newRequest("m", "k"))
	ctx, cancel := context.WithCancel(t.Context())
	r := newRequest("m", "k")
	r.OnWait = cancel
	if _, fault := s.Dispatch(ctx, r); fault == nil || fault.Code != openai.CodeCancelled || fault.HTTPStatus() != 499 {
		t.Errorf("%v", fault)
	}
}

// A step of the clock makes no rest longer: its end has a reading of the monotonic clock.
func TestR9_RestIgnoresStepsOfTheClock(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	s.Rest("a", 0)
	if until := s.counters["a"].fullUntil.Load(); until == nil || !strings.Contains(until.String(), " m=") {
		t.Errorf("it rests until %v", until)
	}
}
