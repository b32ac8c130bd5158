package relay

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/sim"
)

func TestStreamPassesThrough(t *testing.T) {
	h := newHarness(t, options{})
	status, text := h.sendAndRead(hello)
	if status != 200 || endingOf(text) != "whole" {
		t.Fatalf("%d %s", status, text)
	}
	if r := h.result(1); r.Finish != "length" || r.Fault != nil || r.Usage.Completion != 10 || r.TTFT == 0 || r.Model != "m" || !r.Answered {
		t.Errorf("%+v", r)
	}
	h.waitIdle()
}

// A ticket is good once.
func TestTicketIsGoodOnce(t *testing.T) {
	h := newHarness(t, options{})
	ticket := h.offer(hello, "", "/v1/chat/completions")
	for i, want := range []int{200, 503} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(hello))
		request.Header.Set("x-sluice-ticket", ticket)
		r, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%d. time: %d", i+1, r.StatusCode)
		}
	}
	withdrawn := h.offer(hello, "", "/v1/chat/completions")
	h.relay.config.Handoff.Cancel(withdrawn)
	if _, ok := h.relay.config.Handoff.Claim(withdrawn); ok {
		t.Error("a ticket that was withdrawn is good")
	}
}

// Whatever an engine does, and wherever in the stream, the client gets all of it or is told, and
// nothing stays behind.
func TestNoFaultLooksLikeAnEnd(t *testing.T) {
	runs := 400
	if n, err := strconv.Atoi(os.Getenv("SLUICE_STREAM_RUNS")); err == nil {
		runs = n
	}
	h := newHarness(t, options{replicas: 3, policy: Policy{StallTimeout: 20 * time.Millisecond, TTFTTimeout: 20 * time.Millisecond, Resume: time.Millisecond}})
	kinds := []string{"cut", "eof", "stall", "error", "malformed", "duplicate", "huge", "status=500", "status=503", "status=429", "reset-before-headers", "gzip", "none"}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(w)))
			for i := range runs / 8 {
				fault := kinds[random.IntN(len(kinds))]
				if !strings.ContainsAny(fault, "=-") && fault != "gzip" && fault != "none" {
					fault += fmt.Sprint("=", random.IntN(14))
				}
				h.requestWithFault(fault, random.IntN(4) == 0, fmt.Sprint(w, "-", i))
			}
		})
	}
	workers.Wait()
	h.waitIdle()
}

// survive makes one request with a fault. Now and then the client leaves in the middle.
func (h *harness) requestWithFault(fault string, leaves bool, name string) {
	r := h.send(hello, "x-sim-fault: "+fault, "id: "+name)
	defer r.Body.Close()
	if leaves {
		io.ReadFull(r.Body, make([]byte, 300))
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Errorf("%s: %v", fault, err)
		return
	}
	end := endingOf(string(text) + "data: ")
	switch {
	case r.StatusCode != 200 && strings.Contains(string(text), `"error"`):
	case r.StatusCode == 200 && endingOf(string(text)) != "cut":
	default:
		h.t.Errorf("%s: %d, %s: …%s", fault, r.StatusCode, end, text[max(0, len(text)-300):])
	}
}

// A client that leaves frees the engine.
func TestClientLeaves(t *testing.T) {
	h := newHarness(t, options{engine: sim.Config{TokenInterval: 5 * time.Millisecond}})
	r := h.send(strings.Replace(hello, `"max_tokens":10`, `"max_tokens":100000`, 1))
	io.ReadFull(r.Body, make([]byte, 500))
	r.Body.Close()
	h.waitIdle()
	if got := h.result(1); got.Cause != causeClient {
		t.Errorf("%+v", got)
	}
}

// What waits when the relay closes is told.
func TestCloseTellsClients(t *testing.T) {
	h := newHarness(t, options{engine: sim.Config{TokenInterval: 5 * time.Millisecond}})
	r := h.send(strings.Replace(hello, `"max_tokens":10`, `"max_tokens":100000`, 1))
	defer r.Body.Close()
	io.ReadFull(r.Body, make([]byte, 500))
	h.relay.Close(t.Context())
	text, err := io.ReadAll(r.Body)
	if err != nil || !strings.Contains(string(text), `"code":"gateway_unavailable"`) || endingOf(string(text)) != "error" {
		t.Errorf("%v: …%s", err, text[max(0, len(text)-300):])
	}
	h.waitIdle()
}
