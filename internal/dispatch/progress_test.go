package dispatch

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// watched sends a request that can be looked at.
func (s stage) watched(ctx context.Context, priority admission.Priority) *Wait {
	w := new(Wait)
	r := newRequest("m", "k")
	r.Priority, r.Watch = priority, w
	go func() {
		if ticket, fault := s.Dispatch(ctx, r); fault == nil {
			<-ctx.Done()
			ticket.Release()
		}
	}()
	synctest.Wait()
	return w
}

func (s stage) wantPlace(t *testing.T, w *Wait, position int) {
	t.Helper()
	synctest.Wait()
	if got := w.Progress(s.Dispatcher); got != (WaitProgress{Position: position}) {
		t.Errorf("%+v, want position %d", got, position)
	}
}

func TestWhereARequestWaits(t *testing.T) {
	inStage(t, Policy{Limits: admission.Limits{MaxConcurrent: 1}}, func(t *testing.T, s stage, ctx context.Context) {
		s.wantPlace(t, new(Wait), 0)
		running, end := context.WithCancel(ctx)
		first := s.watched(running, admission.Default)
		s.wantPlace(t, first, 0) // it runs
		second, third := s.watched(ctx, admission.Default), s.watched(ctx, admission.Default)
		urgent := s.watched(ctx, admission.Interactive)
		s.wantPlace(t, urgent, 1)
		s.wantPlace(t, second, 2)
		s.wantPlace(t, third, 3)
		end()
		s.wantPlace(t, urgent, 0)
		s.wantPlace(t, third, 2)
	})
}

func TestWhatARequestWaitsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		reason := "loading: 3 of 7\r\n\tshards " + strings.Repeat("é", 300)
		s.put("m", engines.Replica{ID: "a", State: engines.Starting, Reason: reason})
		ctx, cancel := context.WithCancel(t.Context())
		w := s.watched(ctx, admission.Default)
		p := w.Progress(s.Dispatcher)
		if p.Position != 1 || !p.Starting || p.Public || !strings.HasPrefix(p.Note, "loading: 3 of 7 shards é") || len(p.Note) > 200 || !strings.HasSuffix(p.Note, "é…") {
			t.Errorf("%+v", p)
		}
		s.put("m", engines.Replica{ID: "a"})
		s.rebuild()
		s.wantPlace(t, w, 0)
		cancel()
		synctest.Wait()
	})
}

// TestU19_EveryTenantSeesTheFetch: how far the weights are fetched names nothing of the fleet.
func TestU19_EveryTenantSeesTheFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", engines.Replica{ID: "a", State: engines.Starting, Reason: "fetching weights: 1.0 GiB of 4.0 GiB", Fetch: engines.Fetch{Done: 1 << 30, Total: 4 << 30}})
		ctx, cancel := context.WithCancel(t.Context())
		w := s.watched(ctx, admission.Default)
		if got, want := w.Progress(s.Dispatcher), (WaitProgress{1, true, "fetching weights: 1.0 GiB of 4.0 GiB", true}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		cancel()
		synctest.Wait()
	})
}
