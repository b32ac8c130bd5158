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
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/routes"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// sockets are the gateway's own listeners and the servers on them. Envoy uses control, api, relay
// and grpc, which are unix sockets in the state directory. Operators use admin.
type sockets struct {
	control, api, relay, grpc, admin net.Listener
	// health is nil without the field health of the file.
	health net.Listener

	controlServer, grpcServer *grpc.Server
	relayServer               *http1.Server
	apiServer, adminServer    *http.Server
	healthServer              *http.Server
}

// listen opens all listeners and makes their servers. serve starts the servers.
func (g *Gateway) listen() (*sockets, error) {
	var s sockets
	var err error
	if s.admin, err = net.Listen("tcp", g.options.Config.Admin); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	if address := g.options.Config.Health; address != "" {
		if s.health, err = net.Listen("tcp", address); err != nil {
			return nil, errors.Join(fmt.Errorf("health: %w", err), s.close())
		}
	}
	for _, socket := range []struct {
		listener *net.Listener
		path     string
	}{
		{&s.control, bootstrap(g.dir).ControlSocket}, {&s.api, bootstrap(g.dir).APISocket},
		{&s.relay, relaySocket(g.dir)}, {&s.grpc, grpcSocket(g.dir)},
	} {
		if *socket.listener, err = listenUnix(socket.path); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	s.controlServer = g.controlServer()
	s.grpcServer = grpc.NewServer(grpc.MaxRecvMsgSize(int(g.options.Config.MaxBody) + messageOverhead))
	g.streams.grpc.Register(s.grpcServer)
	s.relayServer = g.relayServer()
	s.apiServer = &http.Server{
		Handler:           api.New(api.Config{Fleet: g.fleet, Allowed: g.allowed, Created: g.started, Pools: g.poolNames, Tasks: tasks{g.dispatcher, g.auth}}),
		ReadHeaderTimeout: time.Minute,
	}
	c := g.adminConfig()
	s.adminServer = &http.Server{Handler: admin.New(c), ReadHeaderTimeout: 10 * time.Second}
	c.Listen = g.options.Config.Health
	s.healthServer = &http.Server{Handler: admin.NewHealth(c), ReadHeaderTimeout: 10 * time.Second}
	return &s, nil
}

// listenUnix listens on a socket of the state directory, in the place of one that an earlier run
// left. This process holds the directory's claim, so no other process listens there.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

// Sizes of the control connection in bytes. A request body crosses it in one message.
const (
	messageOverhead = 1 << 20 // headers and framing around the largest body
	window          = 1 << 20
)

// controlServer answers everything that Envoy asks: xDS, ext_proc, ext_authz, the access log.
func (g *Gateway) controlServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(int(g.options.Config.MaxBody)+messageOverhead),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window*8),
	)
	g.envoy.server.Register(s)
	g.decisions.Register(s)
	if g.guard != nil {
		g.guard.Register(s)
	}
	(&authz.Server{Authenticator: g.auth, MaxHeaders: headerLimits(g.options.Config)}).Register(s)
	(&telemetry.AccessLog{OnEntry: g.observe}).Register(s)
	return s
}

// relayIdle is how long a connection from Envoy to the relay may be idle. Envoy closes it sooner.
const relayIdle = 2 * time.Minute

// relayServer serves the managed streams and the WebSockets that Envoy forwards. It does not bound
// their duration: the relay does, by the model's stream.max_duration.
func (g *Gateway) relayServer() *http1.Server {
	// A ServeMux would clean the path, and a request id in a path may have any form.
	isRealtime := func(r *http.Request) bool { return r.URL.Path == routes.RealtimePath }
	streams := g.streams.relay.Handler()
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isRealtime(r) {
			g.streams.realtime.ServeHTTP(w, r)
			return
		}
		streams.ServeHTTP(w, r)
	})
	return &http1.Server{
		Handler: streams, Own: func(r *http.Request) bool { return !isRealtime(r) },
		Other:             &http.Server{Handler: all, ReadHeaderTimeout: time.Minute},
		ReadHeaderTimeout: time.Minute, IdleTimeout: relayIdle, Log: g.log,
	}
}

// allowed reports whether a tenant may use a model.
func (g *Gateway) allowed(tenant, model string) bool {
	t, ok := g.auth.Tenant(tenant)
	return ok && t.Allows(model)
}

// serve runs all servers in group until ctx ends.
func (s *sockets) serve(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return serveGRPC(s.controlServer, s.control) })
	group.Go(func() error { return serveGRPC(s.grpcServer, s.grpc) })
	group.Go(func() error { return serveHTTP(s.relayServer, s.relay) })
	group.Go(func() error { return serveHTTP(s.apiServer, s.api) })
	group.Go(func() error { return serveHTTP(s.adminServer, s.admin) })
	if s.health != nil {
		group.Go(func() error { return serveHTTP(s.healthServer, s.health) })
	}
	group.Go(func() error {
		<-ctx.Done()
		s.controlServer.Stop()
		s.grpcServer.Stop()
		return errors.Join(s.apiServer.Close(), s.relayServer.Close(), s.adminServer.Close(), s.healthServer.Close())
	})
}

// serveGRPC serves until the server is stopped, which is no error.
func serveGRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// serveHTTP serves until the server is closed, which is no error.
func serveHTTP(s interface{ Serve(net.Listener) error }, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// shutdown gives the last bytes to clients of managed streams patience to reach Envoy. What has not
// left by then is cut.
func (s *sockets) shutdown(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.relayServer.Shutdown(ctx) // its error says that patience was too short
}

// close closes the listeners that are open.
func (s *sockets) close() error {
	var failed []error
	for _, l := range []net.Listener{s.control, s.api, s.relay, s.grpc, s.admin, s.health} {
		if l != nil {
			failed = append(failed, l.Close())
		}
	}
	return errors.Join(failed...)
}
