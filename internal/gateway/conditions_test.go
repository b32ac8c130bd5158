package gateway

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/usage"
	"github.com/sluice-gateway/sluice/xds"
)

// A resource that several Envoys refuse has one condition, which names them.
func TestWhatEnvoysRefuseNamesThem(t *testing.T) {
	bad := xds.Nack{Type: "cluster", Resource: "model/m", Message: "no good"}
	at := func(n xds.Nack, envoy string) xds.Nack {
		n.Envoy = envoy
		return n
	}
	got := rejectedConditions([]xds.Nack{bad, {Type: "cluster", Resource: "model/n", Envoy: "a at 10.0.0.1"}, at(bad, "b at 10.0.0.2")})
	if len(got) != 2 || got[0].Subject != "model/m" || got[1].Subject != "model/n" {
		t.Fatalf("%+v", got)
	}
	if want := "Envoy refused the cluster model/m: no good. The Envoy b at 10.0.0.2 refused it, too."; got[0].Message != want {
		t.Errorf("%q, want %q", got[0].Message, want)
	}
	taken := xds.Nack{Type: "listener", Resource: "sluice", Message: "cannot bind '127.0.0.1:8080': Address already in use\n"}
	if c := rejectedConditions([]xds.Nack{taken})[0]; strings.Contains(c.Message, "\n") || !strings.HasPrefix(c.Action, "End the program that listens there") {
		t.Errorf("%q, %q", c.Message, c.Action)
	}
	if !strings.HasPrefix(got[1].Message, "The Envoy a at 10.0.0.1 refused the cluster model/n") {
		t.Errorf("%q", got[1].Message)
	}
}

func TestO1_RestartCondition(t *testing.T) {
	for fields, action := range map[string]string{
		"orphan_grace":            "Run `sluice restart`: running requests go on.",
		"orphan_grace, state_dir": "Stop the gateway and start it again: `sluice restart` cannot change `state_dir`.",
	} {
		c := restartCondition(config.Status{Path: "/etc/sluice.yaml", NeedsRestart: strings.Split(fields, ", ")})
		want := "/etc/sluice.yaml has new values of " + fields + ", and the gateway still runs with the old ones."
		if c.Message != want || c.Action != action {
			t.Errorf("%q, %q; want %q, %q", c.Message, c.Action, want, action)
		}
	}
}

func TestO1_ModelCondition(t *testing.T) {
	for _, c := range []struct {
		usable, needed int
		states         []engines.State
		status         condition.Status
		severity       condition.Severity
		reason         string
	}{
		{0, 0, nil, condition.True, "", "ScaledToZero"},
		{2, 2, []engines.State{engines.Ready, engines.Ready}, condition.True, "", "Ready"},
		{1, 1, []engines.State{engines.Ready, engines.Failed}, condition.True, "", "Ready"},
		{2, 1, []engines.State{engines.Ready, engines.Ready}, condition.True, "", "Ready"},
		{0, 1, nil, condition.False, condition.Info, "Starting"},
		{0, 1, []engines.State{engines.Starting}, condition.False, condition.Info, "Starting"},
		{0, 1, []engines.State{engines.Pending}, condition.False, condition.Warning, "ReplicaPending"},
		{1, 2, []engines.State{engines.Ready, engines.Failed}, condition.False, condition.Warning, "ReplicaFailed"},
		{0, 2, []engines.State{engines.Starting, engines.Failed}, condition.False, condition.Error, "ReplicaFailed"},
	} {
		m := &engines.ModelSnapshot{Model: engines.Model{Name: "chat"}}
		for _, s := range c.states {
			r := engines.Replica{State: s}
			if s == engines.Pending {
				r.Reason = "no node has room"
			}
			m.Replicas = append(m.Replicas, r)
		}
		got := modelCondition(m, c.usable, c.needed)
		if got.Status != c.status || got.Severity != c.severity || got.Reason != c.reason {
			t.Errorf("%d of %d usable, %v: %+v", c.usable, c.needed, c.states, got)
		}
		if c.usable > c.needed && got.Message != "Model chat has 2 replicas and needs 1." {
			t.Errorf("%d of %d usable: %s", c.usable, c.needed, got.Message)
		}
	}
}

