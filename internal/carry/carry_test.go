package carry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDispatcher returns a dispatcher of a process with one model and one replica.
func newDispatcher() *dispatch.Dispatcher {
	return newDispatcherWith(admission.New(admission.Config{}))
}

// newDispatcherWith returns such a dispatcher whose limits c watches.
func newDispatcherWith(c *admission.Controller) *dispatch.Dispatcher {
	fleet, address := engines.NewFleet(), netip.MustParseAddrPort("127.0.0.1:1")
	fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "m"}},
		Replicas: []engines.Replica{{ID: "m-0", Model: "m", State: engines.Ready, Slots: 8, Address: address}}})
	d := dispatch.New(dispatch.Config{Fleet: fleet, Admission: c})
	d.SetRoutable("model/m", map[string]netip.AddrPort{"m-0": address})
	return d
}

// holdOne makes the process of d hold one more request.
func holdOne(t *testing.T, d *dispatch.Dispatcher) *dispatch.Ticket {
	t.Helper()
	ticket, fault := d.Dispatch(t.Context(), &dispatch.Request{Model: "m", Tenant: "acme", Endpoint: openai.Chat,
		Key: func(int) uint64 { return 1 }})
	if fault != nil {
		t.Fatal(fault)
	}
	return ticket
}

// serve runs the successor of a test at the path until stop is called.
func serve(t *testing.T, d *dispatch.Dispatcher, path string) (s *Server, stop func()) {
	t.Helper()
	os.Remove(path) // the one before
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, d, l)
}

// serveOn runs the successor of a test on the listener until stop is called.
func serveOn(t *testing.T, d *dispatch.Dispatcher, l net.Listener) (s *Server, stop func()) {
	t.Helper()
	s = NewServer(d, zap.NewNop())
	return s, serveServer(t, s, l)
}

// serveServer runs a successor on the listener until stop is called.
func serveServer(t *testing.T, s *Server, l net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(stop)
	return stop
}

// link connects the process of d to the path until unlink is called. Orders to drain arrive at the
// channel.
func link(t *testing.T, d *dispatch.Dispatcher, path string) (drain chan time.Duration, unlink func()) {
	t.Helper()
	drain = make(chan time.Duration, 1)
	l := NewLink(path, Process{PID: os.Getpid(), Version: "old", Instance: "a"}, func(d time.Duration) { drain <- d }, zap.NewNop())
	d.WatchTickets(l)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	unlink = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(unlink)
	return drain, unlink
}

// counts waits until so many requests count at the successor, for the model and for the replica.
func counts(t *testing.T, d *dispatch.Dispatcher, n int) {
	t.Helper()
	testutil.Eventually(t, "the requests count", func() bool {
		v, _ := d.View("m")
		return v.InFlight == n && d.Load("m-0") == n
	})
}

// What the predecessor holds counts at its successor until it is released, also at the successor of
// that one, and no longer than the predecessor lives.
func TestX20_HeldRequestsCountAtTheSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	old, next, last := newDispatcher(), newDispatcher(), newDispatcher()
	first := holdOne(t, old)
	server, stop := serve(t, next, path)
	_, unlink := link(t, old, path)
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	counts(t, next, 1)
	second := holdOne(t, old) // while the successor starts
	third := holdOne(t, old)
	counts(t, next, 3)
	if all := server.Predecessors(); len(all) != 1 || all[0].Version != "old" || all[0].Requests != 3 {
		t.Errorf("%+v", all)
	}
	first.Release()
	counts(t, next, 2)
	stop()
	if n := next.Load("m-0"); n != 2 {
		t.Errorf("a replaced successor counts %d requests, want 2", n)
	}
	serve(t, last, path)
	counts(t, last, 2)
	second.Release()
	counts(t, last, 1)
	unlink() // the process ends
	counts(t, last, 0)
	third.Release()
}

// full is a listener that fails once, as for lack of file descriptors.
type full struct {
	net.Listener
	once sync.Once
}

func (f *full) Accept() (c net.Conn, err error) {
	f.once.Do(func() { err = &net.OpError{Op: "accept", Err: syscall.EMFILE} })
	if err != nil {
		return nil, err
	}
	return f.Listener.Accept()
}

// A predecessor counts although the successor had no file descriptor for it at first.
func TestX20_AnAcceptThatFailsIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old, next := newDispatcher(), newDispatcher()
	serveOn(t, next, &full{Listener: l})
	link(t, old, path)
	defer holdOne(t, old).Release()
	counts(t, next, 1)
}

