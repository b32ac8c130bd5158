package decidetest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Run runs all tests. serve has a decider serve requests over a transport, until the test ends, and
// returns how to open one.
func Run(t *testing.T, serve func(testing.TB, *decide.Decider) (open func() Client)) {
	for name, test := range map[string]func(*Stage){
		"RefusedBeforeTheBody": refusedBeforeTheBody, "RefusedWithTheBody": refusedWithTheBody, "O5_RefusedByAnotherName": refusedByAnotherName,
		"Decided": decided, "BoundByTheRoute": boundByTheRoute, "R9_Retries": retries, "HeldAndAborted": heldAndAborted, "Record": record, "Moved": moved,
		"X8_TooManyHeaders": tooManyHeaders, "X7_TooManyOpen": tooManyOpen, "X7_LateBody": lateBody, "X7_LeftBody": leftBody, "O9_Cancelled": cancelled,
		"Quota": quota, "Noted": noted, "PriorityAndTask": priorityAndTask, "EndedBeforeItsCost": endedBeforeItsCost,
		"Watched": watched, "B3_Budget": budget, "B2_Session": session, "B2_Observed": observed, "R11_Heartbeat": heartbeat, "O12_TrustedHeader": trustedHeader,
		"Ways": ways, "WaitsForAReplica": waitsForAReplica, "Claimed": claimed, "Unclaimed": unclaimed, "ManyAtOnce": manyAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			var uploads decide.UploadLimits
			if name == "X7_LateBody" {
				uploads = decide.UploadLimits{MinRate: 1 << 20, Grace: time.Millisecond}
			}
			replicas := 2
			if name == "BoundByTheRoute" {
				replicas = failover.RouteRetries + 1
			}
			d := newDecider(t, replicas, 1, uploads)
			test(&Stage{Decider: d, t: t, Open: serve(t, d)})
		})
	}
}

func h(name, value string) decide.Header { return decide.Header{Name: name, Value: value} }

func refusedBeforeTheBody(s *Stage) {
	for name, c := range map[string]struct {
		headers []decide.Header
		status  int
		code    openai.Code
	}{
		"no key":                     {nil, 401, openai.CodeInvalidAPIKey},
		"no key and an unknown path": {[]decide.Header{h(":path", "/x")}, 401, openai.CodeInvalidAPIKey},
		"unknown path":               {[]decide.Header{Key, h(":path", "/x")}, 404, openai.CodeInvalidRequest},
		"wrong method":               {[]decide.Header{Key, h(":method", "PUT")}, 405, openai.CodeInvalidRequest},
		"compressed":                 {[]decide.Header{Key, h("content-encoding", "gzip")}, 415, openai.CodeInvalidRequest},
		"too large":                  {[]decide.Header{Key, h("content-length", "1001")}, 413, openai.CodeRequestTooLarge},
		"two keys, one good":         {[]decide.Header{Key, Key}, 400, openai.CodeInvalidRequest},
		"two request ids":            {[]decide.Header{Key, h("idempotency-key", "a"), h("idempotency-key", "b")}, 400, openai.CodeInvalidRequest},
	} {
		a := s.request(c.headers...).Answer()
		v := a.Values()
		if a.Kind != decide.Reply || a.Status != c.status || a.code() != string(c.code) || v["content-type"] != "application/json" ||
			v[headers.Source] != headers.SourceGateway || a.Details != headers.DetailsPrefix+string(c.code) ||
			(v["www-authenticate"] == "Bearer") != (c.status == 401) || (v["allow"] == "POST") != (c.status == 405) {
			s.t.Errorf("%s: %+v", name, a)
		}
	}
	c := s.Open()
	c.Headers([]decide.Header{Key, h(":method", "POST"), h(":path", "/v1/chat/completions"), h("content-type", "application/json")}, true)
	if a := c.Answer(); a.Status != 400 {
		s.t.Errorf("without a body: %+v", a)
	}
}