// A replica that is about to be placed, an Envoy that starts, and a Redis that has not had the time
// to answer need nobody.
func TestO3_AStartIsNoWarning(t *testing.T) {
	t.Parallel()
	m := &engines.ModelSnapshot{Model: engines.Model{Name: "chat"}, Replicas: []engines.Replica{{State: engines.Pending}}}
	if c := modelCondition(m, 0, 1); c.Severity != condition.Info || c.Reason != "Starting" {
		t.Errorf("%+v", c)
	}
	all := envoyProcessConditions(envoy.Status{State: envoy.StateDown})
	if len(all) != 1 || all[0].Severity != condition.Info || all[0].Message != "Envoy is starting." {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true})
	if len(all) != 1 || all[0].Severity != condition.Info || all[0].Reason != "Starting" || strings.Contains(all[0].Message, "does not answer") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "WRONGPASS invalid username-password pair or user is disabled."})
	if len(all) != 1 || all[0].Reason != "WrongPassword" || !strings.HasPrefix(all[0].Action, "Correct the user and the password") || strings.Contains(all[0].Message, "slow") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "READONLY You can't write against a read only replica."})
	if len(all) != 1 || all[0].Reason != "Refused" || !strings.HasPrefix(all[0].Action, "Name the master") || strings.Contains(all[0].Message, "slow") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "LOADING Redis is loading the dataset in memory"})
	if len(all) != 1 || all[0].Reason != "Refused" || !strings.HasPrefix(all[0].Action, "Wait until") || strings.Contains(all[0].Message, "slow") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "tls: failed to verify certificate: x509: certificate has expired or is not yet valid"})
	if len(all) != 1 || !strings.HasPrefix(all[0].Action, "Look at the certificate") || strings.Contains(all[0].Message, "slow") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "redis: the store has lost its state"})
	if len(all) != 1 || !strings.Contains(all[0].Action, "noeviction") {
		t.Errorf("%+v", all)
	}
	all = redisConditions(admin.SharedStatus{Configured: true, LastError: "no answer within 50ms"})
	if len(all) != 1 || all[0].Severity == condition.Info || all[0].Reason != "NoAnswer" {
		t.Errorf("%+v", all)
	}
}

// TestU16_WhatKubernetesRefusesMayBeNoPod: a model whose disruption budget is refused has its pods,
// so the condition does not speak of pods by itself.
func TestU16_WhatKubernetesRefusesMayBeNoPod(t *testing.T) {
	c := blockedCondition("chat", `poddisruptionbudgets.policy is forbidden`)
	if want := "Kubernetes does not do all that model chat needs: poddisruptionbudgets.policy is forbidden."; c.Reason != "Blocked" || c.Message != want {
		t.Errorf("%+v, want %s", c, want)
	}
}

