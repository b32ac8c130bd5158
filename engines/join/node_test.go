package join

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// newTestNode returns a node of a server that does not run, an open session of the node, and the
// server's fleet. Nothing reads what the session sends.
func newTestNode(t *testing.T) (*Node, *session, *engines.Fleet) {
	t.Helper()
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}})
	s, err := NewServer(ServerConfig{Dir: t.TempDir(), Fleet: fleet, DrainSettle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	n := s.nodeByName("n")
	for _, id := range []string{"chat-0", "chat-1", "chat-8"} {
		n.known[id] = true // as if an earlier run had assigned them
	}
	return n, openTestSession(t, n), fleet
}

func openTestSession(t *testing.T, n *Node) *session {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.key = keyHash(&key.PublicKey)
	n.mu.Unlock()
	ses := &session{node: n, end: func(error) {}, wakeup: make(chan struct{}, 1), peer: netip.MustParseAddr("10.0.0.2")}
	if err := n.openSession(ses, &key.PublicKey); err != nil {
		t.Fatal(err)
	}
	return ses
}

func readyReplicas(ids ...string) *replicaSnapshot {
	p := &replicaSnapshot{Sequence: 1}
	for i, id := range ids {
		p.Replicas = append(p.Replicas, engines.Replica{ID: id, Model: "chat", State: engines.Ready, PID: 7,
			Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(1000+i))})
	}
	return p
}

// fleetStates returns the replicas of model chat in the fleet as "id state, id state".
func fleetStates(f *engines.Fleet) string {
	var all []string
	for _, r := range f.Snapshot().Models["chat"].Replicas {
		all = append(all, r.ID+" "+string(r.State))
	}
	return strings.Join(all, ", ")
}

func TestVisibleReplicas(t *testing.T) {
	t.Parallel()
	one := func(indices ...int) []local.Model { return []local.Model{model("chat", indices...)} }
	lose := func(n *Node, _ *session) { n.checkSilence(time.Now().Add(time.Hour)) }
	back := func(ids ...string) func(*Node, *session) {
		return func(n *Node, _ *session) {
			n.applyReport(openTestSession(t, n), &report{Replicas: readyReplicas(ids...)})
		}
	}
	set := func(indices ...int) func(*Node, *session) {
		return func(n *Node, _ *session) { n.Set(one(indices...)) }
	}
	tell := func(ids ...string) func(*Node, *session) {
		return func(n *Node, ses *session) { n.applyReport(ses, &report{Replicas: readyReplicas(ids...)}) }
	}
	type steps []func(*Node, *session)
	for name, c := range map[string]struct {
		steps steps
		want  string
	}{
		"nothing was assigned":            {steps{tell("chat-0")}, "chat-0 ready"},
		"assigned":                        {steps{set(0), tell("chat-0")}, "chat-0 ready"},
		"nil is all up to Desired":        {steps{func(n *Node, _ *session) { m := model("chat"); m.Indices = nil; n.Set([]local.Model{m}) }, tell("chat-8")}, "chat-8 ready"},
		"replaced before it has reported": {steps{set(1), tell("chat-0", "chat-1")}, "chat-1 ready"},
		"no longer assigned":              {steps{tell("chat-0", "chat-1"), set(1)}, "chat-0 draining, chat-1 ready"},
		"assigned again":                  {steps{tell("chat-0"), set(), set(0)}, "chat-0 ready"},
		"gone":                            {steps{tell("chat-0"), set(), tell()}, ""},
		"lost":                            {steps{tell("chat-0"), set(0), lose}, "chat-0 failed"},
		"lost while it drains":            {steps{tell("chat-0"), set(), lose}, ""},
		"lost and unassigned":             {steps{tell("chat-0"), set(0), lose, set()}, ""},
		"lost before anything was set":    {steps{tell("chat-0"), lose}, "chat-0 failed"},
		"back, still assigned":            {steps{tell("chat-0"), set(0), lose, back("chat-0")}, "chat-0 ready"},
		"back, replaced":                  {steps{tell("chat-0", "chat-1"), set(0, 1), lose, set(1), back("chat-0", "chat-1")}, "chat-1 ready"},
		"back, replaced, assigned again": {
			steps{tell("chat-0"), set(0), lose, set(), back("chat-0"), set(0)}, "chat-0 ready"},
		"back in time": {steps{tell("chat-0"), set(0), back("chat-0")}, "chat-0 ready"},
		"connected, not reported yet": {
			steps{tell("chat-0"), set(0), func(n *Node, _ *session) { openTestSession(t, n) }}, "chat-0 ready"},
		"connected after a loss, not reported yet": {
			steps{tell("chat-0"), set(0), lose, func(n *Node, _ *session) { openTestSession(t, n) }}, "chat-0 failed"},
		"an old stream": {steps{tell("chat-0"), set(0, 1), func(n *Node, _ *session) { openTestSession(t, n) }, tell("chat-1")}, "chat-0 ready"},
	} {
		n, ses, fleet := newTestNode(t)
		for _, step := range c.steps {
			step(n, ses)
		}
		if got := fleetStates(fleet); got != c.want {
			t.Errorf("%s: the fleet has %q, want %q", name, got, c.want)
		}
	}
}

