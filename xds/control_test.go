package xds

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslog "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	als "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	httpstatus "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// gateway is the environment of an Envoy in a test: the server under test, and stand-ins for the
// parts of Sluice that Envoy calls.
type gateway struct {
	*envoyProcess
	server *Server
	config Config
	addr   string
	log    logReceiver
	// observed is what the observer reported.
	observed observations
	alter    func(*Resources)
	// client sends the requests of the test.
	client *http.Client
	// stop ends the servers behind Envoy's control cluster, as a crash of Sluice does.
	stop func()

	mu sync.Mutex
	// fleet is the fleet that the server was given last. Guarded by mu.
	fleet map[string]*engines.ModelSnapshot
	// current was built from fleet. Guarded by mu.
	current *Resources
	// acks are the replicas that OnAck was called with, by cluster. Guarded by mu.
	acks map[string]map[string]netip.AddrPort
	// waiting are the channels to close when OnAck is called with these replicas. Guarded by mu.
	waiting map[string]chan struct{}
}

// newGateway starts an Envoy that Sluice configures. alter may change the result of Build. nil
// changes nothing.
func newGateway(t testing.TB, c Config, alter func(*Resources)) *gateway {
	t.Helper()
	return newGatewayIn(t, shortDir(t), c, alter)
}

func newGatewayIn(t testing.TB, dir string, c Config, alter func(*Resources)) *gateway {
	t.Helper()
	g := &gateway{
		config: c, alter: alter, client: &http.Client{Transport: &http.Transport{}},
		fleet: map[string]*engines.ModelSnapshot{}, acks: map[string]map[string]netip.AddrPort{}, waiting: map[string]chan struct{}{},
	}
	g.server = NewServer(ServerConfig{OnAck: g.onAck, Linger: time.Millisecond})
	t.Cleanup(g.client.CloseIdleConnections)
	g.update(t)
	g.stop = serveControl(t, dir, g)
	serveAPI(t, dir)
	g.envoyProcess = startEnvoy(t, dir)
	g.addr = g.address(t)
	return g
}

// serveControl runs the servers behind Envoy's control cluster until the test ends or stop is
// called.
func serveControl(t testing.TB, dir string, g *gateway) (stop func()) {
	t.Helper()
	control := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	g.server.Register(control)
	extproc.RegisterExternalProcessorServer(control, processorStandIn{observed: &g.observed})
	auth.RegisterAuthorizationServer(control, authzStandIn{real: authorizerOf(t)})
	als.RegisterAccessLogServiceServer(control, &g.log)
	l := listenUnix(t, dir, "control.sock")
	done := make(chan error, 1)
	go func() { done <- control.Serve(l) }()
	stop = sync.OnceFunc(func() {
		control.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func serveAPI(t testing.TB, dir string) {
	t.Helper()
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if r.Header.Get("x-test-drop") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("x-test-priority", strings.Join(r.Header.Values(headers.Priority), " + "))
		w.Header().Set("x-test-read", strconv.Itoa(len(b)))
		fmt.Fprintf(w, "%s %s tenant=%s", r.Method, r.URL.Path, r.Header.Get(headers.Tenant))
	})}
	l := listenUnix(t, dir, "api.sock")
	go api.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { api.Close() })
}

// set changes the replicas of a model. Without replicas, it removes the model.
func (g *gateway) set(t testing.TB, model string, replicas ...engines.Replica) {
	t.Helper()
	g.mu.Lock()
	g.fleet[model] = &engines.ModelSnapshot{Model: engines.Model{Name: model}, Replicas: replicas}
	g.mu.Unlock()
	g.update(t)
}

func (g *gateway) update(t testing.TB) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	next, err := g.current.Rebuild(g.config, &engines.Snapshot{Models: maps.Clone(g.fleet)})
	if err != nil {
		t.Fatal(err)
	}
	if g.alter != nil {
		g.alter(next)
	}
	g.current = next
	g.server.Set(next)
}

