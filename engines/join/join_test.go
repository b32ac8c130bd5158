package join

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
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

// gpus is the inventory of a host with one GPU.
type gpus struct{}

func (gpus) Read() (engines.Node, error) {
	return engines.Node{Name: "its own name", CPUs: 8, Memory: 1 << 30, GPUs: []engines.GPU{{UUID: "GPU-1", Name: "H100"}}}, nil
}

func TestJoin(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.plan("gpu-2", "127.0.0.1", nodeDir(t))
	a := plan.run(t, func(c *AgentConfig) { c.Inventory = gpus{} })
	node, ok := g.host("gpu-2").Node()
	if !ok || node.Name != "gpu-2" || node.CPUs != 8 || len(node.GPUs) != 1 || node.GPUs[0].UUID != "GPU-1" || node.Labels[0] != "label-of-gpu-2" {
		t.Errorf("Node = %+v, %v", node, ok)
	}
	if !logged(g.logs, "a node has joined") {
		t.Error("the gateway does not say that a node has joined")
	}
	for _, path := range []string{
		filepath.Join(g.config.Dir, "ca.pem"), filepath.Join(g.config.Dir, "token"), filepath.Join(g.config.Dir, "nodes.json"), a.store.identityPath(),
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v, %v", path, info, err)
		}
	}
	// With its certificate it comes back without a token, also to a gateway that was restarted.
	a.stop()
	g.stop()
	g.start()
	if hosts := g.server.Hosts(); len(hosts) != 1 || hosts[0].Name() != "gpu-2" {
		t.Errorf("a restarted gateway knows %v", hosts)
	}
	plan.Token = ""
	plan.run(t, nil)
	g.host("gpu-2")
	if again := g.token(); again != g.token() || again == "" {
		t.Error("the token is another one each time")
	}
}

func TestWrongToken(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.plan("n", "127.0.0.1", nodeDir(t))
	hash, secret, _ := strings.Cut(plan.Token, ".")
	plan.Token = hash + "." + strings.Repeat("A", len(secret))
	a := plan.run(t, nil)
	if err := a.ended(t); err == nil || !strings.Contains(err.Error(), "the token is wrong") {
		t.Errorf("Run = %v", err)
	}
	if !logged(g.logs, "127.0.0.1:") || logged(g.logs, secret) || logged(g.logs, "AAAA") {
		t.Errorf("the gateway's log is %v", g.logs.All())
	}
	if hosts := g.server.Hosts(); len(hosts) != 0 {
		t.Errorf("the gateway knows %v", hosts)
	}
}

func TestTokenRemoved(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.plan("n", "127.0.0.1", nodeDir(t))
	if err := os.Remove(filepath.Join(g.config.Dir, "token")); err != nil {
		t.Fatal(err)
	}
	if rightSecret(g.config.Dir, "") {
		t.Error("without a token the empty secret is right")
	}
	old := plan.run(t, nil)
	if err := old.ended(t); err == nil {
		t.Error("a token lets in that has been removed")
	}
	old.stop()
	plan.Token = g.token()
	plan.run(t, nil)
	g.host("n")
}

func TestAnotherGateway(t *testing.T) {
	t.Parallel()
	g, other := newGateway(t, time.Minute), newGateway(t, time.Minute)
	dir := nodeDir(t)
	plan := g.plan("n", "127.0.0.1", dir)
	plan.Gateway = other.address
	a := plan.run(t, nil)
	eventually(t, "the node says why", func() bool { return logged(a.logs, "the token is another gateway's") })
	a.stop()
	// The same for a node that has joined.
	plan.Gateway = g.address
	a = plan.run(t, nil)
	g.host("n")
	a.stop()
	plan.Gateway, plan.Token = other.address, ""
	a = plan.run(t, nil)
	eventually(t, "the node says why", func() bool { return logged(a.logs, errStranger.Error()) })
	a.stop()
	if hosts := other.server.Hosts(); len(hosts) != 0 {
		t.Errorf("the other gateway knows %v", hosts)
	}
	// With the other one's token it changes over.
	plan.Token = other.token()
	plan.run(t, nil)
	other.host("n")
}

// withCertificate puts a certificate with these bounds in the place of the agent's.
func withCertificate(t *testing.T, g *gateway, a *agent, begin, end time.Time) {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "n"}, URIs: []*url.URL{{Scheme: "sluice", Opaque: "node/n"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: begin, NotAfter: end}
	ca := g.server.authority
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, a.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.store.keep(&certificates{Node: der, Authority: ca.certificate.Raw}, a.key); err != nil {
		t.Fatal(err)
	}
}

