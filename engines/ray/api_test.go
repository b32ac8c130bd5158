package ray

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// stub answers as Ray does, with jobs that tests make. It runs nothing. It shows what a real
// cluster shows only by accident.
type stub struct {
	*httptest.Server
	t *testing.T

	mu sync.Mutex
	// jobs are what the list of jobs has; guarded by mu
	jobs []rayJob
	// stopped are the ids of the jobs that were told to stop. refusals is how many more such calls
	// fail, and lost how many more have no effect. mu guards them
	stopped        []string
	refusals, lost int
	// submitted is called for each submission and returns the new job; guarded by mu
	submitted func(s submission) rayJob
}

func newStub(t *testing.T) *stub {
	t.Helper()
	s := &stub{t: t, submitted: func(s submission) rayJob {
		return rayJob{SubmissionID: s.SubmissionID, Status: statusPending, Message: "no room", Metadata: s.Metadata, StartTime: time.Now().UnixMilli()}
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/jobs/{$}", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(s.jobs)
	})
	mux.HandleFunc("GET /api/v0/nodes", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data": {"result": {"result": [{"node_id": "n1", "node_ip": "127.0.0.1", "node_name": "one", "state": "ALIVE"}]}}}`)
	})
	mux.HandleFunc("POST /api/jobs/{$}", func(_ http.ResponseWriter, r *http.Request) {
		var asked submission
		_ = json.NewDecoder(r.Body).Decode(&asked)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.jobs = append(s.jobs, s.submitted(asked))
	})
	mux.HandleFunc("POST /api/jobs/{id}/stop", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.refusals > 0 {
			s.refusals--
			http.Error(w, "not now", http.StatusInternalServerError)
			return
		}
		s.stopped = append(s.stopped, r.PathValue("id"))
		if s.lost > 0 {
			s.lost--
			return
		}
		for i := range s.jobs {
			if s.jobs[i].SubmissionID == r.PathValue("id") {
				s.jobs[i].Status = "STOPPED"
			}
		}
	})
	mux.HandleFunc("DELETE /api/jobs/{id}", func(_ http.ResponseWriter, r *http.Request) {
		s.set(func(jobs []rayJob) []rayJob {
			return slices.DeleteFunc(jobs, func(j rayJob) bool { return j.SubmissionID == r.PathValue("id") })
		})
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// set changes the list of jobs.
func (s *stub) set(change func([]rayJob) []rayJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = change(s.jobs)
}

func (s *stub) list() []rayJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.jobs)
}

// job returns a running job of the replica chat-0 of an installation, submitted by a gateway, whose
// server listens on the port.
func (s *stub) job(id, install, gateway string, port int) rayJob {
	meta := metadata{install: install, gateway: gateway, model: "chat", port: port, spec: s.model(1).spec()}
	return rayJob{SubmissionID: id, Status: statusRunning, Metadata: meta.encode(), StartTime: 1, AgentAddress: "http://127.0.0.1:52365", NodeID: "n1"}
}

// model returns the model chat.
func (s *stub) model(desired int) Model {
	return Model{Model: engines.Model{Name: "chat", Desired: desired}, Resources: &engines.Resources{GPU: 1},
		Version: engines.Version{Command: []string{"serve", "{{.Port}}"}, Ready: engines.Probe{Path: "/"}, Health: engines.Probe{Path: "/", Every: 50 * time.Millisecond}}}
}

// gateway starts a launcher with the identity "one".
func (s *stub) gateway() *gateway { s.t.Helper(); return s.gatewayWith(func(*Config) {}) }

// gatewayWith is gateway with a changed configuration.
func (s *stub) gatewayWith(change func(*Config)) *gateway {
	s.t.Helper()
	f := &fixture{t: s.t}
	return f.gatewayAt(s.URL, func(c *Config) {
		c.Ports, c.BackOff = Ports{21000, 21003}, supervise.BackOff{First: time.Millisecond, Max: time.Millisecond}
		change(c)
	})
}

// server is an HTTP server on loopback that answers 200.
func server(t *testing.T) (port int, stop func()) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	_, text, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	for _, digit := range text {
		port = 10*port + int(digit-'0')
	}
	return port, s.Close
}

