package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/extproc"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/frames"
	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/routes"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// sockets are the gateway's own listeners and the servers on them. Envoy uses control, api, relay,
// grpc and filter, which are unix sockets in the state directory. Operators use admin. Earlier
// processes of this gateway use kin, and carried is the way to this process once it is such a
// process.
type sockets struct {
	control, relay, grpc, filter net.Listener
	api, admin                   *httpSocket
	// health is nil without the field health of the file.
	health       *httpSocket
	kin, carried *httpSocket
	// remote is for Envoys of other hosts. It is nil without control.listen.
	remote *remoteSocket

	filterServer *frames.Server
	// controlServer has Envoy's streams. What it does not know itself goes to restServer.
	controlServer          *grpcserver.Server
	restServer, grpcServer *grpc.Server
	relayServer            *http1.Server
	// events are ended before admin is closed.
	events *admin.Events
	// grpcDone is closed when the last gRPC call of a retired process has ended.
	grpcDone chan struct{}
}

type httpSocket struct {
	listener net.Listener
	// address is that of the configuration; empty for a unix socket.
	address string
	server  *http.Server
	gate    *gate
	// connections is the number of open connections.
	connections atomic.Int64
}

func newHTTPSocket(l net.Listener, h http.Handler, headerTimeout time.Duration) *httpSocket {
	s := &httpSocket{listener: l, gate: &gate{handler: h}}
	s.server = &http.Server{Handler: s.gate, ReadHeaderTimeout: headerTimeout, ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.connections.Add(-1)
		}
	}}
	return s
}

// listen opens the listeners for Envoy and operators and makes their servers. inherited are the
// listeners of a predecessor by their addresses; nil: there are none. The unix sockets come last,
// because they take the paths of the predecessor. serve starts the servers.
func (g *Gateway) listen(inherited map[string]net.Listener) (*sockets, error) {
	s := sockets{events: g.events}
	var err error
	c := g.adminConfig()
	if s.admin, err = listenOperators("admin", c.Listen, admin.New(c), inherited); err != nil {
		return nil, err
	}
	if c.Listen = g.options.Config.Health; c.Listen != "" {
		if s.health, err = listenOperators("health", c.Listen, admin.NewHealth(c), inherited); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	models := api.New(api.Config{
		Fleet: g.fleet, Allowed: g.allowed, Created: g.started, Pools: g.poolModels, Tasks: tasks{g.dispatcher, g.auth}, Requests: g.requests,
	})
	if s.remote, err = g.listenElsewhere(inherited, models, g.relayHandler()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	for _, socket := range []struct {
		socket  **httpSocket
		path    string
		handler http.Handler
	}{
		{&s.carried, carriedSocket(g.dir, g.instance), carry.Handler(g.streams.relay.Owns, g.requests, g.streams.relay.Handler(), g.streams.calls)},
		{&s.kin, kinSocket(g.dir), carry.KinHandler(g.isValidKey, g.streams.calls)},
		{&s.api, bootstrap(g.dir).APISocket, models},
	} {
		l, err := listenUnix(socket.path)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		*socket.socket = newHTTPSocket(l, socket.handler, time.Minute)
	}
	for _, socket := range []struct {
		listener *net.Listener
		path     string
	}{
		{&s.relay, relaySocket(g.dir)}, {&s.grpc, grpcSocket(g.dir)}, {&s.filter, filterSocket(g.dir)}, {&s.control, bootstrap(g.dir).ControlSocket},
	} {
		if *socket.listener, err = listenUnix(socket.path); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	s.restServer, s.filterServer = g.restServer(), g.filter.server
	s.controlServer = g.controlServer(s.restServer)
	s.grpcServer = grpc.NewServer(grpc.MaxRecvMsgSize(int(g.options.Config.MaxBody)+messageOverhead), grpc.KeepaliveEnforcementPolicy(pings()),
		grpc.Creds(envoyCredentials{insecure.NewCredentials()}))
	g.streams.grpc.Register(s.grpcServer)
	s.relayServer, s.grpcDone = g.relayServer(), make(chan struct{})
	return &s, nil
}

// listenTCP listens on an address, or uses the listener of a predecessor there. field names the
// address in the file.
func listenTCP(field, address string, inherited map[string]net.Listener) (net.Listener, error) {
	if l := inherited[address]; l != nil {
		return l, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, explainListen(field, err)
	}
	return l, nil
}

// listenOperators makes the socket of a listener for operators.
func listenOperators(name, address string, h http.Handler, inherited map[string]net.Listener) (*httpSocket, error) {
	l, err := listenTCP(name, address, inherited)
	if err != nil {
		return nil, err
	}
	s := newHTTPSocket(l, h, 10*time.Second)
	s.address = address
	return s, nil
}

// explainListen adds to the error of a listener what to do. field names the address in the file.
func explainListen(field string, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%s: %w: `ss -ltnp` shows the program that listens there; end it, or set %s to another port", field, err, field)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s: %w: set %s to an address of this machine", field, err, field)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w: set %s to a port from 1024, or allow the gateway's user lower ones", field, err, field)
	default:
		return fmt.Errorf("%s: %w", field, err)
	}
}

// listenUnix listens on a socket of the state directory. It takes the path of a process that has
// listened there before in one step, so that there is always one that listens. The connections of
// that process stay.
func listenUnix(path string) (net.Listener, error) {
	temporary := path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: temporary})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path may belong to a successor by then
	if err := os.Rename(temporary, path); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(temporary))
	}
	return l, nil
}

