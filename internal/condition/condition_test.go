package condition

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write docs/conditions.md")

func TestDocument(t *testing.T) {
	testutil.Golden(t, "../../docs/conditions.md", document(), *update)
}

// document returns the text of docs/conditions.md: a table of all types.
func document() string {
	var b strings.Builder
	b.WriteString(`# Conditions

A condition is a named state of the gateway. ` + "`GET /api/v1/conditions`" + ` of the admin listener lists all conditions, those that need
attention first. The page shows them, and the metric ` + "`sluice_condition{type,subject,severity}`" + ` is 1 for each condition that needs attention and
0 for the others. ` + "`/readyz`" + ` is another matter: it only says whether this gateway can take requests.

This page is generated from ` + "`internal/condition/types.go`" + ` (` + "`go test ./internal/condition -update`" + `).

| type | severity | normal status | what it means when the status differs | what to do |
| --- | --- | --- | --- | --- |
`)
	for _, r := range types {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.kind, r.severity, r.normal, r.meaning, r.action)
	}
	return b.String()
}

// TestEachTypeIsOneRow: a type has one row, a meaning, and a normal status.
func TestEachTypeIsOneRow(t *testing.T) {
	seen := map[Type]bool{}
	for _, r := range types {
		if seen[r.kind] || r.meaning == "" || r.severity == "" || r.normal == "" || r.action == "" && r.global {
			t.Errorf("the row of %s is twice there or not complete", r.kind)
		}
		seen[r.kind] = true
	}
}

// newTestRegistry returns a registry whose clock the test moves, and its log.
func newTestRegistry() (*Registry, *time.Time, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	r, now := New(zap.New(core)), time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	return r, &now, logs
}

func find(r *Registry, t Type, subject string) *Condition {
	for _, c := range r.List() {
		if c.Type == t && c.Subject == subject {
			return &c
		}
	}
	return nil
}

func TestB5_SetAndClear(t *testing.T) {
	r, now, logs := newTestRegistry()
	if c := find(r, StateNotWritable, ""); c == nil || c.Status != False || c.Severity != Info {
		t.Fatalf("without a fault: %+v, want a condition that is false", c)
	}
	*now = now.Add(time.Minute)
	r.Set(StateNotWritable, "", "NoSpace", "The directory is full.")
	c := find(r, StateNotWritable, "")
	if c.Status != True || c.Severity != Error || !c.Since.Equal(*now) {
		t.Errorf("with a fault: %+v", c)
	}
	if !strings.HasPrefix(c.Message, "The directory is full. ") || !strings.Contains(c.Message, "Free space") {
		t.Errorf("the message %q lacks what is wrong or what to do", c.Message)
	}
	since := *now
	*now = now.Add(time.Minute)
	r.Set(StateNotWritable, "", "NoSpace", "The directory is still full.")
	if c := find(r, StateNotWritable, ""); !c.Since.Equal(since) || !strings.Contains(c.Message, "still") {
		t.Errorf("after a new message: %+v, want the same since", c)
	}
	if r.List()[0].Type != StateNotWritable {
		t.Error("the fault is not the first of the list")
	}
	r.Clear(StateNotWritable, "")
	if c := find(r, StateNotWritable, ""); c.Status != False || !c.Since.Equal(*now) {
		t.Errorf("after Clear: %+v", c)
	}
	if n := logs.FilterMessage("condition reached").Len(); n != 1 {
		t.Errorf("%d log lines of a fault, want 1", n)
	}
	if n := logs.FilterMessage("condition cleared").Len(); n != 1 {
		t.Errorf("%d log lines of its end, want 1", n)
	}
}

func TestB5_Sources(t *testing.T) {
	r, _, logs := newTestRegistry()
	var now []Condition
	r.AddSource(func() []Condition { return now })
	now = []Condition{
		OK(ModelReady, "small", "Ready", ""),
		{Type: ModelReady, Subject: "large", Status: False, Severity: Info, Reason: "Starting", Message: "0 of 1 replicas."},
		Fault(ReplicaFailed, "chat-0", "Exited", "It has ended."),
	}
	list := r.List()
	if list[0].Subject != "chat-0" || list[1].Subject != "large" || list[1].Severity != Info {
		t.Errorf("the list begins with %+v", list[:2])
	}
	now = now[:1]
	if c := find(r, ReplicaFailed, "chat-0"); c != nil {
		t.Errorf("a condition that its source does not list any more: %+v", c)
	}
	if n := logs.FilterMessage("condition cleared").Len(); n != 2 {
		t.Errorf("%d log lines of ends, want 2", n)
	}
	if c := find(r, ModelReady, "small"); c == nil || !c.Normal() {
		t.Errorf("the condition of a model that is ready: %+v", c)
	}
}

// TestNilRegistry: a part works without a registry.
func TestNilRegistry(t *testing.T) {
	var r *Registry
	r.Set(NameClash, "chat", "", "")
	r.Clear(NameClash, "chat")
	r.AddSource(nil)
	if r.List() != nil {
		t.Error("a nil registry has conditions")
	}
}
