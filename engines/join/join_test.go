package join

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/engines"
)

// gpus is the inventory of a machine with one GPU.
type gpus struct{}

func (gpus) Read() (engines.Node, error) {
	return engines.Node{Name: "its own name", CPUs: 8, Memory: 1 << 30, GPUs: []engines.GPU{{UUID: "GPU-1", Name: "H100"}}}, nil
}

func TestJoin(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("gpu-2", "127.0.0.1", nodeDir(t))
	a := plan.run(t, func(c *AgentConfig) { c.Inventory = gpus{} })
	node, ok := g.waitConnected("gpu-2").Node()
	if !ok || node.Name != "gpu-2" || node.CPUs != 8 || len(node.GPUs) != 1 || node.GPUs[0].UUID != "GPU-1" || node.Labels[0] != "label-of-gpu-2" {
		t.Errorf("Node() = %+v, %v", node, ok)
	}
	if !hasLogged(g.logs, "node joined") {
		t.Error("the gateway does not log that a node joined")
	}
	for _, path := range []string{
		filepath.Join(g.config.Dir, "ca.pem"), tokenPath(g.config.Dir, a.token.secret), filepath.Join(g.config.Dir, "nodes.json"), a.store.identityPath(),
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %v, %v, want mode 0600", path, info, err)
		}
	}
	// A node with a certificate needs no token to reconnect, even after a restart of the gateway.
	a.stop()
	g.stop()
	g.start()
	if nodes := g.server.Nodes(); len(nodes) != 1 || nodes[0].Name() != "gpu-2" {
		t.Errorf("the gateway knows %v after a restart", nodes)
	}
	plan.Token = ""
	plan.run(t, nil)
	g.waitConnected("gpu-2")
}

func TestWrongToken(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	hash, secret, _ := strings.Cut(plan.Token, ".")
	plan.Token = hash + "." + strings.Repeat("A", len(secret))
	a := plan.run(t, nil)
	if err := a.waitEnd(t); err == nil || !strings.Contains(err.Error(), "the token is wrong") {
		t.Errorf("Run = %v", err)
	}
	if !hasLogged(g.logs, "127.0.0.1:") || hasLogged(g.logs, secret) || hasLogged(g.logs, "AAAA") {
		t.Errorf("the gateway's log lacks the rejected token: %v", g.logs.All())
	}
	if nodes := g.server.Nodes(); len(nodes) != 0 {
		t.Errorf("the gateway knows the rejected node: %v", nodes)
	}
}

func TestTokenRemoved(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	if err := os.RemoveAll(tokensPath(g.config.Dir)); err != nil {
		t.Fatal(err)
	}
	if _, ok := readToken(g.config.Dir, "", time.Now()); ok {
		t.Error("an empty secret is valid after the token was removed")
	}
	old := plan.run(t, nil)
	if err := old.waitEnd(t); err == nil {
		t.Error("a removed token was accepted")
	}
	old.stop()
	plan.Token = g.token("n")
	plan.run(t, nil)
	g.waitConnected("n")
}

func TestAnotherGateway(t *testing.T) {
	t.Parallel()
	g, other := newGateway(t, time.Minute), newGateway(t, time.Minute)
	dir := nodeDir(t)
	plan := g.agentPlan("n", "127.0.0.1", dir)
	plan.Gateway = other.address
	a := plan.run(t, nil)
	eventually(t, "the node logs the reason", func() bool { return hasLogged(a.logs, "the token is another gateway's") })
	a.stop()
	// A node that has joined one gateway rejects the other, too.
	plan.Gateway = g.address
	a = plan.run(t, nil)
	g.waitConnected("n")
	a.stop()
	plan.Gateway, plan.Token = other.address, ""
	a = plan.run(t, nil)
	eventually(t, "the node logs the reason", func() bool { return hasLogged(a.logs, errWrongGateway.Error()) })
	a.stop()
	if nodes := other.server.Nodes(); len(nodes) != 0 {
		t.Errorf("the other gateway knows %v", nodes)
	}
	// With the other gateway's token the node joins the other gateway.
	plan.Token = other.token("n")
	plan.run(t, nil)
	other.waitConnected("n")
}

// replaceCertificate gives the agent a certificate with this validity.
func replaceCertificate(t *testing.T, g *gateway, a *agent, begin, end time.Time) {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "n"}, URIs: []*url.URL{{Scheme: "sluice", Opaque: "node/n"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: begin, NotAfter: end}
	ca := g.server.authority
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, a.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.store.saveIdentity(&certificates{Node: der, Authority: ca.certificate.Raw}, a.key); err != nil {
		t.Fatal(err)
	}
}