// TestALostNodeStartsNothing: no request waits for the next start of a replica whose node is lost.
func TestALostNodeStartsNothing(t *testing.T) {
	t.Parallel()
	n, ses, fleet := newTestNode(t)
	p := readyReplicas("chat-0")
	r := &p.Replicas[0]
	r.State, r.Address, r.NextStart = engines.Failed, netip.AddrPort{}, time.Now().Add(time.Minute)
	n.applyReport(ses, &report{Replicas: p})
	next := func() time.Time { return fleet.Snapshot().Models["chat"].Replicas[0].NextStart }
	if next().IsZero() {
		t.Error("the next start of a replica that has failed is not known")
	}
	n.checkSilence(time.Now().Add(time.Hour))
	if !next().IsZero() {
		t.Errorf("the next start of a lost replica is at %v", next())
	}
}

// TestAClockThatIsSet: the clock of a node that is set while the node is connected changes no time
// of its replicas. A report of an older release has no clock.
func TestAClockThatIsSet(t *testing.T) {
	t.Parallel()
	n, ses, fleet := newTestNode(t)
	ses.clockSkew = time.Hour
	since := time.Now().Add(-time.Minute)
	for _, c := range []struct{ skew, behind time.Duration }{{time.Hour, time.Hour}, {time.Hour, 0}, {-time.Minute, -time.Minute}} {
		p := readyReplicas("chat-0")
		if c.behind != 0 {
			p.Clock = time.Now().Add(-c.behind)
		}
		p.Replicas[0].Since = since.Add(-c.skew)
		n.applyReport(ses, &report{Replicas: p})
		if got := fleet.Snapshot().Models["chat"].Replicas[0].Since; got.Sub(since).Abs() > 2*time.Second {
			t.Errorf("a clock that is %v behind: since %v, want %v", c.skew, got, since)
		}
	}
}

