package custom

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// statusOf parses a status as the API returns it.
func statusOf(t *testing.T, text string) map[string]any {
	t.Helper()
	e := object(t, `{"metadata": {"name": "a"}, "status": `+text+`}`)
	status, ok := e.Object["status"].(map[string]any)
	if !ok {
		t.Fatalf("no status: %s", text)
	}
	return status
}

const written = `{"observedGeneration": 3, "message": "1 of 2", "phase": "Ready", "replicas": 2, "ready": 1, "desired": 2, "replicasReady": "1/2",
	"conditions": [
		{"type": "Foreign", "status": "Unknown", "reason": "Who", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"},
		{"type": "Accepted", "status": "True", "reason": "Valid", "message": "", "observedGeneration": 3, "lastTransitionTime": "2024-01-01T00:00:00Z"},
		{"type": "Ready", "status": "True", "reason": "Ready", "message": "1 of 2", "observedGeneration": 3, "lastTransitionTime": "2024-02-01T00:00:00Z"}]}`

func current() Status {
	return Status{Kind: Model, Name: "a", Generation: 3, Phase: "Ready", Replicas: 2, Ready: 1, Desired: 2, Accepted: true, Message: "1 of 2"}
}

func TestNothingIsWrittenTwice(t *testing.T) {
	t.Parallel()
	if fields := current().patchFor(statusOf(t, written), nil, time.Now()); fields != nil {
		t.Errorf("writes %v", fields)
	}
}

// A change of any field of a Status is written.
func TestEveryDifferenceIsWritten(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Status){
		"generation": func(s *Status) { s.Generation++ },
		"phase":      func(s *Status) { s.Phase = "Failed" },
		"replicas":   func(s *Status) { s.Replicas++ },
		"ready":      func(s *Status) { s.Ready++ },
		"desired":    func(s *Status) { s.Desired++ },
		"accepted":   func(s *Status) { s.Accepted = false },
		"message":    func(s *Status) { s.Message = "" },
		"selector":   func(s *Status) { s.Selector = "a=b" },
		"in force":   func(s *Status) { s.InForce = []byte(`{"engine":"sim"}`) },
	} {
		s := current()
		change(&s)
		if s.patchFor(statusOf(t, written), nil, time.Now()) == nil {
			t.Errorf("a change of %s is not written", name)
		}
	}
}

// A condition keeps its transition time until its status changes. Conditions of other types stay.
func TestConditions(t *testing.T) {
	t.Parallel()
	now := time.Date(2025, 5, 5, 5, 5, 5, 5, time.FixedZone("", 7200))
	s := current()
	s.Generation, s.Phase, s.Ready, s.Message = 4, "Starting", 0, "pulling"
	fields := s.patchFor(statusOf(t, written), nil, now)
	want := statusOf(t, `{"observedGeneration": 4, "selector": null, "message": "pulling", "phase": "Starting", "replicas": 2, "ready": 0, "desired": 2, "replicasReady": "0/2",
		"conditions": [
			{"type": "Foreign", "status": "Unknown", "reason": "Who", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z"},
			{"type": "Accepted", "status": "True", "reason": "Valid", "message": "", "observedGeneration": 4, "lastTransitionTime": "2024-01-01T00:00:00Z"},
			{"type": "Ready", "status": "False", "reason": "Starting", "message": "pulling", "observedGeneration": 4,
				"lastTransitionTime": "2025-05-05T03:05:05Z"}]}`)
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedModel(t *testing.T) {
	t.Parallel()
	s := Status{Kind: Model, Generation: 1, Message: "spec.engine: there is no engine x"}
	fields := s.patchFor(nil, nil, time.Unix(0, 0))
	if fields["phase"] != nil || fields["message"] != s.Message || fields["replicasReady"] != "0/0" {
		t.Errorf("writes %v", fields)
	}
	conditions := fields["conditions"].([]any)
	want := []any{
		map[string]any{"type": "Accepted", "status": "False", "reason": "Invalid", "message": s.Message, "observedGeneration": int64(1),
			"lastTransitionTime": "1970-01-01T00:00:00Z"},
		map[string]any{"type": "Ready", "status": "False", "reason": "Unknown", "message": "", "observedGeneration": int64(1),
			"lastTransitionTime": "1970-01-01T00:00:00Z"},
	}
	if diff := cmp.Diff(want, conditions); diff != "" {
		t.Error(diff)
	}
}

func TestEngineHasNoReplicas(t *testing.T) {
	t.Parallel()
	fields := Status{Kind: Engine, Generation: 1, Accepted: true, Phase: "Ready"}.patchFor(nil, nil, time.Now())
	if len(fields) != 3 || len(fields["conditions"].([]any)) != 1 {
		t.Errorf("writes %v", fields)
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	t.Parallel()
	for _, text := range []string{strings.Repeat("ö", maxMessageBytes), "a" + strings.Repeat("ö", maxMessageBytes), "bad \xff bytes"} {
		got := truncate(text)
		if len(got) > maxMessageBytes || !json.Valid([]byte(`"`+got+`"`)) || got != strings.ToValidUTF8(got, "?") {
			t.Errorf("%d bytes become %d", len(text), len(got))
		}
	}
	if s := strings.Repeat("x", maxMessageBytes); truncate(s) != s {
		t.Error("a message that fits is cut")
	}
}

// TestU15_TheAcceptedSpecIsInTheStatus: the spec that is in force can be read back as it was. A
// status without one keeps what is stored.
func TestU15_TheAcceptedSpecIsInTheStatus(t *testing.T) {
	t.Parallel()
	const spec = `{"engine":"sim","variables":{"b":1,"a":null}}`
	s := current()
	s.InForce = []byte(spec)
	fields := s.patchFor(statusOf(t, written), nil, time.Now())
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "a"}, "status": fields})
	if err != nil {
		t.Fatal(err)
	}
	read := (&store{kind: Model}).parse(object(t, string(patch)))
	if string(read.Accepted) != spec {
		t.Errorf("read back as %s", read.Accepted)
	}
	s.InForce = nil
	status, _ := read.raw.Object["status"].(map[string]any)
	if fields := s.patchFor(status, nil, time.Now()); fields != nil {
		t.Errorf("writes %v", fields)
	}
}