func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	g := newGateway(t, 200*time.Millisecond)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	a := plan.run(t, nil)
	g.waitConnected("n")
	a.stop()
	replaceCertificate(t, g, a, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	// The gateway rejects an expired certificate.
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.Unavailable {
		t.Errorf("the gateway answers an expired certificate with %v", err)
	}
	// The node logs the reason.
	plan.Token = ""
	a = plan.run(t, nil)
	eventually(t, "the node logs the reason", func() bool { return hasLogged(a.logs, "its certificate was valid until") })
	a.stop()
	// The clock of a node may be far behind after a boot. Its certificate is good then.
	replaceCertificate(t, g, a, time.Now().Add(time.Hour), time.Now().Add(2*time.Hour))
	a = plan.run(t, nil)
	eventually(t, "the node logs the reason", func() bool { return hasLogged(a.logs, "the clock of this machine is behind") })
	a.stop()
	// The node joins again with a token.
	plan.Token = g.token("n")
	plan.run(t, nil)
	g.waitConnected("n")
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	a := plan.run(t, nil)
	g.waitConnected("n")
	a.stop()
	soon := time.Now().Add(time.Hour)
	replaceCertificate(t, g, a, time.Now().Add(-time.Hour*24), soon)
	plan.Token = ""
	a = plan.run(t, nil)
	eventually(t, "the certificate is renewed", func() bool {
		i, err := a.store.identity()
		return err == nil && i.certificate.NotAfter.After(soon) && i.key.Equal(a.key)
	})
	g.waitConnected("n")
}

// A full disk keeps a node from storing its renewed certificate. The node goes on with the old one
// and renews it later.
func TestRenewalThatCannotBeStored(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("n")
	a.stop()
	old, room := a.identity, a.store
	conn, err := a.dial(identityTLS(old))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a.store = agentStore{filepath.Join(t.TempDir(), "no", "room")} // no file can be written here
	a.renew(t.Context(), conn, old)
	if !hasLogged(a.logs, "certificate not renewed") || a.identity != old {
		t.Errorf("the node does not go on with its certificate: %v", a.logs.All())
	}
	a.store = room
	a.renew(t.Context(), conn, old)
	if !hasLogged(a.logs, "certificate renewed") || a.identity == old {
		t.Errorf("the node does not renew its certificate later: %v", a.logs.All())
	}
}

// A name belongs to the machine that has joined by it, connected or not, until a token that
// replaces the machine is used.
func TestX9_NameBelongsToItsMachine(t *testing.T) {
	t.Parallel()
	g := newGateway(t, 200*time.Millisecond)
	first := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("n")
	if _, err := Token(g.config.Dir, TokenRequest{Node: "n"}); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a token for a name that is taken: %v", err)
	}
	// A token that was made before the first machine joined, or stolen from it, does not help.
	late := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	late.Token = g.tokenFor(tokenRecord{Node: "n", Expires: time.Now().Add(time.Hour)})
	second := late.run(t, nil)
	eventually(t, "the second node logs the conflict", func() bool { return hasLogged(second.logs, "another machine has joined as") })
	if n := g.server.Nodes()[0]; !n.hasReported() {
		t.Error("the first node is no longer connected")
	}
	// Nor does the silence of the first machine.
	first.stop()
	eventually(t, "the first node is lost", func() bool { node, ok := g.server.Nodes()[0].Node(); return ok && node.Lost })
	tries := len(second.logs.All())
	eventually(t, "the second node tries again", func() bool { return len(second.logs.All()) > tries+1 })
	g.stop()
	g.start()
	tries = len(second.logs.All())
	eventually(t, "the second node tries after a restart of the gateway", func() bool { return len(second.logs.All()) > tries+1 })
	if node, ok := g.server.Nodes()[0].Node(); ok && !node.Lost {
		t.Errorf("the second machine has taken the name: %+v", node)
	}
	second.stop()
	late.Token = g.token("n")
	late.run(t, nil)
	g.waitConnected("n")
	// The first machine's certificate is then rejected.
	i, err := first.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the gateway answers the first machine with %v", err)
	}
}