func TestAcceptReplicas(t *testing.T) {
	t.Parallel()
	_, ses, _ := newTestNode(t)
	ses.clockSkew = time.Hour
	since := time.Now()
	good := readyReplicas("chat-0").Replicas[0]
	good.Since, good.NextStart = since, since.Add(time.Minute)
	changed := func(change func(*engines.Replica)) engines.Replica {
		r := good
		change(&r)
		return r
	}
	want := good
	want.Node, want.Launcher, want.Since, want.NextStart = "n", engines.Local, since.Add(time.Hour).UTC(), since.Add(time.Hour+time.Minute).UTC()
	for name, r := range map[string]engines.Replica{
		"another node":       changed(func(r *engines.Replica) { r.Node = "m" }),
		"another launcher":   changed(func(r *engines.Replica) { r.Launcher = engines.Upstream }),
		"a transport":        changed(func(r *engines.Replica) { r.Transport = &engines.Transport{Group: "g"} }),
		"a header of a host": changed(func(r *engines.Replica) { r.Host = "example.com" }),
	} {
		if diff := cmp.Diff([]engines.Replica{want}, ses.acceptReplicas([]engines.Replica{r}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s: the gateway took the value over: %s", name, diff)
		}
	}
	for name, r := range map[string]engines.Replica{
		"another model": changed(func(r *engines.Replica) { r.Model = "embed" }),
		"no model":      changed(func(r *engines.Replica) { r.Model, r.ID = "", "-0" }),
		"no number":     changed(func(r *engines.Replica) { r.ID = "chat-x" }),
		"below zero":    changed(func(r *engines.Replica) { r.ID = "chat--1" }),
		"not its form":  changed(func(r *engines.Replica) { r.ID = "chat-01" }),
	} {
		if got := ses.acceptReplicas([]engines.Replica{r}); len(got) != 0 {
			t.Errorf("%s: the replica was accepted: %+v", name, got)
		}
	}
	for name, r := range map[string]engines.Replica{
		"ready without address": changed(func(r *engines.Replica) { r.Address = netip.AddrPort{} }),
		"ready everywhere":      changed(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("0.0.0.0:80") }),
		"no such state":         changed(func(r *engines.Replica) { r.State = "splendid" }),
	} {
		if got := ses.acceptReplicas([]engines.Replica{r}); len(got) != 1 || got[0].State != engines.Failed {
			t.Errorf("%s: the replica did not become failed: %+v", name, got)
		}
	}
	loopback := changed(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("[::ffff:127.0.0.1]:80") })
	if got := ses.acceptReplicas([]engines.Replica{loopback}); got[0].State != engines.Ready {
		t.Errorf("a loopback address of a node on this machine: %+v", got)
	}
	ses.isRemote = true
	if got := ses.acceptReplicas([]engines.Replica{loopback}); got[0].State != engines.Failed {
		t.Errorf("a loopback address of a node on another machine was accepted: %+v", got)
	}
	if got := ses.acceptReplicas([]engines.Replica{good, good}); len(got) != 1 {
		t.Errorf("a replica reported twice was accepted twice: %+v", got)
	}
	unknown := changed(func(r *engines.Replica) { r.NextStart = time.Time{} })
	if got := ses.acceptReplicas([]engines.Replica{unknown})[0].NextStart; !got.IsZero() {
		t.Errorf("an unknown next start became %v", got)
	}
	long := changed(func(r *engines.Replica) { r.Reason = strings.Repeat("ä", maxReasonBytes) })
	if got := ses.acceptReplicas([]engines.Replica{long})[0].Reason; len(got) > maxReasonBytes {
		t.Errorf("a reason has %d bytes, more than the limit", len(got))
	}
}

// A replica is where its node is, or where the file says that the node's replicas may be.
func TestX9_AddressesOfReplicas(t *testing.T) {
	t.Parallel()
	n, ses, fleet := newTestNode(t) // it connects from 10.0.0.2
	listed := []netip.Prefix{}
	n.server.config.Addresses = func(string) []netip.Prefix { return listed }
	n.Set([]local.Model{model("chat", 0)})
	for address, want := range map[string]engines.State{
		"10.0.0.2:80": engines.Ready, "[::ffff:10.0.0.2]:80": engines.Ready, "10.0.0.3:80": engines.Failed,
		"169.254.169.254:80": engines.Failed, "127.0.0.1:9090": engines.Failed, "[::1]:9090": engines.Failed,
	} {
		p := readyReplicas("chat-0")
		p.Replicas[0].Address = netip.MustParseAddrPort(address)
		n.applyReport(ses, &report{Replicas: p})
		r := fleet.Snapshot().Models["chat"].Replicas[0]
		if r.State != want || (r.State == engines.Failed) == r.Address.IsValid() {
			t.Errorf("%s: %+v, want %s", address, r, want)
		}
		if want == engines.Failed && !strings.Contains(r.Reason, "connects from 10.0.0.2") {
			t.Errorf("%s: the reason is %q", address, r.Reason)
		}
	}
	p := readyReplicas("chat-0")
	p.Replicas[0].Address = netip.MustParseAddrPort("192.0.2.7:80")
	n.applyReport(ses, &report{Replicas: p})
	listed = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	n.server.Republish()
	if got := fleetStates(fleet); got != "chat-0 ready" {
		t.Errorf("at an address that is listed now: %s", got)
	}
	listed = nil
	n.server.Republish()
	if got := fleetStates(fleet); got != "chat-0 failed" {
		t.Errorf("at an address that is not listed any more: %s", got)
	}
}

