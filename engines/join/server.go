package join

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// wrongTokenPause is how long a wrong token is delayed. Wrong tokens are delayed one after
	// another, which limits guessing and the size of the log.
	wrongTokenPause = time.Second
	// maxWrongTokens limits how many wrong tokens are delayed at the same time. The server rejects
	// further ones at once.
	maxWrongTokens = 16
	// streamsPerConnection limits concurrent calls. A node needs one stream, one unary call, and a
	// stream for each log.
	streamsPerConnection = 8 + maxLogs
)

// ServerConfig is the configuration of a Server. Dir and Fleet are required.
type ServerConfig struct {
	// Dir is the folder of the authority, the tokens and the records of nodes. It is created if it
	// is missing.
	Dir string
	// Fleet gets the replicas of each node under the source "node/<name>".
	Fleet *engines.Fleet
	// InFlight returns how many requests the replica of this id at this address has. A node that
	// was lost may report an id that another node has by then. Nil means that replicas never wait
	// for requests.
	InFlight func(replicaID string, address netip.AddrPort) int
	// LostAfter is the silence after which a node is lost. 0 means 5 s. A node sends five
	// heartbeats in this time.
	LostAfter time.Duration
	// MessageTimeout is how long a call may take to send its first message. 0 means 10 s.
	MessageTimeout time.Duration
	// DrainTimeout is how long replicas may take to finish their requests when the gateway stops. 0
	// means 30 s.
	DrainTimeout time.Duration
	// DrainSettle is how long the users of the fleet may take to apply a change. 0 means 1 s.
	DrainSettle time.Duration
	// Changed is called when a node connects, is lost, or reports another inventory. It must not
	// block. Nil means no call.
	Changed func()
	// Labels returns the labels of a node from the configuration file. Nil means no labels.
	Labels func(node string) []string
	// Addresses returns the addresses at which replicas of a node may listen, besides the one that
	// the node connects from. Nil means no others.
	Addresses func(node string) []netip.Prefix
	// OwnName returns the name of the gateway's own node, by which no machine may join. Nil means
	// that there is none.
	OwnName func() string
	// Log receives the server's log. Nil means no log.
	Log *zap.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Changed == nil {
		c.Changed = func() {}
	}
	if c.Labels == nil {
		c.Labels = func(string) []string { return nil }
	}
	if c.InFlight == nil {
		c.InFlight = func(string, netip.AddrPort) int { return 0 }
	}
	if c.Addresses == nil {
		c.Addresses = func(string) []netip.Prefix { return nil }
	}
	if c.OwnName == nil {
		c.OwnName = func() string { return "" }
	}
	setDefault(&c.LostAfter, lostAfter)
	setDefault(&c.MessageTimeout, callTimeout)
	setDefault(&c.DrainTimeout, drainTimeout)
	setDefault(&c.DrainSettle, time.Second)
	return c
}

// Server accepts nodes that join a gateway. Its methods may be called from different goroutines.
type Server struct {
	config            ServerConfig
	authority         *authority
	serverCertificate *serverCertificate
	// rejectSlots holds a token for each wrong join token that is being delayed. rejectLock is held
	// by the one whose delay is running.
	rejectSlots, rejectLock chan struct{}

	mu sync.Mutex
	// nodes holds the nodes by name. Guarded by mu.
	nodes map[string]*Node
	// absent holds the records of nodes that have not been seen for long, by name. Guarded by mu.
	absent map[string]nodeRecord
	// changed is closed and replaced when a node has changed. Guarded by mu.
	changed chan struct{}
	// stopped is true once Serve has returned, so that no node can be reached. Guarded by mu.
	stopped bool

	// unsaved tells keepSaved that an assignment has changed. Its capacity is 1.
	unsaved chan struct{}
	// tokenMu is held while a token is redeemed, so that two machines cannot use the same.
	tokenMu sync.Mutex
	// saveMu is held while the records of nodes are written.
	saveMu sync.Mutex
	// saveFailed says that the records could not be written the last time.
	saveFailed atomic.Bool
	// streamLoops counts the goroutines of streams, which may outlive their RPC for a moment.
	streamLoops sync.WaitGroup
}

// NewServer reads the files in ServerConfig.Dir and creates the missing ones. It starts nothing.
func NewServer(c ServerConfig) (*Server, error) {
	c = c.withDefaults()
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of nodes: %w", err)
	}
	ca, err := openAuthority(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("authority of nodes: %w", err)
	}
	s := &Server{config: c, authority: ca, serverCertificate: &serverCertificate{authority: ca},
		nodes: map[string]*Node{}, absent: map[string]nodeRecord{}, changed: make(chan struct{}), unsaved: make(chan struct{}, 1),
		rejectSlots: make(chan struct{}, maxWrongTokens), rejectLock: make(chan struct{}, 1)}
	if err := s.readNodes(); err != nil {
		return nil, fmt.Errorf("records of nodes: %w", err)
	}
	return s, nil
}