// A token replaces a machine once. A machine that was itself replaced cannot take the name back by
// the token that it has used.
func TestX9_TokenReplacesOnce(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	first := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	n := g.waitConnected("n")
	second := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	eventually(t, "the second node has the name", func() bool { return n.checkKey(&second.key.PublicKey) == nil })
	first.stop()
	first.setIdentity(nil)
	if _, err := first.ensureIdentity(t.Context()); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the first machine uses its token again: %v", err)
	}
	second.setIdentity(nil)
	if _, err := second.ensureIdentity(t.Context()); err != nil {
		t.Errorf("the second machine, whose answer was lost, uses its token again: %v", err)
	}
}

// A gateway that ended before it had stored the new owner of a name replaces the machine at the
// next use of the token.
func TestX9_ReplacementIsRepeatedUntilStored(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	first := g.agentPlan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.waitConnected("n")
	first.stop()
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	dir := claimDir(t, plan.Dir)
	defer dir.Release()
	second, err := NewAgent(plan.config(dir))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseToken(plan.Token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.server.redeem(parsed.secret, "n", keyHash(&second.key.PublicKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.ensureIdentity(t.Context()); err != nil {
		t.Errorf("the second use of a token whose first use was not finished: %v", err)
	}
}

// A token is good for one machine, one name and some time.
func TestX9_TokensAreBound(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	plan.run(t, nil)
	g.waitConnected("n")
	soon := time.Now().Add(time.Hour)
	for name, c := range map[string]struct{ node, token, want string }{
		"used":           {"n", plan.Token, "another machine has used this token"},
		"another name":   {"m", g.token("o"), `the token is for the name "o"`},
		"expired":        {"m", g.tokenFor(tokenRecord{Node: "m", Expires: time.Now().Add(-time.Second)}), "wrong or has expired"},
		"the own node's": {"own", g.tokenFor(tokenRecord{Node: "own", Expires: soon}), "the name of the gateway's own node"},
	} {
		p := agentPlan{Gateway: g.address, Token: c.token, Name: c.node, Address: "127.0.0.1", Dir: nodeDir(t)}
		if err := p.run(t, nil).waitEnd(t); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Run = %v, want %q", name, err, c.want)
		}
	}
	if nodes := g.server.Nodes(); len(nodes) != 1 {
		t.Errorf("the gateway knows %d nodes, want one", len(nodes))
	}
	// The answer to a machine may be lost, so it may use its token again.
	again := g.agentPlan("p", "127.0.0.1", nodeDir(t))
	a := again.run(t, nil)
	g.waitConnected("p")
	a.setIdentity(nil)
	if _, err := a.ensureIdentity(t.Context()); err != nil {
		t.Errorf("the same machine uses its token again: %v", err)
	}
	if _, err := Token(g.config.Dir, TokenRequest{Node: "a/b"}); err == nil {
		t.Error("a token for a name that no node can have")
	}
	g.token("q")
	if left, _ := filepath.Glob(filepath.Join(tokensPath(g.config.Dir), "*.json")); len(left) != 5 {
		t.Errorf("%d tokens are stored, want those of n, o, own, p and q: the expired one is removed", len(left))
	}
}

// tokenFor stores a token with this record.
func (g *gateway) tokenFor(r tokenRecord) string {
	g.t.Helper()
	authority := sha256.Sum256(g.server.authority.certificate.Raw)
	secret := base64.RawURLEncoding.EncodeToString([]byte(rand.Text() + rand.Text())[:secretBytes])
	if err := r.save(g.config.Dir, secret); err != nil {
		g.t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(authority[:]) + "." + secret
}

// joinedIdentity returns the identity of the node "n", which has joined and was stopped.
func (g *gateway) joinedIdentity() *identity {
	g.t.Helper()
	a := g.agentPlan("n", "127.0.0.1", nodeDir(g.t)).run(g.t, nil)
	g.waitConnected("n")
	a.stop()
	i, err := a.store.identity()
	if err != nil {
		g.t.Fatal(err)
	}
	return i
}

func TestNewerStreamWins(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	i := g.joinedIdentity()
	n := g.server.Nodes()[0]
	eventually(t, "the agent's own stream has ended", func() bool { return !n.hasReported() })
	answers := make(chan error, 1)
	go func() {
		answers <- callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}, Replicas: &replicaSnapshot{Sequence: 1}})
	}()
	g.waitConnected("n")
	n.mu.Lock()
	before := n.session
	n.mu.Unlock()
	go func() {
		_ = callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}, Replicas: &replicaSnapshot{Sequence: 1}})
	}()
	if err := <-answers; status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v", err)
	}
	eventually(t, "the newer one is there", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.session != nil && n.session != before
	})
}