// A node that invents replicas draws no requests. It draws none while it is connected, and none
// after a restart of the gateway, which knows from its records what it had assigned.
func TestX9_OnlyRecordedAssignments(t *testing.T) {
	t.Parallel()
	n, ses, fleet := newTestNode(t)
	core, logs := observer.New(zap.WarnLevel)
	n.server.config.Log = zap.New(core)
	clear(n.known)
	n.Set([]local.Model{model("chat", 0)})
	n.applyReport(ses, &report{Replicas: readyReplicas("chat-0")})
	n.applyReport(ses, &report{Replicas: readyReplicas("chat-0", "chat-1", "embed-0")})
	if got := fleetStates(fleet); got != "chat-0 ready" {
		t.Errorf("with replicas that nobody has assigned: %s", got)
	}
	n.applyReport(ses, &report{Replicas: readyReplicas("chat-0", "chat-7")})
	if logs.Len() != 1 || logs.All()[0].ContextMap()["first"] != "chat-1" {
		t.Errorf("the log has %v, want one line", logs.All())
	}
	n.server.trySaveNodes()
	restarted := func() (*Node, *engines.Fleet) {
		fleet := engines.NewFleet()
		fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}})
		s, err := NewServer(ServerConfig{Dir: n.server.config.Dir, Fleet: fleet})
		if err != nil {
			t.Fatal(err)
		}
		return s.nodeByName("n"), fleet
	}
	after, fleet := restarted()
	after.applyReport(openTestSession(t, after), &report{Replicas: readyReplicas("chat-0", "chat-1")})
	if got := fleetStates(fleet); got != "chat-0 ready" {
		t.Errorf("after a restart: %s", got)
	}
	// A replica that is no longer assigned stays known until it has stopped.
	n.Set([]local.Model{model("chat")})
	n.server.trySaveNodes()
	after, fleet = restarted()
	after.applyReport(openTestSession(t, after), &report{Replicas: readyReplicas("chat-0", "chat-1")})
	if got := fleetStates(fleet); got != "chat-0 ready" {
		t.Errorf("after a restart, while it drains: %s", got)
	}
	n.applyReport(ses, &report{Replicas: readyReplicas()})
	n.server.trySaveNodes()
	after, fleet = restarted()
	after.applyReport(openTestSession(t, after), &report{Replicas: readyReplicas("chat-0")})
	if got := fleetStates(fleet); got != "" {
		t.Errorf("after a restart, when it has stopped: %s", got)
	}
}

// A name stays its machine's own while the certificate of the machine may be valid, although the
// node is listed no more.
func TestX9_AbsentNodesKeepTheirNames(t *testing.T) {
	t.Parallel()
	n, ses, _ := newTestNode(t)
	n.closeSession(ses)
	n.lastSeen = time.Now().Add(-2 * forgetAfter)
	for range 2 { // the record is kept, too
		n.server.trySaveNodes()
		s, err := NewServer(ServerConfig{Dir: n.server.config.Dir, Fleet: engines.NewFleet()})
		if err != nil {
			t.Fatal(err)
		}
		if nodes := s.Nodes(); len(nodes) != 0 {
			t.Fatalf("%d nodes are listed", len(nodes))
		}
		s.trySaveNodes()
	}
	s, err := NewServer(ServerConfig{Dir: n.server.config.Dir, Fleet: engines.NewFleet()})
	if err != nil {
		t.Fatal(err)
	}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.nodeByName("n").claimName(&key.PublicKey, false); err == nil {
		t.Error("another machine has taken the name of one that is away")
	}
	if _, err := Token(n.server.config.Dir, TokenRequest{Node: "n"}); err == nil {
		t.Error("a token for the name of a machine that is away")
	}
}

