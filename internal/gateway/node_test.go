package gateway

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/join"
	"github.com/sluice-gateway/sluice/engines/local"
)

// serveOneNode runs a server that one node may join, and returns its address, the token of the node
// and its fleet, which has the model chat.
func serveOneNode(t *testing.T, name string) (s *join.Server, address, token string, fleet *engines.Fleet) {
	t.Helper()
	dir := t.TempDir()
	fleet = engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}})
	s, err := join.NewServer(join.ServerConfig{Dir: dir, Fleet: fleet})
	if err != nil {
		t.Fatal(err)
	}
	if token, err = join.Token(dir, join.TokenRequest{Node: name}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String(), token, fleet
}

// oneSimulated is the model chat with the replica chat-0.
func oneSimulated() []local.Model {
	return []local.Model{{
		Model: engines.Model{Name: "chat", Task: engines.TextGeneration}, Indices: []int{0}, Launch: engines.Launch{Name: "chat"},
		Version: engines.Version{Command: []string{"{{.Sluice}}", "sim", "--port", "{{.Port}}", "--model", "chat"},
			Ready: engines.Probe{Path: "/health", Every: 20 * time.Millisecond}, Health: engines.Probe{Path: "/health"}},
	}}
}

// A node whose hand-over fails, because its program is away, goes on with its replicas.
func TestX20_ANodeGoesOnAfterAFailedHandOver(t *testing.T) {
	own := os.Args[0]
	os.Args[0] = filepath.Join(t.TempDir(), "sluice")
	defer func() { os.Args[0] = own }()
	server, address, token, fleet := serveOneNode(t, "far")
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- RunNode(ctx, NodeOptions{Gateway: address, Token: token, Name: "far", Address: netip.MustParseAddr("127.0.0.1"),
			StateDir: filepath.Join(t.TempDir(), "node"), DrainTimeout: 10 * time.Second, Log: zap.New(core)})
	}()
	replica := func() engines.Replica {
		if all := fleet.Snapshot().Models["chat"].Replicas; len(all) == 1 && all[0].State == engines.Ready {
			return all[0]
		}
		return engines.Replica{}
	}
	eventually(t, "the node has joined", func() bool { return len(server.Nodes()) == 1 })
	server.Nodes()[0].Set(oneSimulated())
	eventually(t, "the replica is ready", func() bool { return replica().PID != 0 })
	before := replica().PID

	if err := syscall.Kill(os.Getpid(), handOverSignal); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hand-over has failed", func() bool { return logs.FilterMessage("hand-over failed, the node goes on").Len() == 1 })
	eventually(t, "the node is connected again", func() bool { return logs.FilterMessage("gateway connected").Len() == 2 })
	if now := replica().PID; now != before || !alive(before) {
		t.Errorf("the replica had the process %d and has %d, alive: %v", before, now, alive(before))
	}
	cancel()
	if err := <-ended; err != nil || alive(before) {
		t.Errorf("the stop: %v, replica alive: %v", err, alive(before))
	}
}
