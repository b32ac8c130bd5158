// Package raytest runs a real Ray cluster for tests: a head and nodes with GPUs that do not exist,
// on loopback. The tests of engines/ray and the end-to-end tests use it.
//
// Each node has an address of its own in 127.0.0.0/8. The head keeps its state in a Redis of the
// test, as Ray requires for a head that may be replaced. When the test ends, every process of the
// cluster and of its jobs ends.
package raytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// headIP is the address of the head. The nodes have the addresses that follow.
const headIP = "127.0.0.2"

// mark begins the environment variable by which the processes of a cluster are found.
const mark = "SLUICE_TEST_RAY="

// Cluster is a running Ray cluster. Its methods fail the test on an error.
type Cluster struct {
	// Address is the URL of the dashboard. KillHead and StartHead do not change it.
	Address string

	t         testing.TB
	dir       string
	gcsPort   int
	dashboard int
	env       []string
	head      *exec.Cmd
	nodes     map[string]*exec.Cmd
	// count is how many nodes were ever started, the head included.
	count int
}

// Start starts the head of a cluster, which has no CPUs for jobs. path is a directory with programs
// for jobs; empty means none. The test is skipped if Ray is missing, which "make tools" installs.
func Start(t testing.TB, path string) *Cluster {
	t.Helper()
	testutil.Tool(t, "ray")
	dir, err := os.MkdirTemp("", "ray-") // a short path: those of Unix sockets are limited to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	redis := redistest.Start(t)
	c := &Cluster{t: t, dir: dir, gcsPort: testutil.FreePort(t), dashboard: testutil.FreePort(t), nodes: map[string]*exec.Cmd{}}
	c.Address = "http://127.0.0.1:" + strconv.Itoa(c.dashboard)
	// A busy machine may need longer than the 30 s after which Ray gives up a node that starts.
	c.env = append(os.Environ(), mark+dir, "PATH="+path+":"+os.Getenv("PATH"), "RAY_REDIS_ADDRESS="+redis.Addr,
		"RAY_raylet_start_wait_time_s=300", "RAY_gcs_server_request_timeout_seconds=300",
		"RAY_USAGE_STATS_ENABLED=0", "RAY_num_prestart_python_workers=0", "RAY_enable_worker_prestart=false",
		"RAY_gcs_rpc_server_reconnect_timeout_s=120", "RAY_external_storage_namespace=test")
	t.Cleanup(c.end)
	c.StartHead()
	return c
}

// StartHead starts the head, which runs no jobs. It returns when the head answers and, after
// KillHead, takes jobs. A head that was started soon after another was killed may take the dead one
// for the head. Then it finds no agent for any job, and is started once more.
func (c *Cluster) StartHead() {
	c.t.Helper()
	again := c.head != nil
	c.launchHead()
	for range 3 {
		if !again || c.takesJobs() {
			return
		}
		c.KillHead()
		c.launchHead()
	}
	c.t.Fatal("the new head takes no jobs")
}

// takesJobs reports whether the head starts a job and deletes it.
func (c *Cluster) takesJobs() bool {
	job, _ := json.Marshal(map[string]string{"entrypoint": "true"}) // a string
	var made struct {
		ID string `json:"submission_id"`
	}
	for range 3 { // an agent that starts is waited for by Ray for 10 s
		if err := c.call(http.MethodPost, "/api/jobs/", job, &made); err == nil {
			break
		}
	}
	if made.ID == "" {
		return false
	}
	testutil.EventuallyNil(c.t, "the job is deleted", func() error { // as soon as it has ended
		return c.call(http.MethodDelete, "/api/jobs/"+made.ID, nil, new(json.RawMessage))
	})
	return true
}

// starting is locked while a head or a node starts. On a machine with few processors, several that
// start at a time take longer than one after the other.
var starting sync.Mutex

// launchHead starts the head and waits until it answers and is a node.
func (c *Cluster) launchHead() {
	c.t.Helper()
	starting.Lock()
	defer starting.Unlock()
	// Ray refuses to start a head while this file names a head that nodes still ask for.
	_ = os.Remove(filepath.Join(c.dir, "s", "ray_current_cluster"))
	c.head = c.launch("head", "--head", "--num-gpus=0", "--num-cpus=0", "--node-ip-address="+headIP, "--dashboard-host=127.0.0.1",
		"--dashboard-port="+strconv.Itoa(c.dashboard), "--port="+strconv.Itoa(c.gcsPort), "--temp-dir="+filepath.Join(c.dir, "s"),
		"--disable-usage-stats", "--no-monitor") // nothing scales the cluster
	c.count = max(c.count, 1)
	c.awaitAlive("head")
}