func refusedWithTheBody(s *Stage) {
	for name, c := range map[string]struct {
		body   string
		header []decide.Header
		code   openai.Code
	}{
		"not JSON":             {`{`, nil, openai.CodeInvalidRequest},
		"unknown model":        {`{"model":"x"}`, nil, openai.CodeModelNotFound},
		"forbidden model":      {`{"model":"other"}`, nil, openai.CodeModelNotFound},
		"timeout is no number": {`{"model":"m"}`, []decide.Header{h("x-sluice-timeout-ms", "soon")}, openai.CodeInvalidRequest},
		"timeout is zero":      {`{"model":"m"}`, []decide.Header{h("x-sluice-timeout-ms", "0")}, openai.CodeInvalidRequest},
		"id is too long":       {`{"model":"m"}`, []decide.Header{h("idempotency-key", strings.Repeat("x", 257))}, openai.CodeInvalidRequest},
		"two timeouts":         {`{"model":"m","timeout_ms":5}`, []decide.Header{h("x-sluice-timeout-ms", "6")}, openai.CodeInvalidRequest},
		"two ids":              {`{"model":"m","request_id":"a"}`, []decide.Header{h("idempotency-key", "b")}, openai.CodeInvalidRequest},
		"large, no length":     {`{"model":"m"}` + strings.Repeat(" ", 1000), nil, openai.CodeRequestTooLarge},
	} {
		if _, a := s.chat(c.body, c.header...); a.Kind != decide.Reply || a.code() != string(c.code) || s.view().InFlight != 0 {
			s.t.Errorf("%s: %+v", name, a)
		}
	}
}

// boundByTheRoute: what the route of Envoy says itself is not said by the headers of a request.
func boundByTheRoute(s *Stage) {
	s.Dispatcher.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {MaxDuration: time.Minute, BoundByRoute: true}}})
	_, a := s.chat(ask)
	got := a.Values()
	if to := got[headers.Endpoint]; strings.Count(to, ",") != failover.RouteRetries || got["x-envoy-max-retries"] != "" ||
		got["x-envoy-upstream-rq-timeout-ms"] != "" {
		s.t.Errorf("%+v", a)
	}
	_, a = s.chat(ask, h("x-sluice-timeout-ms", "70000"))
	got = a.Values()
	if to := got[headers.Endpoint]; strings.Count(to, ",") == failover.RouteRetries || got["x-envoy-max-retries"] == "" ||
		got["x-envoy-upstream-rq-timeout-ms"] != "" {
		s.t.Errorf("one replica is full, and the client's timeout is longer than the model's: %+v", a)
	}
	if _, a = s.chat(ask, h("x-sluice-timeout-ms", "70")); a.Values()["x-envoy-upstream-rq-timeout-ms"] == "" {
		s.t.Errorf("the client's timeout is shorter: %+v", a)
	}
	s.Dispatcher.SetRules(dispatch.Rules{})
	for option, header := range map[string][]decide.Header{"": {h("x-sluice-timeout-ms", "70")}, `,"max_duration_ms":70`: nil} {
		client, a := s.chat(`{"model":"m"`+option+`}`, header...)
		if a.Values()["x-envoy-upstream-rq-timeout-ms"] == "" {
			s.t.Errorf("only the client has a timeout: %+v", a)
		}
		client.Finish()
		s.until("its slot is free", func() bool { return s.view().InFlight == 3 })
	}
}

