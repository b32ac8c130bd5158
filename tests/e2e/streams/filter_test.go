package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// filtered is a gateway that is asked by Sluice's own filter inside Envoy.
const filtered = `
envoy: {filter: module}
models:
  - {name: chat, engine: sim, variables: {max_num_seqs: 20, token_interval: 50ms}, replicas: {min: 1, max: 1}}
`

// byExtProc counts the exchanges that ext_proc has had.
func byExtProc(g *harness.Gateway) string {
	for line := range strings.Lines(g.EnvoyAdmin("/stats?filter=ext_proc.streams_started$")) {
		if _, n, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			return n
		}
	}
	return ""
}

func TestE2E_B6_TheFilterDecides(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	g.AwaitNoCondition(condition.FilterUnavailable)
	for i := range 5 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, fmt.Sprint("question ", i))); a.StatusCode != 200 {
			t.Fatalf("%d: %s", a.StatusCode, a.Content)
		}
	}
	g.OpenStreams(5, 10).Wait()
	if a := g.Post("/v1/chat/completions", harness.ChatBody("nobody", false, 2, "x")); a.StatusCode != 404 || a.Header.Get("content-type") != "application/json" {
		t.Errorf("an unknown model: %d %s", a.StatusCode, a.Content)
	}
	if a := g.Post("/v1/chat/completions", strings.Repeat("x", 300_000)); a.StatusCode != 400 {
		t.Errorf("a large body that is no JSON: %d", a.StatusCode)
	}
	if n := byExtProc(g); n != "" && n != "0" {
		t.Errorf("ext_proc had %s exchanges", n)
	}
	g.AwaitIdle("chat")
	var list struct {
		Running  int
		Requests []struct {
			ID     string `json:"request_id"`
			Status int
			Route  string
		}
	}
	harness.Eventually(t, "each request is listed once, with its end", func() error {
		g.Get("/api/v1/requests", &list)
		seen := map[string]int{}
		for _, r := range list.Requests {
			seen[r.ID]++
		}
		if list.Running != 0 || len(seen) != 12 || len(list.Requests) != 12 {
			return fmt.Errorf("%d running, %d requests of %d ids", list.Running, len(list.Requests), len(seen))
		}
		return nil
	})
}

// The gateway is killed while streams run and requests wait. The streams are whole, those that
// waited are answered with 503, and the next gateway counts what still runs.
func TestE2E_B6_StreamsOutliveTheGatewayThatTheFilterAsks(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	running := g.OpenStreams(20, 500) // which run until after the next start
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "one more")); a.StatusCode != 503 {
				t.Errorf("one that waited: %d %s", a.StatusCode, a.Content)
			}
		})
	}
	g.AwaitQueued("chat", 3)
	g.Kill()
	waiting.Wait()
	g.Launch()
	g.AwaitReady()
	harness.Eventually(t, "the streams are counted again", func() error {
		if n := g.Model("chat").InFlight; n != 20 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	running.Wait()
	g.AwaitIdle("chat")
	g.OpenStreams(2, 5).Wait()
	g.AwaitIdle("chat")
}

// The gateway answers the workers of Envoy directly, also after Envoy has been adopted, and a
// stream runs on meanwhile.
func TestE2E_B6_B12_AnswersGoToTheWorkers(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	running := g.OpenStreams(4, 100)
	direct := func() error {
		if inlets(g) == 0 {
			return errors.New("no worker is")
		}
		return nil
	}
	harness.Eventually(t, "workers are answered directly", direct)
	g.Kill()
	harness.Eventually(t, "the connections of the gateway that has ended are closed", func() error {
		if n := inlets(g); n != 0 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
	g.Launch()
	g.AwaitReady()
	g.OpenStreams(4, 5).Wait()
	harness.Eventually(t, "workers are answered directly by the gateway that has adopted Envoy", direct)
	running.Wait()
	g.AwaitIdle("chat")
}

// inlets counts the connections of gateways to the workers of Envoy.
func inlets(g *harness.Gateway) (n int) {
	g.T.Helper()
	for line := range strings.Lines(g.EnvoyAdmin(`/stats?filter=inlets\.sock\.downstream_cx_active$`)) {
		if _, value, ok := strings.Cut(line, ": "); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				g.T.Fatal(err)
			}
		}
	}
	return n
}

// A gateway is replaced by another process while streams run and requests wait. All of them end
// well.
func TestE2E_B6_RequestsMoveToTheNextProcess(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	running := g.OpenStreams(20, 300) // long enough for an interim entry of Envoy's log
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "one more")); a.StatusCode != 200 {
				t.Errorf("one that waited: %d %s", a.StatusCode, a.Content)
			}
		})
	}
	g.AwaitQueued("chat", 3)
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	waiting.Wait()
	running.Wait()
	g.AwaitIdle("chat")
	g.OpenStreams(2, 5).Wait()
	if n := byExtProc(g); n != "" && n != "0" {
		t.Errorf("ext_proc had %s exchanges", n)
	}
}

