package join

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// wrongTokenPause is what each wrong token costs, one after another: it also bounds how fast they fill the log.
	wrongTokenPause = time.Second
	// wrongTokens is how many may wait for their answer at once; more are turned away.
	wrongTokens = 16
	// streamsPerConnection: a node has one, and one call beside it.
	streamsPerConnection = 8
)

// ServerConfig says what the gateway's side works with. Dir and Fleet are needed.
type ServerConfig struct {
	// Dir is where the authority, the token and the list of known nodes are kept. It is made where there is none.
	Dir string
	// Fleet gets each node's replicas under the source "node/<name>".
	Fleet *engines.Fleet
	// InFlight tells how many requests a replica has; nil: nobody knows, and none are waited for.
	InFlight func(replicaID string) int
	// LostAfter is the silence after which a node counts as lost; 0 means 5 s. A node says something five times in that time.
	LostAfter time.Duration
	// DrainTimeout is how long replicas may take to finish their requests when the gateway stops; 0 means 30 s.
	DrainTimeout time.Duration
	// DrainSettle is how long those who pick replicas may take to follow the fleet; 0 means 1 s.
	DrainSettle time.Duration
	// Changed is called when a node has joined, is lost, has come back, or has something else to give than before. It must not block. nil: nobody
	// asks.
	Changed func()
	// Labels are what the file says of a node; nil: none.
	Labels func(node string) []string
	// Log may be nil: silent.
	Log *zap.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Labels == nil {
		c.Labels = func(string) []string { return nil }
	}
	if c.InFlight == nil {
		c.InFlight = func(string) int { return 0 }
	}
	orStandard(&c.LostAfter, lostAfter)
	orStandard(&c.DrainTimeout, drainTimeout)
	orStandard(&c.DrainSettle, time.Second)
	return c
}

// Server is the gateway's side. Its methods may be called from different goroutines.
type Server struct {
	config    ServerConfig
	authority *authority
	face      *face
	// wrong has a place for each wrong token that waits for its answer; pausing is held by the one whose second runs.
	wrong, pausing chan struct{}

	mu sync.Mutex
	// hosts by name; guarded by mu
	hosts map[string]*Host
	// changed is closed when a host has changed, and replaced; guarded by mu
	changed chan struct{}
	// ended: Serve has returned, and no host can be told anything; guarded by mu
	ended bool

	// saving is held while the list of nodes is written.
	saving sync.Mutex
	// loops are the streams' own, which end soon after their streams.
	loops sync.WaitGroup
}

// NewServer reads what is kept in Dir, and makes what is missing. It starts nothing.
func NewServer(c ServerConfig) (*Server, error) {
	c = c.withDefaults()
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	ca, err := openAuthority(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	s := &Server{config: c, authority: ca, face: &face{authority: ca}, hosts: map[string]*Host{}, changed: make(chan struct{}),
		wrong: make(chan struct{}, wrongTokens), pausing: make(chan struct{}, 1)}
	if err := s.readNodes(); err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	return s, nil
}

// Serve lets nodes in until ctx ends, and then returns nil. What the fleet knows of them stays. It closes the listener, and is called once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(s.face.config())), grpc.ForceServerCodec(codec{}), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(largestReport), grpc.MaxSendMsgSize(largestOrder),
		grpc.MaxConcurrentStreams(streamsPerConnection), grpc.MaxHeaderListSize(16<<10), grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: keepAliveTimeout, MaxConnectionIdle: time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAlive / 2}),
	)
	server.RegisterService(description(), s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, h := range s.Hosts() {
		h.expect()
	}
	var beside sync.WaitGroup
	beside.Go(func() { s.watch(ctx) })
	beside.Go(func() { <-ctx.Done(); server.Stop() })
	err := server.Serve(l)
	cancel()
	beside.Wait()
	s.loops.Wait()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.tell()
	if errors.Is(err, grpc.ErrServerStopped) {
		err = nil
	}
	return err
}

// watch finds the nodes that have fallen silent.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(max(s.config.LostAfter/20, time.Millisecond))
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := time.Now()
			s.look(last, now)
			last = now
		}
	}
}

// look finds out who is lost. When we did not look for long ourselves, because we were stopped or had no processor, nobody is: who spoke
// meanwhile was not heard, and may have broken the connection off.
func (s *Server) look(last, now time.Time) {
	absent := now.Sub(last) >= s.config.LostAfter/2
	for _, h := range s.Hosts() {
		if absent {
			h.expect()
		} else {
			h.look(now)
		}
	}
}

