package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestX20_AnotherGatewayAtTheAddress: a restart whose address belongs to another gateway says so.
// It does not restart the gateway of the state directory and then wait for the other one.
func TestX20_AnotherGatewayAtTheAddress(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, handOverSignal)
	t.Cleanup(func() { signal.Stop(signals) })
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":"v1","pid":%d}`, os.Getppid())
	}))
	t.Cleanup(other.Close)
	path := t.TempDir()
	claimed(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	client := adminclient.Client{Address: other.URL}
	err := Restart(ctx, parse(t, path, ""), client, client, new(bytes.Buffer))
	if want := fmt.Sprintf("process %d holds the state directory %s; name its admin address by --admin", os.Getpid(), path); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if len(signals) > 0 {
		t.Error("a process was told to hand over")
	}
}

// TestX20_AnotherStateDirInTheFile: the gateway runs on the directory of before, so a restart says
// that it cannot move it.
func TestX20_AnotherStateDirInTheFile(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"version":"v1","pid":7}`))
	}))
	t.Cleanup(gateway.Close)
	made := t.TempDir()
	absent := filepath.Join(made, "absent")
	client := adminclient.Client{Address: gateway.URL}
	for _, path := range []string{made, absent} {
		err := Restart(t.Context(), parse(t, path, ""), client, client, new(bytes.Buffer))
		want := "no gateway runs on the state directory " + path + "; the one that answers at " + gateway.URL + ", v1 (pid 7), has another: "
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := os.Stat(absent); err == nil {
		t.Error("the command has made the state directory")
	}
}

// The new process may be ready a moment after it has answered for the first time, when it did not
// know its Envoy yet. The command tells what it knows then.
func TestX20_TheCommandTellsOfTheEnvoyThatIsAdopted(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, handOverSignal)
	t.Cleanup(func() { signal.Stop(signals) })
	var told, ready atomic.Bool
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started, adopted, pid := 1, false, 7
		switch {
		case r.URL.Path == "/readyz":
			ready.Store(true)
			return
		case told.Swap(true):
			started, adopted = 2, ready.Load()
			if !adopted {
				pid = 0
			}
		}
		fmt.Fprintf(w, `{"version":"v1","pid":%d,"started":"2026-01-01T00:00:0%dZ","envoy":{"pid":%d,"adopted":%t}}`, os.Getpid(), started, pid, adopted)
	}))
	t.Cleanup(gateway.Close)
	path := t.TempDir()
	claimed(t, path)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	client, out := adminclient.Client{Address: gateway.URL}, new(bytes.Buffer)
	err := Restart(ctx, parse(t, path, ""), client, client, out)
	if err != nil || !strings.Contains(out.String(), "adopted: Envoy (pid 7)") {
		t.Errorf("the command printed %q, %v", out, err)
	}
}

// The command names the processes that still carry requests, and no others.
func TestX20_TheCommandTellsWhoCarriesRequests(t *testing.T) {
	var now runningProcess
	now.Upgrade.Predecessors = []admin.Predecessor{{Version: "v1", PID: 1, Requests: 0}, {Version: "v2", PID: 2, Requests: 1}}
	now.Envoy.Predecessors = []admin.Predecessor{{Version: "1.40.0", PID: 3, Requests: 0}, {Version: "1.40.1", PID: 4, Requests: 2}}
	var out strings.Builder
	if err := now.report(&out, runningProcess{}); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "\n")
	want := "carried on: 1 request by v2 (pid 2), until it ends\ncarried on: 2 requests by Envoy 1.40.1 (pid 4), until they end\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The clock of the machine may have been set back since the process that is replaced has started,
// or since its last restart that failed.
func TestX20_ARestartAfterTheClockWasSetBack(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, handOverSignal)
	t.Cleanup(func() { signal.Stop(signals) })
	for name, test := range map[string]struct{ answer, want string }{
		"it succeeds": {`{"version":"v1","pid":7,"started":"2026-01-01T00:00:00Z"}`, ""},
		"the old process takes over again": {
			fmt.Sprintf(`{"version":"v1","pid":%d,"started":"2026-01-01T00:00:00Z","upgrade":{"failed":"no room","failed_at":"2026-01-01T00:00:00Z"}}`,
				os.Getpid()), "no room"},
		"it fails": {fmt.Sprintf(`{"version":"v1","pid":%d,"started":"2026-01-02T00:00:00Z","upgrade":{"failed":"no room","failed_at":"2026-01-01T00:00:00Z"}}`,
			os.Getpid()), "no room"},
	} {
		t.Run(name, func(t *testing.T) {
			var told atomic.Bool
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/readyz" || told.Swap(true) {
					_, _ = w.Write([]byte(test.answer))
					return
				}
				fmt.Fprintf(w, `{"version":"v1","pid":%d,"started":"2026-01-02T00:00:00Z","upgrade":{"failed_at":"2026-01-02T00:00:00Z"}}`, os.Getpid())
			}))
			t.Cleanup(gateway.Close)
			path := t.TempDir()
			claimed(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
			defer cancel()
			client := adminclient.Client{Address: gateway.URL}
			switch err := Restart(ctx, parse(t, path, ""), client, client, new(bytes.Buffer)); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

// A gateway that dies instead of handing over may wait to be reaped for a long time, as in a
// container whose first process reaps nothing. The command does not wait for it.
func TestX20_TheGatewayDiesAndIsNotReaped(t *testing.T) {
	path := t.TempDir()
	holder := exec.Command(os.Args[0], "holder", path)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() }) // Wait reaps it
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the holder said %q: %v", line, err)
	}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !process.Runs(holder.Process.Pid) {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, `{"version":"v1","pid":%d}`, holder.Process.Pid)
	}))
	t.Cleanup(gateway.Close)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	client := adminclient.Client{Address: gateway.URL}
	err = Restart(ctx, parse(t, path, ""), client, client, new(bytes.Buffer))
	if want := "the gateway has stopped during the restart"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
