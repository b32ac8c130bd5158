package extproc

import (
	"net/netip"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Only a filter with the role of the observer is one. What others send is about a request.
func TestObserverIsTold(t *testing.T) {
	t.Parallel()
	for role, observes := range map[string]bool{"": false, "judge": false, headers.RoleObserver: true} {
		s, _ := newServer(t)
		e := openAs(t, s, role)
		e.toSluice <- seen("e-1", "")
		if !observes {
			e.awaitEnd() // no request begins like this
			continue
		}
		select {
		case err := <-e.processed:
			t.Errorf("%q: the exchange has ended: %v", role, err)
		case e.toSluice <- seen("", ""): // the first message was taken
		}
	}
}

// seen returns a message of Envoy's observer. Only the first message of an exchange has attributes.
func seen(id, body string) *pb.ProcessingRequest {
	m := &pb.ProcessingRequest{
		ObservabilityMode: true,
		Request:           &pb.ProcessingRequest_ResponseBody{ResponseBody: &pb.HttpBody{Body: []byte(body)}},
	}
	if id != "" {
		m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {
			Fields: map[string]*structpb.Value{headers.AttributeRequestID: structpb.NewStringValue(id)},
		}}
	}
	return m
}

// observed opens an exchange of the observer. Its end is sent to processed.
func observed(t *testing.T, s *Server) *envoy { return openAs(t, s, headers.RoleObserver) }

// prefillServer returns a server with one model m on two replicas. A replica serves four requests
// at a time, one of which may be in prefill.
func prefillServer(t *testing.T) *Server {
	t.Helper()
	s, _ := newServer(t)
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{
		Models: []engines.Model{{Name: "m"}},
		Replicas: []engines.Replica{
			{ID: "m-0", Model: "m", State: engines.Ready, Slots: 4, Address: netip.MustParseAddrPort("127.0.0.1:9000")},
			{ID: "m-1", Model: "m", State: engines.Ready, Slots: 4, Address: netip.MustParseAddrPort("127.0.0.1:9001")},
		},
	})
	s.Dispatcher = dispatch.New(dispatch.Config{Fleet: fleet, Admission: admission.New(admission.Config{})})
	s.Dispatcher.SetRules(dispatch.Rules{Default: dispatch.Policy{MaxDuration: time.Minute, MaxPrefillPerReplica: 1}})
	s.Dispatcher.SetRoutable("model/m", map[string]netip.AddrPort{
		"m-0": netip.MustParseAddrPort("127.0.0.1:9000"), "m-1": netip.MustParseAddrPort("127.0.0.1:9001")})
	return s
}

// newFullPrefill returns a server whose replicas may have one request in prefill each. Both
// replicas have one, and a third request waits.
func newFullPrefill(t *testing.T) (s *Server, running []*envoy, waiting *envoy) {
	s = prefillServer(t)
	for _, id := range []string{"e-1", "e-2"} {
		e := open(t, s)
		e.headers(key, "x-request-id: "+id)
		if e.body(`{"model":"m","stream":true}`).GetRequestBody() == nil {
			t.Fatal("not let through")
		}
		running = append(running, e)
	}
	waiting = open(t, s)
	waiting.headers(key, "x-request-id: e-3")
	if waiting.body(`{"model":"m","stream":true}`).GetOverrideMessageTimeout() == nil {
		t.Fatal("a third request does not wait")
	}
	return s, running, waiting
}

func TestFirstToken(t *testing.T) {
	s, running, waiting := newFullPrefill(t)
	for _, messages := range [][]*pb.ProcessingRequest{
		{seen("nobody's", "data: 1\n\n")},
		{seen("", "data: 1\n\n")},
	} {
		e := observed(t, s)
		for _, m := range messages {
			e.toSluice <- m
		}
		if err := <-e.processed; err != nil {
			t.Error(err)
		}
	}
	empty := observed(t, s)
	empty.toSluice <- seen("e-1", "")
	select {
	case m := <-waiting.toEnvoy:
		t.Fatalf("nothing has come yet, and the request that waits is told %v", m)
	case err := <-empty.processed:
		t.Fatalf("the exchange has ended before a byte: %v", err)
	default:
	}
	empty.toSluice <- seen("", "data: 1\n\n")
	if err := <-empty.processed; err != nil {
		t.Error(err)
	}
	if a := <-waiting.toEnvoy; a.GetRequestBody() == nil {
		t.Errorf("got %v", a)
	}
	late := observed(t, s) // observes a request that has ended
	running[0].reset()
	<-running[0].processed
	late.toSluice <- seen("e-1", "data: 1\n\n")
	if err := <-late.processed; err != nil {
		t.Error(err)
	}
	if len(empty.toEnvoy)+len(late.toEnvoy) > 0 {
		t.Error("the observer was answered")
	}
}

// TestObserverCut checks the reset of the exchange when the client leaves before the first token.
func TestObserverCut(t *testing.T) {
	s, _ := newServer(t)
	for _, end := range []func(*envoy){func(e *envoy) { e.reset() }, func(e *envoy) { close(e.toSluice) }} {
		e := observed(t, s)
		end(e)
		if err := <-e.processed; err != nil {
			t.Error(err)
		}
	}
}
