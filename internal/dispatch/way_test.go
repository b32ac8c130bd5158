package dispatch

import (
	"context"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// A row for each rule of wayRules, and for what goes before what.
func TestWayRules(t *testing.T) {
	stream, plain := &Request{Stream: true}, &Request{}
	named := &Request{Stream: true, ID: "a"}
	embedding := &Request{Endpoint: openai.Embeddings}
	speech := &Request{Endpoint: openai.Speech, Stream: true}
	for name, c := range map[string]struct {
		q     wayQuestion
		want  way
		waits bool
	}{
		"stream":                       {wayQuestion{Request: stream}, nativeUntilWait, false},
		"no stream":                    {wayQuestion{Request: plain}, native, false},
		"no stream, cold":              {wayQuestion{Request: plain, cold: true}, native, false},
		"gRPC":                         {wayQuestion{Request: plain, policy: WayPolicy{GRPC: true}}, managed, false},
		"gRPC, native":                 {wayQuestion{Request: stream, policy: WayPolicy{GRPC: true, Mode: ModeNative}, cold: true}, managed, false},
		"gRPC, slow":                   {wayQuestion{Request: stream, policy: WayPolicy{GRPC: true}, slow: true}, managed, true},
		"gRPC, embedding":              {wayQuestion{Request: embedding, policy: WayPolicy{GRPC: true}}, managed, false},
		"rerank by the engine's API":   {wayQuestion{Request: &Request{Endpoint: openai.Rerank}, policy: WayPolicy{RerankAPI: true}}, managed, false},
		"chat, rerank API":             {wayQuestion{Request: plain, policy: WayPolicy{RerankAPI: true}}, native, false},
		"closes":                       {wayQuestion{Request: plain, closeDelimited: true}, managed, false},
		"closes, native":               {wayQuestion{Request: stream, policy: WayPolicy{Mode: ModeNative}, closeDelimited: true}, managed, false},
		"closes, embedding":            {wayQuestion{Request: embedding, closeDelimited: true}, managed, false},
		"embedding, refused with 500":  {wayQuestion{Request: embedding, policy: WayPolicy{Mode: ModeNative}, refusesAsFailure: true}, managed, false},
		"no stream, same engine":       {wayQuestion{Request: plain, refusesAsFailure: true}, native, false},
		"tokens, same engine":          {wayQuestion{Request: &Request{Endpoint: openai.Tokenize}, refusesAsFailure: true}, native, false},
		"moderated":                    {wayQuestion{Request: plain, moderated: true}, managed, false},
		"moderated, native":            {wayQuestion{Request: stream, policy: WayPolicy{Mode: ModeNative}, moderated: true}, managed, false},
		"moderated, cold":              {wayQuestion{Request: stream, moderated: true, cold: true}, managed, true},
		"moderated, no text":           {wayQuestion{Request: embedding, moderated: true}, managed, false},
		"native, asks for more":        {wayQuestion{Request: named, policy: WayPolicy{Mode: ModeNative}, cold: true}, native, false},
		"named":                        {wayQuestion{Request: named}, managed, false},
		"named, no stream, cold":       {wayQuestion{Request: &Request{ID: "a"}, cold: true}, managed, true},
		"managed":                      {wayQuestion{Request: stream, policy: WayPolicy{Mode: ModeManaged}, slow: true}, managed, false},
		"managed, cold":                {wayQuestion{Request: stream, policy: WayPolicy{Mode: ModeManaged}, cold: true}, managed, true},
		"managed, no stream":           {wayQuestion{Request: plain, policy: WayPolicy{Mode: ModeManaged}}, native, false},
		"timeout":                      {wayQuestion{Request: &Request{Stream: true, Timeout: 1}}, managed, false},
		"longest duration":             {wayQuestion{Request: &Request{Stream: true, MaxDuration: 1}}, managed, false},
		"timeout, no stream":           {wayQuestion{Request: &Request{Timeout: 1}}, native, false},
		"supervised":                   {wayQuestion{Request: stream, policy: WayPolicy{Supervised: true}}, managed, false},
		"speech, slow":                 {wayQuestion{Request: speech, slow: true}, native, false},
		"speech, managed":              {wayQuestion{Request: speech, policy: WayPolicy{Mode: ModeManaged}}, native, false},
		"speech, moderated":            {wayQuestion{Request: speech, moderated: true}, managed, false},
		"cold":                         {wayQuestion{Request: stream, cold: true}, managed, true},
		"slow":                         {wayQuestion{Request: stream, slow: true}, managed, true},
		"sampled":                      {wayQuestion{Request: stream, policy: WayPolicy{Sample: 1}}, managed, false},
		"sampled, in spite of the way": {wayQuestion{Request: stream, policy: WayPolicy{Sample: 1, Mode: ModeNative}}, native, false},
	} {
		if got, waits := c.q.decide(); got != c.want || waits != c.waits {
			t.Errorf("%s: way %d, waits %t; want %d, %t", name, got, waits, c.want, c.waits)
		}
	}
}

// A pool is managed for one managed model, and waits at most for one auto model.
func TestWayOfPool(t *testing.T) {
	s := newStage(Policy{})
	s.put("a", replicas("a-0")...)
	s.put("b", replicas("b-0")...)
	auto, nat, man := Policy{}, Policy{Way: WayPolicy{Mode: ModeNative}}, Policy{Way: WayPolicy{Mode: ModeManaged}}
	for _, c := range []struct {
		a, b Policy
		want way
	}{{auto, nat, nativeUntilWait}, {nat, auto, nativeUntilWait}, {nat, nat, native}, {nat, man, managed}, {man, auto, managed}, {auto, man, managed}} {
		s.SetRules(Rules{Models: map[string]Policy{"a": c.a, "b": c.b}, Pools: map[string][]string{"p": {"a", "b"}}})
		r := newRequest("p", "k")
		r.Stream = true
		if got := s.way(r); got.way != c.want {
			t.Errorf("%q and %q: way %d, want %d", c.a.Way.Mode, c.b.Way.Mode, got.way, c.want)
		}
	}
}

// A stream in ModeAuto that may go at once costs no goroutine.
func TestAutoStartsNoGoroutine(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	before := runtime.NumGoroutine()
	r := newRequest("m", "k")
	r.Stream = true
	r.OnWait = func() { t.Error("it waits") }
	ticket, handedOff, fault := s.DispatchOrHandOff(t.Context(), r)
	if fault != nil || handedOff != nil {
		t.Fatal(fault, handedOff)
	}
	if after := runtime.NumGoroutine(); after > before { // those of earlier tests may end meanwhile
		t.Errorf("%d goroutines, and %d before", after, before)
	}
	ticket.Release()
}

// full is a stage whose only slot is taken, by the ticket.
func full(t *testing.T) (stage, *Ticket) {
	t.Helper()
	s := newStage(Policy{MaxPerReplica: 1, Way: WayPolicy{Heartbeat: 60 * time.Millisecond}})
	s.put("m", replicas("a")...)
	return s, s.must(t, newRequest("m", "first"))
}

func autoRequest(onWait func()) *Request {
	r := newRequest("m", "second")
	r.Stream, r.OnWait = true, onWait
	return r
}

// A stream that waits for longer than its model's patience is handed off with its place in the
// queue, and gets its ticket there.
func TestWaitIsHandedOff(t *testing.T) {
	s, first := full(t)
	waits := 0
	_, m, fault := s.DispatchOrHandOff(t.Context(), autoRequest(func() { waits++ }))
	if m == nil || m.Pending == nil || !m.ClientWaits {
		t.Fatalf("%+v, %v", m, fault)
	}
	if at := m.Pending.Progress().Progress(s.Dispatcher).Position; at != 1 {
		t.Errorf("position %d", at)
	}
	first.Release()
	ticket, fault := m.Pending.Await(t.Context())
	if fault != nil || ticket.Replica() != "a" || waits != 1 {
		t.Fatalf("%v, OnWait was called %d times", fault, waits)
	}
	m.Pending.Cancel() // too late: the ticket is ours
	if s.Load("a") != 1 {
		t.Error("the ticket was released")
	}
	ticket.Release()
}

// A request that came before its replica could be picked is managed, whatever its rules say, unless
// the operator wants the stream native.
func TestArrivedBefore(t *testing.T) {
	for mode, want := range map[Mode]bool{ModeAuto: true, ModeNative: false} {
		s := newStage(Policy{Way: WayPolicy{Mode: mode}})
		s.put("m", replicas("a")...)
		r := newRequest("m", "k")
		r.Endpoint, r.Stream = openai.Speech, true
		how, ticket := s.way(r), s.must(t, r)
		if how.way != native {
			t.Errorf("%s: way %d", mode, how.way)
		}
		if got := arrivedBefore(ticket, time.Now().Add(-time.Hour), how); got != want {
			t.Errorf("%s: managed %t", mode, got)
		}
		if arrivedBefore(ticket, time.Now(), how) {
			t.Errorf("%s: a request that came later is managed", mode)
		}
		ticket.Release()
	}
}

// A place in the queue that is handed off, or what was granted to it meanwhile, can be given up.
func TestCancelPending(t *testing.T) {
	for _, granted := range []bool{false, true} {
		s, first := full(t)
		_, m, _ := s.DispatchOrHandOff(t.Context(), autoRequest(nil))
		if granted {
			first.Release()
		}
		m.Pending.Cancel()
		m.Pending.Cancel()
		first.Release()
		if v, _ := s.View("m"); v.Queued != 0 || v.InFlight != 0 || s.Load("a") != 0 {
			t.Errorf("granted %t: %d wait, %d run, %d are on the replica", granted, v.Queued, v.InFlight, s.Load("a"))
		}
	}
}

// A client that leaves while its request waits leaves nothing behind.
func TestLeavesBeforeHandOff(t *testing.T) {
	s, first := full(t)
	ctx, leave := context.WithCancel(t.Context())
	ticket, m, fault := s.DispatchOrHandOff(ctx, autoRequest(leave))
	if ticket != nil || m != nil || fault == nil || fault.HTTPStatus() != 499 {
		t.Errorf("%v %v %v", ticket, m, fault)
	}
	if v, _ := s.View("m"); v.Queued != 0 {
		t.Errorf("%d wait", v.Queued)
	}
	first.Release()
}

// A request whose time in the queue is over before the patience is refused, not handed off.
func TestTimeoutBeforeHandOff(t *testing.T) {
	s := newStage(Policy{MaxPerReplica: 1, Limits: admission.Limits{QueueTimeout: 10 * time.Millisecond}})
	s.put("m", replicas("a")...)
	first := s.must(t, newRequest("m", "first"))
	_, m, fault := s.DispatchOrHandOff(t.Context(), autoRequest(nil))
	if m != nil || fault == nil || fault.Code != openai.CodeQueueTimeout || fault.HTTPStatus() != http.StatusServiceUnavailable {
		t.Errorf("%+v, %v", m, fault)
	}
	first.Release()
}

// An offer is claimed or cancelled, once.
func TestHandoff(t *testing.T) {
	var h Handoff
	done, claimed := 0, 0
	o := &Offer{RequestID: "e", Done: func() { done++ }, Claimed: func() { claimed++ }}
	token := h.Offer(o)
	if claimed != 0 {
		t.Error("claimed by nobody")
	}
	if got, ok := h.Claim(token); !ok || got != o {
		t.Error("the offer was not found")
	}
	if claimed != 1 {
		t.Errorf("claimed %d times", claimed)
	}
	if _, ok := h.Claim(token); ok || h.Cancel(token) {
		t.Error("the token was good twice")
	}
	if done != 0 {
		t.Error("Done was called")
	}
	other := h.Offer(&Offer{})
	if other == token || !h.Cancel(other) || h.Cancel(other) {
		t.Error("cancelled not once")
	}
	if _, ok := h.Claim(other); ok {
		t.Error("a cancelled offer was claimed")
	}
}

// While a model of a gRPC engine leaves, the relay still speaks to it. It no longer is in the
// rules, and its replicas still are in the fleet.
func TestWayOfAModelThatLeaves(t *testing.T) {
	s := newStage(Policy{})
	s.SetRules(Rules{Models: map[string]Policy{"m": {Way: WayPolicy{GRPC: true}}}})
	s.put("m", replicas("a")...)
	s.SetRules(Rules{})
	ticket, m, fault := s.DispatchOrHandOff(t.Context(), newRequest("m", "x"))
	if m == nil {
		t.Errorf("the request is native: %v, %v", ticket, fault)
	}
}