// An Envoy with the filter of an earlier version of Sluice is replaced by one with the filter of
// this version, which then asks. No stream is cut.
func TestE2E_B6_X20_AFilterOfAnEarlierVersionIsReplaced(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	streams := g.OpenStreams(4, 100)
	before := envoyStatus(g).PID
	makeFilterOlder(t, g.Dir)
	out, err := g.RunCommand("restart", "-c", g.Config)
	if err != nil || !strings.Contains(out, "replaced: Envoy") {
		t.Fatalf("%v: %s", err, out)
	}
	g.OpenStreams(4, 5).Wait()
	if e := envoyStatus(g); e.PID == before || e.Filter != "module" {
		t.Errorf("Envoy %+v, before %d", e, before)
	}
	g.AwaitNoCondition(condition.FilterUnavailable)
	streams.Wait()
	g.AwaitIdle("chat")
}

// While an Envoy with the filter of an earlier version cannot be replaced, ext_proc serves, and
// Envoy takes its configuration.
func TestE2E_B6_X20_AFilterOfAnEarlierVersionIsNotAsked(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	stream := g.OpenStreams(1, 100)
	g.Kill()
	makeFilterOlder(t, g.Dir)
	obstacle := filepath.Join(g.Dir, "filter-check.json") // where the new filter is to be checked
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	g.Launch()
	g.AwaitReady()
	if c := g.AwaitCondition(condition.FilterUnavailable, ""); c.Reason != "AnotherVersion" {
		t.Errorf("the condition is %+v", c)
	}
	before := cmp.Or(byExtProc(g), "0")
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 200 || a.Header.Get("Server") != "" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	if e := envoyStatus(g); e.Filter != "ext_proc" || cmp.Or(byExtProc(g), "0") == before {
		t.Errorf("ext_proc was not asked: %+v", e)
	}
	var status struct{ XDS struct{ Nacks int } }
	if g.Get("/api/v1/status", &status); status.XDS.Nacks != 0 {
		t.Errorf("Envoy has refused %d resources", status.XDS.Nacks)
	}
	stream.Wait()
	g.AwaitIdle("chat")
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(envoyStatus(g).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.AwaitNoCondition(condition.FilterUnavailable)
}

// makeFilterOlder has the filter of a running Envoy seem to be that of an earlier version, whose
// file had no number in its name.
func makeFilterOlder(t *testing.T, dir string) {
	t.Helper()
	record := filepath.Join(dir, "processes", "envoy.json")
	content, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	numbered := regexp.MustCompile(`filter-\d+-([0-9a-f]+)\.so`)
	name := numbered.FindString(string(content))
	if name == "" {
		t.Fatalf("no filter: %s", content)
	}
	if err := os.Link(filepath.Join(dir, name), filepath.Join(dir, numbered.ReplaceAllString(name, "filter-$1.so"))); err != nil {
		t.Fatal(err)
	}
	content = regexp.MustCompile(`,"sum":"[0-9a-f]+"`).ReplaceAll(content, nil) // early records had no checksum either
	if err := os.WriteFile(record, numbered.ReplaceAll(content, []byte("filter-$1.so")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A stream that Envoy carries when Envoy is killed counts for its tenant, in the metrics and in the
// access log. It counts whether or not it goes through the relay.
func TestE2E_B6_E3_AStreamOfAKilledEnvoyCounts(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"module", "ext_proc"} {
		for _, mode := range []string{"native", "managed"} {
			t.Run(filter+" "+mode, func(t *testing.T) {
				t.Parallel()
				configuration := strings.Replace(filtered, "filter: module", "filter: "+filter, 1)
				countsWithoutEnvoy(t, strings.Replace(configuration, "replicas:", "stream: {mode: "+mode+"}, replicas:", 1))
			})
		}
	}
}

// A gRPC stream that Envoy carries when it is killed counts too.
func TestE2E_B6_E3_AGRPCStreamOfAKilledEnvoyCounts(t *testing.T) {
	t.Parallel()
	countsWithoutEnvoyBy(t, filtered, func(ctx context.Context, g *harness.Gateway) error {
		stream, err := dialGRPC(g).Stream(ctx, &llmv1.StartRequest{Model: "chat", Messages: []string{"cut"}, MaxTokens: 10000})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	})
}

// countsWithoutEnvoy runs TestE2E_B6_E3_AStreamOfAKilledEnvoyCounts with a configuration.
func countsWithoutEnvoy(t *testing.T, configuration string) {
	t.Helper()
	countsWithoutEnvoyBy(t, configuration, func(ctx context.Context, g *harness.Gateway) error {
		_, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 10000, "cut"))
		return err
	})
}

// countsWithoutEnvoyBy is countsWithoutEnvoy for a stream that open begins.
func countsWithoutEnvoyBy(t *testing.T, configuration string, open func(context.Context, *harness.Gateway) error) {
	t.Helper()
	g := harness.Start(t, configuration)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if err := open(ctx, g); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(envoyStatus(g).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the stream has broken off because of the gateway", func() error {
		if n := g.Metric(`stream_disconnects_total{cause="gateway"}`); n != 1 {
			return fmt.Errorf("%v such streams", n)
		}
		return nil
	})
	if n := g.Metric(`stream_disconnects_total{cause="client"}`); n != 0 {
		t.Errorf("%v streams are said to have been left by their client", n)
	}
	awaitUsed(g)
	harness.Eventually(t, "the list of requests says why the stream has ended", func() error {
		if rows := g.AdminText("/api/v1/requests?limit=5"); !strings.Contains(rows, `"code":"gateway_unavailable"`) {
			return errors.New(rows)
		}
		return nil
	})
}

