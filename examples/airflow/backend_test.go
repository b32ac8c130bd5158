package airflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/openai"
)

const pool = "all"

// gateway is the batch API over a Controller, without Envoy.
type gateway struct {
	*admission.Controller
	lease time.Duration

	mu sync.Mutex
	// answers counts the calls. Every loseEvery-th call is executed but not answered; 0 means all
	// are answered. completed and renewed count what the caller reported.
	answers, loseEvery int
	completed          []int
	renewed            int
}

func (g *gateway) Schedule(ctx context.Context, r api.ScheduleRequest) (api.ScheduleAnswer, *openai.Error) {
	ask := admission.TaskRequest{Model: r.Model, Pool: r.Pool, Tenant: r.Tenant, Tokens: r.EstimatedTokens, Key: r.RequestID,
		Lease: g.lease, MaxWait: r.MaxWait}
	if r.Pool == "" && r.Model == "" {
		ask.Pool = pool
	}
	task, wait, err := g.Controller.Schedule(ctx, ask)
	switch {
	case errors.Is(err, admission.ErrNeverFits):
		return api.ScheduleAnswer{}, &openai.Error{Code: openai.CodeInvalidRequest, Param: "estimated_tokens", Message: "never fits"}
	case err != nil:
		return api.ScheduleAnswer{}, openai.Errorf(openai.CodeModelNotFound, "%v", err)
	}
	return api.ScheduleAnswer{Wait: wait, Model: task.Model, TaskID: task.ID}, nil
}

func (g *gateway) Complete(ctx context.Context, tenant, id string, tokens *int) (bool, *openai.Error) {
	actual := -1
	if tokens != nil {
		actual = *tokens
	}
	err := g.Controller.Complete(ctx, tenant, id, actual)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.completed = append(g.completed, actual)
	}
	return err == nil, nil
}

func (g *gateway) Renew(ctx context.Context, tenant, id string) (time.Duration, bool, *openai.Error) {
	_, err := g.Controller.Renew(ctx, tenant, id, g.lease)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.renewed++
	}
	return g.lease, err == nil, nil
}

// serve serves the batch API and returns its URL. For a lost answer it closes the connection after
// the work.
func (g *gateway) serve(t *testing.T) string {
	inner := api.New(api.Config{Tasks: g})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.answers++
		lose := g.loseEvery > 0 && g.answers%g.loseEvery == 0
		g.mu.Unlock()
		if lose {
			inner.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// inFlight returns the number of leases of all models.
func (g *gateway) inFlight(models map[string]admission.Limits) (n int) {
	for model := range models {
		n += g.Stats(model).InFlight
	}
	return n
}

// backend is the Models Backend. It has no limits and records where those of the models were
// exceeded.
type backend struct {
	limits map[string]admission.Limits

	mu         sync.Mutex
	inFlight   map[string]int
	calls      map[string]int // by prompt
	violations []string
	// Calls after the first `free` ones are held until gate is closed or the caller disconnects.
	free, total, held int
	gate              chan struct{}
}

func newBackend(limits map[string]admission.Limits) *backend {
	return &backend{limits: limits, inFlight: map[string]int{}, calls: map[string]int{}, free: 1 << 30, gate: make(chan struct{})}
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var ask struct{ Model, Prompt string }
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || r.URL.Path != "/single" {
		http.Error(w, "bad request", 400)
		return
	}
	hold := b.begin(ask.Model, ask.Prompt)
	defer b.end(ask.Model, hold)
	if hold {
		select {
		case <-b.gate:
		case <-r.Context().Done():
			return
		}
	}
	json.NewEncoder(w).Encode(map[string]any{"answer": "about " + ask.Prompt + " by " + ask.Model, "total_tokens": actualTokens})
}

// actualTokens is the real cost of every call.
const actualTokens = 77

func (b *backend) begin(model, prompt string) (hold bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight[model]++
	b.calls[prompt]++
	b.total++
	limit, known := b.limits[model]
	if !known || b.inFlight[model] > limit.MaxConcurrent {
		b.violations = append(b.violations, fmt.Sprintf("%d at once on %q", b.inFlight[model], model))
	}
	if hold = b.total > b.free; hold {
		b.held++
	}
	return hold
}

func (b *backend) end(model string, held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight[model]--
	if held {
		b.held--
	}
}

func (b *backend) heldCalls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

// holdAfter makes the backend hold the calls after the next n.
func (b *backend) holdAfter(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free, b.gate = b.total+n, make(chan struct{})
}

func (b *backend) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = 1 << 30
	close(b.gate)
}
