package extproc

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// envoy is Envoy's end of one exchange.
type envoy struct {
	grpc.ServerStream
	t         *testing.T
	ctx       context.Context
	reset     context.CancelFunc
	toSluice  chan *pb.ProcessingRequest
	toEnvoy   chan *pb.ProcessingResponse
	processed chan error
}

func (e *envoy) Context() context.Context { return e.ctx }

func (e *envoy) Recv() (*pb.ProcessingRequest, error) {
	select {
	case m, ok := <-e.toSluice:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-e.ctx.Done():
		return nil, e.ctx.Err()
	}
}

func (e *envoy) Send(m *pb.ProcessingResponse) error {
	select {
	case e.toEnvoy <- m:
		return nil
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
}

// open opens an exchange.
func open(t *testing.T, s *Server) *envoy {
	e := &envoy{t: t, toSluice: make(chan *pb.ProcessingRequest), toEnvoy: make(chan *pb.ProcessingResponse, 4), processed: make(chan error, 1)}
	e.ctx, e.reset = context.WithCancel(context.Background())
	go func() {
		err := s.Process(e)
		e.reset() // as gRPC does
		e.processed <- err
	}()
	t.Cleanup(func() {
		e.reset()
		<-e.processed
	})
	return e
}

func (e *envoy) say(m *pb.ProcessingRequest) *pb.ProcessingResponse {
	e.t.Helper()
	e.toSluice <- m
	return <-e.toEnvoy
}

func (e *envoy) headers(pairs ...string) *pb.ProcessingResponse {
	e.t.Helper()
	h := &core.HeaderMap{}
	for _, p := range []string{":method: POST", ":path: /v1/chat/completions", "content-type: application/json", "x-request-id: e-1"} {
		name := p[:strings.LastIndex(p, ": ")+1]
		if !slices.ContainsFunc(pairs, func(own string) bool { return strings.HasPrefix(own, name) }) {
			pairs = append(pairs, p)
		}
	}
	for _, p := range pairs {
		i := strings.LastIndex(p, ": ")
		h.Headers = append(h.Headers, &core.HeaderValue{Key: p[:i], RawValue: []byte(p[i+2:])})
	}
	return e.say(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestHeaders{RequestHeaders: &pb.HttpHeaders{Headers: h}}})
}

func (e *envoy) body(text string) *pb.ProcessingResponse {
	e.t.Helper()
	return e.say(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{
		RequestBody: &pb.HttpBody{Body: []byte(text), EndOfStream: true}}})
}