// The successor charges what requests of its predecessor have cost, also when the cost comes after
// the end of the request, or while the two are not connected.
func TestX19_TheSuccessorChargesWhatItsPredecessorCarries(t *testing.T) {
	end := map[string]func(*dispatch.Ticket, func()){
		"and then released":  func(ticket *dispatch.Ticket, correct func()) { correct(); ticket.Release() },
		"after its release":  func(ticket *dispatch.Ticket, correct func()) { ticket.Release(); correct() },
		"while it goes on":   func(_ *dispatch.Ticket, correct func()) { correct() },
		"twice by the relay": func(ticket *dispatch.Ticket, correct func()) { correct(); correct(); ticket.Release(); correct() },
	}
	for _, connected := range []bool{true, false} {
		for name, end := range end {
			t.Run(fmt.Sprintf("%s, connected %v", name, connected), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "carry.sock")
				old, limits := newDispatcher(), admission.New(admission.Config{})
				next := newDispatcherWith(limits)
				next.SetRules(dispatch.Rules{Tenants: map[string]admission.TenantLimits{"acme": {TokensPerMinute: 10_000}}})
				ticket := holdOne(t, old)
				defer ticket.Release()
				link(t, old, path)
				if connected {
					serve(t, next, path)
					counts(t, next, 1)
				}
				end(ticket, func() { ticket.Correct(dispatch.Response{Known: true, Prompt: 5000, Bytes: 4}) })
				if !connected {
					serve(t, next, path)
				}
				testutil.Eventually(t, "the cost is charged", func() bool { return limits.Tenant("acme").Quota.Tokens.Remaining < 6000 })
				ticket.Release()
				counts(t, next, 0)
				if left := limits.Tenant("acme").Quota.Tokens.Remaining; left < 5000 {
					t.Errorf("%d of 10,000 tokens are left after a request of 5,000", left)
				}
			})
		}
	}
}

// The successor learns everything that it must know of a request.
func TestX20_AHeldRequestArrivesAsItWas(t *testing.T) {
	r := dispatch.HeldRequest{Model: "m", Replica: "m-0", Tenant: "acme", APIKey: "k", SlotOnly: true, Task: "t-1"}
	text, err := json.Marshal(newHold(1, r))
	var got hold
	if err = errors.Join(err, json.Unmarshal(text, &got)); err != nil || got.request() != r {
		t.Errorf("%s became %+v, %v", text, got.request(), err)
	}
}