// awaitAlive waits until the cluster has a node.
func (c *Cluster) awaitAlive(name string) {
	c.t.Helper()
	testutil.EventuallyNil(c.t, "the cluster has "+name, func() error {
		nodes, err := c.Nodes()
		if err == nil && nodes[name] != "ALIVE" {
			err = fmt.Errorf("only %v", nodes)
		}
		return err
	})
}

// KillHead kills the processes of the head.
func (c *Cluster) KillHead() { c.kill(c.head) }

// AddNode starts a node and waits until the cluster has it.
func (c *Cluster) AddNode(name string, cpus, gpus int) {
	c.t.Helper()
	starting.Lock()
	defer starting.Unlock()
	c.count++
	c.nodes[name] = c.launch(name, "--address="+net.JoinHostPort(headIP, strconv.Itoa(c.gcsPort)), "--num-cpus="+strconv.Itoa(cpus),
		"--num-gpus="+strconv.Itoa(gpus), fmt.Sprintf("--node-ip-address=127.0.0.%d", c.count+1))
	c.awaitAlive(name)
}

// KillNode kills the processes of a node. Its jobs end soon after.
func (c *Cluster) KillNode(name string) { c.kill(c.nodes[name]) }

// Nodes returns the states of all nodes by name: ALIVE or DEAD.
func (c *Cluster) Nodes() (map[string]string, error) {
	var answer struct {
		Data struct {
			Result struct {
				Result []struct {
					Name  string `json:"node_name"`
					State string `json:"state"`
				} `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := c.get("/api/v0/nodes", &answer); err != nil {
		return nil, err
	}
	states := map[string]string{}
	for _, n := range answer.Data.Result.Result {
		if states[n.Name] != "ALIVE" { // a restarted node is listed twice
			states[n.Name] = n.State
		}
	}
	return states, nil
}

// Job is a job as Ray tells of it.
type Job struct {
	ID       string            `json:"submission_id"`
	Status   string            `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

// Jobs lists the jobs that have metadata, as all of Sluice's have. Ray may list a job once more
// that was deleted, when it writes a late state of it. Such a job has nothing but its id.
func (c *Cluster) Jobs() []Job {
	c.t.Helper()
	var all []Job
	if err := c.get("/api/jobs/", &all); err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(j Job) bool { return len(j.Metadata) == 0 })
}

// Submit starts a job that is not Sluice's.
func (c *Cluster) Submit(job map[string]any) {
	c.t.Helper()
	data, _ := json.Marshal(job) // strings and numbers
	if err := c.call(http.MethodPost, "/api/jobs/", data, new(json.RawMessage)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) get(path string, answer any) error {
	return c.call(http.MethodGet, path, nil, answer)
}

// call sends a request to the head and decodes the answer.
func (c *Cluster) call(method, path string, body []byte, answer any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.Address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// launch starts a node in a process group of its own. Its workers take ports of the kernel's
// choice, which testutil.FreePort never gives. Otherwise Ray's workers take 10002 to 19999.
func (c *Cluster) launch(name string, args ...string) *exec.Cmd {
	c.t.Helper()
	args = append([]string{"start", "--block", "--node-name=" + name, "--object-store-memory=80000000",
		"--min-worker-port=0", "--max-worker-port=0", "--include-log-monitor=false",
		"--dashboard-agent-listen-port=" + strconv.Itoa(testutil.FreePort(c.t))}, args...)
	cmd := exec.Command(filepath.Join(testutil.Tool(c.t, "ray"), "bin", "ray"), args...)
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = log, log, c.env, c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return cmd
}

// kill kills the process group of a node, unless that was done before.
func (c *Cluster) kill(node *exec.Cmd) {
	if node.ProcessState != nil {
		return // another group may have its number
	}
	_ = syscall.Kill(-node.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = node.Wait()                                      // it was killed
}

// end ends every process of the cluster and of its jobs.
func (c *Cluster) end() {
	if c.t.Failed() {
		c.t.Log(c.logs())
	}
	if c.head != nil {
		c.kill(c.head)
	}
	for _, node := range c.nodes {
		c.kill(node)
	}
	testutil.Eventually(c.t, "all processes of Ray have ended", func() bool { return killMarked(mark+c.dir) == 0 })
}

// killMarked kills the processes whose environment has the variable. It returns how many there
// were.
func killMarked(variable string) int {
	count := 0
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range environments {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, data...), append([]byte{0}, variable+"\x00"...)) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if pid > 1 && pid != os.Getpid() {
			count++
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	return count
}

// logs returns the ends of the outputs of all nodes.
func (c *Cluster) logs() string {
	var text bytes.Buffer
	files, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		fmt.Fprintf(&text, "--- %s\n%s\n", filepath.Base(file), data[max(0, len(data)-3000):])
	}
	return text.String()
}