// set returns the headers that an answer sets.
func set(mutation *pb.HeaderMutation) map[string]string {
	all := map[string]string{}
	for _, h := range mutation.GetSetHeaders() {
		all[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	return all
}

// newServer returns a server with one model m on two replicas, which serve one request each at a
// time.
func newServer(t testing.TB, requests *request.Store) (*Server, *dispatch.Dispatcher) {
	t.Helper()
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{
		Models: []engines.Model{{Name: "m"}, {Name: "other"}},
		Replicas: []engines.Replica{
			{ID: "m-0", Model: "m", State: engines.Ready, Slots: 1, Address: netip.MustParseAddrPort("127.0.0.1:9000")},
			{ID: "m-1", Model: "m", State: engines.Ready, Slots: 1, Address: netip.MustParseAddrPort("127.0.0.1:9001")},
		},
	})
	d := dispatch.New(dispatch.Config{Fleet: fleet, Admission: admission.New(admission.Config{}),
		Default: dispatch.Policy{MaxDuration: time.Minute}})
	d.SetRoutable("model/m", map[string]netip.AddrPort{
		"m-0": netip.MustParseAddrPort("127.0.0.1:9000"), "m-1": netip.MustParseAddrPort("127.0.0.1:9001")})
	auth := new(authz.Authenticator)
	if err := auth.Set(authz.Config{Tenants: []authz.TenantConfig{{
		Tenant: authz.Tenant{Name: "acme", Models: []string{"m"}}, Keys: []authz.KeyConfig{{Hash: authz.HashKey("key")}}}}}); err != nil {
		t.Fatal(err)
	}
	return New(decide.New(decide.Config{Authenticator: auth, Dispatcher: d, MaxBody: 1000, Requests: requests, Log: zap.NewNop()})), d
}

const key = "authorization: Bearer key"

func TestRefusedBeforeTheBody(t *testing.T) {
	s, _ := newServer(t, nil)
	for _, c := range []struct {
		name    string
		headers []string
		status  int32
		code    openai.Code
	}{
		{"no key", nil, 401, openai.CodeInvalidAPIKey},
		{"no key and an unknown path", []string{":path: /x"}, 401, openai.CodeInvalidAPIKey},
		{"unknown path", []string{key, ":path: /x"}, 404, openai.CodeInvalidRequest},
		{"wrong method", []string{key, ":method: PUT"}, 405, openai.CodeInvalidRequest},
		{"compressed", []string{key, "content-encoding: gzip"}, 415, openai.CodeInvalidRequest},
		{"too large", []string{key, "content-length: 1001"}, 413, openai.CodeRequestTooLarge},
		{"two keys, one good", []string{key, "authorization: Bearer key"}, 400, openai.CodeInvalidRequest},
		{"two request ids", []string{key, "idempotency-key: a", "idempotency-key: b"}, 400, openai.CodeInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := open(t, s).headers(c.headers...).GetImmediateResponse()
			if int32(a.GetStatus().GetCode()) != c.status || !strings.Contains(string(a.GetBody()), `"code":"`+string(c.code)+`"`) {
				t.Fatalf("got %v", a)
			}
			h := set(a.GetHeaders())
			if h["content-type"] != "application/json" || h[headers.Source] != headers.SourceGateway || a.GetDetails() != headers.DetailsPrefix+string(c.code) {
				t.Errorf("headers %v, details %s", h, a.GetDetails())
			}
		})
	}
}

func TestDecided(t *testing.T) {
	s, d := newServer(t, nil)
	for _, c := range []struct {
		name, body, stripped string
		headers              []string
		want                 map[string]string
	}{
		{"plain", `{"model":"m"}`, "", nil, map[string]string{"x-envoy-upstream-rq-timeout-ms": "60000"}},
		{"streamed", `{"model":"m","stream":true}`, "", nil, map[string]string{headers.Stream: "1", "x-envoy-upstream-rq-timeout-ms": "60000"}},
		{"own options", `{"model":"m","max_duration_ms":5000}`, `{"model":"m"}`, nil,
			map[string]string{"content-length": "13", headers.ClientTimeout: "1", "x-envoy-upstream-rq-timeout-ms": "5000"}},
		{"timeout by header", `{"model":"m"}`, "", []string{"x-sluice-timeout-ms: 70"},
			map[string]string{headers.ClientTimeout: "1", "x-envoy-upstream-rq-timeout-ms": "70"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, s)
			if e.headers(append(c.headers, key)...).GetRequestHeaders() == nil {
				t.Fatal("not let through")
			}
			a := e.body(c.body).GetRequestBody().GetResponse()
			got := set(a.GetHeaderMutation())
			if got[headers.Cluster] != "model/m" || !strings.HasPrefix(got[headers.Endpoint], "127.0.0.1:900") || !a.GetClearRouteCache() {
				t.Fatalf("got %v", a)
			}
			if got["x-envoy-max-retries"] != fmt.Sprint(max(strings.Count(got[headers.Endpoint], ","), 1)) {
				t.Errorf("retries %s for %s", got["x-envoy-max-retries"], got[headers.Endpoint])
			}
			if strings.Contains(got[headers.Endpoint], ",") != (got["x-envoy-retriable-status-codes"] == "429") {
				t.Errorf("retries on %q, %q for %s", got["x-envoy-retry-on"], got["x-envoy-retriable-status-codes"], got[headers.Endpoint])
			}
			delete(got, "x-envoy-retry-on")
			delete(got, "x-envoy-retriable-status-codes")
			delete(got, "x-envoy-max-retries")
			delete(got, headers.Cluster)
			delete(got, headers.Endpoint)
			if usage := strings.HasPrefix(got[headers.Usage], headers.UsageOfOpenAI); usage != (got["accept-encoding"] == "identity") {
				t.Errorf("usage is read: %v, accept-encoding %q", usage, got["accept-encoding"])
			}
			delete(got, headers.Usage) // some requests have it, so that the estimator learns
			delete(got, "accept-encoding")
			if got["x-envoy-upstream-rq-timeout-ms"] == "69" { // a millisecond has passed
				got["x-envoy-upstream-rq-timeout-ms"] = "70"
			}
			if got["x-envoy-upstream-rq-timeout-ms"] == "4999" {
				got["x-envoy-upstream-rq-timeout-ms"] = "5000"
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if string(a.GetBodyMutation().GetBody()) != c.stripped {
				t.Errorf("body %q", a.GetBodyMutation().GetBody())
			}
			if v, _ := d.View("m"); v.InFlight != 1 {
				t.Errorf("in flight: %d", v.InFlight)
			}
			if e.say(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{}}).GetResponseTrailers() == nil {
				t.Error("the trailers were not answered")
			}
			if v, _ := d.View("m"); v.InFlight != 0 {
				t.Errorf("in flight after the end: %d", v.InFlight)
			}
		})
	}
}

