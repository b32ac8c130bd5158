package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// elsewhere is two gateways without an Envoy of their own, and Envoys that reach them over TLS.
type elsewhere struct {
	t         *testing.T
	dir       string
	authority *testutil.Authority
	gateways  [2]*harness.Gateway
	control   [2]string
	// engines is a third gateway, whose replicas are the servers of the two.
	engines *harness.Gateway
}

// newElsewhere starts the gateways. They share a Redis.
func newElsewhere(t *testing.T) *elsewhere {
	t.Helper()
	e := &elsewhere{t: t, authority: testutil.NewAuthority(t, "authority")}
	var err error
	if e.dir, err = os.MkdirTemp("", "el-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(e.dir) })
	e.authority.Write(t, e.path("ca.crt"))
	e.authority.Issue(t, e.dir, "gateway", "gateways.sluice")
	e.engines = harness.Start(t, `
models:
  - {name: m, engine: sim, launcher: local, replicas: {min: 2, max: 2}, variables: {prefill_rate: 0, token_interval: 5ms}}
`)
	e.engines.AwaitReplicas("m", 2)
	redis := redistest.Start(t)
	for i := range e.control {
		e.control[i] = fmt.Sprint("127.0.0.1:", testutil.FreePort(t))
	}
	for i := range e.gateways {
		e.gateways[i] = harness.Prepare(t, e.config(i, redistest.URL(redis)))
		e.gateways[i].Command = []string{"serve", "-c", e.gateways[i].Config}
		t.Cleanup(e.gateways[i].Stop)
		e.gateways[i].Launch()
	}
	for _, g := range e.gateways {
		g.AwaitAdmin()
		g.AwaitSharedState(true, 2)
	}
	return e
}

// path returns the path of a file of the test.
func (e *elsewhere) path(name string) string { return filepath.Join(e.dir, name) }

// config returns the configuration of a gateway.
func (e *elsewhere) config(i int, redis string) string {
	e.t.Helper()
	var servers []string
	for _, r := range e.engines.Replicas() {
		servers = append(servers, "http://"+r.Address)
	}
	model := `  - {name: %s, launcher: upstream, upstreams: [{url: "%s", model: m}, {url: "%s", model: m}], stream: {mode: %s}, admission: {max_per_replica: 100}}
`
	return fmt.Sprintf(`
redis: %s
peers: 127.0.0.1:%d
control:
  listen: %s
  cert: %s
  key: %s
  client_ca: %s
  allowed: [envoy.sluice]
  addresses: ["%s", "%s"]
models:
`, redis, testutil.FreePort(e.t), e.control[i], e.path("gateway.crt"), e.path("gateway.key"), e.path("ca.crt"), e.control[0], e.control[1]) +
		fmt.Sprintf(model, "native", servers[0], servers[1], "native") + fmt.Sprintf(model, "managed", servers[0], servers[1], "managed")
}

// certificates makes the folder with the certificates of an Envoy.
func (e *elsewhere) certificates(a *testutil.Authority, name, subject string) string {
	e.t.Helper()
	dir := e.path("tls-" + name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		e.t.Fatal(err)
	}
	a.Issue(e.t, dir, "tls", subject)
	e.authority.Write(e.t, filepath.Join(dir, "ca.crt"))
	return dir
}

// envoy starts an Envoy with the files that sluice bootstrap writes. What it returns can only send
// requests to the Envoy.
func (e *elsewhere) envoy(name, certificates string) *harness.Gateway {
	t := e.t
	t.Helper()
	dir, address := e.path("envoy-"+name), fmt.Sprint("127.0.0.1:", testutil.FreePort(t))
	out, err := e.gateways[0].RunCommand("bootstrap", "-c", e.gateways[0].Config, "--out", dir, "--certificates", certificates,
		"--listen", address, "--node", name, "--envoy-admin", e.path(name+".sock"))
	if err != nil {
		t.Fatal(err, out)
	}
	log, err := os.Create(e.path(name + ".log"))
	if err != nil {
		t.Fatal(err)
	}
	envoy := exec.Command(testutil.Tool(t, "envoy"), "-c", filepath.Join(dir, "envoy.json"), "--disable-hot-restart",
		"--concurrency", "2", "--log-level", "warning")
	envoy.Stdout, envoy.Stderr = log, log
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		envoy.Process.Kill()
		envoy.Wait()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("--- %s\n%s", name, text[max(0, len(text)-4000):])
		}
		log.Close()
	})
	return &harness.Gateway{T: t, URL: "http://" + address}
}

