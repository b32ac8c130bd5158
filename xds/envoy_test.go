package xds

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// envoyBinary returns the Envoy that the tests run: $SLUICE_ENVOY, else the pinned one.
func envoyBinary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("SLUICE_ENVOY")
	if path == "" {
		root, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
				break
			}
			if root == filepath.Dir(root) {
				t.Fatal("no go.mod above the test")
			}
			root = filepath.Dir(root)
		}
		path = filepath.Join(root, ".tools", "envoy")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal("run make envoy: the tests need the pinned Envoy: ", err)
	}
	return path
}

// envoyProcess is a running Envoy.
type envoyProcess struct {
	dir   string
	pid   int
	admin *http.Client
}

// startEnvoy runs an Envoy with the control and API sockets in dir and ends it with the test.
func startEnvoy(t testing.TB, dir string) *envoyProcess {
	t.Helper()
	config := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(config, bootstrap(t, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoyBinary(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", logLevel())
	cmd.Stdout, cmd.Stderr = log, log
	// If a test panics, the kernel ends its Envoy.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		// The process was killed, so Wait returns an error.
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			t.Logf("Envoy said:\n%s", tail(filepath.Join(dir, "envoy.log")))
		}
	})
	admin := filepath.Join(dir, "admin.sock")
	e := &envoyProcess{dir: dir, pid: cmd.Process.Pid, admin: &http.Client{
		Timeout: testTimeout,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", admin)
		}},
	}}
	t.Cleanup(e.admin.CloseIdleConnections)
	return e
}

func logLevel() string {
	if l := os.Getenv("SLUICE_TEST_ENVOY_LOG"); l != "" {
		return l
	}
	return "warn"
}

func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-8000):])
}

// get reads a page of Envoy's admin interface.
func (e *envoyProcess) get(path string) (string, error) {
	r, err := e.admin.Get("http://envoy" + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// address waits for the listener and returns its address.
func (e *envoyProcess) address(t testing.TB) string {
	t.Helper()
	var address string
	eventually(t, "Envoy listens", func() bool {
		page, err := e.get("/listeners")
		if err != nil || !strings.HasPrefix(page, resourceName+"::") {
			return false
		}
		address = strings.TrimSpace(strings.TrimPrefix(page, resourceName+"::"))
		// Envoy shows the address before it listens.
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
	return address
}

// stat reads one of Envoy's counters.
func (e *envoyProcess) stat(t testing.TB, name string) string {
	t.Helper()
	page, err := e.get("/stats?filter=^" + name + "$")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(page), name+":"))
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// testTimeout bounds every wait. It is long enough for a busy machine.
const testTimeout = testutil.Patience

type dict = map[string]any

// bootstrap returns the smallest bootstrap with which Envoy finds Sluice.
func bootstrap(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := json.Marshal(bootstrapDict(dir))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func bootstrapDict(dir string) dict {
	ads := dict{"resource_api_version": "V3", "ads": dict{}}
	return dict{
		"node":  dict{"id": "test", "cluster": "test"},
		"admin": dict{"address": pipe(dir, "admin.sock")},
		"dynamic_resources": dict{
			"lds_config": ads, "cds_config": ads,
			"ads_config": dict{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3",
				"grpc_services": []dict{{"envoy_grpc": dict{
					"cluster_name": "sluice_control",
					"retry_policy": dict{"retry_back_off": dict{"base_interval": "0.05s", "max_interval": "0.2s"}},
				}}},
			},
		},
		"static_resources": dict{"clusters": []dict{
			staticCluster("sluice_control", pipe(dir, "control.sock"), "explicit_http_config", dict{"http2_protocol_options": dict{}}),
			staticCluster("sluice_api", pipe(dir, "api.sock"), "explicit_http_config", dict{"http_protocol_options": dict{}}),
		}},
	}
}

func pipe(dir, name string) dict {
	return dict{"pipe": dict{"path": filepath.Join(dir, name)}}
}

func staticCluster(name string, address dict, protocol string, options dict) dict {
	return dict{
		"name": name, "type": "STATIC", "connect_timeout": "1s",
		"load_assignment": dict{"cluster_name": name, "endpoints": []dict{{
			"lb_endpoints": []dict{{"endpoint": dict{"address": address}}},
		}}},
		"typed_extension_protocol_options": dict{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": dict{
			"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", protocol: options,
		}},
	}
}

// shortDir returns a directory whose sockets fit into a socket address.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "xds")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func listenUnix(t testing.TB, dir, name string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(fmt.Errorf("listening on %s: %w", name, err))
	}
	return l
}