func decided(s *Stage) {
	for name, c := range map[string]struct {
		body, changed string
		header        []decide.Header
		want          map[string]string
	}{
		"plain":    {`{"model":"m"}`, "", nil, map[string]string{}},
		"streamed": {`{"model":"m","stream":true}`, "", nil, map[string]string{}},
		"own options": {`{"model":"m","max_duration_ms":5000}`, `{"model":"m"}`, nil,
			map[string]string{"content-length": "13"}},
		"timeout by header": {`{"model":"m"}`, "", []decide.Header{h("x-sluice-timeout-ms", "70")}, map[string]string{}},
	} {
		client, a := s.chat(c.body, c.header...)
		got := a.Values()
		to := got[headers.Endpoint]
		bounded := name == "own options" || name == "timeout by header"
		route := routes.Decided{Stream: name == "streamed", ClientTimeout: bounded, OwnRetries: !strings.Contains(to, ",")}
		if a.Kind != decide.Go || got[headers.Cluster] != "model/m" || !strings.HasPrefix(to, "127.0.0.1:900") || string(a.Body) != c.changed {
			s.t.Fatalf("%s: %+v", name, a)
		}
		if got["x-envoy-max-retries"] != fmt.Sprint(max(strings.Count(to, ","), 1)) ||
			got[headers.Route] != route.Key() || got["x-envoy-retry-on"]+got["x-envoy-retriable-status-codes"] != "" {
			s.t.Errorf("%s: retries %v for %s", name, got, to)
		}
		if strings.HasPrefix(got[headers.Usage], headers.UsageOfOpenAI) != (got["accept-encoding"] == "identity") {
			s.t.Errorf("%s: what is read must not be compressed: %v", name, got)
		}
		if limit := got["x-envoy-upstream-rq-timeout-ms"]; (limit == "60000") == bounded || limit == "" {
			s.t.Errorf("%s: timeout %s", name, limit)
		}
		for _, seen := range []string{"x-envoy-max-retries", "x-envoy-upstream-rq-timeout-ms",
			headers.Cluster, headers.Endpoint, headers.Route, headers.Usage, "accept-encoding"} {
			delete(got, seen)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			s.t.Errorf("%s: %s", name, diff)
		}
		if n := s.view().InFlight; n != 1 {
			s.t.Errorf("%s: in flight: %d", name, n)
		}
		client.Finish()
		s.until("its slot is free", func() bool { return s.view().InFlight == 0 })
	}
}

// retries: a model with statuses of its own names them in the headers of its requests.
func retries(s *Stage) {
	for _, c := range []struct {
		statuses failover.Statuses
		own      bool
		on       string
		codes    string
	}{
		{0, false, "", ""}, {failover.AllStatuses, false, "", ""}, {failover.EveryBit, false, "", ""}, {failover.NoStatus, true, "", ""},
		{failover.OnUnavailable, true, "retriable-status-codes", "503"},
		{failover.OnUnavailable | failover.OnTooMany, true, "envoy-ratelimited,retriable-status-codes", "429,503"},
	} {
		s.Dispatcher.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {FailOver: c.statuses}}})
		client, a := s.chat(`{"model":"m"}`)
		got := a.Values()
		if got[headers.Route] != (routes.Decided{OwnRetries: c.own}).Key() || got["x-envoy-retriable-status-codes"] != c.codes ||
			got["x-envoy-retry-on"] != c.on {
			s.t.Errorf("%v: %+v", c.statuses, got)
		}
		client.Finish()
		s.until("its slot is free", func() bool { return s.view().InFlight == 0 })
	}
}

func heldAndAborted(s *Stage) {
	first, _ := s.chat(`{"model":"m"}`)
	s.chat(`{"model":"m"}`)
	held, a := s.chat(`{"model":"m"}`)
	if a.Wait != time.Hour {
		s.t.Fatalf("a request that waits must first ask for time; got %+v", a)
	}
	gone, _ := s.chat(`{"model":"m"}`)
	s.until("two wait", func() bool { return s.view().Queued == 2 })
	gone.Leave() // the client of the waiting request leaves
	s.until("one waits", func() bool { return s.view().Queued == 1 })
	first.Leave() // the client of a running request leaves; the next waiter gets its slot
	if a := held.Answer(); a.Kind != decide.Go {
		s.t.Errorf("got %+v", a)
	}
}

// A request has a record from the check of its headers to the end of its exchange. A request
// without a good key has none.
func record(s *Stage) {
	s.request().Answer()
	if all, _ := s.Requests.List(0); len(all) != 0 {
		s.t.Errorf("a request without a key has a record: %+v", all)
	}
	c := s.request(Key)
	s.until("it has a record", func() bool { _, running := s.Requests.List(0); return running == 1 })
	if diff := cmp.Diff([]string{"queued e-1 acme  false 0 "}, s.lines()); diff != "" {
		s.t.Error("before its body: ", diff)
	}
	c.Body(`{"model":"m","stream":true}`)
	c.Answer()
	if all, running := s.Requests.List(0); running != 1 || all[0].State != request.Streaming {
		s.t.Errorf("while it runs: %+v", all)
	}
	c.Finish()
	s.until("its record is closed", func() bool { _, running := s.Requests.List(0); return running == 0 })
	c, _ = s.chat(`{"model":"x"}`)
	c.Leave()
	s.until("the other record is closed", func() bool { _, running := s.Requests.List(0); return running == 0 })
	if diff := cmp.Diff([]string{"done e-1 acme x false 13 model_not_found", "done e-1 acme m true 27 "}, s.lines()); diff != "" {
		s.t.Error(diff)
	}
	if all, _ := s.Requests.List(1); all[0].Waited != 0 {
		s.t.Errorf("a request that was refused at once has waited %v", all[0].Waited)
	}
}