// TestTwoMachinesWithOneIdentity: two machines with copies of one state directory replace each
// other's connection. The gateway says so once, and not of a node that reconnects.
func TestTwoMachinesWithOneIdentity(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.agentPlan("n", "127.0.0.1", nodeDir(t))
	a := plan.run(t, nil)
	g.waitConnected("n")
	const warning = "node has replaced its connection several times"
	for range maxReplaced {
		a.stop()
		eventually(t, "the stream has ended", func() bool { return !g.server.Nodes()[0].hasReported() })
		a = plan.run(t, nil)
		g.waitConnected("n")
	}
	if hasLogged(g.logs, warning) {
		t.Fatal("the gateway warns of a node that was started again")
	}
	twin := plan
	twin.Dir = nodeDir(t)
	folder := filepath.Base(filepath.Dir(a.store.identityPath()))
	if err := os.CopyFS(filepath.Join(twin.Dir, folder), os.DirFS(filepath.Join(plan.Dir, folder))); err != nil {
		t.Fatal(err)
	}
	twin.run(t, nil)
	eventually(t, "the gateway warns", func() bool { return hasLogged(g.logs, warning) })
	time.Sleep(time.Second)
	if n := g.logs.FilterMessageSnippet(warning).Len(); n != 1 {
		t.Errorf("the gateway warns %d times", n)
	}
}

func TestOtherProtocol(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	i := g.joinedIdentity()
	err := callRun(t, g, i, &report{Hello: &hello{Protocol: 2}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "same release") {
		t.Errorf("the gateway answers a node of another protocol version with %v", err)
	}
	if err := callRun(t, g, i, &report{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the gateway answers a stream without a hello with %v", err)
	}
}

func TestUnauthorisedCalls(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	i := g.joinedIdentity()
	// Without a certificate a caller gets neither a stream nor a renewal.
	noCertificate := clientTLS(func([]*x509.Certificate) (*x509.Certificate, error) { return i.authority, nil })
	conn := dialGateway(t, g, noCertificate)
	var answer certificates
	request, err := makeSigningRequest("n", i.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Invoke(t.Context(), renewMethod, &renewRequest{request}, &answer); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Renew without a certificate = %v", err)
	}
	if err := runOn(t, conn, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Run without a certificate = %v", err)
	}
	// A node gets no certificate for another name or key.
	conn = dialGateway(t, g, identityTLS(i))
	otherKey, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	otherName, _ := makeSigningRequest("m", i.key)
	foreignKey, _ := makeSigningRequest("n", otherKey)
	for _, r := range [][]byte{otherName, foreignKey} {
		if err := conn.Invoke(t.Context(), renewMethod, &renewRequest{r}, &answer); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Renew for another = %v", err)
		}
	}
	// A node cannot pass for the gateway.
	leaf := i.certificate
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, i.authority}}
	if err := identityTLS(i).VerifyConnection(state); err == nil {
		t.Error("a node's certificate is accepted as a gateway's")
	}
	server, err := g.server.authority.sign(nodeURI+"n", x509.ExtKeyUsageServerAuth, i.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err = x509.ParseCertificate(server)
	if err != nil {
		t.Fatal(err)
	}
	state.PeerCertificates[0] = leaf
	if err := identityTLS(i).VerifyConnection(state); err == nil || !strings.Contains(err.Error(), "not a gateway's") {
		t.Errorf("a node's certificate for servers is accepted as a gateway's: %v", err)
	}
}

// dialGateway returns a connection as an agent would make it.
func dialGateway(t *testing.T, g *gateway, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := (&Agent{config: AgentConfig{Gateway: g.address}}).dial(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// callRun opens a stream and returns the error with which the stream ended.
func callRun(t *testing.T, g *gateway, i *identity, first *report) error {
	conn, err := (&Agent{config: AgentConfig{Gateway: g.address}}).dial(identityTLS(i))
	if err != nil {
		return err
	}
	defer conn.Close()
	return runOn(t, conn, first)
}

func runOn(t *testing.T, conn *grpc.ClientConn, first *report) error {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	stream, err := conn.NewStream(ctx, runStreamDesc(), runMethod)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(first)
	for {
		if err := stream.RecvMsg(new(order)); err != nil {
			return err
		}
	}
}