// awaitUsed waits until the usage has one request.
func awaitUsed(g *harness.Gateway) {
	g.T.Helper()
	harness.Eventually(g.T, "the usage has the stream", func() error {
		if used := g.AdminText("/api/v1/usage"); !strings.Contains(used, `"requests":1`) {
			return errors.New(used)
		}
		return nil
	})
}

// A stream that ran before a restart of the gateway counts too when its Envoy is killed then.
func TestE2E_B6_E3_AnAdoptedStreamOfAKilledEnvoyCounts(t *testing.T) {
	t.Parallel()
	for _, filter := range []string{"module", "ext_proc"} {
		t.Run(filter, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, strings.Replace(filtered, "filter: module", "filter: "+filter, 1))
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			if _, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 10000, "cut")); err != nil {
				t.Fatal(err)
			}
			g.Kill()
			g.Launch()
			g.AwaitReady()
			harness.Eventually(t, "the access log has named the stream", func() error {
				if rows := g.AdminText("/api/v1/requests?limit=5"); !strings.Contains(rows, `"running":1`) {
					return errors.New(rows)
				}
				return nil
			})
			if err := syscall.Kill(envoyStatus(g).PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the stream has broken off because of the gateway", func() error {
				if n := g.Metric(`stream_disconnects_total{cause="gateway"}`); n != 1 {
					return fmt.Errorf("%v such streams", n)
				}
				return nil
			})
			awaitUsed(g)
		})
	}
}