// TestN4_OneGatewayWrites: a gateway sees a job that another one has submitted meanwhile. It starts
// and stops none any more, and says so. It goes on when the job has ended.
func TestN4_OneGatewayWrites(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	port, _ := server(t)
	s.set(func([]rayJob) []rayJob {
		return []rayJob{s.job("found", "sluice", "an earlier one", port), s.job("foreign", "other", "elsewhere", 1)}
	})
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(1)})
	if r := g.awaitReady("chat", 1)[0]; r.ID != "chat-0" || r.Node != "one" || int(r.Address.Port()) != port {
		t.Errorf("the replica is %+v", r)
	}
	if got := g.Status(); got != (Status{}) {
		t.Errorf("a job of an earlier gateway is a fault: %+v", got)
	}

	rival := s.job("theirs", "sluice", "two", port)
	rival.Metadata[metaReplica] = "7"
	s.set(func(jobs []rayJob) []rayJob { return append(jobs, rival) })
	notify(g.wake)
	testutil.Eventually(t, "the other gateway is noticed", func() bool { return g.Status().Rival == "two" })
	g.Set(nil)
	g.cycle(t.Context())
	s.mu.Lock()
	if len(s.stopped) > 0 {
		t.Errorf("%v were stopped while another gateway writes", s.stopped)
	}
	s.mu.Unlock()

	s.set(func(jobs []rayJob) []rayJob {
		return slices.DeleteFunc(jobs, func(j rayJob) bool { return j.SubmissionID == "theirs" })
	})
	notify(g.wake)
	testutil.Eventually(t, "only the foreign job is left", func() bool {
		jobs := s.list()
		return len(jobs) == 1 && jobs[0].SubmissionID == "foreign"
	})
}

// TestN4_ALostPortIsReplaced: a replica whose port another program has is started on another port
// at once, and not counted as a failure.
func TestN4_ALostPortIsReplaced(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	var ports []string
	s.submitted = func(a submission) rayJob {
		ports = append(ports, a.Metadata[metaPort])
		j := rayJob{SubmissionID: a.SubmissionID, Status: "FAILED", Metadata: a.Metadata, StartTime: time.Now().UnixMilli(),
			Message: "Job entrypoint command failed with exit code 1" + logMark + ":\nOSError: [Errno 98] Address already in use\n"}
		if len(ports) > 2 {
			j.Status = statusPending
		}
		return j
	}
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(1)})
	waiting := g.await("chat", "the third start waits", func(all []engines.Replica) bool { return len(all) == 1 && all[0].Restarts == 2 })
	if waiting[0].FailedStarts != 0 {
		t.Errorf("%d starts count as failed", waiting[0].FailedStarts)
	}
	// The failed starts are shown before the next job is submitted.
	testutil.Eventually(t, "the third job is submitted", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(ports) == 3
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if ports[0] == ports[1] || ports[1] == ports[2] {
		t.Errorf("the ports were %v", ports)
	}
}

// TestN4_AClockThatGoesBack: a job is submitted after the clock of the head was set back, or after
// another machine has become the head. It is the newest one of its replica, and is not stopped.
func TestN4_AClockThatGoesBack(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	port, _ := server(t)
	found := s.job("found", "sluice", "one", port)
	found.StartTime = time.Now().Add(time.Hour).UnixMilli()
	s.set(func([]rayJob) []rayJob { return []rayJob{found} })
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(1)})
	g.awaitReady("chat", 1)
	s.set(func(jobs []rayJob) []rayJob { jobs[0].Status = "FAILED"; return jobs })
	testutil.Eventually(t, "the next job is the only one", func() bool {
		notify(g.wake)
		jobs := s.list()
		return len(jobs) == 1 && jobs[0].SubmissionID != "found"
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stopped) > 0 || g.replicas("chat")[0].Restarts != 1 {
		t.Errorf("%v were stopped, the replica is %+v", s.stopped, g.replicas("chat"))
	}
}