func TestRefusedWithTheBody(t *testing.T) {
	s, d := newServer(t, nil)
	for _, c := range []struct {
		name, body, header string
		code               openai.Code
	}{
		{"not JSON", `{`, "", openai.CodeInvalidRequest},
		{"unknown model", `{"model":"x"}`, "", openai.CodeModelNotFound},
		{"forbidden model", `{"model":"other"}`, "", openai.CodeModelNotFound},
		{"timeout is no number", `{"model":"m"}`, "x-sluice-timeout-ms: soon", openai.CodeInvalidRequest},
		{"two timeouts", `{"model":"m","timeout_ms":5}`, "x-sluice-timeout-ms: 6", openai.CodeInvalidRequest},
		{"two ids", `{"model":"m","request_id":"a"}`, "idempotency-key: b", openai.CodeInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, s)
			extra := []string{key}
			if c.header != "" {
				extra = append(extra, c.header)
			}
			e.headers(extra...)
			a := e.body(c.body).GetImmediateResponse()
			if !strings.Contains(string(a.GetBody()), `"code":"`+string(c.code)+`"`) {
				t.Errorf("got %v", a)
			}
			if v, _ := d.View("m"); v.InFlight != 0 {
				t.Errorf("in flight: %d", v.InFlight)
			}
		})
	}
}

func TestHeldAndAborted(t *testing.T) {
	s, d := newServer(t, nil)
	var running []*envoy
	for range 2 {
		e := open(t, s)
		e.headers(key)
		e.body(`{"model":"m"}`)
		running = append(running, e)
	}
	held := open(t, s)
	held.headers(key)
	if a := held.body(`{"model":"m"}`); a.GetOverrideMessageTimeout().AsDuration() != time.Hour || a.GetResponse() != nil {
		t.Fatalf("a request that waits must first ask for time; got %v", a)
	}
	gone := open(t, s)
	gone.headers(key)
	gone.body(`{"model":"m"}`)
	if v, _ := d.View("m"); v.Queued != 2 {
		t.Fatalf("queued: %d", v.Queued)
	}
	gone.reset() // the client of the waiting request leaves
	if err := <-gone.processed; err != nil {
		t.Error(err)
	}
	gone.processed <- nil
	if v, _ := d.View("m"); v.Queued != 1 {
		t.Errorf("queued: %d", v.Queued)
	}
	running[0].reset() // the client of a running request leaves; the next waiter gets its slot
	if a := <-held.toEnvoy; a.GetRequestBody() == nil {
		t.Errorf("got %v", a)
	}
}