// threeEnvoys starts three Envoys with certificates of their own and waits until they serve.
func (e *elsewhere) threeEnvoys() (envoys [3]*harness.Gateway) {
	e.t.Helper()
	for i := range envoys {
		name := fmt.Sprint("envoy-", i)
		envoys[i] = e.envoy(name, e.certificates(e.authority, name, "envoy.sluice"))
	}
	for _, envoy := range envoys {
		harness.Eventually(e.t, "an Envoy serves", func() error { return serves(envoy) })
	}
	return envoys
}

// serves asks an Envoy for everything that goes its own way to a gateway.
func serves(envoy *harness.Gateway) error {
	for _, model := range []string{"native", "managed"} {
		for _, stream := range []bool{true, false} {
			a, err := envoy.TryPost(context.Background(), harness.ChatPath, harness.ChatBody(model, stream, 5, "hello"))
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", model, err)
			case a.StatusCode != http.StatusOK:
				return fmt.Errorf("%s: %s", model, a)
			case stream:
				err = harness.CheckWholeStream(a.Content)
			}
			if err != nil {
				return fmt.Errorf("%s: %w: %s", model, err, a)
			}
		}
	}
	r, err := harness.Client.Get(envoy.URL + "/v1/models")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("the list of models: %s", r.Status)
	}
	return nil
}

// busier returns the gateway that configures more Envoys, and the other one.
func (e *elsewhere) busier() (busy, other *harness.Gateway) {
	e.t.Helper()
	a, b := e.gateways[0], e.gateways[1]
	harness.Eventually(e.t, "each Envoy has a gateway", func() error {
		if n := a.Metric("sluice_envoys") + b.Metric("sluice_envoys"); n != 3 {
			return fmt.Errorf("%v Envoys have one", n)
		}
		return nil
	})
	if a.Metric("sluice_envoys") > b.Metric("sluice_envoys") {
		return a, b
	}
	return b, a
}

// load sends requests through all Envoys until stop, and counts those that failed and began after
// since was set. stop waits for a round of each client that began after it.
func load(envoys [3]*harness.Gateway, since *atomic.Int64) (stop func() (sent int, failed []string)) {
	over := envoys[0].T.Context()
	ctx, cancel := context.WithCancel(over)
	var all sync.WaitGroup
	var mu sync.Mutex
	var sent int
	var failed []string
	for _, envoy := range envoys {
		for range 2 {
			all.Go(func() {
				for counted := false; ctx.Err() == nil || !counted && over.Err() == nil; {
					began := time.Now()
					err := serves(envoy)
					if killed := since.Load(); killed == 0 || began.UnixNano() < killed {
						continue // before, or in flight at that time
					}
					counted = true
					mu.Lock()
					sent++
					if err != nil {
						failed = append(failed, fmt.Sprintf("%v after: %v", time.Duration(began.UnixNano()-since.Load()), err))
					}
					mu.Unlock()
				}
			})
		}
	}
	return func() (int, []string) {
		cancel()
		all.Wait()
		return sent, failed
	}
}

