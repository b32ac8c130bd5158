package admission

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReasonTable(t *testing.T) {
	t.Parallel()
	for r := range reasonCount {
		if reasonTable[r].text == "" {
			t.Errorf("reason %d has no row in reasonTable", r)
		}
	}
	if got, want := Reasons()["MODEL_TOKENS"], ModelTokens; got != want {
		t.Errorf("Reasons()[MODEL_TOKENS] = %v, want %v", got, want)
	}
	if got := ModelTokens.Message("the model `m`"); !strings.Contains(got, "the model `m`") {
		t.Errorf("the message %q does not name what was asked for", got)
	}
}

// Each field of Limits and of TenantLimits has one row, and each row has a field of its own.
func TestLimitTableCoversTheStructs(t *testing.T) {
	t.Parallel()
	fields := map[string]bool{}
	for _, l := range LimitTable(ModelScope) {
		var limits Limits
		l.SetModel(&limits, 7)
		checkLimitField(t, l, reflect.ValueOf(limits), fields)
		if got := l.OfModel(&limits); got != 7 {
			t.Errorf("%s: OfModel = %d after SetModel(7)", l.Name, got)
		}
	}
	for _, l := range LimitTable(TenantScope) {
		var limits TenantLimits
		l.SetTenant(&limits, 7)
		checkLimitField(t, l, reflect.ValueOf(limits), fields)
		if got := l.OfTenant(&limits); got != 7 {
			t.Errorf("%s: OfTenant = %d after SetTenant(7)", l.Name, got)
		}
	}
	for _, s := range []any{Limits{}, TenantLimits{}} {
		for f := range reflect.TypeOf(s).Fields() {
			if name := reflect.TypeOf(s).Name() + "." + f.Name; !fields[name] {
				t.Errorf("limitTable has no row for %s", name)
			}
		}
	}
}

// checkLimitField checks that exactly one field of s is not zero, and that no row before had it.
func checkLimitField(t *testing.T, l Limit, s reflect.Value, fields map[string]bool) {
	t.Helper()
	set := 0
	for i := range s.NumField() {
		if s.Field(i).IsZero() {
			continue
		}
		set++
		name := s.Type().Name() + "." + s.Type().Field(i).Name
		if fields[name] {
			t.Errorf("%s: another row has the field %s too", l.Name, name)
		}
		fields[name] = true
	}
	if set != 1 {
		t.Errorf("%s: the row sets %d fields, want 1", l.Name, set)
	}
}

// TestLimitTable sets each limit that has a Reason to 1. A Controller must then admit one request
// of several, and make the others wait or refuse them for that reason.
func TestLimitTable(t *testing.T) {
	t.Parallel()
	for _, l := range limitTable {
		if l.Reason == Granted || l.Scope == ReplicaScope {
			continue
		}
		t.Run(string(l.Scope)+"/"+l.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { checkEnforced(t, l) })
		})
	}
}

func checkEnforced(t *testing.T, l Limit) {
	config, model, tenant := Config{}, Limits{}, TenantLimits{}
	if l.Reason == QueueFull || l.Reason == TenantBytes {
		model.MaxConcurrent = 1 // so that requests wait
	}
	switch l.Scope {
	case ModelScope:
		l.SetModel(&model, 1)
	case TenantScope:
		l.SetTenant(&tenant, 1)
	case GatewayScope:
		config.MaxQueueBytes = 1
	}
	c := New(config)
	c.SetLimits("m", model)
	c.SetTenants(map[string]TenantLimits{"t": tenant})
	const requests = 4
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, requests)
	for range requests {
		go func() {
			_, err := c.Admit(ctx, Request{Model: "m", Tenant: "t", Tokens: 1, Bytes: 1, Prefill: true})
			errs <- err
		}()
		synctest.Wait()
	}
	admitted, refused := 0, 0
	for len(errs) > 0 {
		err := <-errs
		var r *Refused
		switch {
		case err == nil:
			admitted++
		case errors.As(err, &r) && r.Reason == l.Reason:
			refused++
		default:
			t.Errorf("a request beyond the limit failed with %v, want the reason %q", err, l.Reason)
		}
	}
	waiting := c.Stats("m").Queued
	if admitted != 1 || refused+waiting != requests-1 {
		t.Errorf("admitted %d, refused %d, waiting %d of %d requests; want 1 admitted", admitted, refused, waiting, requests)
	}
	// ModelTokens refuses what would wait too long
	if l.Reason.refuses() && refused == 0 && l.Reason != ModelTokens {
		t.Errorf("no request was refused for the reason %q", l.Reason)
	}
	cancel()
	time.Sleep(time.Second)
}