func TestMessagesOutOfOrder(t *testing.T) {
	s, d := newServer(t, nil)
	e := open(t, s)
	e.toSluice <- &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(`{"model":"m"}`)}}}
	if err := <-e.processed; err != nil {
		t.Error(err)
	}
	e.processed <- nil
	if v, _ := d.View("m"); v.InFlight != 0 {
		t.Error("a body without headers, so without a key, was let through")
	}
}

// A request has a record from the check of its headers to the end of its exchange. A request
// without a good key has none.
func TestRecord(t *testing.T) {
	requests := request.NewStore(0)
	var dispatched []string
	requests.Subscribe(request.Subscribers{Dispatched: func(model, replica string, _ time.Duration) {
		dispatched = append(dispatched, fmt.Sprintf("%s %.2s", model, replica))
	}})
	s, _ := newServer(t, requests)
	open(t, s).headers()
	if all, _ := requests.List(0); len(all) != 0 {
		t.Errorf("a request without a key has a record: %+v", all)
	}
	e := open(t, s)
	e.headers(key)
	if all, running := requests.List(0); running != 1 || all[0].Tenant != "acme" || all[0].State != request.Queued {
		t.Errorf("before its body: %+v", all)
	}
	e.body(`{"model":"m","stream":true}`)
	if all, running := requests.List(0); running != 1 || all[0].State != request.Streaming {
		t.Errorf("while it runs: %+v", all)
	}
	e.say(&pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{}})
	close(e.toSluice)
	<-e.processed
	e.processed <- nil
	e = open(t, s)
	e.headers(key)
	e.body(`{"model":"x"}`)
	close(e.toSluice)
	<-e.processed
	e.processed <- nil
	want := []string{"done e-1 acme x false 13 model_not_found", "done e-1 acme m true 27 "}
	if diff := cmp.Diff(want, lines(requests)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"m m-"}, dispatched); diff != "" {
		t.Error(diff)
	}
}

// lines returns the records of requests: running ones first, the newest first in each group.
func lines(requests *request.Store) (all []string) {
	summaries, _ := requests.List(0)
	for _, q := range summaries {
		all = append(all, fmt.Sprintf("%s %s %s %s %t %d %s%s", q.State, q.ID, q.Tenant, q.Model, q.Stream, q.BytesIn, q.Route, q.Code))
	}
	return all
}

func TestMoved(t *testing.T) {
	s, d := newServer(t, nil)
	e := open(t, s)
	e.headers(key)
	first := set(e.body(`{"model":"m"}`).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Endpoint]
	to, id := "127.0.0.1:9001", "m-1"
	if strings.HasPrefix(first, to) {
		to, id = "127.0.0.1:9000", "m-0"
	}
	moved := func(id string) request.Entry {
		return request.Entry{Log: headers.LogAttempts, Interim: true, RequestID: id, Upstream: to}
	}
	s.Requests.Observe(moved("nobody's"))
	s.Requests.Observe(moved("e-1"))
	if d.Load(id) != 1 {
		t.Error("the slot did not follow")
	}
}

// TestX7_OpenRequestsHaveALimit checks that a gateway without sockets refuses requests at once.
func TestX7_OpenRequestsHaveALimit(t *testing.T) {
	s, _ := newServer(t, nil)
	s.MaxOpen = func() int { return 1 }
	first := open(t, s)
	first.headers(key)
	second := open(t, s)
	if answer := second.headers(key).GetImmediateResponse(); answer.GetStatus().GetCode() != 503 {
		t.Errorf("answer %v, want 503", answer)
	}
}