// Sockets between the processes of a gateway.

// carrySocket is where the newest process counts what its predecessors hold.
func carrySocket(dir *process.Dir) string { return dir.Socket("carry.sock") }

// kinSocket is where the newest process carries calls of its predecessors.
func kinSocket(dir *process.Dir) string { return dir.Socket("kin.sock") }

// carriedSocket is where one process answers for the streams that it carries.
func carriedSocket(dir *process.Dir, instance string) string {
	return dir.Socket("carried-" + instance + ".sock")
}

// removeCarriedSockets removes the carriedSocket of each process that was killed. Processes that
// still carry streams accept connections at theirs. A socket that cannot be removed stays.
func removeCarriedSockets(dir *process.Dir) {
	folder, pattern := filepath.Split(carriedSocket(dir, "*"))
	entries, _ := os.ReadDir(folder) // the next start tries again
	for _, e := range entries {
		if ours, _ := filepath.Match(pattern, e.Name()); !ours {
			continue
		}
		path := filepath.Join(folder, e.Name())
		c, err := net.Dial("unix", path)
		switch {
		case err == nil:
			_ = c.Close() // nothing was sent
		case errors.Is(err, syscall.ECONNREFUSED):
			_ = os.Remove(path) // the next start tries again
		}
	}
}

// messageOverhead is the size of headers and framing around the largest body, in bytes. A request
// body crosses the control connection in one message.
const messageOverhead = 1 << 20

// controlServer answers everything that Envoy asks: ext_proc and the access log, which each request
// needs, and the rest.
func (g *Gateway) controlServer(rest *grpc.Server) *grpcserver.Server {
	return &grpcserver.Server{
		Methods:    map[string]grpcserver.Method{extproc.Method: g.decisions.Open, telemetry.AccessLogMethod: g.accessLog.Open},
		Other:      rest,
		MaxMessage: int(g.options.Config.MaxBody) + messageOverhead,
		Log:        g.log,
	}
}

// restServer answers what not each request needs: xDS, ext_authz, the guard of connections.
// controlServer has the connections.
func (g *Gateway) restServer() *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(int(g.options.Config.MaxBody) + messageOverhead))
	g.envoy.server.Register(s)
	if g.guard != nil {
		g.guard.Register(s)
	}
	(&authz.Server{Authenticator: g.auth, MaxHeaders: headerLimits(g.options.Config)}).Register(s)
	return s
}

