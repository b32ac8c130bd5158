package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_O1_ReadyIsNotAMatterOfReplicas: a model whose only upstream is dead, and a model that is
// starting, leave the gateway ready. Each has a condition, and the metrics say the same.
func TestE2E_O1_ReadyIsNotAMatterOfReplicas(t *testing.T) {
	t.Parallel()
	dead := fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	g := harness.Prepare(t, `models:
  - {name: dead, launcher: upstream, upstreams: [{url: `+dead+`}]}
  - {name: slow, engine: sim, replicas: {min: 1, max: 1}, variables: {load_time: 1h}}
  - {name: chat, engine: sim, replicas: {min: 1, max: 1}}
`)
	t.Cleanup(g.Stop)
	g.Launch()
	harness.Eventually(t, "the gateway is ready", func() error { return g.TryGet("/readyz", new(struct{})) })

	c := g.AwaitCondition(condition.ModelReady, "dead")
	if c.Status != condition.False || c.Severity != condition.Error || c.Since.IsZero() {
		t.Errorf("the model without a server: %+v", c)
	}
	if c := g.AwaitCondition(condition.UpstreamUnreachable, dead); !strings.Contains(c.Message, "Check that the server runs") {
		t.Errorf("the server that does not answer: %+v", c)
	}
	if c := g.AwaitCondition(condition.ModelReady, "slow"); c.Severity != condition.Info || c.Reason != "Starting" {
		t.Errorf("the model that is starting: %+v", c)
	}
	for series, want := range map[string]string{
		`sluice_model_ready{model="chat"}`:                                                       "1",
		`sluice_model_ready{model="dead"}`:                                                       "0",
		`sluice_condition{severity="error",subject="dead",type="ModelReady"}`:                    "1",
		`sluice_condition{severity="info",subject="",type="StateNotWritable"}`:                   "0",
		`sluice_condition{severity="warning",subject="` + dead + `",type="UpstreamUnreachable"}`: "1",
	} {
		harness.Eventually(t, series, func() error {
			if line := series + " " + want + "\n"; !strings.Contains(metrics(t, g), line) {
				return fmt.Errorf("the metrics lack %s", line)
			}
			return nil
		})
	}
	if err := g.TryGet("/readyz", new(struct{})); err != nil {
		t.Errorf("the gateway is not ready: %v", err)
	}
}

// TestE2E_B5_FaultsAreNamedWhereOperatorsLook: faults of every kind are in the conditions with what
// to do, in the metrics and in `sluice status`. They go when the operator has mended them.
func TestE2E_B5_FaultsAreNamedWhereOperatorsLook(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	good := "redis: " + redistest.URL(redis) + "\nmodels:\n  - {name: chat, engine: sim, replicas: {min: 1, max: 1}}\n"
	stranger := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) { harness.ServeModelList(w, r, "chat") })
	dead := fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	faulty := good + `  - {name: broken, engine: sim, args: ["--fault", "exit"]}
  - {name: away, launcher: upstream, upstreams: [` + dead + `]}
upstreams: [` + stranger + `]
orphan_grace: 61s
`
	g := harness.Start(t, good)
	redis.Kill()
	g.Configure(faulty)
	type fault struct {
		kind    condition.Type
		subject string
	}
	faults := []fault{
		{condition.RedisUnavailable, ""}, {condition.ReplicaFailed, "broken-0"}, {condition.ModelReady, "away"},
		{condition.UpstreamUnreachable, dead}, {condition.NameClash, "chat"}, {condition.RestartRequired, ""},
	}
	check := func(f fault) {
		c := g.AwaitCondition(f.kind, f.subject)
		if c.Reason == "" || c.Message == "" || c.Since.IsZero() || c.Severity == "" {
			t.Errorf("%s %s says too little: %+v", f.kind, f.subject, c)
		}
		series := fmt.Sprintf("sluice_condition{severity=%q,subject=%q,type=%q} 1\n", c.Severity, f.subject, f.kind)
		harness.Eventually(t, series, func() error {
			if !strings.Contains(metrics(t, g), series) {
				return errors.New("the metrics lack it")
			}
			return nil
		})
		out, err := g.RunCommand("status", "-c", g.Config)
		if err != nil || !strings.Contains(out, strings.TrimSpace(fmt.Sprint(f.kind, " ", f.subject))) {
			t.Errorf("sluice status lacks %s %s: %v\n%s", f.kind, f.subject, err, out)
		}
	}
	for _, f := range faults {
		check(f)
	}
	g.Configure(faulty + "nonsense: true\n")
	check(fault{condition.ConfigRejected, ""})
	redis.Restart()
	g.Configure(good)
	for _, f := range append(faults, fault{condition.ConfigRejected, ""}) {
		g.AwaitNoCondition(f.kind)
	}
}

// metrics returns what the gateway's admin listener answers to a scrape.
func metrics(t *testing.T, g *harness.Gateway) string {
	t.Helper()
	r, err := http.Get(g.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
