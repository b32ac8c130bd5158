package join

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/internal/loglines"
)

// lines is a writer whose text another goroutine may read.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startOperated starts a gateway with a node that runs chat-0.
func startOperated(t *testing.T) (g *gateway, n *Node, a *agent) {
	t.Helper()
	g = newGateway(t, time.Minute)
	a = g.agentPlan("gpu-7", "127.0.0.1", nodeDir(t)).run(t, nil)
	n = g.waitConnected("gpu-7")
	n.Set([]local.Model{model("chat", 0)})
	g.waitState("chat-0", engines.Ready)
	return g, n, a
}

// appendToLog writes into the log of chat-0 on its node.
func (a *agent) appendToLog(t *testing.T, text string) {
	t.Helper()
	f, err := os.OpenFile(a.config.Dir.LogFile("replica/chat-0"), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestO10_RestartOnANode: a replica on a node is replaced once it has finished its requests, and a
// new connection of the node does not replace it again.
func TestO10_RestartOnANode(t *testing.T) {
	t.Parallel()
	g, n, _ := startOperated(t)
	before := g.replica("chat-0")
	g.setRequests("chat-0", 1)
	if err := n.Restart("chat-0"); err != nil {
		t.Fatal(err)
	}
	g.waitState("chat-0", engines.Draining)
	if now := g.replica("chat-0"); !strings.Contains(now.Reason, "restarted") || !isProcessRunning(before.PID) {
		t.Errorf("%+v, or its process has ended with a request", now)
	}
	g.setRequests("chat-0", 0)
	replaced := func() bool {
		r := g.replica("chat-0")
		return r.State == engines.Ready && r.PID != before.PID
	}
	eventually(t, "chat-0 is replaced", replaced)
	after := g.replica("chat-0").PID
	n.mu.Lock()
	n.session.end(errReplaced) // the node connects again and gets its assignment again
	n.mu.Unlock()
	n.Set([]local.Model{model("chat", 0, 1)})
	g.waitState("chat-1", engines.Ready)
	if r := g.replica("chat-0"); r.PID != after || r.State != engines.Ready {
		t.Errorf("restarted twice: %+v", r)
	}
	if err := n.Restart("chat-7"); err == nil || !strings.Contains(err.Error(), "stops it already") {
		t.Error("a replica that is not assigned:", err)
	}
}

// TestASecondRestartLeavesTheFirstOrder: the session may still encode the assignment with the first
// restart, in another goroutine, while an operator restarts a second replica.
func TestASecondRestartLeavesTheFirstOrder(t *testing.T) {
	t.Parallel()
	n, ses, _ := newTestNode(t)
	ses.revision = revision
	n.applyReport(ses, &report{Replicas: readyReplicas("chat-0", "chat-1")})
	n.Set([]local.Model{model("chat", 0, 1)})
	restart := func(id string) *assignment {
		if err := n.Restart(id); err != nil {
			t.Fatal(err)
		}
		sent, _ := n.nextAssignment(0)
		return sent
	}
	first := restart("chat-0")
	if second := restart("chat-1"); len(first.Restarts) != 1 || len(second.Restarts) != 2 || first.Restarts["chat-0"] != second.Restarts["chat-0"] {
		t.Errorf("sent %v, then %v", first.Restarts, second.Restarts)
	}
}

// A replica of a node that hangs while it has requests is replaced when its requests have no answer
// either for too long, as a replica of the gateway's own machine is.
func TestASilentReplicaOfANodeIsReplaced(t *testing.T) {
	t.Parallel()
	g := newGateway(t, time.Minute)
	hang := filepath.Join(t.TempDir(), "hang")
	a := g.agentPlan("gpu-7", "127.0.0.1", nodeDir(t)).run(t, func(c *AgentConfig) {
		c.Launcher.ProbeTimeout, c.Launcher.MaxBusy = 100*time.Millisecond, 1
	})
	n := g.waitConnected("gpu-7")
	m := model("chat", 0)
	m.Env[hangKey] = hang
	n.Set([]local.Model{m})
	before := g.waitState("chat-0", engines.Ready)
	g.setRequests("chat-0", 1)
	eventually(t, "the node knows the request", func() bool { return a.counts.inFlight("chat-0") == 1 })
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.Suspect("chat-7") // which nobody has
	eventually(t, "chat-0 has failed", func() bool {
		n.Suspect("chat-0") // once may be too early for the probe to fail
		return g.replica("chat-0").State != engines.Ready
	})
	if err := os.Remove(hang); err != nil {
		t.Fatal(err)
	}
	if r := g.waitState("chat-0", engines.Ready); r.PID == before.PID {
		t.Errorf("it is the same process: %+v", r)
	}
}

// TestO8_LogOfANode: the last lines of a replica's log on a node, a search in them, and lines as
// they come, without the secrets of the model.
func TestO8_LogOfANode(t *testing.T) {
	t.Parallel()
	_, n, a := startOperated(t)
	a.appendToLog(t, "first\nerror one with hf_secret\nlast\n")
	for _, test := range []struct {
		q    loglines.Query
		want string
	}{
		{loglines.Query{Tail: 2}, "error one with …\nlast\n"},
		{loglines.Query{Tail: 5, Search: "ERROR"}, "error one with …\n"},
		{loglines.Query{}, ""},
	} {
		var out lines
		if err := n.Log(t.Context(), &out, "chat-0", test.q); err != nil || out.String() != test.want {
			t.Errorf("%+v: %v, %q", test.q, err, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out lines
	ended := make(chan error, 1)
	go func() { ended <- n.Log(ctx, &out, "chat-0", loglines.Query{Tail: 1, Follow: true}) }()
	eventually(t, "the last line", func() bool { return out.String() == "last\n" })
	large := strings.Repeat("x", maxPartBytes/8)
	for i := range 20 { // more than one part
		a.appendToLog(t, fmt.Sprintf("%d %s\n", i, large[:8000]))
	}
	a.appendToLog(t, "new\n")
	eventually(t, "new lines", func() bool {
		return strings.HasSuffix(out.String(), "\nnew\n") && strings.Count(out.String(), "\n") == 22
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	eventually(t, "the call is forgotten", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.logs) == 0
	})
	if err := n.Log(t.Context(), &out, "other-0", loglines.Query{Tail: 1}); err == nil || !strings.Contains(err.Error(), "does not run it any more") {
		t.Error("a replica that is not there:", err)
	}
}

// TestO8_LogsOfANodeAreBounded: more logs than maxLogs are refused, and those that end make room.
func TestO8_LogsOfANodeAreBounded(t *testing.T) {
	t.Parallel()
	_, n, a := startOperated(t)
	a.appendToLog(t, "line\n")
	ctx, cancel := context.WithCancel(t.Context())
	var all [maxLogs]lines
	var ended sync.WaitGroup
	for i := range all {
		ended.Go(func() { _ = n.Log(ctx, &all[i], "chat-0", loglines.Query{Tail: 1, Follow: true}) })
	}
	for i := range all {
		eventually(t, "a log", func() bool { return all[i].String() == "line\n" })
	}
	if err := n.Log(t.Context(), &lines{}, "chat-0", loglines.Query{Tail: 1}); err == nil || !strings.Contains(err.Error(), "16 logs of the node gpu-7") {
		t.Error("one too many:", err)
	}
	cancel()
	ended.Wait()
	var out lines
	if err := n.Log(t.Context(), &out, "chat-0", loglines.Query{Tail: 1}); err != nil || out.String() != "line\n" {
		t.Error(err, out.String())
	}
}

// TestO8_AnOldNodeSaysSo: a node of a release that does not know restarts and logs is told nothing
// of them, and the errors name the versions. A node that is lost does not answer.
func TestO8_AnOldNodeSaysSo(t *testing.T) {
	t.Parallel()
	g, n, a := startOperated(t)
	n.mu.Lock()
	n.session.revision = 0
	n.mu.Unlock()
	want := func(word string) {
		t.Helper()
		for what, err := range map[string]error{"restart": n.Restart("chat-0"), "log": n.Log(t.Context(), &lines{}, "chat-0", loglines.Query{Tail: 1})} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %s", what, err, word)
			}
		}
	}
	want("speaks version 1.0 of the node protocol")
	want("needs 1.1: install this gateway's release of sluice on the node")
	if r := g.replica("chat-0"); r.State != engines.Ready {
		t.Errorf("%+v", r)
	}
	a.stop()
	eventually(t, "the session has ended", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.session == nil
	})
	want("does not answer")
}
