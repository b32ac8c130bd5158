package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/control"
	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/xds"
)

// remoteSocket is the listener of Envoys of other hosts, with the servers that only they use. The
// gRPC servers of sockets serve both kinds of Envoys.
type remoteSocket struct {
	*control.Listener
	// address is that of the configuration.
	address    string
	api, relay *httpSocket
}

// listenElsewhere opens the listener of Envoys of other hosts, or uses that of a predecessor. It
// returns nil if the configuration has none.
func (g *Gateway) listenElsewhere(inherited map[string]net.Listener, api, relay http.Handler) (*remoteSocket, error) {
	c := g.options.Config.Control
	if c.Listen == "" {
		return nil, nil
	}
	tcp, err := listenTCP("control.listen", c.Listen, inherited)
	if err != nil {
		return nil, err
	}
	l, err := control.New(tcp, controlFiles(c), g.log)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	return &remoteSocket{Listener: l, address: c.Listen,
		api:   newHTTPSocket(l.Service(headers.ALPNAPI), api, time.Minute),
		relay: newHTTPSocket(l.Service(headers.ALPNRelay), relay, time.Minute),
	}, nil
}

// controlFiles returns the files of the listener of Envoys of other hosts.
func controlFiles(c config.Control) control.Files {
	return control.Files{Files: certificates.Files{Cert: c.Cert, Key: c.Key, CA: c.ClientCA}, Allowed: c.Allowed}
}

// serveElsewhere runs the servers for Envoys of other hosts in the scope until it ends.
func (s *sockets) serveElsewhere(in *scope) {
	if s.remote == nil {
		return
	}
	in.Go(s.remote.Run)
	in.Go(func() error { return serve(s.controlServer, s.remote.Service(headers.ALPNControl)) })
	in.Go(func() error { return serve(s.grpcServer, s.remote.Service(headers.ALPNGRPC)) })
}

// http lists the servers that are net/http's.
func (r *remoteSocket) http() []*httpSocket {
	if r == nil {
		return nil
	}
	return []*httpSocket{r.api, r.relay}
}

// retire ends accepting, because a successor has the same listener. It returns when no connection
// is on its way to a server. Connections stay: to close an idle one could cut off a request that
// Envoy is sending on it.
func (r *remoteSocket) retire() {
	if r != nil {
		r.StopAccepting()
	}
}

// connected reports whether an Envoy has a connection on which it may still send a request.
func (r *remoteSocket) connected() bool {
	return r != nil && r.api.connections.Load()+r.relay.connections.Load() > 0
}

// leaveTime is how long Envoys of other hosts have to go to another gateway.
const leaveTime = 2 * time.Second

// leaveEnvoys sends the Envoys of other hosts to another gateway and waits until their requests
// here have ended, or the time is over, or ctx ends. It returns the time that is left. It does
// nothing if the gateway runs an Envoy, whose clients have no other one.
func (g *Gateway) leaveEnvoys(ctx context.Context, timeout time.Duration) time.Duration {
	if g.sockets.remote == nil || g.envoy.process != nil {
		return timeout
	}
	began := time.Now()
	g.envoy.server.Retire()
	awaitQuiet(ctx, timeout, func() bool {
		return g.streams.relay.Carries() || g.decisions.Busy() || time.Since(began) < leaveTime
	})
	return max(0, timeout-time.Since(began))
}

// awaitEnvoys waits until the requests of Envoys that someone else runs have ended, or the time is
// over, or ctx ends. It does nothing if the gateway runs an Envoy, whose stop waits for them.
func (g *Gateway) awaitEnvoys(ctx context.Context, timeout time.Duration) {
	if g.envoy.process != nil {
		return
	}
	holds := func(p carry.Predecessor) bool { return p.Requests > 0 }
	awaitQuiet(ctx, timeout, func() bool {
		return g.streams.relay.Carries() || g.streams.realtime.Busy() || g.decisions.Busy() ||
			slices.ContainsFunc(g.carried.Predecessors(), holds)
	})
}

// awaitQuiet waits until busy returns false, or the time is over, or ctx ends.
func awaitQuiet(ctx context.Context, timeout time.Duration, busy func() bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	awaitUntil(ctx, busyInterval, func() bool { return !busy() })
}

// envoysElsewhere returns what Envoys of other hosts are told about the gateways.
func (e *envoyLink) envoysElsewhere() xds.Elsewhere {
	c := e.first.Control
	if c.Listen == "" {
		return xds.Elsewhere{}
	}
	gateways := ""
	if known := e.gateways.Load(); known != nil {
		gateways = *known
	}
	return xds.Elsewhere{Gateways: gateways, ServerName: c.ServerName, Advertise: c.Advertise}
}

// resolveInterval is how often the names of the gateways are looked up.
const resolveInterval = 5 * time.Second

// followGateways tells Envoys of other hosts of every change of the addresses of the gateways,
// until ctx ends.
func (e *envoyLink) followGateways(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(resolveInterval):
		}
		if e.resolveGateways(ctx) {
			if err := e.push(); err != nil {
				e.log.Error("Envoys were not told of the gateways", zap.Error(err))
			}
		}
	}
}

// resolveGateways looks the gateways up and reports whether there are others than before. When a
// name cannot be resolved, nothing changes.
func (e *envoyLink) resolveGateways(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, resolveInterval)
	defer cancel()
	var all []string
	for _, address := range e.first.Control.Addresses {
		host, port, err := net.SplitHostPort(address)
		if err != nil { // the check of the configuration has refused such an address
			continue
		}
		found, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			e.log.Warn("address of the gateways not resolved", zap.String("address", address), zap.Error(err))
			return false
		}
		for _, ip := range found {
			all = append(all, net.JoinHostPort(ip, port))
		}
	}
	slices.Sort(all)
	now := strings.Join(slices.Compact(all), ",")
	before := e.gateways.Swap(&now)
	return before == nil || *before != now
}

// BootstrapElsewhere returns the files that an Envoy of another host starts with.
func BootstrapElsewhere(c *config.Config, e envoy.ElsewhereConfig) (envoy.ElsewhereFiles, error) {
	e.Addresses, e.ServerName = c.Control.Addresses, c.Control.ServerName
	return envoy.BootstrapElsewhere(e)
}

// pings lets Envoys of other hosts look each second whether the gateway is still there.
func pings() keepalive.EnforcementPolicy {
	return keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}
}

// hasLeft reports whether the Envoy of a stream is configured by another gateway.
func (e *envoyLink) hasLeft(stream context.Context) bool {
	address, _, ok := elsewhere.Peer(stream)
	if !ok {
		return false
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && e.server.HasLeft(host)
}
