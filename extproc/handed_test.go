package extproc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/request"
)

const managedBody = `{"model":"m","stream":true,"messages":[]}`

// relayed is a gateway whose streams are managed and whose two slots are taken, so that the relay
// has requests wait.
type relayed struct {
	*Server
	t          *testing.T
	dispatcher *dispatch.Dispatcher
	socket     *httptest.Server
}

func newFull(t *testing.T) *relayed {
	s, d := newRelayed(t, dispatch.WayPolicy{Mode: dispatch.ModeManaged})
	carrier := relay.New(relay.Config{Dispatcher: d, Handoff: s.Handoff})
	t.Cleanup(func() { carrier.Close(t.Context()) })
	for range 2 {
		e := open(t, s)
		e.headers(key)
		if set(e.body(`{"model":"m"}`).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Cluster] == "" {
			t.Fatal("no slot was free")
		}
	}
	r := &relayed{Server: s, t: t, dispatcher: d, socket: httptest.NewServer(carrier.Handler())}
	s.Requests = request.NewStore(1000)
	t.Cleanup(r.socket.Close)
	return r
}

// hand brings a request as far as the answer that sends it to the relay.
func (r *relayed) hand() (e *envoy, ticket string) {
	r.t.Helper()
	e = open(r.t, r.Server)
	e.headers(key)
	ticket = set(e.body(managedBody).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Handoff]
	if ticket == "" {
		r.t.Fatal("it does not go to the relay")
	}
	return e, ticket
}

// bring is Envoy, bringing the request to the relay. It returns the status of the answer, 0 when
// the client (ctx) has left before there was one.
func (r *relayed) bring(ctx context.Context, ticket string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.socket.URL+"/v1/chat/completions", strings.NewReader(managedBody))
	if err != nil {
		r.t.Error(err)
		return 0
	}
	req.Header.Set(headers.Handoff, ticket)
	answer, err := r.socket.Client().Do(req)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body) //nolint:errcheck // it ends with the client
	return answer.StatusCode
}

// queued waits until so many requests wait for a slot.
func (r *relayed) queued(n int) {
	r.t.Helper()
	until(r.t, "as many wait as should", func() bool {
		v, _ := r.dispatcher.View("m")
		return v.Queued == n
	})
}

// until waits for a condition, for ten seconds at most.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for begun := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("not within ten seconds: " + what)
		}
	}
}

// over waits until the exchange has ended.
func (e *envoy) over() {
	e.t.Helper()
	select {
	case err := <-e.processed:
		e.processed <- nil // for the cleanup
		if err != nil {
			e.t.Error(err)
		}
	case <-time.After(10 * time.Second):
		e.t.Fatal("the exchange goes on")
	}
}

// An exchange has nothing to do for a request that the relay has; the request goes on without it.
func TestEndsWhenTheRelayHasTheRequest(t *testing.T) {
	r := newFull(t)
	e, ticket := r.hand()
	select {
	case err := <-e.processed:
		e.processed <- err // for the cleanup
		t.Fatalf("the exchange has ended before the relay had the request: %v", err)
	case <-time.After(20 * time.Millisecond): // that it goes on cannot be waited for
	}
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { r.bring(ctx, ticket) })
	e.over()
	r.queued(1)
	if diff := cmp.Diff([]string{"queued e-1 acme m true 41 "}, lines(r.Requests)); diff != "" {
		t.Error("while it waits: ", diff)
	}
	leave()
	client.Wait()
	r.queued(0)
	until(t, "its record is closed", func() bool { _, running := r.Requests.List(0); return running == 0 })
	if diff := cmp.Diff([]string{"done e-1 acme m true 41 managedcancelled"}, lines(r.Requests)); diff != "" {
		t.Error(diff)
	}
}

// Before the relay has the request, only the exchange tells that its client has left.
func TestClientLeavesBeforeTheRelayHasTheRequest(t *testing.T) {
	for name, leave := range map[string]func(*envoy){
		"reset": func(e *envoy) { e.reset() },
		"close": func(e *envoy) { close(e.toSluice) },
		"an answer of Envoy's own": func(e *envoy) {
			e.toSluice <- &pb.ProcessingRequest{Request: &pb.ProcessingRequest_ResponseTrailers{}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFull(t)
			e, ticket := r.hand()
			leave(e)
			e.over()
			if status := r.bring(t.Context(), ticket); status != http.StatusServiceUnavailable {
				t.Errorf("the withdrawn ticket was good: %d", status)
			}
			if diff := cmp.Diff([]string{"done e-1 acme m true 41 "}, lines(r.Requests)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The client leaves just when Envoy comes to the relay: either ends the request, once.
func TestClientLeavesAsTheRelayGetsTheRequest(t *testing.T) {
	const requests = 100
	r := newFull(t)
	for range requests {
		e, ticket := r.hand()
		ctx, leave := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(func() { r.bring(ctx, ticket) })
		both.Go(func() { e.reset(); leave() })
		both.Wait()
		e.over()
	}
	r.queued(0)
	until(t, "all have ended", func() bool { _, running := r.Requests.List(0); return running == 0 })
	if ended, _ := r.Requests.List(0); len(ended) != requests {
		t.Errorf("%d have ended, of %d", len(ended), requests)
	}
}

// What Envoy sees: a stream that ends well.
func TestEndsWellOverGRPC(t *testing.T) {
	r := newFull(t)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	r.Register(server)
	go server.Serve(l) //nolint:errcheck // Stop ends it
	defer server.Stop()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange, ticket := exchangeTo(t, pb.NewExternalProcessorClient(conn))
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { r.bring(ctx, ticket) })
	if m, err := exchange.Recv(); err != io.EOF {
		t.Errorf("%v, %v", m, err)
	}
	r.queued(1)
	leave()
	client.Wait()
}

// exchangeTo has an exchange over gRPC answered as far as the ticket for the relay.
func exchangeTo(t testing.TB, client pb.ExternalProcessorClient) (exchange pb.ExternalProcessor_ProcessClient, ticket string) {
	t.Helper()
	exchange, err := client.Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var answer *pb.ProcessingResponse
	messages := exchangeMessages()[:2]
	messages[1].GetRequestBody().Body = []byte(managedBody)
	for _, m := range messages {
		if err := exchange.Send(m); err != nil {
			t.Fatal(err)
		}
		if answer, err = exchange.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	return exchange, set(answer.GetRequestBody().GetResponse().GetHeaderMutation())[headers.Handoff]
}