func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	g := newGateway(t, 200*time.Millisecond)
	plan := g.plan("n", "127.0.0.1", nodeDir(t))
	a := plan.run(t, nil)
	g.host("n")
	a.stop()
	withCertificate(t, g, a, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	// The gateway does not take it,
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.Unavailable {
		t.Errorf("the gateway's answer to an expired certificate is %v", err)
	}
	// the node says so,
	plan.Token = ""
	a = plan.run(t, nil)
	eventually(t, "the node says why", func() bool { return logged(a.logs, "its certificate was valid until") })
	a.stop()
	// and gets another one with a token.
	plan.Token = g.token()
	plan.run(t, nil)
	g.host("n")
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	plan := g.plan("n", "127.0.0.1", nodeDir(t))
	a := plan.run(t, nil)
	g.host("n")
	a.stop()
	soon := time.Now().Add(time.Hour)
	withCertificate(t, g, a, time.Now().Add(-time.Hour*24), soon)
	plan.Token = ""
	a = plan.run(t, nil)
	eventually(t, "the certificate is renewed", func() bool {
		i, err := a.store.identity()
		return err == nil && i.certificate.NotAfter.After(soon) && i.key.Equal(a.key)
	})
	g.host("n")
}

func TestNameTaken(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	first := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("n")
	second := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	eventually(t, "the second one is told", func() bool { return logged(second.logs, "another node is connected as") })
	if h := g.server.Hosts()[0]; !h.settled() {
		t.Error("the first one is no longer there")
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.stop()
	second.stop()
	// The machine is another one now: once the first has been silent for long enough the name is free.
	g.stop()
	g.config.LostAfter = 200 * time.Millisecond
	g.start()
	g.plan("n", "127.0.0.1", second.config.Dir.Path()).run(t, nil)
	g.host("n")
	// The first one's certificate is worth nothing any more.
	i, err := first.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the old machine is answered %v", err)
	}
}

func TestNewerStreamWins(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("n")
	a.stop()
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	h := g.server.Hosts()[0]
	eventually(t, "the agent's own stream has ended", func() bool { return !h.settled() })
	answers := make(chan error, 1)
	go func() {
		answers <- callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}, Replicas: &replicas{Sequence: 1}})
	}()
	g.host("n")
	h.mu.Lock()
	before := h.session
	h.mu.Unlock()
	go func() {
		_ = callRun(t, g, i, &report{Hello: &hello{Protocol: protocol}, Replicas: &replicas{Sequence: 1}})
	}()
	if err := <-answers; status.Code(err) != codes.Aborted {
		t.Errorf("the older stream ended with %v", err)
	}
	eventually(t, "the newer one is there", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.session != nil && h.session != before
	})
}

func TestOtherProtocol(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("n")
	a.stop()
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	err = callRun(t, g, i, &report{Hello: &hello{Protocol: 2}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "same release") {
		t.Errorf("a node of another release is answered %v", err)
	}
	if err := callRun(t, g, i, &report{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream without a hello is answered %v", err)
	}
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	a := g.plan("n", "127.0.0.1", nodeDir(t)).run(t, nil)
	g.host("n")
	a.stop()
	i, err := a.store.identity()
	if err != nil {
		t.Fatal(err)
	}
	// Without a certificate there is no stream and no renewal.
	nobody := clientTLS(func([]*x509.Certificate) (*x509.Certificate, error) { return i.authority, nil })
	conn := dial(t, g, nobody)
	var answer certificates
	request, err := makeRequest("n", i.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Invoke(t.Context(), renewMethod, &renewRequest{request}, &answer); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Renew without a certificate = %v", err)
	}
	if err := runOn(t, conn, &report{Hello: &hello{Protocol: protocol}}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("Run without a certificate = %v", err)
	}
	// A node gets no certificate for another name or key,
	conn = dial(t, g, known(i))
	otherKey, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	otherName, _ := makeRequest("m", i.key)
	foreignKey, _ := makeRequest("n", otherKey)
	for _, r := range [][]byte{otherName, foreignKey} {
		if err := conn.Invoke(t.Context(), renewMethod, &renewRequest{r}, &answer); status.Code(err) != codes.PermissionDenied {
			t.Errorf("Renew for another = %v", err)
		}
	}
	// and cannot pass for the gateway.
	leaf := i.certificate
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, i.authority}}
	if err := known(i).VerifyConnection(state); err == nil {
		t.Error("a node passes for the gateway")
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
	if err := known(i).VerifyConnection(state); err == nil || !strings.Contains(err.Error(), "a node's") {
		t.Errorf("a node with a server's certificate: %v", err)
	}
}

// dial makes a connection as an agent does.
func dial(t *testing.T, g *gateway, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := (&Agent{config: AgentConfig{Gateway: g.address}}).dial(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// callRun begins a stream and returns how it ends.
func callRun(t *testing.T, g *gateway, i *identity, first *report) error {
	conn, err := (&Agent{config: AgentConfig{Gateway: g.address}}).dial(known(i))
	if err != nil {
		return err
	}
	defer conn.Close()
	return runOn(t, conn, first)
}

func runOn(t *testing.T, conn *grpc.ClientConn, first *report) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, runStream(), runMethod)
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