// Serve accepts nodes until ctx ends, and then returns nil. The nodes' replicas stay in the fleet.
// Serve closes the listener. Only StopAt calls it again.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(guardedCredentials{credentials.NewTLS(s.serverCertificate.tlsConfig())}), grpc.ForceServerCodec(codec{}), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(maxReportBytes), grpc.MaxSendMsgSize(maxOrderBytes),
		grpc.MaxConcurrentStreams(streamsPerConnection), grpc.MaxHeaderListSize(16<<10), grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAliveInterval, Timeout: keepAliveTimeout, MaxConnectionIdle: time.Minute}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAliveInterval / 2}),
	)
	server.RegisterService(serviceDesc(), s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range s.Nodes() {
		n.restartSilence()
	}
	var beside sync.WaitGroup
	beside.Go(func() { s.watchSilence(ctx) })
	beside.Go(func() { s.keepSaved(ctx) })
	beside.Go(func() { <-ctx.Done(); server.Stop() })
	err := server.Serve(newGuardedListener(l))
	cancel()
	beside.Wait()
	s.streamLoops.Wait()
	s.trySaveNodes()
	s.setStopped(true)
	s.notify()
	if errors.Is(err, grpc.ErrServerStopped) {
		err = nil
	}
	return err
}

// watchSilence calls checkSilence periodically until ctx ends.
func (s *Server) watchSilence(ctx context.Context) {
	tick := time.NewTicker(max(s.config.LostAfter/20, time.Millisecond))
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := time.Now()
			s.checkSilence(last, now)
			last = now
		}
	}
}

// checkSilence marks silent nodes as lost. If this process itself was paused for long, no node is
// marked: reports may have arrived meanwhile that the process could not read.
func (s *Server) checkSilence(last, now time.Time) {
	absent := now.Sub(last) >= s.config.LostAfter/2
	for _, n := range s.Nodes() {
		if absent {
			n.restartSilence()
		} else {
			n.checkSilence(now)
		}
	}
}

// Nodes returns all nodes that have joined, also in earlier runs, sorted by name. A node keeps its
// *Node as long as the Server lives.
func (s *Server) Nodes() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.nodes), func(a, b *Node) int { return strings.Compare(a.name, b.name) })
}

// nodeByName returns the node of this name, and adds it if it is missing.
func (s *Server) nodeByName(name string) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[name]
	if !ok {
		n = newNode(s, name)
		n.key, n.lastSeen = s.absent[name].Key, s.absent[name].LastSeen
		delete(s.absent, name)
		s.nodes[name] = n
	}
	return n
}

// notify wakes the goroutines in waitFor.
func (s *Server) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// waitFor returns nil once condition is true, or the error of ctx. It evaluates condition at each
// change of a node.
func (s *Server) waitFor(ctx context.Context, condition func() bool) error {
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

// Await returns when every node of an earlier run has reported its replicas or is lost, or when ctx
// ends. Serve must be running.
func (s *Server) Await(ctx context.Context) {
	nodes := s.Nodes()
	_ = s.waitFor(ctx, func() bool {
		return !slices.ContainsFunc(nodes, func(n *Node) bool { return !n.hasReported() })
	})
}

// Stop makes every connected node drain its replicas, and returns when no replicas are left. From
// then on Node.Set has no effect. The error names the nodes that still have replicas when ctx ends
// or when Serve has returned. Such nodes stop their replicas after their OrphanGrace.
func (s *Server) Stop(ctx context.Context) error {
	nodes := s.Nodes()
	for _, n := range nodes {
		n.stop(s.config.DrainTimeout)
	}
	_ = s.waitFor(ctx, func() bool { return len(namesWithReplicas(nodes)) == 0 || s.HasStopped() })
	left := namesWithReplicas(nodes)
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("nodes still have replicas: %s", strings.Join(left, ", "))
}

// StopAt is Stop after Serve has returned. It serves l until no replicas are left or ctx ends,
// because the gateway can tell only nodes that connect. It closes l.
func (s *Server) StopAt(ctx context.Context, l net.Listener) error {
	s.setStopped(false)
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving, l) }()
	err := s.Stop(ctx)
	cancel()
	return errors.Join(err, <-served)
}

// HasStopped reports whether Serve has returned.
func (s *Server) HasStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

func (s *Server) setStopped(stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = stopped
}

func namesWithReplicas(nodes []*Node) []string {
	var names []string
	for _, n := range nodes {
		if n.mayHaveReplicas() {
			names = append(names, n.name)
		}
	}
	return names
}