// Three Envoys of other hosts are served by two gateways. When a gateway is killed, its Envoys go
// to the other one, and no request fails that begins afterwards.
func TestE2E_B11_EnvoysElsewhereOutliveAGateway(t *testing.T) {
	t.Parallel()
	e := newElsewhere(t)
	envoys := e.threeEnvoys()
	killed, other := e.busier()
	var since atomic.Int64
	stop := load(envoys, &since)
	before := other.Metric("sluice_envoys")
	stream, err := envoys[0].Open(t.Context(), harness.ChatPath, harness.ChatBody("native", true, 400, "long"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	killed.Kill()
	since.Store(time.Now().UnixNano())
	harness.Eventually(t, "the Envoys of the killed gateway have gone to the other one", func() error {
		if n := other.Metric("sluice_envoys"); n != 3 {
			return fmt.Errorf("%v Envoys, %v before", n, before)
		}
		return nil
	})
	text, err := io.ReadAll(stream.Body)
	if err != nil || harness.CheckWholeStream(text) != nil {
		t.Errorf("the native stream was cut: %v", err)
	}
	for _, envoy := range envoys {
		harness.Eventually(t, "every Envoy serves", func() error { return serves(envoy) })
	}
	killed.Launch() // some Envoys may use it again, and nothing fails by that either
	killed.AwaitAdmin()
	if err := serves(envoys[0]); err != nil {
		t.Error(err)
	}
	sent, failed := stop()
	if sent < 6 || len(failed) > 0 {
		t.Errorf("of %d rounds of requests after the end of a gateway %d failed:\n%s", sent, len(failed), strings.Join(failed, "\n"))
	}
}

// A gateway that is told to stop sends its Envoys to the other one, and no request fails: neither
// those that run there nor those that begin meanwhile.
func TestE2E_B11_EnvoysElsewhereOfAGatewayThatStops(t *testing.T) {
	t.Parallel()
	e := newElsewhere(t)
	envoys := e.threeEnvoys()
	stopped, other := e.busier()
	var since atomic.Int64
	since.Store(1) // all requests count
	stop := load(envoys, &since)
	var streams []*http.Response
	for _, envoy := range envoys {
		r, err := envoy.Open(t.Context(), harness.ChatPath, harness.ChatBody("managed", true, 700, "long"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		streams = append(streams, r)
	}
	stopped.Signal(syscall.SIGTERM)
	for _, r := range streams {
		if text, err := io.ReadAll(r.Body); err != nil || harness.CheckWholeStream(text) != nil {
			t.Errorf("a managed stream was cut: %v: %s", err, text[max(0, len(text)-300):])
		}
	}
	stopped.AwaitExit()
	harness.Eventually(t, "all Envoys are at the other gateway", func() error {
		if n := other.Metric("sluice_envoys"); n != 3 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	if sent, failed := stop(); sent < 6 || len(failed) > 0 {
		t.Errorf("of %d rounds of requests %d failed:\n%s", sent, len(failed), strings.Join(failed, "\n"))
	}
}

// A restart for an upgrade keeps the port of the gateway, and no request fails.
func TestE2E_B11_EnvoysElsewhereOfAGatewayThatIsRestarted(t *testing.T) {
	t.Parallel()
	e := newElsewhere(t)
	envoys := e.threeEnvoys()
	restarted, _ := e.busier()
	var since atomic.Int64
	since.Store(1) // all requests count
	stop := load(envoys, &since)
	stream, err := envoys[0].Open(t.Context(), harness.ChatPath, harness.ChatBody("managed", true, 500, "long"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if out, err := restarted.RunCommand("restart", "-c", restarted.Config); err != nil {
		t.Error(err, out)
	}
	if text, err := io.ReadAll(stream.Body); err != nil || harness.CheckWholeStream(text) != nil {
		t.Errorf("a managed stream was cut: %v: %s", err, text[max(0, len(text)-300):])
	}
	e.busier() // each Envoy has a gateway again
	if sent, failed := stop(); sent < 6 || len(failed) > 0 {
		t.Errorf("of %d rounds of requests %d failed:\n%s", sent, len(failed), strings.Join(failed, "\n"))
	}
}

// Only an Envoy with a certificate of the right authority is served. Certificates are replaced
// while everything runs.
func TestE2E_B11_EnvoysElsewhereProveWhoTheyAre(t *testing.T) {
	t.Parallel()
	e := newElsewhere(t)
	stranger := e.envoy("stranger", e.certificates(testutil.NewAuthority(t, "authority"), "stranger", "envoy.sluice"))
	certificates := e.certificates(e.authority, "envoy", "envoy.sluice")
	envoy := e.envoy("envoy", certificates)
	harness.Eventually(t, "the Envoy serves", func() error { return serves(envoy) })
	harness.Eventually(t, "the stranger is refused", func() error {
		if text := e.gateways[0].LogText() + e.gateways[1].LogText(); !strings.Contains(text, "Envoy refused at control") {
			return errors.New("it is not in the log")
		}
		return nil
	})
	if _, err := stranger.TryPost(t.Context(), harness.ChatPath, harness.ChatBody("native", false, 5, "hello")); err == nil {
		t.Error("an Envoy with a foreign certificate serves clients")
	}

	// All certificates and authorities are replaced. No connection with the old ones is left when
	// both gateways have been killed. Each reads nothing at its start that the other has not read
	// while it ran.
	next := testutil.NewAuthority(t, "next")
	next.Write(t, e.path("ca.crt"))
	next.Issue(t, e.dir, "gateway", "gateways.sluice")
	next.Write(t, filepath.Join(certificates, "ca.crt"))
	next.Issue(t, certificates, "tls", "envoy.sluice")
	for i, g := range e.gateways {
		harness.Eventually(t, "the certificates are read again", func() error {
			// A gateway looks at the files when somebody connects.
			if c, err := tls.Dial("tcp", e.control[i], &tls.Config{ServerName: "gateways.sluice"}); err == nil {
				c.Close()
			}
			if text := g.LogText(); !strings.Contains(text, "certificates read again") {
				return errors.New(text[max(0, len(text)-1000):])
			}
			return nil
		})
	}
	serving, resting := e.gateways[0], e.gateways[1]
	if serving.Metric("sluice_envoys") == 0 {
		serving, resting = resting, serving
	}
	serving.Kill()
	harness.Eventually(t, "the other gateway, which has not been restarted, serves the Envoy", func() error {
		if n := resting.Metric("sluice_envoys"); n != 1 {
			return fmt.Errorf("%v Envoys", n)
		}
		return serves(envoy)
	})
	serving.Launch()
	serving.AwaitAdmin()
}