// The record of a request that is refused has the model's own name, so that refusals and answers of
// a model count together. That of a request of a pool has the name of the pool.
func refusedByAnotherName(s *Stage) {
	s.Dispatcher.SetRules(dispatch.Rules{Pools: map[string][]string{"pool": {"m"}}})
	s.Dispatcher.DrainModel("m", true)
	for _, test := range []struct{ asked, recorded, code string }{
		{"m", "m", "no_replica"}, {"alias", "m", "no_replica"}, {"pool", "pool", "model_not_found"}, {"x", "x", "model_not_found"},
	} {
		c, a := s.chat(`{"model":"` + test.asked + `"}`)
		c.Leave()
		s.until("its record is closed", func() bool { _, running := s.Requests.List(0); return running == 0 })
		if all, _ := s.Requests.List(1); all[0].Model != test.recorded || a.code() != test.code {
			s.t.Errorf("%s: the record has %q, want %q; the answer is %+v", test.asked, all[0].Model, test.recorded, a)
		}
	}
}

// The slot of a request follows it to another replica.
func moved(s *Stage) {
	_, a := s.chat(`{"model":"m"}`)
	to, id := "127.0.0.1:9001", "m-1"
	if strings.HasPrefix(a.Values()[headers.Endpoint], to) {
		to, id = "127.0.0.1:9000", "m-0"
	}
	for _, of := range []string{"nobody's", "e-1"} {
		s.Requests.Observe(request.Entry{Log: headers.LogAttempts, Interim: true, RequestID: of, Upstream: to})
	}
	if s.Dispatcher.Load(id) != 1 {
		s.t.Error("the slot did not follow")
	}
}

func tooManyHeaders(s *Stage) {
	s.MaxHeaders = headers.Limits{Count: 100, Bytes: 60 << 10}
	many := []decide.Header{Key}
	for i := range 110 {
		many = append(many, h(fmt.Sprintf("x-many-%d", i), "x"))
	}
	if a := s.request(many...).Answer(); a.Status != 431 {
		s.t.Errorf("many: %+v", a)
	}
	if a := s.request(Key, h("x-large", strings.Repeat("x", 60<<10))).Answer(); a.Status != 431 {
		s.t.Errorf("large: %+v", a)
	}
	if _, a := s.chat(`{"model":"m"}`, many[1:90]...); a.Kind != decide.Go {
		s.t.Errorf("few: %+v", a)
	}
}

// A gateway without sockets refuses requests at once. Requests that were refused take no place,
// although their clients have not read the answer.
func tooManyOpen(s *Stage) {
	s.MaxOpen = func() int { return 1 }
	for range 3 {
		if a := s.request(h("authorization", "Bearer wrong")).Answer(); a.Status != 401 {
			s.t.Errorf("%+v, want 401", a)
		}
	}
	if _, a := s.chat(`{"model":"m"}`); a.Kind != decide.Go {
		s.t.Errorf("%+v, want the request to go", a)
	}
	refused := s.request(Key)
	if a := refused.Answer(); a.Status != 503 {
		s.t.Errorf("%+v, want 503", a)
	}
	refused.Finish()
	if a := s.request(Key).Answer(); a.Status != 503 {
		s.t.Errorf("%+v after the end of one that was refused, want 503", a)
	}
}