// settle changes the replicas of a model and waits until Envoy has acknowledged them.
func (g *gateway) settle(t testing.TB, model string, replicas ...engines.Replica) {
	t.Helper()
	ids := make([]string, len(replicas))
	for i, r := range replicas {
		ids[i] = r.ID
	}
	done := g.acked(model, ids)
	g.set(t, model, replicas...)
	g.await(t, done, fmt.Sprintf("Envoy knows %v of %s", ids, model))
}

func (g *gateway) await(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(testTimeout):
		t.Fatalf("waited in vain until %s; status %+v", what, g.server.Status())
	}
}

// acked returns a channel that is closed when OnAck was called with exactly these replicas of the
// model.
func (g *gateway) acked(model string, ids []string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	done := make(chan struct{})
	key := model + "=" + strings.Join(slices.Sorted(slices.Values(ids)), ",")
	if _, calls := g.acks[headers.ModelCluster(model)]; calls && g.knownLocked(model) == key {
		close(done)
	} else {
		g.waiting[key] = done
	}
	return done
}

func (g *gateway) onAck(cluster string, replicas map[string]netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.acks[cluster] = replicas
	model, _ := headers.ClusterModel(cluster)
	key := g.knownLocked(model)
	if done, ok := g.waiting[key]; ok {
		close(done)
		delete(g.waiting, key)
	}
}

// knownLocked returns what OnAck was called with for all clusters of a model, "model=id,id".
func (g *gateway) knownLocked(model string) string {
	var ids []string
	for cluster, replicas := range g.acks {
		if of, _ := headers.ClusterModel(cluster); of == model {
			ids = slices.AppendSeq(ids, maps.Keys(replicas))
		}
	}
	slices.Sort(ids)
	return model + "=" + strings.Join(ids, ",")
}

// processorStandIn decides as the x-test headers of the request say. x-test-cluster and x-test-list
// route the request. Without them the request stays undecided. x-test-answer is a status to answer
// with.
type processorStandIn struct {
	extproc.UnimplementedExternalProcessorServer
	observed *observations
}

func (p processorStandIn) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	if role := metadata.ValueFromIncomingContext(stream.Context(), headers.Role); slices.Equal(role, []string{headers.RoleObserver}) {
		return p.observed.take(stream)
	}
	asked := map[string]string{}
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) || grpcstatus.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		var out *extproc.ProcessingResponse
		switch m := in.Request.(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			for _, h := range m.RequestHeaders.Headers.Headers {
				asked[h.Key] = string(h.RawValue)
			}
			if forged := internalAmong(asked); forged != "" {
				return grpcstatus.Error(codes.Internal, "a client's "+forged+" came through")
			}
			if asked["x-test-fail"] != "" {
				return grpcstatus.Error(codes.Unavailable, "asked to fail")
			}
			if asked["x-test-hang"] != "" {
				<-stream.Context().Done()
				return nil
			}
			out = onHeaders(asked, m.RequestHeaders.EndOfStream)
		case *extproc.ProcessingRequest_RequestBody:
			out = &extproc.ProcessingResponse{
				Response:        &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: decision(asked)}},
				DynamicMetadata: testMetadata(asked),
			}
		case *extproc.ProcessingRequest_ResponseTrailers:
			out = &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{
				ResponseTrailers: &extproc.TrailersResponse{},
			}}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// internalAmong finds a header that only Sluice may set, in any spelling that some server treats as
// the same name.
func internalAmong(asked map[string]string) string {
	for name := range asked {
		if slices.Contains(headers.Internal(), strings.ReplaceAll(name, "_", "-")) {
			return name
		}
	}
	return ""
}

func onHeaders(asked map[string]string, whole bool) *extproc.ProcessingResponse {
	if answer := asked["x-test-answer"]; answer != "" {
		// Without a number, code is 0, which means 200.
		code, _ := strconv.Atoi(answer)
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extproc.ImmediateResponse{
				Status: &httpstatus.HttpStatus{Code: httpstatus.StatusCode(code)}, //nolint:gosec // a status
				Body:   []byte("sluice says " + answer), Details: asked["x-test-details"],
				Headers: &extproc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{
					{Header: &core.HeaderValue{Key: "content-type", RawValue: []byte("application/json")}},
				}},
			},
		}}
	}
	response := &extproc.CommonResponse{}
	if whole {
		response = decision(asked)
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extproc.HeadersResponse{Response: response},
	}}
}