// join implements the RPC Join.
func (s *Server) join(ctx context.Context, r *joinRequest) (*certificates, error) {
	if _, ok := readToken(s.config.Dir, r.Secret, time.Now()); !ok {
		return nil, s.rejectToken(ctx)
	}
	name, key, err := parseSigningRequest(r.Request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.checkOwnName(name); err != nil {
		return nil, err
	}
	token, err := s.redeem(r.Secret, name, keyHash(key))
	if err != nil {
		return nil, err
	}
	if err := s.nodeByName(name).claimName(key, token.Replace); err != nil {
		return nil, err
	}
	if s.trySaveNodes() && token.Replace {
		s.endReplace(r.Secret, name)
	}
	s.config.Log.Info("node joined", zap.String("node", name), zap.String("from", peerAddress(ctx)))
	return s.certify(name, key)
}

// redeem marks a token as used by the machine with this key. It fails if the token is for another
// name, if another machine has used it, or if the mark cannot be stored.
func (s *Server) redeem(secret, name, key string) (tokenRecord, error) {
	s.tokenMu.Lock()
	defer s.tokenMu.Unlock()
	r, ok := readToken(s.config.Dir, secret, time.Now())
	switch {
	case !ok:
		return r, errWrongToken()
	case r.Node != name:
		return r, status.Errorf(codes.Unauthenticated,
			"the token is for the name %q: start the node with --name %s, or make a token with `sluice node token %s`", r.Node, r.Node, name)
	case r.UsedBy != "" && r.UsedBy != key:
		return r, status.Errorf(codes.Unauthenticated,
			"another machine has used this token: make a new one with `sluice node token --replace %s`", name)
	case r.UsedBy == key:
		return r, nil
	}
	r.UsedBy = key
	if err := r.save(s.config.Dir, secret); err != nil {
		s.config.Log.Error("use of a join token not stored", zap.String("node", name), zap.Error(err))
		return r, status.Error(codes.Internal, "the gateway could not store that the token was used: see its log")
	}
	return r, nil
}

// endReplace marks that a token has replaced a machine, so that it replaces no other one. Else two
// machines with used tokens would take the name from each other without end.
func (s *Server) endReplace(secret, name string) {
	s.tokenMu.Lock()
	defer s.tokenMu.Unlock()
	r, ok := readToken(s.config.Dir, secret, time.Now())
	if !ok {
		return
	}
	r.Replace = false
	if err := r.save(s.config.Dir, secret); err != nil {
		s.config.Log.Error("end of a replacement by a join token not stored", zap.String("node", name), zap.Error(err))
	}
}

// checkOwnName returns an error if the name is that of the gateway's own node.
func (s *Server) checkOwnName(name string) error {
	if own := s.config.OwnName(); own != "" && name == own {
		return status.Errorf(codes.Unauthenticated,
			"%q is the name of the gateway's own node: start this node with another --name", name)
	}
	return nil
}

// renew implements the RPC Renew.
func (s *Server) renew(ctx context.Context, r *renewRequest) (*certificates, error) {
	caller, held, ok := caller(ctx)
	name, key, err := parseSigningRequest(r.Request)
	switch {
	case !ok:
		return nil, errNoCertificate()
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case name != caller || !key.Equal(held):
		return nil, status.Error(codes.PermissionDenied,
			"the request is for another name or key: a node can renew only its own certificate")
	}
	if err := s.nodeByName(name).checkKey(key); err != nil {
		return nil, err
	}
	return s.certify(name, key)
}

func (s *Server) certify(name string, key *ecdsa.PublicKey) (*certificates, error) {
	der, err := s.authority.signNode(name, key)
	if err != nil {
		s.config.Log.Error("certificate not signed", zap.String("node", name), zap.Error(err))
		return nil, status.Error(codes.Internal, "the gateway could not sign a certificate: see its log")
	}
	return &certificates{Node: der, Authority: s.authority.certificate.Raw}, nil
}

// rejectToken returns the error for a wrong token after a delay. Nodes with the right token never
// wait behind wrong ones.
func (s *Server) rejectToken(ctx context.Context) error {
	select {
	case s.rejectSlots <- struct{}{}:
		defer func() { <-s.rejectSlots }()
	default:
		return status.Error(codes.ResourceExhausted, "too many wrong tokens at once: try again later")
	}
	select {
	case s.rejectLock <- struct{}{}:
		defer func() { <-s.rejectLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.config.Log.Warn("join token rejected", zap.String("from", peerAddress(ctx)))
	select {
	case <-time.After(wrongTokenPause):
	case <-ctx.Done():
	}
	return errWrongToken()
}

func errWrongToken() error {
	return status.Error(codes.Unauthenticated,
		"the token is wrong or has expired: `sluice node token NAME` makes one at the gateway")
}

// Republish shows the replicas of all nodes again, because Addresses may return others than before.
func (s *Server) Republish() {
	for _, n := range s.Nodes() {
		n.republish()
	}
}

func errNoCertificate() error {
	return status.Error(codes.Unauthenticated, "the call needs a node's certificate: join first")
}

// isRemote reports whether a call comes from another machine.
func isRemote(ctx context.Context) bool {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return false
	}
	from, ok := p.Addr.(*net.TCPAddr)
	to, okTo := p.LocalAddr.(*net.TCPAddr)
	return ok && okTo && !from.IP.IsLoopback() && !from.IP.Equal(to.IP)
}

// peerIP returns the IP address that a call comes from. It is the zero Addr if it is unknown.
func peerIP(ctx context.Context) netip.Addr {
	address, err := netip.ParseAddrPort(peerAddress(ctx))
	if err != nil {
		return netip.Addr{}
	}
	return address.Addr().Unmap().WithZone("")
}

// peerAddress returns the IP address and port that a call comes from.
func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
