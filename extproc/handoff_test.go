package extproc

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// newRelayed returns a newServer with a relay, and this policy for the model m.
func newRelayed(t testing.TB, p dispatch.WayPolicy) (*Server, *dispatch.Dispatcher) {
	s, d := newServer(t)
	d.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {MaxDuration: time.Minute, Way: p}}})
	return s, d
}

const managedBody = `{"model":"m","stream":true,"messages":[]}`

// relayed is a gateway whose streams are managed and whose two slots are in use, so that requests
// wait in the relay.
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

// handOff drives a request to the answer that routes it to the relay.
func (r *relayed) handOff() (e *envoy, token string) {
	r.t.Helper()
	e = open(r.t, r.Server)
	e.headers(key)
	token = set(e.body(managedBody).GetRequestBody().GetResponse().GetHeaderMutation())[headers.Handoff]
	if token == "" {
		r.t.Fatal("it does not go to the relay")
	}
	return e, token
}

// sendToRelay sends the request to the relay as Envoy does. It returns the status of the answer,
// and 0 if the client (ctx) has left before an answer.
func (r *relayed) sendToRelay(ctx context.Context, token string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.socket.URL+"/v1/chat/completions", strings.NewReader(managedBody))
	if err != nil {
		r.t.Error(err)
		return 0
	}
	req.Header.Set(headers.Handoff, token)
	answer, err := r.socket.Client().Do(req)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body) //nolint:errcheck // the copy ends when the client leaves
	return answer.StatusCode
}

// awaitQueued waits until n requests wait for a slot.
func (r *relayed) awaitQueued(n int) {
	r.t.Helper()
	until(r.t, "as many wait as should", func() bool {
		v, _ := r.dispatcher.View("m")
		return v.Queued == n
	})
}

// until waits for a condition.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// awaitEnd waits until the exchange has ended.
func (e *envoy) awaitEnd() {
	e.t.Helper()
	select {
	case err := <-e.processed:
		if err != nil {
			e.t.Error(err)
		}
	case <-time.After(testutil.Patience):
		e.t.Fatal("the exchange goes on")
	}
}

// The exchange of a request ends when the relay has claimed the request. The request goes on
// without it.
func TestEndsWhenTheRelayHasTheRequest(t *testing.T) {
	r := newFull(t)
	e, token := r.handOff()
	select {
	case err := <-e.processed:
		t.Fatalf("the exchange has ended before the relay had the request: %v", err)
	case <-time.After(20 * time.Millisecond): // there is no event that says that the exchange goes on
	}
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { r.sendToRelay(ctx, token) })
	e.awaitEnd()
	r.awaitQueued(1)
	if diff := cmp.Diff([]string{"queued e-1 acme m true 41 "}, lines(r.Requests)); diff != "" {
		t.Error("while it waits: ", diff)
	}
	leave()
	client.Wait()
	r.awaitQueued(0)
	until(t, "its record is closed", func() bool { _, running := r.Requests.List(0); return running == 0 })
	if diff := cmp.Diff([]string{"done e-1 acme m true 41 managedcancelled"}, lines(r.Requests)); diff != "" {
		t.Error(diff)
	}
}

// A process that was replaced gets no log entry of a request that its relay carries. When the Envoy
// of the request has died, no process gets one, and the request ends in that process.
func TestE3_X20_AManagedRequestOfAReplacedProcessEndsWithItsEnvoy(t *testing.T) {
	for _, lives := range []bool{false, true} {
		r := newFull(t)
		finished, elsewhere := make(chan request.Summary, 1), make(chan request.Summary, 1)
		r.Requests.Subscribe(request.Subscribers{
			Finished:  []func(request.Summary){func(q request.Summary) { finished <- q }},
			Elsewhere: func(q request.Summary) { elsewhere <- q },
		})
		r.Lives = func(int) bool { return lives }
		e, token := r.handOff()
		ctx, leave := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() { r.sendToRelay(ctx, token) })
		e.awaitEnd()
		r.awaitQueued(1)
		next, _ := newServer(t)
		r.Retire(serveMethod(t, next.Open))
		leave()
		client.Wait()
		until(t, "the successor is told of its end", func() bool { return len(elsewhere) == 1 })
		if !lives {
			until(t, "it has ended here", func() bool { return len(finished) == 1 })
			if q := <-finished; q.Cause != request.CauseGateway {
				t.Errorf("%+v", q)
			}
		}
	}
}

// Before the relay has claimed the request, only the exchange reports that the client has left.
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
			e, token := r.handOff()
			leave(e)
			e.awaitEnd()
			if status := r.sendToRelay(t.Context(), token); status != http.StatusServiceUnavailable {
				t.Errorf("the withdrawn token was good: %d", status)
			}
			if diff := cmp.Diff([]string{"done e-1 acme m true 41 "}, lines(r.Requests)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The client leaves while Envoy connects to the relay. Whichever comes first, the request ends
// exactly once.
func TestClientLeavesAsTheRelayGetsTheRequest(t *testing.T) {
	const requests = 100
	r := newFull(t)
	for range requests {
		e, token := r.handOff()
		ctx, leave := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(func() { r.sendToRelay(ctx, token) })
		both.Go(func() { e.reset(); leave() })
		both.Wait()
		e.awaitEnd()
	}
	r.awaitQueued(0)
	until(t, "all have ended", func() bool { _, running := r.Requests.List(0); return running == 0 })
	if ended, _ := r.Requests.List(0); len(ended) != requests {
		t.Errorf("%d have ended, of %d", len(ended), requests)
	}
}

// Envoy sees a gRPC stream that ends with status OK.
func TestEndsWellOverGRPC(t *testing.T) {
	r := newFull(t)
	conn := serveMethod(t, r.Open)
	exchange, token := exchangeTo(t, pb.NewExternalProcessorClient(conn))
	ctx, leave := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { r.sendToRelay(ctx, token) })
	if m, err := exchange.Recv(); err != io.EOF {
		t.Errorf("%v, %v", m, err)
	}
	r.awaitQueued(1)
	leave()
	client.Wait()
}

// exchangeTo drives an exchange over gRPC to the answer that carries the relay's token.
func exchangeTo(t testing.TB, client pb.ExternalProcessorClient) (exchange pb.ExternalProcessor_ProcessClient, token string) {
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
