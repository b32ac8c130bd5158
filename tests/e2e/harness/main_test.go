package harness

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestSilentStreamsAreGivenUp checks that a gateway that never answers, and one that stops in the
// middle of a stream, cost the limit and no more: the streams have failed.
func TestSilentStreamsAreGivenUp(t *testing.T) {
	for name, begins := range map[string]bool{"no first byte": false, "no end": true} {
		silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if begins {
				io.WriteString(w, "data: ")
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}))
		defer silent.Close()
		g := &Gateway{T: t, URL: silent.URL}
		s := g.openStreams(2*openings, 5, 20*time.Millisecond)
		s.group.Wait()
		if err := s.fault(); !errors.Is(err, errSilent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStreamsThatFailAreTold checks that a stream which lacks tokens, or is refused, has failed.
func TestStreamsThatFailAreTold(t *testing.T) {
	for want, status := range map[string]int{"only 1 of 5 tokens": http.StatusOK, "503": http.StatusServiceUnavailable} {
		short := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			io.WriteString(w, `data: {"content":"a","finish_reason":"stop"}`+"\n\ndata: [DONE]\n\n")
		}))
		defer short.Close()
		g := &Gateway{T: t, URL: short.URL}
		s := g.OpenStreams(2, 5)
		s.group.Wait()
		if err := s.fault(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// TestProcessesWith checks that a process is found by an environment variable as long as it runs,
// and only by the whole value.
func TestProcessesWith(t *testing.T) {
	const name = "SLUICE_E2E_TEST_OF_PROCESSES"
	c := exec.Command("sleep", "60")
	c.Env = append(os.Environ(), name+"=one")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	Eventually(t, "the process is found", func() error {
		if found := processesWith(name + "=one"); len(found) != 1 || found[c.Process.Pid] == "" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	if found := processesWith(name + "=on"); len(found) != 0 {
		t.Errorf("found by a part of the value: %v", found)
	}
	c.Process.Kill()
	c.Wait()
	if found := processesWith(name + "=one"); len(found) != 0 {
		t.Errorf("found after its end: %v", found)
	}
}
