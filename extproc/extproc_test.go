package extproc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
)

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
func newServer(t testing.TB) (*Server, *dispatch.Dispatcher) {
	d := decidetest.New(t, 1, decide.UploadLimits{})
	return New(d), d.Dispatcher
}

const key = "authorization: Bearer key"

func TestMessagesOutOfOrder(t *testing.T) {
	s, d := newServer(t)
	e := open(t, s)
	e.toSluice <- &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestBody{RequestBody: &pb.HttpBody{Body: []byte(`{"model":"m"}`)}}}
	if err := <-e.processed; err != nil {
		t.Error(err)
	}
	if v, _ := d.View("m"); v.InFlight != 0 {
		t.Error("a body without headers, so without a key, was let through")
	}
}

// TestTrailersOfARequest: a request with trailers alone has no body. Trailers after a body change
// nothing, also while an offer waits for the relay.
func TestTrailersOfARequest(t *testing.T) {
	trailers := &pb.ProcessingRequest{Request: &pb.ProcessingRequest_RequestTrailers{RequestTrailers: &pb.HttpTrailers{}}}
	s, _ := newServer(t)
	bodyless := open(t, s)
	bodyless.headers(key)
	if i := bodyless.say(trailers).GetImmediateResponse(); i.GetStatus().GetCode() != 400 || !strings.Contains(string(i.GetBody()), "The request body is empty.") {
		t.Errorf("without a body: %v", i)
	}
	for name, mode := range map[string]dispatch.Mode{"native": dispatch.ModeNative, "offered": dispatch.ModeManaged} {
		s, _ := newRelayed(t, dispatch.WayPolicy{Mode: mode})
		e := open(t, s)
		e.headers(key)
		token := set(e.body(managedBody).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Handoff]
		if a := e.say(trailers); a.GetRequestTrailers() == nil {
			t.Errorf("%s: the answer to the trailers is %v", name, a)
		}
		if _, offered := s.Handoff.Claim(token); offered != (mode == dispatch.ModeManaged) {
			t.Errorf("%s: after the trailers, an offer is there: %v", name, offered)
		}
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