// TestN4_NoRoomIsNoFailure: Ray ends a job for which it has had no room for a quarter of an hour.
// The replica still waits, with its next job, and no start of it has failed.
func TestN4_NoRoomIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	submitted := 0
	s.submitted = func(a submission) rayJob {
		j := rayJob{SubmissionID: a.SubmissionID, Status: statusPending, Metadata: a.Metadata, StartTime: time.Now().UnixMilli(), Message: "no room"}
		if submitted++; submitted < 4 {
			j.Status, j.ErrorType = "FAILED", errorNoRoom
			j.Message = "Job supervisor actor failed to start within 900 seconds."
		}
		return j
	}
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(1)})
	waiting := g.await("chat", "the fourth job waits", func(all []engines.Replica) bool {
		notify(g.wake)
		if len(all) == 1 && all[0].State == engines.Failed {
			t.Fatalf("the replica is %+v", all[0])
		}
		return len(all) == 1 && all[0].Restarts == 3 && all[0].Reason == "waits for Ray: no room"
	})
	if r := waiting[0]; r.FailedStarts != 0 || r.Failure != "" || r.State != engines.Pending {
		t.Errorf("the replica is %+v", r)
	}
	testutil.Eventually(t, "the ended jobs are deleted", func() bool { return len(s.list()) == 1 })
}

// TestN4_AForgottenJobServesOn: a head that was replaced without its state knows no job. A replica
// that answers stays until it does not.
func TestN4_AForgottenJobServesOn(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	port, stop := server(t)
	s.set(func([]rayJob) []rayJob { return []rayJob{s.job("found", "sluice", "one", port)} })
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(1)})
	g.awaitReady("chat", 1)
	s.set(func([]rayJob) []rayJob { return nil })
	for range 3 {
		g.cycle(t.Context())
	}
	if jobs := s.list(); len(jobs) > 0 || g.replicas("chat")[0].State != engines.Ready {
		t.Errorf("jobs %+v, replicas %+v", jobs, g.replicas("chat"))
	}
	stop()
	testutil.Eventually(t, "it is started again", func() bool { return len(s.list()) == 1 })
}

// TestN4_AStopThatFailsIsRepeated: a job that Ray did not stop is stopped by a later call. The
// status names the refusal as long as it lasts.
func TestN4_AStopThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	port, _ := server(t)
	refuse := func(n int) { s.mu.Lock(); s.refusals = n; s.mu.Unlock() }
	refuse(1 << 30)
	s.set(func([]rayJob) []rayJob { return []rayJob{s.job("found", "sluice", "one", port)} })
	g := s.gatewayWith(func(c *Config) { c.RefusalsTolerated = time.Millisecond })
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(0)})
	testutil.Eventually(t, "the refusal is known", func() bool { return g.Status().Refused == "stop job: Ray answers 500: not now" })
	refuse(0)
	testutil.Eventually(t, "the job is gone", func() bool { return len(s.list()) == 0 })
	testutil.Eventually(t, "Ray takes calls", func() bool { return g.Status() == Status{} })
}

// TestN4_AStopWithoutEffectIsRepeated: Ray tells the supervisor of a job to stop, and does not
// learn whether it was told.
func TestN4_AStopWithoutEffectIsRepeated(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	port, _ := server(t)
	s.lost = 1
	s.set(func([]rayJob) []rayJob { return []rayJob{s.job("found", "sluice", "one", port)} })
	g := s.gateway()
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(0)})
	testutil.Eventually(t, "the job is gone", func() bool { return len(s.list()) == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stopped) != 2 {
		t.Errorf("%v were told to stop", s.stopped)
	}
}

// TestN4_RayRefusesTheToken shows the answer of a cluster that asks for a token.
func TestN4_RayRefusesTheToken(t *testing.T) {
	t.Parallel()
	var sent string
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Authorization")
		http.Error(w, "Traceback:\n  File x\nUnauthorized: Missing authentication token\n.\n", http.StatusUnauthorized)
	}))
	defer refuses.Close()
	_, err := newClient(refuses.URL+"/", "t0ken").jobs(t.Context())
	if err == nil || err.Error() != "Ray answers 401: Unauthorized: Missing authentication token" || sent != "Bearer t0ken" {
		t.Errorf("%v, sent %q", err, sent)
	}
}