// A node is not trusted to hide the secrets in what its engines log.
func TestX15_ReportsHideSecrets(t *testing.T) {
	t.Parallel()
	n, ses, _ := newTestNode(t)
	m := model("chat", 0)
	m.Env = map[string]string{}
	m.Env["OPAQUE"], m.SecretEnv = "very-secret-value", []string{"OPAQUE"}
	n.Set([]local.Model{m})
	r := readyReplicas("chat-0").Replicas[0]
	r.State, r.Reason = engines.Failed, "read very-secret-value and hf_0123456789"
	if got, want := ses.acceptReplicas([]engines.Replica{r})[0].Reason, "read … and …"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := boundInventory(&engines.Node{Reason: "token=abc"}).Reason, "token=…"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestInventoryIsBounded(t *testing.T) {
	t.Parallel()
	n, ses, _ := newTestNode(t)
	n.applyReport(ses, &report{Inventory: &engines.Node{Reason: strings.Repeat("ä", maxReasonBytes), GPUs: make([]engines.GPU, 2*maxGPUs)}})
	if n, _ := n.Node(); len(n.Reason) > maxReasonBytes || len(n.GPUs) != maxGPUs {
		t.Errorf("a node has a reason of %d bytes and %d GPUs, more than the limits", len(n.Reason), len(n.GPUs))
	}
}

// A gateway process that was paused has not received any reports. It must not mark nodes as lost.
func TestPausedGatewayMarksNoNodeLost(t *testing.T) {
	t.Parallel()
	n, ses, fleet := newTestNode(t)
	n.applyReport(ses, &report{Replicas: readyReplicas("chat-0")})
	begin := time.Now().Add(-time.Hour)
	n.mu.Lock()
	n.lastHeard = begin
	n.mu.Unlock()
	n.server.checkSilence(begin, time.Now())
	if got := fleetStates(fleet); got != "chat-0 ready" {
		t.Errorf("after the gateway was paused the fleet has %q", got)
	}
	now := time.Now().Add(n.server.config.LostAfter)
	n.server.checkSilence(now.Add(-time.Second), now)
	if got := fleetStates(fleet); got != "chat-0 failed" {
		t.Errorf("after the node was silent the fleet has %q", got)
	}
}

// A certificate that was signed while the clock was ahead must be replaced once the clock is right.
func TestCertificateOfTheFuture(t *testing.T) {
	t.Parallel()
	n, _, _ := newTestNode(t)
	now := time.Now()
	first, err := n.server.serverCertificate.certificate(now)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := n.server.serverCertificate.certificate(now.Add(-48 * time.Hour)); err != nil || second == first {
		t.Errorf("a certificate valid from %v is used two days earlier (%v)", first.Leaf.NotBefore, err)
	}
}

// The settled snapshot is the newest one that was published at least DrainSettle ago.
func TestSettledSequence(t *testing.T) {
	t.Parallel()
	_, ses, _ := newTestNode(t) // DrainSettle is one minute.
	now := time.Now()
	at := func(minutes float64) time.Time { return now.Add(time.Duration(minutes * float64(time.Minute))) }
	ses.snapshots = []publishedSnapshot{{1, at(0)}, {2, at(0.1)}, {3, at(2)}, {4, at(5)}}
	for _, c := range []struct {
		at   float64
		want uint64
	}{{0.5, 0}, {1.05, 1}, {1.5, 2}, {2.9, 2}, {3, 3}, {5.9, 3}, {6, 4}, {100, 4}} {
		if got := ses.settledSequence(at(c.at)); got != c.want {
			t.Errorf("after %v minutes snapshot %d is settled, want %d", c.at, got, c.want)
		}
	}
	if len(ses.snapshots) != 1 {
		t.Errorf("%d snapshots are kept, want 1", len(ses.snapshots))
	}
}

func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ca.pem", "nodes.json"} {
		dir := t.TempDir()
		if err := writeFile(dir+"/"+name, []byte("{")); err != nil {
			t.Fatal(err)
		}
		if _, err := NewServer(ServerConfig{Dir: dir, Fleet: engines.NewFleet()}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("the error for a damaged %s does not name the file: %v", name, err)
		}
	}
}

