package kubetest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestMain also runs the programs of the tests' containers.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		serve(os.Args[2])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "parent" {
		parent(os.Args[2])
		return
	}
	os.Exit(Main(m))
}

// serve runs an HTTP server. Probes use /ready and /alive, /set/ready/503 changes an answer, /env
// returns a variable, and /exit/3 exits with that status. SIGTERM stops it.
func serve(address string) {
	var ready, alive atomic.Int64
	ready.Store(http.StatusOK)
	alive.Store(http.StatusOK)
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(ready.Load())) })
	mux.HandleFunc("/alive", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(alive.Load())) })
	mux.HandleFunc("/set/{what}/{status}", func(_ http.ResponseWriter, r *http.Request) {
		status, _ := strconv.ParseInt(r.PathValue("status"), 10, 64)
		map[string]*atomic.Int64{"ready": &ready, "alive": &alive}[r.PathValue("what")].Store(status)
	})
	mux.HandleFunc("/env/{name}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, os.Getenv(r.PathValue("name"))) })
	mux.HandleFunc("/exit/{code}", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		os.Exit(code)
	})
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		fmt.Println("serving at", address)
		fmt.Println(http.ListenAndServe(address, mux))
		os.Exit(1)
	}()
	<-term
	fmt.Println("good bye")
}

// parent starts a process as a container would, prints its pid, and waits until it is killed.
func parent(dir string) {
	p, err := command{path: "/bin/sleep", args: []string{"sleep", "300"}, dir: dir}.start(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.pid())
	<-p.done
}

// eventually waits until try succeeds, or fails the test with try's last error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := until(ctx, what, try); err != nil {
		t.Fatal(err)
	}
}
