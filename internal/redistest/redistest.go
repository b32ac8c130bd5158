// Package redistest starts real Redis servers for tests: one server, a cluster of three masters, or
// a master and a replica with sentinels. Tests of shared admission and of several gateways use it.
//
// The servers listen on free ports of 127.0.0.1 and write no data to disk. They end with the test,
// or with its process if the process dies.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// Server is one Redis server. Its methods fail the test on an error.
type Server struct {
	// Addr is the host:port of the server. Kill and Restart do not change it.
	Addr string

	t       testing.TB
	dir     string
	cluster bool
	busPort int
	process *exec.Cmd
	// sentinel is the configuration of a sentinel; empty: the server is none. password is that of
	// the default user; empty: it has none.
	sentinel, password string
	// tls has the certificates of the server and of its clients; nil: it speaks without TLS.
	// options are further options of redis-server.
	tls     *Certificates
	options []string
}

// Start starts a Redis server without persistence.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, false)
}

// Cluster starts three masters that form a Redis Cluster. It returns when the cluster is ready.
func Cluster(t testing.TB) []*Server {
	t.Helper()
	var servers []*Server
	for range 3 {
		servers = append(servers, start(t, true))
	}
	const slots = 16384
	for i, s := range servers {
		c := s.Client()
		from, to := i*slots/len(servers), (i+1)*slots/len(servers)-1
		s.must(c.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", from, to).Err())
		s.must(c.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		host, port, _ := net.SplitHostPort(servers[0].Addr)
		if i > 0 {
			s.must(c.Do(t.Context(), "CLUSTER", "MEET", host, port, servers[0].busPort).Err())
		}
	}
	for _, s := range servers {
		c := s.Client()
		testutil.Eventually(t, "the cluster is ready", func() bool {
			info, err := c.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return servers
}

// Replica starts a replica of the first server of a cluster. It returns when the replica has the
// data of that server, whose place it takes if the server dies.
func Replica(t testing.TB, cluster []*Server) *Server {
	t.Helper()
	s, master := start(t, true), cluster[0]
	c := s.Client()
	host, port, _ := net.SplitHostPort(master.Addr)
	s.must(c.Do(t.Context(), "CLUSTER", "MEET", host, port, master.busPort).Err())
	id, err := master.Client().Do(t.Context(), "CLUSTER", "MYID").Text()
	s.must(err)
	testutil.Eventually(t, "the replica knows its master", func() bool { return c.ClusterReplicate(t.Context(), id).Err() == nil })
	testutil.Eventually(t, "the replica has the data, and all know it", func() bool {
		info, err := c.Info(t.Context(), "replication").Result()
		known := err == nil && strings.Contains(info, "master_link_status:up")
		for _, member := range cluster {
			nodes, err := member.Client().ClusterNodes(t.Context()).Result()
			known = known && err == nil && strings.Contains(nodes, "slave "+id)
		}
		return known
	})
	return s
}

// URL returns the URL of the server, or of the cluster that the servers form.
func URL(servers ...*Server) string {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr)
	}
	return "redis://" + strings.Join(addresses, ",")
}

// start starts a server, as a member of a cluster or alone.
func start(t testing.TB, cluster bool) *Server {
	t.Helper()
	return (&Server{cluster: cluster}).start(t)
}

func (s *Server) start(t testing.TB) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		testutil.Missing(t, "redis-server")
	}
	s.t, s.dir = t, t.TempDir()
	var err error
	for range 3 { // another process may have taken the free port meanwhile
		s.Addr = "127.0.0.1:" + strconv.Itoa(testutil.FreePort(t))
		s.busPort = testutil.FreePort(t)
		if err = s.launch(); err == nil {
			t.Cleanup(s.end)
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	args, err := s.args()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.process = exec.Command("redis-server", args...)
	s.process.Stdout, s.process.Stderr = log, log
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.process.Start(); err != nil {
		return fmt.Errorf("redis-server did not start, scripts/clients.sh installs it: %w", err)
	}
	c := s.Client()
	for deadline := time.Now().Add(testutil.Patience); ; time.Sleep(5 * time.Millisecond) {
		// A server of another process on this port would answer too, so the process id is compared.
		info, err := c.Info(context.Background(), "server").Result()
		if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.process.Process.Pid)) {
			return nil
		}
		if time.Now().After(deadline) || !s.runs() {
			s.end()
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("redis-server did not become ready: %s", text)
		}
	}
}

// args returns the options of the process. A sentinel has a file with its configuration, which it
// writes again itself.
func (s *Server) args() ([]string, error) {
	_, port, _ := net.SplitHostPort(s.Addr)
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--daemonize", "no"}
	if s.tls != nil {
		args = append(args, "--port", "0", "--tls-port", port, "--tls-replication", "yes", "--tls-auth-clients", "yes",
			"--tls-cert-file", s.tls.cert(), "--tls-key-file", s.tls.key(), "--tls-ca-cert-file", s.tls.CA())
	}
	if s.sentinel != "" {
		file := filepath.Join(s.dir, "sentinel.conf")
		return append([]string{file, "--sentinel"}, args...), os.WriteFile(file, []byte(s.sentinel), 0o600)
	}
	args = append(args, "--save", "", "--appendonly", "no")
	if s.password != "" {
		args = append(args, "--requirepass", s.password, "--masterauth", s.password)
	}
	if s.cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000",
			"--cluster-port", strconv.Itoa(s.busPort))
	}
	return append(args, s.options...), nil
}

func (s *Server) runs() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(s.process.Process.Pid, &status, syscall.WNOHANG, nil)
	return err == nil && pid == 0
}

// end kills the process and waits for it.
func (s *Server) end() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill() // the process may have ended
	_ = s.process.Wait()
	s.process = nil
}

// Kill ends the server at once. Its data is lost.
func (s *Server) Kill() { s.end() }

// Restart starts the server after Kill, on the same port and without data.
func (s *Server) Restart() {
	s.t.Helper()
	s.must(s.launch())
}

// Pause stops the process with SIGSTOP. It neither answers nor closes connections until Resume.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume continues the process after Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.must(s.process.Process.Signal(sig))
}

// Client returns a new client of the server. It is closed at the end of the test. It does not
// retry.
func (s *Server) Client() *redis.Client {
	o := &redis.Options{Addr: s.Addr, MaxRetries: -1, Password: s.password}
	if s.tls != nil {
		o.TLSConfig = s.tls.config(s.t)
	}
	c := redis.NewClient(o)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// must fails the test if err is not nil.
func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// AskedForTime returns how many of the servers were asked for their time.
func AskedForTime(t testing.TB, servers []*Server) (n int) {
	t.Helper()
	for _, s := range servers {
		asked, err := s.Client().Info(t.Context(), "commandstats").Result()
		s.must(err)
		if strings.Contains(asked, "cmdstat_time:") {
			n++
		}
	}
	return n
}