// relayIdle is how long a connection from Envoy to the relay may be idle. Envoy closes it sooner.
const relayIdle = 2 * time.Minute

// relayServer serves the managed streams and the WebSockets that Envoy forwards. It does not bound
// their duration: the relay does, by the model's stream.max_duration.
func (g *Gateway) relayServer() *http1.Server {
	return &http1.Server{
		Handler: g.streams.relay.Handler(), Own: func(r *http.Request) bool { return !isRealtime(r) },
		Other:             &http.Server{Handler: g.relayHandler(), ReadHeaderTimeout: time.Minute},
		ReadHeaderTimeout: time.Minute, IdleTimeout: relayIdle, Log: g.log,
	}
}

// isRealtime reports whether a request is for the WebSocket.
func isRealtime(r *http.Request) bool { return r.URL.Path == routes.RealtimePath }

// relayHandler serves the managed streams and the WebSockets.
func (g *Gateway) relayHandler() http.Handler {
	// A ServeMux would clean the path, and a request id in a path may have any form.
	streams := g.streams.relay.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isRealtime(r) {
			streams.ServeHTTP(w, r)
			return
		}
		if g.succession.relay.Load() == nil || !g.elsewhere(w, r) {
			g.streams.realtime.ServeHTTP(w, r)
		}
	})
}

// allowed returns what reports whether a caller may use a model. The caller is a tenant and the
// digest of its key.
func (g *Gateway) allowed(tenant, key string) func(model string) bool {
	t, ok := g.auth.Caller(tenant, key)
	return func(model string) bool { return ok && t.Allows(model) }
}

// mayUse reports whether a caller may use the model that a request has named, maybe by an alias.
func (g *Gateway) mayUse(tenant, key, model string) bool {
	allowed := g.allowed(tenant, key)
	m, ok := g.fleet.Snapshot().Resolve(model)
	return allowed(model) || ok && allowed(m.PermittedAs(model))
}

// serve runs all servers in the scope until it ends.
func (s *sockets) serve(in *scope) {
	in.Go(func() error { return serve(s.controlServer, s.control) })
	in.Go(func() error { return s.filterServer.Serve(s.filter) })
	in.Go(func() error { return serve(s.grpcServer, s.grpc) })
	in.Go(func() error { return serve(s.relayServer, s.relay) })
	s.serveElsewhere(in)
	for _, h := range s.http() {
		in.Go(func() error { return serve(h.server, h.listener) })
	}
	in.Go(func() error {
		<-in.ctx.Done()
		s.stop()
		return nil
	})
}

// http lists the open sockets that have a net/http server.
func (s *sockets) http() []*httpSocket {
	all := append([]*httpSocket{s.api, s.admin, s.health, s.kin, s.carried}, s.remote.http()...)
	return slices.DeleteFunc(all, func(h *httpSocket) bool { return h == nil })
}

// serve serves until the server is stopped or its listener is closed, which is no error.
func serve(s interface{ Serve(net.Listener) error }, l net.Listener) error {
	err := s.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// lastEvent is how long the clients of /api/v1/events have for the last event.
const lastEvent = time.Second

// lastResponse is how long the relay has to write the rest of responses when it stops.
const lastResponse = time.Second

// adminPatience is how long requests of operators may take after a hand-over.
const adminPatience = 5 * time.Second

// hold holds the requests that change what a successor is about to read, until the gates move.
func (s *sockets) hold() {
	s.api.gate.hold()
	s.admin.gate.hold()
	if s.remote != nil {
		s.remote.api.gate.hold()
	}
}

// retire ends accepting, because a successor listens at the same paths. Envoy is told to open new
// connections; those that it has are served until it closes them. Only the way of the successor to
// this process stays open.
func (s *sockets) retire() {
	go func() {
		s.remote.retire() // a server that stops closes the connections that come to it
		s.controlServer.Drain()
		s.grpcServer.GracefulStop()
		close(s.grpcDone)
	}()
	s.relayServer.StopAccepting()
	s.api.listener.Close()
	s.kin.listener.Close()
	go s.events.End(adminPatience) // the clients come back, and find the successor
	for _, operators := range s.operators() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), adminPatience)
			defer cancel()
			_ = operators.server.Shutdown(ctx) // what takes longer is closed by stop
		}()
	}
}