// The client of a body that takes too long is answered, and the body that comes after all is not
// looked at.
func lateBody(s *Stage) {
	c := s.request(Key, h("content-length", "100"))
	if a := c.Answer(); a.Status != 408 {
		s.t.Errorf("%+v, want 408", a)
	}
	c.Body(`{"model":"m"}`)
	c.Leave()
	s.until("its record is closed", func() bool { _, running := s.Requests.List(0); return running == 0 })
	if diff := cmp.Diff([]string{"done e-1 acme  false 0 request_timeout"}, s.lines()); diff != "" {
		s.t.Error(diff)
	}
}

// The body of a client that has left before it has come is no more counted.
func leftBody(s *Stage) {
	c := s.request(Key, h("content-length", "100"))
	s.until("its body is counted", func() bool { return s.UploadStats().Count == 1 })
	c.Leave()
	s.until("its body is not counted", func() bool { return s.UploadStats() == (decide.UploadStats{}) })
}

// A running request and one that waits can be cancelled, once. Their records say so.
func cancelled(s *Stage) {
	runs, _ := s.chat(`{"model":"m"}`, h("x-request-id", "runs"))
	s.chat(`{"model":"m"}`, h("x-request-id", "other"))
	waits, _ := s.chat(`{"model":"m"}`, h("x-request-id", "waits"))
	for _, id := range []string{"waits", "runs"} { // the end of the other one would let it in
		c := map[string]Client{"runs": runs, "waits": waits}[id]
		if err := s.Requests.Cancel(id); err != nil {
			s.t.Errorf("%s: %v", id, err)
		}
		if a := c.Answer(); a.Kind != decide.Reply || a.Status != 499 {
			s.t.Errorf("%s: %+v", id, a)
		}
		c.Leave()
	}
	s.until("nobody waits and one runs", func() bool { v := s.view(); return v.Queued == 0 && v.InFlight == 1 })
	s.until("both records are closed", func() bool { _, running := s.Requests.List(0); return running == 1 })
	if all, _ := s.Requests.List(0); all[1].Code != string(openai.CodeCancelled) || all[2].Code != string(openai.CodeCancelled) {
		s.t.Errorf("the records: %v", s.lines())
	} else if all[2].Waited == 0 {
		s.t.Error("the record of the request that has waited has no wait")
	}
}

const ask = `{"model":"m","messages":[{"role":"user","content":"Hello"}]}`

// A limited tenant hears what it has left.
func quota(s *Stage) {
	s.Dispatcher.SetRules(dispatch.Rules{Tenants: map[string]admission.TenantLimits{"acme": {RequestsPerMinute: 1, TokensPerMinute: 1000}}})
	_, a := s.chat(ask)
	noted := a.Noted()
	if noted[headers.MetadataTenant] != "acme" || noted[headers.LimitRequests] != "1" || noted[headers.RemainingRequests] != "0" ||
		noted[headers.LimitTokens] != "1000" || noted[headers.ResetRequests] != "1m0s" {
		s.t.Errorf("noted %v", noted)
	}
	_, a = s.chat(ask, h("x-request-id", "e-2"))
	got := a.Values()
	if a.Status != 429 || got["retry-after"] == "" || got[headers.RemainingRequests] != "0" || got[headers.LimitTokens] != "1000" {
		s.t.Errorf("refused with %+v", a)
	}
}

// A caller over a soft bound hears of it with each response, and one over a hard bound is refused
// before Envoy reads the body.
func budget(s *Stage) {
	reached, fault := "tenant;per=day", (*openai.Error)(nil)
	s.Budget = func(who *authz.Tenant) (string, *openai.Error) {
		if who.Name != "acme" || who.Key == "" {
			s.t.Errorf("asked for %+v", who)
		}
		return reached, fault
	}
	if _, a := s.chat(ask); a.Noted()[headers.Budget] != reached {
		s.t.Errorf("noted %v", a.Noted())
	}
	fault = &openai.Error{Code: openai.CodeInsufficientQuota, Header: map[string]string{headers.Budget: reached}, RetryAfter: time.Hour}
	a := s.request(Key, h("x-request-id", "e-2")).Answer()
	got := a.Values()
	if a.Status != 429 || got["retry-after"] != "3600" || got[headers.Budget] != reached || got[headers.ShouldRetry] != "false" ||
		!strings.Contains(string(a.Body), `"type":"insufficient_quota"`) {
		s.t.Errorf("refused with %+v", a)
	}
	reached, fault = "", nil
	if _, a := s.chat(ask, h("x-request-id", "e-3")); a.Wait == 0 {
		if _, there := a.Noted()[headers.Budget]; there {
			s.t.Error("the metadata has the budget of before")
		}
	}
}