// The successor takes no second request of a task while a predecessor holds one, also after the
// slot of that one has moved. A process that is replaced in its turn leaves the task alone.
func TestX20_W6_TheTaskOfAHeldRequestIsHeld(t *testing.T) {
	next := newDispatcher()
	task, _, fault := next.Schedule(t.Context(), dispatch.TaskRequest{Tenant: "acme", Model: "m"})
	if fault != nil {
		t.Fatal(fault)
	}
	busy := func() bool {
		ticket, fault := next.Dispatch(t.Context(), &dispatch.Request{Model: "m", Tenant: "acme", Endpoint: openai.Chat, Task: task.ID,
			Key: func(int) uint64 { return 1 }})
		if fault == nil {
			ticket.Release()
		}
		return fault != nil && fault.Code == openai.CodeRequestIDConflict
	}
	path := filepath.Join(t.TempDir(), "carry.sock")
	server, stop := serve(t, next, path)
	old, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	out := json.NewEncoder(old)
	tell := func(all ...message) {
		t.Helper()
		for _, m := range all {
			if err := out.Encode(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := dispatch.HeldRequest{Model: "m", Replica: "m-0", Tenant: "acme", SlotOnly: true, Task: task.ID}
	tell(message{Hold: newHold(1, r)}, message{Hold: newHold(1, r)}, message{Synced: true})
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if !busy() {
		t.Error("a second request of the task is admitted")
	}
	tell(message{Release: 1})
	testutil.Eventually(t, "the task is free after its request", func() bool { return !busy() })
	tell(message{Hold: newHold(2, r)})
	testutil.Eventually(t, "the task has a request again", busy)
	stop()
	if busy() {
		t.Error("a process that was replaced holds the task")
	}
}

// A successor that stops tells its predecessors, also those that connect later.
func TestX20_PredecessorsDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	server, _ := serve(t, newDispatcher(), path)
	drain, _ := link(t, newDispatcher(), path)
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	server.Drain(time.Minute)
	if d := <-drain; d != time.Minute {
		t.Errorf("told to drain within %v", d)
	}
	late, _ := link(t, newDispatcher(), path)
	if d := <-late; d > time.Minute {
		t.Errorf("told to drain within %v", d)
	}
}

// The process that has a request id is found, and answers.
func TestX20_TheOwnerOfARequestIDIsFound(t *testing.T) {
	dir := t.TempDir()
	server, _ := serve(t, newDispatcher(), filepath.Join(dir, "carry.sock"))
	owns := func(tenant, id string) bool { return tenant == "acme" && id == "x&y" }
	answer := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(text + r.URL.RequestURI())) })
	}
	own := &http.Server{Handler: Handler(owns, request.NewStore(0), answer("offered "), answer("called ")), ReadHeaderTimeout: time.Minute}
	l, err := net.Listen("unix", filepath.Join(dir, "own.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go own.Serve(l)
	t.Cleanup(func() { own.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = NewLink(filepath.Join(dir, "carry.sock"), Process{Socket: l.Addr().String()}, nil, zap.NewNop()).Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := server.Find(t.Context(), "acme", "other"); ok {
		t.Error("an id that nobody has was found")
	}
	p, ok := server.Find(t.Context(), "acme", "x&y")
	if !ok {
		t.Fatal("the id was not found")
	}
	for token, want := range map[string]string{"": "called /v1/streams/x%2Fy?after=2", "a.1": "offered /v1/streams/x%2Fy?after=2"} {
		r := httptest.NewRequest(http.MethodGet, "/v1/streams/x%2Fy?after=2", nil)
		if token != "" {
			r.Header.Set("x-sluice-ticket", token)
		}
		w := httptest.NewRecorder()
		if fault := Forwarder("unix", p.Socket, zap.NewNop())(w, r); fault != nil || w.Body.String() != want {
			t.Errorf("%q: %v, want %q", w.Body, fault, want)
		}
	}
	gone := Forwarder("unix", filepath.Join(dir, "gone.sock"), zap.NewNop())
	if fault := gone(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)); fault == nil || fault.Code != openai.CodeGatewayUnavailable {
		t.Errorf("a process that is gone: %v", fault)
	}
}

// A key is revoked if the newest process says so, and not because that process says nothing or does
// not know the question.
func TestX20_TheNewestProcessKnowsTheKeys(t *testing.T) {
	dir := t.TempDir()
	valid := func(tenant, key string) bool { return tenant == "acme" && key == "good" }
	serve := func(name string, h http.Handler) (socket string) {
		socket = filepath.Join(dir, name)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go server.Serve(l)
		t.Cleanup(func() { server.Close() })
		return socket
	}
	newest, earlier := serve("newest", KinHandler(valid, http.NotFoundHandler())), serve("earlier", http.NotFoundHandler())
	for _, test := range []struct {
		socket, tenant, key string
		want                bool
	}{
		{newest, "acme", "good", false}, {newest, "acme", "bad", true}, {newest, "other", "good", true},
		{earlier, "acme", "bad", false}, {filepath.Join(dir, "gone"), "acme", "bad", false},
	} {
		if got := IsRevoked(t.Context(), test.socket, test.tenant, test.key); got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
	}
	w := httptest.NewRecorder()
	if fault := Forwarder("unix", newest, zap.NewNop())(w, httptest.NewRequest(http.MethodGet, "/v1/x", nil)); fault != nil || w.Code != http.StatusNotFound {
		t.Errorf("a call: %d, %v", w.Code, fault)
	}
}

// The other process answers as soon as it has the head of a request. The body, which the client
// still sends, gets through, and so does the rest of the answer.
func TestX20_AForwardedRequestIsAnsweredBeforeItsBodyIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	successor := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, string(body), err)
	})}}
	successor.Start()
	defer successor.Close()
	forward := Forwarder("unix", path, zap.NewNop())
	retired := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { forward(w, r) }))
	defer retired.Close()

	body, send := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, retired.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = 11
	answer, err := retired.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	go func() {
		io.WriteString(send, "hello world")
		send.Close()
	}()
	if got, err := io.ReadAll(answer.Body); err != nil || string(got) != "hello world<nil>" {
		t.Errorf("the answer is %q, %v", got, err)
	}
}
