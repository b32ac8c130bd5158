package join

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
)

// hostOf is a host of a server that does not run, with a session that nobody listens to.
func hostOf(t *testing.T) (*Host, *session, *engines.Fleet) {
	t.Helper()
	fleet := engines.NewFleet()
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "chat"}}})
	s, err := NewServer(ServerConfig{Dir: t.TempDir(), Fleet: fleet, DrainSettle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	h := s.host("n")
	return h, attached(t, h), fleet
}

func attached(t *testing.T, h *Host) *session {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.key = keyHash(&key.PublicKey)
	h.mu.Unlock()
	x := &session{host: h, end: func(error) {}, wake: make(chan struct{}, 1)}
	if err := h.attach(x, &key.PublicKey); err != nil {
		t.Fatal(err)
	}
	return x
}

func ready(ids ...string) *replicas {
	p := &replicas{Sequence: 1}
	for i, id := range ids {
		p.Replicas = append(p.Replicas, engines.Replica{ID: id, Model: "chat", State: engines.Ready, PID: 7,
			Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), uint16(1000+i))})
	}
	return p
}

// shown is "id state" of what the fleet has.
func shown(f *engines.Fleet) string {
	var all []string
	for _, r := range f.Snapshot().Models["chat"].Replicas {
		all = append(all, r.ID+" "+string(r.State))
	}
	return strings.Join(all, ", ")
}

func TestWhatTheFleetHears(t *testing.T) {
	t.Parallel()
	one := func(indices ...int) []local.Model { return []local.Model{model("chat", indices...)} }
	lose := func(h *Host, _ *session) { h.look(time.Now().Add(time.Hour)) }
	back := func(ids ...string) func(*Host, *session) {
		return func(h *Host, _ *session) { h.hear(attached(t, h), &report{Replicas: ready(ids...)}) }
	}
	set := func(indices ...int) func(*Host, *session) {
		return func(h *Host, _ *session) { h.Set(one(indices...)) }
	}
	tell := func(ids ...string) func(*Host, *session) {
		return func(h *Host, x *session) { h.hear(x, &report{Replicas: ready(ids...)}) }
	}
	type steps []func(*Host, *session)
	for name, c := range map[string]struct {
		steps steps
		want  string
	}{
		"nobody has said what shall be there":     {steps{tell("chat-0")}, "chat-0 ready"},
		"wanted":                                  {steps{set(0), tell("chat-0")}, "chat-0 ready"},
		"nil is all up to Desired":                {steps{func(h *Host, _ *session) { m := model("chat"); m.Indices = nil; h.Set([]local.Model{m}) }, tell("chat-8")}, "chat-8 ready"},
		"others took over before it was heard of": {steps{set(1), tell("chat-0", "chat-1")}, "chat-1 ready"},
		"wanted no longer":                        {steps{tell("chat-0", "chat-1"), set(1)}, "chat-0 draining, chat-1 ready"},
		"wanted again":                            {steps{tell("chat-0"), set(), set(0)}, "chat-0 ready"},
		"gone":                                    {steps{tell("chat-0"), set(), tell()}, ""},
		"lost":                                    {steps{tell("chat-0"), set(0), lose}, "chat-0 failed"},
		"lost while it drains":                    {steps{tell("chat-0"), set(), lose}, ""},
		"lost and given up":                       {steps{tell("chat-0"), set(0), lose, set()}, ""},
		"lost before anything was set":            {steps{tell("chat-0"), lose}, "chat-0 failed"},
		"back, and still wanted":                  {steps{tell("chat-0"), set(0), lose, back("chat-0")}, "chat-0 ready"},
		"back, and replaced":                      {steps{tell("chat-0", "chat-1"), set(0, 1), lose, set(1), back("chat-0", "chat-1")}, "chat-1 ready"},
		"back, replaced, and wanted again": {
			steps{tell("chat-0"), set(0), lose, set(), back("chat-0"), set(0)}, "chat-0 ready"},
		"back in time": {steps{tell("chat-0"), set(0), back("chat-0")}, "chat-0 ready"},
		"connected, but has said nothing yet": {
			steps{tell("chat-0"), set(0), func(h *Host, _ *session) { attached(t, h) }}, "chat-0 ready"},
		"connected after a loss, but has said nothing yet": {
			steps{tell("chat-0"), set(0), lose, func(h *Host, _ *session) { attached(t, h) }}, "chat-0 failed"},
		"an old stream": {steps{tell("chat-0"), set(0, 1), func(h *Host, _ *session) { attached(t, h) }, tell("chat-1")}, "chat-0 ready"},
	} {
		h, x, fleet := hostOf(t)
		for _, step := range c.steps {
			step(h, x)
		}
		if got := shown(fleet); got != c.want {
			t.Errorf("%s: the fleet has %q, want %q", name, got, c.want)
		}
	}
}