// operators lists the sockets for operators, which have TCP addresses.
func (s *sockets) operators() []*httpSocket {
	if s.health == nil {
		return []*httpSocket{s.admin}
	}
	return []*httpSocket{s.admin, s.health}
}

// busy reports whether a call of gRPC runs after retire.
func (s *sockets) busy() bool {
	select {
	case <-s.grpcDone:
		return false
	default:
		return true
	}
}

// connected reports whether Envoy has a connection on which it may still send a request.
func (s *sockets) connected() bool {
	return s.relayServer.Connections() > 0 || s.api.connections.Load() > 0 || s.remote.connected()
}

// stop ends the events and the responses of the relay, and closes everything.
func (s *sockets) stop() {
	s.events.End(lastEvent)
	s.controlServer.Stop()
	s.restServer.Stop()
	s.filter.Close()
	s.filterServer.Stop()
	s.grpcServer.Stop()
	s.stopRelay()
	if s.remote != nil {
		_ = s.remote.Close()
	}
	for _, h := range s.http() {
		_ = h.server.Close()
	}
}

// stopRelay closes the relay's connections. A handler that has just ended may have the end of its
// response still to be written, which Envoy takes for cut otherwise.
func (s *sockets) stopRelay() {
	ctx, cancel := context.WithTimeout(context.Background(), lastResponse)
	defer cancel()
	if s.relayServer.Shutdown(ctx) != nil {
		_ = s.relayServer.Close() // there is nothing to do about a connection that does not close
	}
}

// shared is a listener that a successor goes on with.
type shared struct {
	// address is that of the configuration.
	address  string
	listener net.Listener
}

// shared lists the listeners that have TCP addresses.
func (s *sockets) shared() []shared {
	var all []shared
	for _, h := range s.operators() {
		all = append(all, shared{h.address, h.listener})
	}
	if s.remote != nil {
		all = append(all, shared{s.remote.address, s.remote.TCP()})
	}
	return all
}

// sharedFiles returns copies of the listeners for a successor. The caller closes them.
func (s *sockets) sharedFiles() ([]*os.File, error) {
	var files []*os.File
	for _, one := range s.shared() {
		l, ok := one.listener.(*net.TCPListener)
		if !ok {
			return nil, errors.Join(fmt.Errorf("the listener at %s is not TCP", one.address), closeFiles(files))
		}
		file, err := copyOf(l)
		if err != nil {
			return nil, errors.Join(err, closeFiles(files))
		}
		files = append(files, file)
	}
	return files, nil
}

// copyOf returns a copy of a listener for a child process. The file that TCPListener.File returns
// would not do. exec makes it block, and with it the listener itself. Accept and Close of the
// listener then wait for a connection that the child may have accepted.
func copyOf(l *net.TCPListener) (*os.File, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	if err := raw.Control(func(original uintptr) { fd, failed = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	return os.NewFile(uintptr(fd), l.Addr().String()), nil
}

func closeFiles(files []*os.File) error {
	var failed []error
	for _, f := range files {
		failed = append(failed, f.Close())
	}
	return errors.Join(failed...)
}

// close closes the listeners that are open.
func (s *sockets) close() error {
	var failed []error
	for _, l := range []net.Listener{s.control, s.relay, s.grpc, s.filter} {
		if l != nil {
			failed = append(failed, l.Close())
		}
	}
	for _, h := range s.http() {
		failed = append(failed, h.listener.Close())
	}
	if s.remote != nil {
		failed = append(failed, s.remote.Close())
	}
	return errors.Join(failed...)
}