func decision(asked map[string]string) *extproc.CommonResponse {
	mutation := &extproc.HeaderMutation{}
	kind := routes.Decided{Relay: asked["x-test-ticket"] != "", Stream: asked["x-test-stream"] != "",
		ClientTimeout: asked["x-test-own-timeout"] != ""}
	if kind.Relay || asked["x-test-cluster"] != "" {
		asked["x-test-route"] = kind.Key()
	}
	for from, to := range map[string]string{
		"x-test-route":   headers.Route,
		"x-test-cluster": headers.Cluster, "x-test-list": headers.Endpoint,
		"x-test-timeout": "x-envoy-upstream-rq-timeout-ms", "x-test-retries": "x-envoy-max-retries", "x-test-path": ":path", "x-test-method": ":method", "x-test-authority": ":authority", "x-test-ticket": headers.Handoff,
		"x-test-observe": headers.Observe, "x-test-usage": headers.Usage, "x-test-try-timeout": "x-envoy-upstream-rq-per-try-timeout-ms",
	} {
		if v := asked[from]; v != "" {
			mutation.SetHeaders = append(mutation.SetHeaders, &core.HeaderValueOption{
				Header:       &core.HeaderValue{Key: to, RawValue: []byte(v)},
				AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			})
		}
	}
	return &extproc.CommonResponse{HeaderMutation: mutation, ClearRouteCache: true}
}

// testMetadata returns the dynamic metadata that the headers x-test-tenant and x-test-note-* ask
// for.
func testMetadata(asked map[string]string) *structpb.Struct {
	fields := map[string]*structpb.Value{}
	if tenant := asked["x-test-tenant"]; tenant != "" {
		fields[headers.MetadataTenant] = structpb.NewStringValue(tenant)
	}
	for name, value := range asked {
		if note, ok := strings.CutPrefix(name, "x-test-note-"); ok {
			fields[note] = structpb.NewStringValue(value)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}

// logReceiver stores the access log.
type logReceiver struct {
	als.UnimplementedAccessLogServiceServer

	mu sync.Mutex
	// entries are the entries by the name of the log. Guarded by mu.
	entries map[string][]*accesslog.HTTPAccessLogEntry
}

func (l *logReceiver) StreamAccessLogs(stream als.AccessLogService_StreamAccessLogsServer) error {
	name := ""
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // Envoy has gone
		}
		if in.Identifier != nil {
			name = in.Identifier.LogName
		}
		l.mu.Lock()
		if l.entries == nil {
			l.entries = map[string][]*accesslog.HTTPAccessLogEntry{}
		}
		l.entries[name] = append(l.entries[name], in.GetHttpLogs().GetLogEntry()...)
		l.mu.Unlock()
	}
}

// of returns the entries of one request.
func (l *logReceiver) of(name, requestID string) []*accesslog.HTTPAccessLogEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*accesslog.HTTPAccessLogEntry
	for _, e := range l.entries[name] {
		if e.GetRequest().GetRequestId() == requestID {
			found = append(found, e)
		}
	}
	return found
}

// wait returns the request's entry in the log of finished requests.
func (l *logReceiver) wait(t testing.TB, requestID string) *accesslog.HTTPAccessLogEntry {
	t.Helper()
	var found []*accesslog.HTTPAccessLogEntry
	eventually(t, "the request is in the log", func() bool {
		found = l.of(headers.LogRequests, requestID)
		return len(found) > 0
	})
	return found[0]
}

func replica(id string, address net.Addr) engines.Replica {
	return engines.Replica{ID: id, State: engines.Ready, Address: address.(*net.TCPAddr).AddrPort()}
}