func TestWhatANodeMayNotSay(t *testing.T) {
	t.Parallel()
	_, x, _ := hostOf(t)
	x.skew = time.Hour
	since := time.Now()
	good := ready("chat-0").Replicas[0]
	good.Since = since
	lie := func(change func(*engines.Replica)) engines.Replica {
		r := good
		change(&r)
		return r
	}
	want := good
	want.Node, want.Launcher, want.Since = "n", engines.Local, since.Add(time.Hour).UTC()
	for name, r := range map[string]engines.Replica{
		"another node":       lie(func(r *engines.Replica) { r.Node = "m" }),
		"another launcher":   lie(func(r *engines.Replica) { r.Launcher = engines.Upstream }),
		"a transport":        lie(func(r *engines.Replica) { r.Transport = &engines.Transport{Group: "g"} }),
		"a header of a host": lie(func(r *engines.Replica) { r.Host = "example.com" }),
	} {
		if diff := cmp.Diff([]engines.Replica{want}, x.check([]engines.Replica{r}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, r := range map[string]engines.Replica{
		"another model": lie(func(r *engines.Replica) { r.Model = "embed" }),
		"no model":      lie(func(r *engines.Replica) { r.Model, r.ID = "", "-0" }),
		"no number":     lie(func(r *engines.Replica) { r.ID = "chat-x" }),
		"below zero":    lie(func(r *engines.Replica) { r.ID = "chat--1" }),
		"not its form":  lie(func(r *engines.Replica) { r.ID = "chat-01" }),
	} {
		if got := x.check([]engines.Replica{r}); len(got) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, r := range map[string]engines.Replica{
		"ready without address": lie(func(r *engines.Replica) { r.Address = netip.AddrPort{} }),
		"ready everywhere":      lie(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("0.0.0.0:80") }),
		"no such state":         lie(func(r *engines.Replica) { r.State = "splendid" }),
	} {
		if got := x.check([]engines.Replica{r}); len(got) != 1 || got[0].State != engines.Failed {
			t.Errorf("%s: %+v", name, got)
		}
	}
	ours := lie(func(r *engines.Replica) { r.Address = netip.MustParseAddrPort("[::ffff:127.0.0.1]:80") })
	if got := x.check([]engines.Replica{ours}); got[0].State != engines.Ready {
		t.Errorf("of a node on this host: %+v", got)
	}
	x.distant = true
	if got := x.check([]engines.Replica{ours}); got[0].State != engines.Failed {
		t.Errorf("of a node on another host: %+v", got)
	}
	if got := x.check([]engines.Replica{good, good}); len(got) != 1 {
		t.Errorf("twice the same: %+v", got)
	}
	long := lie(func(r *engines.Replica) { r.Reason = strings.Repeat("ä", longestReason) })
	if got := x.check([]engines.Replica{long})[0].Reason; len(got) > longestReason {
		t.Errorf("a reason of %d bytes", len(got))
	}
}

func TestWhatANodeHasIsBounded(t *testing.T) {
	t.Parallel()
	h, x, _ := hostOf(t)
	h.hear(x, &report{Inventory: &engines.Node{Reason: strings.Repeat("ä", longestReason), GPUs: make([]engines.GPU, 2*mostGPUs)}})
	if n, _ := h.Node(); len(n.Reason) > longestReason || len(n.GPUs) != mostGPUs {
		t.Errorf("a reason of %d bytes, %d GPUs", len(n.Reason), len(n.GPUs))
	}
}

// A gateway that was stopped, or had no processor, has not heard anybody: nobody is lost for that.
func TestSilenceOfOurOwn(t *testing.T) {
	t.Parallel()
	h, x, fleet := hostOf(t)
	h.hear(x, &report{Replicas: ready("chat-0")})
	begin := time.Now().Add(-time.Hour)
	h.mu.Lock()
	h.heard = begin
	h.mu.Unlock()
	h.server.look(begin, time.Now())
	if got := shown(fleet); got != "chat-0 ready" {
		t.Errorf("after our own absence: %s", got)
	}
	now := time.Now().Add(h.server.config.LostAfter)
	h.server.look(now.Add(-time.Second), now)
	if got := shown(fleet); got != "chat-0 failed" {
		t.Errorf("after its silence: %s", got)
	}
}

// A certificate that was made while the clock was ahead is no good once it is set back.
func TestCertificateOfTheFuture(t *testing.T) {
	t.Parallel()
	h, _, _ := hostOf(t)
	now := time.Now()
	first, err := h.server.face.certificate(now)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := h.server.face.certificate(now.Add(-48 * time.Hour)); err != nil || second == first {
		t.Errorf("the certificate from %v is shown two days earlier (%v)", first.Leaf.NotBefore, err)
	}
}

// What is seen is a picture that has settled, and never a later one.
func TestSeen(t *testing.T) {
	t.Parallel()
	_, x, _ := hostOf(t) // settles in a minute
	now := time.Now()
	at := func(minutes float64) time.Time { return now.Add(time.Duration(minutes * float64(time.Minute))) }
	x.pictures = []picture{{1, at(0)}, {2, at(0.1)}, {3, at(2)}, {4, at(5)}}
	for _, c := range []struct {
		at   float64
		want uint64
	}{{0.5, 0}, {1.05, 1}, {1.5, 2}, {2.9, 2}, {3, 3}, {5.9, 3}, {6, 4}, {100, 4}} {
		if got := x.seen(at(c.at)); got != c.want {
			t.Errorf("after %v minutes %d is seen, want %d", c.at, got, c.want)
		}
	}
	if len(x.pictures) != 1 {
		t.Errorf("%d pictures are kept", len(x.pictures))
	}
}

func TestDamagedFolder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ca.pem", "nodes.json"} {
		dir := t.TempDir()
		if err := writeFile(dir+"/"+name, []byte("{")); err != nil {
			t.Fatal(err)
		}
		if _, err := NewServer(ServerConfig{Dir: dir, Fleet: engines.NewFleet()}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("with a damaged %s: %v", name, err)
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
		h := s.host(name)
		h.key, h.seen = "k", seen
	}
	if err := s.saveNodes(); err != nil {
		t.Fatal(err)
	}
	if s, err = NewServer(ServerConfig{Dir: dir, Fleet: engines.NewFleet()}); err != nil {
		t.Fatal(err)
	}
	if hosts := s.Hosts(); len(hosts) != 1 || hosts[0].Name() != "new" {
		t.Errorf("known are %v", hosts)
	}
}

// A full disk keeps a node that was killed from nothing: what it must know is there.
func TestAddressThatIsNotKept(t *testing.T) {
	t.Parallel()
	s := store{t.TempDir()}
	if err := os.MkdirAll(filepath.Join(s.addressPath(), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := s.address("127.0.0.1:9"); err != nil || !got.IsLoopback() {
		t.Errorf("%v, %v", got, err)
	}
}