// What asks the gateway is changed by a reload, in both directions, and no stream is cut.
func TestE2E_B6_TheFilterIsSwitchedByAReload(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, filtered)
	first := g.OpenStreams(5, 100)
	g.Configure(strings.Replace(filtered, "module", "ext_proc", 1))
	harness.Eventually(t, "ext_proc asks", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 200 {
			return fmt.Errorf("%d %s", a.StatusCode, a.Content)
		}
		if n := byExtProc(g); n == "" || n == "0" {
			return fmt.Errorf("%s exchanges", n)
		}
		return nil
	})
	second := g.OpenStreams(5, 100)
	g.Configure(filtered)
	harness.Eventually(t, "the filter asks", func() error {
		before := byExtProc(g)
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 200 {
			return fmt.Errorf("%d %s", a.StatusCode, a.Content)
		}
		if n := byExtProc(g); n != before {
			return fmt.Errorf("%s exchanges after %s", n, before)
		}
		return nil
	})
	first.Wait()
	second.Wait()
	g.AwaitIdle("chat")
}

// envoyStatus is what /api/v1/status says of Envoy.
func envoyStatus(g *harness.Gateway) (e struct {
	PID             int
	Version, Filter string
}) {
	g.T.Helper()
	var status struct{ Envoy any }
	status.Envoy = &e
	g.Get("/api/v1/status", &status)
	return e
}

// The filter is used with the Envoy that it is made for, and with no other: ext_proc then serves,
// and a condition says why. A new Envoy gets the filter when the binary is the right one, and old
// files of the filter are removed.
func TestE2E_B6_AnotherVersionOfEnvoyIsServedByExtProc(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, filtered)
	t.Cleanup(g.Stop)
	binary := filepath.Join(t.TempDir(), "envoy")
	// The script is the true Envoy, and says that it is another version.
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && echo \"$0  version: 0123/1.39.2/Clean/RELEASE/BoringSSL\" && exit\nexec %s \"$@\"\n", testutil.Tool(t, "envoy"))
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	g.Command = append(g.Command, "--envoy", binary)
	g.Launch()
	g.AwaitReady()
	c := g.AwaitCondition(condition.FilterUnavailable, "")
	if c.Reason != "Refused" || !strings.Contains(c.Message, "1.40.0") || !strings.Contains(c.Message, "1.39.2") {
		t.Errorf("the condition is %+v", c)
	}
	chat := func(filter, version string) int {
		t.Helper()
		before := cmp.Or(byExtProc(g), "0")
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 200 {
			t.Errorf("%d %s", a.StatusCode, a.Content)
		}
		e := envoyStatus(g)
		if asked := cmp.Or(byExtProc(g), "0") != before; asked != (filter == "ext_proc") || e.Filter != filter || e.Version != version {
			t.Errorf("ext_proc was asked: %v, status %+v", asked, e)
		}
		return e.PID
	}
	first := chat("ext_proc", "1.39.2")

	old := filepath.Join(g.Dir, "filter-000000000000.so")
	if err := os.WriteFile(old, []byte("of an earlier version"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(binary); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(testutil.Tool(t, "envoy"), binary); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.AwaitNoCondition(condition.FilterUnavailable)
	harness.Eventually(t, "another Envoy serves", func() error {
		if e := envoyStatus(g); e.PID == 0 || e.PID == first {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	g.AwaitReady()
	chat("module", "1.40.0")
	harness.Eventually(t, "only the file of the new filter is left", func() error {
		if files, err := filepath.Glob(filepath.Join(g.Dir, "filter-*.so")); err != nil || len(files) != 1 || files[0] == old {
			return fmt.Errorf("%v: %w", files, err)
		}
		return nil
	})
	g.AwaitIdle("chat")
}
