package request

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// Whatever way a request took, what it has used is told once, with one estimate, as the list has
// it.
func TestB3_WhatIsToldAsUsed(t *testing.T) {
	cost := Cost{Usage: Usage{Prompt: 30, Completion: 7}}
	left := final("1")
	left.Status, left.Flags, left.Details, left.FirstByte, left.Upstream = 0, "DC", "", 0, "127.0.0.1:1"
	native := func(held bool, e Entry) func(*Store) {
		return func(s *Store) {
			if held {
				r := s.Begin(Arrival{ID: "1", Tenant: "acme"})
				r.SetNative(&hold{cost: cost}, "chat", "chat-0", 0)
				defer r.Close(nil)
			}
			s.Observe(e)
		}
	}
	managed := func(o Outcome) func(*Store) {
		return func(s *Store) {
			r := s.Begin(Arrival{ID: "1", Tenant: "acme"})
			o.Estimate(cost)
			r.SetOutcome(o)
			r.Close(nil)
			s.Observe(relayed("1"))
		}
	}
	for name, c := range map[string]struct {
		do   func(*Store)
		want Usage
	}{
		"native":                    {native(true, final("1")), cost.Usage},
		"of before a restart":       {native(false, final("1")), cost.Usage},
		"nobody waited":             {native(true, left), cost.Usage},
		"managed":                   {managed(Outcome{Answered: true, Attempts: 1, Usage: Usage{Completion: 9}}), Usage{Prompt: 30, Completion: 9}},
		"managed, false cache":      {managed(Outcome{Answered: true, Attempts: 1, Usage: Usage{Prompt: 1, Completion: 2, Cached: 3, Known: true}}), Usage{Prompt: 1, Completion: 2, Known: true}},
		"managed, counted":          {managed(Outcome{Answered: true, Attempts: 1, Usage: Usage{Prompt: 1, Completion: 2, Known: true}}), Usage{Prompt: 1, Completion: 2, Known: true, CachedKnown: true}},
		"managed, nobody waited":    {managed(Outcome{Attempts: 1, Cause: CauseClient}), cost.Usage},
		"managed, an engine failed": {managed(Outcome{Attempts: 1, Cause: CauseEngine}), Usage{}},
	} {
		s := NewStore(4)
		var told []Usage
		s.Subscribe(Subscribers{Used: func(q *Summary) { told = append(told, q.Usage()) },
			CostOf: func(*Entry) Cost { return cost }})
		c.do(s)
		if len(told) != 1 || told[0] != c.want {
			t.Errorf("%s: %+v, want %+v", name, told, c.want)
		}
		if all, _ := s.List(0); len(all) != 1 || all[0].Usage() != c.want {
			t.Errorf("%s: the list has %+v, want %+v", name, all, c.want)
		}
	}
}

// A total without its parts is the prompt where there is no output. Elsewhere it is an estimate.
func TestB3_UsageThatIsOnlyATotal(t *testing.T) {
	cost := Cost{Usage: Usage{Prompt: 30, Completion: 7}}
	for path, want := range map[string]Usage{
		"/v1/rerank":           {Prompt: 56, Known: true},
		"/embeddings?x":        {Prompt: 56, Known: true},
		"/v1/chat/completions": cost.Usage,
		"/elsewhere":           cost.Usage,
	} {
		s := NewStore(4)
		var told []Usage
		s.Subscribe(Subscribers{Used: func(q *Summary) { told = append(told, q.Usage()) }, CostOf: func(*Entry) Cost { return cost }})
		e := final("1")
		e.Path, e.Usage = path, TotalUsage(56)
		s.Observe(e)
		if len(told) != 1 || told[0] != want {
			t.Errorf("%s: %+v, want %+v", path, told, want)
		}
	}
	if u := TotalUsage(MaxTokens + 1); u != (Usage{}) {
		t.Errorf("an absurd total is %+v", u)
	}
}

// Observe tells whose request an entry is of: one that Begin has made a record of, or one that is
// known from entries alone.
func TestX19_ObserveTellsWhoseRequestItIs(t *testing.T) {
	s := NewStore(1)
	r := s.Begin(Arrival{ID: "own"})
	interim := func(id string) Entry {
		return Entry{Log: headers.LogRequests, Interim: true, RequestID: id, Model: "m"}
	}
	for _, c := range []struct {
		what string
		e    Entry
		want bool
	}{
		{"an attempt", Entry{Log: headers.LogAttempts, RequestID: "own"}, true},
		{"figures so far", interim("own"), true},
		{"an attempt of another process", Entry{Log: headers.LogAttempts, RequestID: "other"}, false},
		{"figures so far of another process", interim("other"), false},
		{"the same again", interim("other"), false},
		{"the end", final("own"), true},
		{"a second request of this id", final("own"), false},
		{"the end at another process", final("other"), false},
	} {
		if got := s.Observe(c.e); got != c.want {
			t.Errorf("%s: begun here: %v", c.what, got)
		}
	}
	r.Close(nil)
	var none *Store
	if none.Observe(final("own")) {
		t.Error("a store that keeps nothing knows a request")
	}
}
