// Package kubetest runs a real Kubernetes control plane for tests: etcd, the API server, the controllers and the scheduler, on loopback. Nodes are
// node objects with a stand-in kubelet that runs the containers of their pods as plain processes of this machine.
//
// What the stand-in does not have: images, mounts, network and process namespaces, limits of memory and CPU. A container's process sees the whole
// machine; what it has of its own is an address of 127.0.0.0/8, its pod's. Nothing outlives the test process but files in the temporary directory.
//
// Several test processes may do this at once: sockets, ports and pod addresses are theirs alone.
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
)

const (
	// patience bounds what must come true, on a machine that may do much else.
	patience = 2 * time.Minute
	// interval is how often the tests look whether it has.
	interval = 50 * time.Millisecond
)

// Cluster is a control plane.
type Cluster struct {
	// Kubeconfig is the path of the kubeconfig of a user who may do everything.
	Kubeconfig string
	// Programs has the path of the program that a container's command names, as "sluice". What is not here is looked for in PATH, and a container
	// whose program is nowhere waits as if its image were missing. Node reads it: it is to be filled before.
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

// Start starts a control plane, which ends with the test. It fails when the binary is missing, which "make tools" builds.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return c
}

// shared is the control plane that the tests of a process share. It is the process's own: a test has no other way to hand it to the next.
var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Shared is one control plane for all tests of the process. It is for tests that have namespaces and nodes with names of their own, and which leave
// StopAPI alone. The first call starts it. The package's TestMain must call Main, which ends it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start()
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// Main runs the tests, ends the shared control plane, and sees to it that no goroutine is left, but for those that the options of goleak allow. It
// returns the exit status.
func Main(m *testing.M, leaks ...goleak.Option) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		shared.cluster.stop()
		shared.cluster = nil
	}
	if code != 0 {
		return code
	}
	if err := goleak.Find(leaks...); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		return 1
	}
	return 0
}

func start() (c *Cluster, err error) {
	binary, err := find()
	if err != nil {
		return nil, err
	}
	// Not the test's directory: its path may be too long for a Unix socket.
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c, c.launch(ctx)
}

// find looks for the binary in the .tools of the repository that the tests run in.
func find() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, ".tools", "kubetest")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New(`no Kubernetes for the tests at .tools/kubetest: "make tools" builds it`)
		}
	}
}

// prepare writes the files and takes the addresses.
func (c *Cluster) prepare() (err error) {
	if c.port, err = takePort(); err != nil {
		return err
	}
	if c.subnet, err = takeSubnet(); err != nil {
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
	c.config.QPS = -1 // the tests' requests wait for nothing
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// stop ends everything; the API server before etcd, for which it would wait. All of it is thrown away, so nothing ends in good order.
func (c *Cluster) stop() {
	for _, p := range append(c.control, c.api, c.etcd) {
		p.kill()
	}
	c.port.free()
	c.subnet.free()
	_ = os.RemoveAll(c.dir) // in the system's temporary directory: what cannot be removed now is removed there
}

// until waits for what must come true, and tells why it did not. It does not wait for programs that have ended.
func until(ctx context.Context, what string, try func() error) error {
	tick := time.NewTicker(interval)
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
