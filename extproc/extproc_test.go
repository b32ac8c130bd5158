package extproc

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/request"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// envoy is Envoy's end of one exchange.
type envoy struct {
	grpc.ServerStream
	t         testing.TB
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
func open(t testing.TB, s *Server) *envoy {
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
	e.processed <- nil
	if v, _ := d.View("m"); v.InFlight != 0 {
		t.Error("a body without headers, so without a key, was let through")
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
