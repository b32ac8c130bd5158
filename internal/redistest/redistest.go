// Package redistest starts real Redis servers for tests: one, or a cluster of three masters. They listen on free ports of 127.0.0.1, keep nothing on disk
// between runs, and end with the test, or with the process of the test when that dies.
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
)

// patience bounds how long a server may take to do what it is told.
const patience = 30 * time.Second

// Server is one Redis.
type Server struct {
	// Addr is host:port. It stays over a Kill and a Restart.
	Addr string

	t       testing.TB
	dir     string
	cluster bool
	busPort int
	process *exec.Cmd
}

// Start starts a Redis that keeps nothing.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, false)
}

// Cluster starts three masters that form a cluster.
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
		s.do(c.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", from, to).Err())
		s.do(c.Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		host, port, _ := net.SplitHostPort(servers[0].Addr)
		if i > 0 {
			s.do(c.Do(t.Context(), "CLUSTER", "MEET", host, port, servers[0].busPort).Err())
		}
	}
	for _, s := range servers {
		c := s.Client()
		s.until("the cluster is whole", func() bool {
			info, err := c.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3")
		})
	}
	return servers
}

// URL is that of the server, or of the cluster that the servers form.
func URL(servers ...*Server) string {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr)
	}
	return "redis://" + strings.Join(addresses, ",")
}

func start(t testing.TB, cluster bool) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), cluster: cluster}
	var err error
	for range 3 { // a port that was free may be taken by the time it is used
		s.Addr = "127.0.0.1:" + strconv.Itoa(freePort(t))
		s.busPort = freePort(t)
		if err = s.launch(); err == nil {
			t.Cleanup(s.end)
			return s
		}
	}
	t.Fatal(err)
	return nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *Server) launch() error {
	_, port, _ := net.SplitHostPort(s.Addr)
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	if s.cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000",
			"--cluster-port", strconv.Itoa(s.busPort))
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
		return fmt.Errorf("redis-server is needed, scripts/clients.sh gets it: %w", err)
	}
	c := s.Client()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		// Somebody else's server on this port would answer too.
		info, err := c.Info(context.Background(), "server").Result()
		if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.process.Process.Pid)) {
			return nil
		}
		if time.Now().After(deadline) || !s.runs() {
			s.end()
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("redis-server does not start: %s", text)
		}
	}
}

func (s *Server) runs() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(s.process.Process.Pid, &status, syscall.WNOHANG, nil)
	return err == nil && pid == 0
}

func (s *Server) end() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill() // it may be dead already
	_ = s.process.Wait()
	s.process = nil
}

// Kill ends the server at once; what it held is lost.
func (s *Server) Kill() { s.end() }

// Restart starts the server again after a Kill, on the same port, empty.
func (s *Server) Restart() {
	s.t.Helper()
	s.do(s.launch())
}

// Pause stops the process, so that it neither answers nor closes anything.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.do(s.process.Process.Signal(sig))
}

// Client is a connection of the test's own. It ends with the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *Server) do(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) until(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