// Hosts are the nodes that have ever joined, in earlier runs too, by name. A node has the same Host as long as the Server lives.
func (s *Server) Hosts() []*Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := make([]*Host, 0, len(s.hosts))
	for _, h := range s.hosts {
		hosts = append(hosts, h)
	}
	slices.SortFunc(hosts, func(a, b *Host) int { return strings.Compare(a.name, b.name) })
	return hosts
}

// host finds a node, or makes it known.
func (s *Server) host(name string) *Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[name]
	if !ok {
		h = newHost(s, name)
		s.hosts[name] = h
	}
	return h
}

// tell wakes those who wait for hosts.
func (s *Server) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await returns when the condition holds, which is looked at again whenever a host changes, or when ctx ends.
func (s *Server) await(ctx context.Context, condition func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if condition() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Await returns when every node known from before has said which replicas it has, or is lost, or when ctx ends. Serve must be running.
func (s *Server) Await(ctx context.Context) {
	hosts := s.Hosts()
	_ = s.await(ctx, func() bool {
		return !slices.ContainsFunc(hosts, func(h *Host) bool { return !h.settled() })
	})
}

// Stop has every connected node end its replicas, whatever Set says from then on, and returns when they are gone. The error names the
// nodes that still have some when ctx ends, or once Serve has ended: then they have no gateway, and end their replicas by themselves later.
func (s *Server) Stop(ctx context.Context) error {
	hosts := s.Hosts()
	for _, h := range hosts {
		h.stop(s.config.DrainTimeout)
	}
	_ = s.await(ctx, func() bool { return len(occupied(hosts)) == 0 || s.hasEnded() })
	left := occupied(hosts)
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("nodes that still have replicas: %s", strings.Join(left, ", "))
}

func (s *Server) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// occupied names the connected nodes that have replicas.
func occupied(hosts []*Host) []string {
	var names []string
	for _, h := range hosts {
		if h.occupied() {
			names = append(names, h.name)
		}
	}
	return names
}

// join implements nodes.
func (s *Server) join(ctx context.Context, r *joinRequest) (*certificates, error) {
	if !rightSecret(s.config.Dir, r.Secret) {
		return nil, s.refuseToken(ctx)
	}
	name, key, err := parseRequest(r.Request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.host(name).take(key); err != nil {
		return nil, err
	}
	if err := s.saveNodes(); err != nil {
		s.config.Log.Error("the list of nodes is not saved", zap.Error(err))
	}
	s.config.Log.Info("a node has joined", zap.String("node", name), zap.String("from", address(ctx)))
	return s.certify(name, key)
}

// renew implements nodes.
func (s *Server) renew(ctx context.Context, r *renewRequest) (*certificates, error) {
	caller, held, ok := caller(ctx)
	name, key, err := parseRequest(r.Request)
	switch {
	case !ok:
		return nil, errNoCertificate()
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case name != caller || !key.Equal(held):
		return nil, status.Error(codes.PermissionDenied, "a node can renew its own certificate only, with the same key")
	}
	if err := s.host(name).holds(key); err != nil {
		return nil, err
	}
	return s.certify(name, key)
}

func (s *Server) certify(name string, key *ecdsa.PublicKey) (*certificates, error) {
	der, err := s.authority.signNode(name, key)
	if err != nil {
		s.config.Log.Error("no certificate for a node", zap.String("node", name), zap.Error(err))
		return nil, status.Error(codes.Internal, "the gateway could not make a certificate; its log says why")
	}
	return &certificates{Node: der, Authority: s.authority.certificate.Raw}, nil
}

// refuseToken takes its time. Who has the right token does not wait behind those who guess.
func (s *Server) refuseToken(ctx context.Context) error {
	select {
	case s.wrong <- struct{}{}:
		defer func() { <-s.wrong }()
	default:
		return status.Error(codes.ResourceExhausted, "too many wrong tokens at once")
	}
	select {
	case s.pausing <- struct{}{}:
		defer func() { <-s.pausing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.config.Log.Warn("somebody wants to join with a wrong token", zap.String("from", address(ctx)))
	select {
	case <-time.After(wrongTokenPause):
	case <-ctx.Done():
	}
	return status.Error(codes.Unauthenticated, "the token is wrong: the gateway prints the right one by `sluice node token`")
}

func errNoCertificate() error {
	return status.Error(codes.Unauthenticated, "a node's certificate is needed: join first")
}

// isDistant tells whether a call comes from another host.
func isDistant(ctx context.Context) bool {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return false
	}
	from, ok := p.Addr.(*net.TCPAddr)
	to, okTo := p.LocalAddr.(*net.TCPAddr)
	return ok && okTo && !from.IP.IsLoopback() && !from.IP.Equal(to.IP)
}

// address is where a call comes from.
func address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
