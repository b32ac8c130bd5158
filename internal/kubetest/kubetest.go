// Package kubetest runs a real Kubernetes control plane for tests: etcd, the API server, the
// controllers and the scheduler, on loopback. The tests of engines/kubernetes and the end-to-end
// tests use it.
//
// Nodes are node objects with a stand-in kubelet, which runs the containers of pods as plain
// processes of this machine. The stand-in has no images, mounts, network and process namespaces,
// and no limits of memory and CPU. A container's process sees the whole machine but has its own
// address in 127.0.0.0/8. The API server gets the logs of pods from the stand-in, as from a
// kubelet. Nothing outlives the test process except files in the temporary directory.
//
// Several test processes may use the package at once. Their sockets, ports and pod addresses do not
// overlap.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

const (
	// waitLimit is how long the package waits for something that normally happens soon. It is long
	// because the machine may be busy.
	waitLimit = 2 * time.Minute
	// pollInterval is the time between two checks of a condition.
	pollInterval = 50 * time.Millisecond
)

// Cluster is a running control plane.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string
	// Programs maps the program in a container's command, such as "sluice", to its path. Other
	// programs are searched in PATH. A container whose program is missing waits as if its image
	// were missing. Set Programs before calling Node, which copies it.
	Programs map[string]string

	dir     string
	binary  string
	config  *rest.Config
	client  kubernetes.Interface
	port    *port
	subnet  *subnet
	etcd    *program
	api     *program
	control []*program
}

// Start starts a control plane that is removed when the test ends. It skips the test if the binary
// is missing, which "make tools" builds. In the continuous integration it fails the test instead.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c, err := start(testutil.Tool(t, "kubetest"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

// shared is the control plane that the tests of a process share. It is a variable because one test
// cannot pass it to the next.
var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Shared returns the control plane that all tests of the process share. Its tests must use their
// own namespaces and node names and must not call StopAPI. The first call starts the control plane.
// The package's TestMain must call Main or StopShared, which stop it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	binary := testutil.Tool(t, "kubetest")
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start(binary)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// Main runs the tests, stops the shared control plane and checks that no goroutine is left, except
// those that leaks allows. It returns the exit status.
func Main(m *testing.M, leaks ...goleak.Option) int {
	code := m.Run()
	StopShared()
	if code != 0 {
		return code
	}
	if err := goleak.Find(leaks...); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		return 1
	}
	return 0
}

// StopShared stops the shared control plane, if a test has started it.
func StopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.stop()
		shared.cluster = nil
	}
}

// start starts a control plane by its binary.
func start(binary string) (c *Cluster, err error) {
	// The test's own directory is not used, because its path may be too long for a Unix socket.
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, err
	}
	c = &Cluster{Kubeconfig: filepath.Join(dir, "kubeconfig"), Programs: map[string]string{}, dir: dir, binary: binary}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := c.prepare(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	return c, c.launch(ctx)
}

// prepare writes the files and reserves the addresses.
func (c *Cluster) prepare() (err error) {
	if c.port, err = reservePort(); err != nil {
		return err
	}
	if c.subnet, err = reserveSubnet(); err != nil {
		return err
	}
	if err := os.Mkdir(c.path("pods"), 0o700); err != nil {
		return err
	}
	token, err := c.writeSecrets()
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(c.Kubeconfig, "default", token); err != nil {
		return err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.config.QPS = -1 // no limit of requests per second
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// stop kills all programs and removes all files. It kills the API server before etcd, because the
// API server would wait for etcd.
func (c *Cluster) stop() {
	for _, p := range append(c.control, c.api, c.etcd) {
		p.kill()
	}
	c.port.free()
	c.subnet.free()
	_ = os.RemoveAll(c.dir) // It is in the temporary directory, so remaining files are harmless.
}

// until retries try until it succeeds or ctx ends, and returns the last error. It gives up at
// errEnded.
func until(ctx context.Context, what string, try func() error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := try()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		}
	}
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", fmt.Sprint(port)) }