// TestB10_FilesNearLimit: a gateway with hardly a descriptor left says so, and goes back to normal.
func TestB10_FilesNearLimit(t *testing.T) {
	g := new(Gateway)
	if all := g.fileLimitConditions(); len(all) > 0 {
		t.Fatalf("before: %+v", all)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	low := syscall.Rlimit{Cur: uint64(process.OpenFiles() + 2), Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	all := g.fileLimitConditions()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Type != condition.FilesNearLimit || all[0].Status != condition.True {
		t.Errorf("with a low limit: %+v", all)
	}
}

// TestB3_ClocksThatDifferAreACondition: a clock that is a few seconds wrong is none.
func TestB3_ClocksThatDifferAreACondition(t *testing.T) {
	for ahead, want := range map[time.Duration]string{
		0: "", 5 * time.Second: "", -5 * time.Second: "",
		6 * time.Second:   "Ahead: The clock of this machine is 6s ahead of that of Redis.",
		-90 * time.Second: "Behind: The clock of this machine is 1m30s behind that of Redis.",
	} {
		got := ""
		for _, c := range clockConditions(ahead) {
			got = c.Reason + ": " + c.Message
		}
		if got != want {
			t.Errorf("%v: %q, want %q", ahead, got, want)
		}
	}
}

// TestB3_DamagedUsageIsACondition: a damaged line in any file of the ledger is a condition.
func TestB3_DamagedUsageIsACondition(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "own.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := usage.New(usage.Config{Dir: dir})
	if opened == nil || err == nil {
		t.Fatal(err)
	}
	all := (&ledger{Ledger: opened}).conditions()
	if len(all) != 1 || all[0].Type != condition.UsageDamaged || all[0].Subject != "own.jsonl" || !strings.Contains(all[0].Message, "damaged") {
		t.Errorf("got %+v", all)
	}
}

// TestB10_WhatIsReadyHasOneTruth: Envoy knows no replica yet. The condition of the model, what the
// operator is shown of it and the history all say that none is ready.
func TestB10_WhatIsReadyHasOneTruth(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, ""))
	ready := func(id, address string) engines.Replica {
		return engines.Replica{ID: id, Model: "found", State: engines.Ready, Launcher: engines.Upstream, Address: netip.MustParseAddrPort(address)}
	}
	g.fleet.Set("upstream", engines.Part{Models: []engines.Model{{Name: "found", Launcher: engines.Upstream, Discovered: true}},
		Replicas: []engines.Replica{ready("a", "127.0.0.1:1"), ready("b", "127.0.0.1:2")}})
	check := func(when string, n int, want string) {
		t.Helper()
		eventually(t, when, func() bool { return g.modelLoad("found").Usable == n })
		var told string
		for _, c := range g.modelConditions() {
			told = c.Message
		}
		if told != want {
			t.Errorf("%s: the condition says %q, want %q", when, told, want)
		}
		if v := g.sampleModel(g.fleet.Snapshot().Models["found"], nil); v[history.ReplicasReady] != float64(n) {
			t.Errorf("%s: the history has %v", when, v[history.ReplicasReady])
		}
	}
	check("Envoy knows none", 0, "Model found has 0 of 1 replicas.")
	g.dispatcher.SetRoutable(headers.ModelCluster("found"), map[string]netip.AddrPort{
		"a": netip.MustParseAddrPort("127.0.0.1:1"), "b": netip.MustParseAddrPort("127.0.0.1:2")})
	check("Envoy knows both", 2, "Model found has 2 replicas and needs 1.")
}

// A replica that starts again after failed starts still needs attention, also while it starts.
// Otherwise the fault of a replica that fails after minutes of loading would show for seconds.
func TestO1_AReplicaThatStartsAgainIsNotCured(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := newGateway(t, claimed(t, path), parse(t, path, ""))
	again := engines.Replica{ID: "chat-0", State: engines.Starting, Reason: "loading", FailedStarts: 2, Failure: engines.NoWeights}
	fetching := again
	fetching.Fetch.Rate = 1
	for _, c := range []struct {
		replica  engines.Replica
		severity condition.Severity
		faults   []string
	}{
		{again, condition.Error, []string{"Replica chat-0 of chat starts again after failed starts: 2. The fault was that the weights cannot be fetched or read."}},
		{fetching, condition.Info, nil},
		{engines.Replica{ID: "chat-0", State: engines.Starting}, condition.Info, nil},
	} {
		m := &engines.ModelSnapshot{Model: engines.Model{Name: "chat"}, Replicas: []engines.Replica{c.replica}}
		if got := modelCondition(m, 0, 1); got.Severity != c.severity {
			t.Errorf("%+v: the condition of the model is %+v", c.replica, got)
		}
		c.replica.Model = "chat"
		g.fleet.Set("test", engines.Part{Models: []engines.Model{m.Model}, Replicas: []engines.Replica{c.replica}})
		var faults []string
		for _, got := range g.replicaConditions() {
			faults = append(faults, got.Message)
		}
		if !slices.Equal(faults, c.faults) {
			t.Errorf("%+v: the conditions of replicas are %q", c.replica, faults)
		}
	}
}

// A replica that has failed for a known reason has a condition that says what to do about that.
func TestO1_FailedReplicasSayWhatToDo(t *testing.T) {
	for reason, want := range map[string]string{
		`start vllm: exec: "vllm": executable file not found in $PATH`: "Install the engine where the replica runs",
		"weights not fetched: 404":                                     "Correct the model's source",
		"torch.cuda.OutOfMemoryError":                                  "Give the model more memory",
		"exit status 1; its log is /tmp/chat-0.log":                    "",
	} {
		c := failedCondition("chat", &engines.Replica{ID: "chat-0", State: engines.Failed, Reason: reason, Failure: engines.ClassifyFailure(reason)})
		if !strings.HasPrefix(c.Action, want) || (c.Action == "") != (want == "") || !strings.Contains(c.Message, reason) {
			t.Errorf("%s: the message is %q, the action %q, want %q", reason, c.Message, c.Action, want)
		}
	}
}