// A request of a tenant without limits is noted with its tenant and key. One of the Messages API
// has its id noted, too, also if the relay gets it.
func noted(s *Stage) {
	client, a := s.chat(ask)
	want := map[string]string{headers.MetadataTenant: "acme", headers.MetadataKey: "acme/" + strings.TrimPrefix(authz.HashKey("key"), "sha256:")[:8]}
	if diff := cmp.Diff(want, a.Noted()); diff != "" {
		s.t.Error(diff)
	}
	leave := func(c Client) {
		c.Leave()
		s.until("its slot is free", func() bool { _, running := s.Requests.List(0); return s.view().InFlight == 0 && running == 0 })
	}
	leave(client)
	for id, way := range map[string]dispatch.WayPolicy{"native": {Messages: 1 << openai.Messages}, "managed": {}} {
		s.manage(way)
		want[headers.MessagesRequestID] = id
		client, a := s.chat(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}`,
			h(":path", "/v1/messages?beta=true"), h("x-request-id", id))
		if _, managed := a.Values()[headers.Handoff]; managed != (id == "managed") {
			s.t.Errorf("%s: %+v", id, a)
		}
		if diff := cmp.Diff(want, a.Noted()); diff != "" {
			s.t.Errorf("%s: %s", id, diff)
		}
		leave(client)
	}
}

func priorityAndTask(s *Stage) {
	if a := s.request(Key, h(headers.Priority, "urgent")).Answer(); a.Status != 400 {
		s.t.Errorf("a priority that is none: %+v", a)
	}
	if _, a := s.chat(ask, h(headers.Priority, "batch"), h(headers.TaskID, "tsk_unknown")); a.Status != 400 {
		s.t.Errorf("a task that is none: %+v", a)
	}
	task, _, fault := s.Dispatcher.Schedule(s.t.Context(), dispatch.TaskRequest{Tenant: "acme", Model: "m"})
	if fault != nil {
		s.t.Fatal(fault)
	}
	if _, a := s.chat(ask, h(headers.TaskID, task.ID)); a.Kind != decide.Go || a.Noted()[headers.MetadataTask] != task.ID {
		s.t.Errorf("a good task: %+v", a)
	}
}

// The cost of a request counts although it is told after the exchange has ended.
func endedBeforeItsCost(s *Stage) {
	s.Dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{Limits: admission.Limits{TokensPerMinute: 1000}}})
	c, a := s.chat(ask)
	if got := a.Values(); !strings.HasPrefix(got[headers.Usage], headers.UsageOfOpenAI) || got[headers.Observe] != "" {
		s.t.Errorf("tokens of a model with a token limit must be counted, and its first token is nobody's business: %v", got)
	}
	c.Leave()
	s.until("its record is closed", func() bool { _, running := s.Requests.List(0); return running == 0 })
	if before := s.view().Tokens; before > 800 {
		s.t.Fatalf("%v tokens are left although 256 are expected to be used", before)
	}
	told := request.Entry{Log: headers.LogRequests, RequestID: "e-1", Model: "m", Status: 200, Usage: request.Usage{Known: true, Prompt: 5, Completion: 5}}
	for range 2 {
		s.Requests.Observe(told)
	}
	if after := s.view().Tokens; after < 989 || after > 995 {
		s.t.Errorf("%v tokens are left of 1000 after a request of 10", after)
	}
}

// The first token of a request is told if the model has a limit on prefill.
func watched(s *Stage) {
	s.Dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{MaxPrefillPerReplica: 1}})
	if _, a := s.chat(ask); a.Values()[headers.Observe] != "1" {
		s.t.Errorf("the first token must be told of: %+v", a)
	}
}

func session(s *Stage) {
	s.manage(dispatch.WayPolicy{Mode: dispatch.ModeManaged})
	_, a := s.chat(managedBody, h("x-session-id", "chat-7"))
	offer, ok := s.Handoff.Claim(a.Values()[headers.Handoff])
	if !ok {
		s.t.Fatal("the request was not offered")
	}
	defer offer.Done()
	if got := offer.Scan.Session(); got != "header:chat-7" {
		s.t.Errorf("the session is %q", got)
	}
	if _, a := s.chat(ask, h("x-session-id", strings.Repeat("x", 257))); a.Status != 400 || !strings.Contains(string(a.Body), "x-session-id is too long") {
		s.t.Errorf("a long session: %+v", a)
	}
	if a := s.request(Key, h("x-session-id", "a"), h("x-session-id", "b")).Answer(); a.Status != 400 {
		s.t.Errorf("two sessions: %+v", a)
	}
}

// The ids of responses are read where a later request may name them.
func observed(s *Stage) {
	for path, want := range map[string]string{"/v1/responses": "1", "/v1/chat/completions": ""} {
		_, a := s.chat(`{"model":"m"}`, h(":path", path))
		to := a.Values()
		if to[headers.Cluster] == "" || to[headers.Observe] != want {
			s.t.Errorf("%s: the answer sets %v", path, to)
		}
		if want != "" && to["accept-encoding"] != "identity" {
			s.t.Errorf("%s: the id could be compressed", path)
		}
	}
}

func heartbeat(s *Stage) {
	if a := s.request(Key, h("x-sluice-heartbeat", "loud")).Answer(); a.Status != 400 || !strings.Contains(string(a.Body), "must be chunk or comment") {
		s.t.Errorf("loud: %+v", a)
	}
	if _, a := s.chat(ask, h("x-sluice-heartbeat", "comment")); a.Kind != decide.Go {
		s.t.Errorf("comment: %+v", a)
	}
}

// manage gives the model m this policy.
func (s *Stage) manage(p dispatch.WayPolicy) {
	s.Dispatcher.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {MaxDuration: time.Minute, Way: p}}})
}

const managedBody = `{"model":"m","stream":true,"messages":[]}`

func ways(s *Stage) {
	for name, c := range map[string]struct {
		policy  dispatch.WayPolicy
		body    string
		managed bool
	}{
		"plain":           {dispatch.WayPolicy{}, `{"model":"m","messages":[]}`, false},
		"stream":          {dispatch.WayPolicy{}, managedBody, false},
		"managed":         {dispatch.WayPolicy{Mode: dispatch.ModeManaged}, managedBody, true},
		"not streamed":    {dispatch.WayPolicy{Mode: dispatch.ModeManaged}, `{"model":"m","messages":[]}`, false},
		"named":           {dispatch.WayPolicy{}, `{"model":"m","request_id":"a","messages":[]}`, true},
		"timeout":         {dispatch.WayPolicy{}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, true},
		"native timeout":  {dispatch.WayPolicy{Mode: dispatch.ModeNative}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, false},
		"timeout of all":  {dispatch.WayPolicy{}, `{"model":"m","timeout_ms":1000,"messages":[]}`, false},
		"first token":     {dispatch.WayPolicy{Supervised: true}, managedBody, true},
		"grpc":            {dispatch.WayPolicy{GRPC: true}, `{"model":"m","messages":[]}`, true},
		"every is sample": {dispatch.WayPolicy{Sample: 1}, managedBody, true},
	} {
		s.manage(c.policy)
		client, a := s.chat(c.body)
		if _, managed := a.Values()[headers.Handoff]; managed != c.managed || (a.Values()[headers.Cluster] == "") != c.managed {
			s.t.Errorf("%s: %+v", name, a)
		}
		client.Leave()
		s.until("its slot is free", func() bool { _, running := s.Requests.List(0); return s.view().InFlight == 0 && running == 0 })
	}
}

// A request that has waited for a new replica goes to the relay, because Envoy's workers may not
// know the replica yet. The next request is native.
func waitsForAReplica(s *Stage) {
	s.manage(dispatch.WayPolicy{})
	s.Dispatcher.SetRoutable("model/m", nil)
	c, a := s.chat(ask)
	if a.Wait == 0 {
		s.t.Fatalf("it was not held: %+v", a)
	}
	s.Dispatcher.SetRoutable("model/m", map[string]netip.AddrPort{"m-0": netip.MustParseAddrPort("127.0.0.1:9000")})
	if a := c.Answer(); a.Values()[headers.Handoff] == "" {
		s.t.Errorf("it goes by Envoy: %+v", a)
	}
	c.Leave()
	s.until("the ticket of the unclaimed offer is released", func() bool { return s.Dispatcher.Replica("m", "m-0").Load == 0 })
	if _, a := s.chat(ask); a.Values()[headers.Cluster] == "" {
		s.t.Errorf("one that came later does not go by Envoy: %+v", a)
	}
}

// The exchange of a request ends when the relay has claimed the request. The request goes on
// without it, and its client may leave it later.
func claimed(s *Stage) {
	s.manage(dispatch.WayPolicy{Mode: dispatch.ModeManaged})
	c, a := s.chat(managedBody)
	if !s.Busy() {
		s.t.Error("the exchange has ended before the relay had the request")
	}
	offer, ok := s.Handoff.Claim(a.Values()[headers.Handoff])
	if !ok {
		s.t.Fatal("the request was not offered")
	}
	s.until("its exchange has ended", func() bool { return !s.Busy() })
	c.Leave()
	if _, running := s.Requests.List(0); running != 1 {
		s.t.Error("the record was closed, which belongs to the relay")
	}
	offer.Done()
	if _, running := s.Requests.List(0); running != 0 {
		s.t.Error("the record is not closed")
	}
}

// Before the relay has claimed the request, only the exchange reports that the client has left.
func unclaimed(s *Stage) {
	s.manage(dispatch.WayPolicy{Mode: dispatch.ModeManaged})
	for name, leave := range map[string]func(Client){"left": Client.Leave, "an answer of Envoy's own": Client.Finish} {
		c, a := s.chat(managedBody)
		leave(c)
		s.until("its exchange has ended", func() bool { return !s.Busy() })
		if _, ok := s.Handoff.Claim(a.Values()[headers.Handoff]); ok {
			s.t.Errorf("%s: the withdrawn token was good", name)
		}
		if _, running := s.Requests.List(0); running != 0 {
			s.t.Errorf("%s: the record is not closed", name)
		}
	}
}

// A header that names the caller goes no further than the gateway, and one that would steer a
// gateway behind an upstream neither.
func trustedHeader(s *Stage) {
	trusted := &authz.TrustedHeader{Name: "x-user", From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	if err := s.Authenticator.Set(authz.Config{Header: trusted, Tenants: []authz.TenantConfig{
		{Tenant: authz.Tenant{Name: "acme", Models: []string{"m"}}}}}); err != nil {
		s.t.Fatal(err)
	}
	c := s.request(h("x-user", "acme"), h("x-forwarded-for", "10.1.2.3"), h("helicone-target-url", "http://a"), h("x-title", "b"))
	c.Body(ask)
	a := c.Answer()
	slices.Sort(a.Remove)
	if a.Kind != decide.Go || !slices.Equal(slices.Compact(a.Remove), []string{"helicone-target-url", "x-user"}) {
		s.t.Errorf("%+v", a)
	}
}

// Requests that come at the same time are decided apart from each other, while some wait and some
// leave. Nothing is left of them.
func manyAtOnce(s *Stage) {
	const requests = 100
	clients := make([]Client, requests)
	for i := range clients {
		clients[i] = s.request(Key, h("x-request-id", fmt.Sprint(i)))
		clients[i].Body(ask)
	}
	for i, c := range clients {
		if i%3 == 1 {
			c.Leave()
		}
	}
	var all sync.WaitGroup
	for i, c := range clients {
		if i%3 == 1 {
			continue
		}
		all.Go(func() {
			a := c.Answer()
			if a.Wait > 0 {
				a = c.Answer()
			}
			if a.Kind != decide.Go || a.Wait > 0 {
				s.t.Errorf("%d: %+v", i, a)
			}
			c.Finish()
		})
	}
	all.Wait()
	s.until("all have ended", func() bool { v := s.view(); return v.InFlight == 0 && v.Queued == 0 && !s.Busy() })
}
