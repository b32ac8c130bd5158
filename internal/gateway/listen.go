package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/http1/server"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// sockets are Sluice's own listeners: control and api for Envoy, relay and llm for streams that Envoy brings, admin for the operator.
type sockets struct {
	control, api, relay, llm, admin net.Listener

	grpc, llmServer        *grpc.Server
	relayServer            *h1server.Server
	apiServer, adminServer *http.Server
}

func (g *gateway) listen() (*sockets, error) {
	var s sockets
	var err error
	if s.admin, err = net.Listen("tcp", g.settings.Config.Admin); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if s.control, err = listenUnix(bootstrap(g.dir).ControlSocket); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.api, err = listenUnix(bootstrap(g.dir).APISocket); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.relay, err = listenUnix(relaySocket(g.dir)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.llm, err = listenUnix(grpcSocket(g.dir)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.grpc = g.controlServer()
	s.llmServer = grpc.NewServer(grpc.MaxRecvMsgSize(int(g.settings.Config.MaxBody) + messageOverhead))
	g.llm.Register(s.llmServer)
	s.relayServer = g.relayServer()
	s.apiServer = &http.Server{Handler: api.New(api.Config{Fleet: g.fleet, Allowed: g.allowed, Created: g.started,
		Pools: g.pools, Tasks: tasks{g.dispatcher, g.auth}}),
		ReadHeaderTimeout: time.Minute}
	s.adminServer = &http.Server{Handler: admin.New(g.operator()), ReadHeaderTimeout: 10 * time.Second}
	return &s, nil
}

// listenUnix takes the place of a socket that an earlier life left. The state directory is claimed, so nobody else listens there.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// Buffers of the control connection. Bodies come over it whole.
const (
	messageOverhead = 1 << 20 // headers and framing around the largest body
	window          = 1 << 20
)

// controlServer speaks everything that Envoy asks of Sluice.
func (g *gateway) controlServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(int(g.settings.Config.MaxBody)+messageOverhead),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window*8),
	)
	g.xds.Register(s)
	g.decisions.Register(s)
	(&authz.Server{Authenticator: g.auth}).Register(s)
	(&telemetry.AccessLog{OnEntry: observer{
		record:    telemetry.Record(g.requests, g.metrics, telemetry.NewRequestLog(g.log, g.settings.Config.LogRequests).Finished, g.tracer.Native),
		decisions: g.decisions, upstreams: g.upstream,
		replicas: g.local, dispatcher: g.dispatcher, since: g.started,
	}.observe}).Register(s)
	return s
}

// relayIdle is how long Envoy's connections to the relay may be idle. Envoy closes them sooner.
const relayIdle = 2 * time.Minute

// relayServer answers what Envoy brings of streams: WebSockets, and all others by the lean server. It bounds nothing in time: streams are as long as
// they are.
func (g *gateway) relayServer() *h1server.Server {
	realtime := func(r *http.Request) bool { return r.URL.Path == realtimePath } // a ServeMux would tidy request ids in paths
	relay := g.relay.Handler()
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if realtime(r) {
			g.realtime.ServeHTTP(w, r)
			return
		}
		relay.ServeHTTP(w, r)
	})
	return &h1server.Server{
		Handler: relay, Lean: func(r *http.Request) bool { return !realtime(r) },
		Other: &http.Server{Handler: all, ReadHeaderTimeout: time.Minute}, ReadHeaderTimeout: time.Minute, IdleTimeout: relayIdle, Log: g.log,
	}
}

const realtimePath = "/v1/realtime"

func (g *gateway) allowed(tenant, model string) bool {
	t, ok := g.auth.Tenant(tenant)
	return ok && t.Allows(model)
}

// serve serves until ctx ends.
func (s *sockets) serve(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return serveGRPC(s.grpc, s.control) })
	group.Go(func() error { return serveGRPC(s.llmServer, s.llm) })
	group.Go(func() error { return serveHTTP(s.relayServer, s.relay) })
	group.Go(func() error { return serveHTTP(s.apiServer, s.api) })
	group.Go(func() error { return serveHTTP(s.adminServer, s.admin) })
	group.Go(func() error {
		<-ctx.Done()
		s.grpc.Stop()
		s.llmServer.Stop()
		return errors.Join(s.apiServer.Close(), s.relayServer.Close(), s.adminServer.Close())
	})
}

func serveGRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// lastWords lets what clients were told reach Envoy.
func (s *sockets) lastWords(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.relayServer.Shutdown(ctx) // what is not through by then is cut
}

func serveHTTP(s interface{ Serve(net.Listener) error }, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *sockets) close() error {
	var all []error
	for _, l := range []net.Listener{s.control, s.api, s.relay, s.llm, s.admin} {
		if l != nil {
			all = append(all, l.Close())
		}
	}
	return errors.Join(all...)
}