func TestForgottenAfterAMonth(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := NewServer(ServerConfig{Dir: dir, Fleet: engines.NewFleet()})
	if err != nil {
		t.Fatal(err)
	}
	for name, seen := range map[string]time.Time{"old": time.Now().Add(-forgetAfter - time.Hour), "new": time.Now()} {
		n := s.nodeByName(name)
		n.key, n.lastSeen = "k", seen
	}
	if err := s.saveNodes(); err != nil {
		t.Fatal(err)
	}
	if s, err = NewServer(ServerConfig{Dir: dir, Fleet: engines.NewFleet()}); err != nil {
		t.Fatal(err)
	}
	if nodes := s.Nodes(); len(nodes) != 1 || nodes[0].Name() != "new" {
		t.Errorf("the server knows the nodes %v, want only the new one", nodes)
	}
}

// TestAConnectedNodeIsNotForgotten: a node that was connected for longer than forgetAfter is known
// to the next run with its replicas, although this run was killed.
func TestAConnectedNodeIsNotForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, _, _ := newTestNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.server.keepSaved(ctx)
		n.Set([]local.Model{model("chat", 1)})
		time.Sleep(forgetAfter + time.Hour)
		synctest.Wait()
		next, err := NewServer(ServerConfig{Dir: n.server.config.Dir, Fleet: engines.NewFleet()})
		if err != nil {
			t.Fatal(err)
		}
		if nodes := next.Nodes(); len(nodes) != 1 || !nodes[0].known["chat-1"] {
			t.Errorf("the next run knows the nodes %v, want n with chat-1", nodes)
		}
	})
}

// An agent must start although the address cannot be saved, as on a full disk.
func TestAddressThatCannotBeSaved(t *testing.T) {
	t.Parallel()
	s := agentStore{t.TempDir()}
	if err := os.MkdirAll(filepath.Join(s.addressPath(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := s.localAddress("127.0.0.1:9"); err != nil || !got.IsLoopback() {
		t.Errorf("localAddress = %v, %v", got, err)
	}
}

// TestX9_RecordsThatCouldNotBeWritten: once the disk has room again, the records of nodes are
// written without another change.
func TestX9_RecordsThatCouldNotBeWritten(t *testing.T) {
	g := newGateway(t, time.Minute)
	g.agentPlan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	n := g.waitConnected("a")
	path := recordsPath(g.config.Dir)
	eventually(t, "records", func() bool { _, err := os.Stat(path); return err == nil })
	eventually(t, "a folder in the way, so that the write fails as on a full disk", func() bool {
		_ = os.Remove(path) // the gateway may write it again before there is a folder
		return os.MkdirAll(path+"/full", 0o700) == nil
	})
	n.Set([]local.Model{model("chat", 0)})
	eventually(t, "the failure", func() bool { return hasLogged(g.logs, "records of nodes not saved, Sluice tries again") })
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the records of the replica", func() bool {
		list, err := readRecords(g.config.Dir)
		return err == nil && len(list) == 1 && slices.Contains(list[0].Replicas, "chat-0")
	})
}

// TestX9_AnAssignmentThatCouldNotBeWritten: once the disk of a node has room again, its assignment
// is written without another change.
func TestX9_AnAssignmentThatCouldNotBeWritten(t *testing.T) {
	g := newGateway(t, time.Minute)
	a := g.agentPlan("a", "127.0.0.1", nodeDir(t)).run(t, nil)
	n := g.waitConnected("a")
	path := a.store.assignmentPath()
	if err := os.MkdirAll(path+"/full", 0o700); err != nil { // the write fails, as on a full disk
		t.Fatal(err)
	}
	n.Set([]local.Model{model("chat", 0)})
	g.waitState("chat-0", engines.Ready) // a full disk does not delay a start
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the assignment of the replica", func() bool {
		saved, err := a.store.assignment()
		return err == nil && len(saved.Models) == 1 && slices.Equal(saved.Models[0].Indices, []int{0})
	})
}
