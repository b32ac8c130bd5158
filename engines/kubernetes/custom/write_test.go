package custom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text = strings.Replace(text, "{", `{"apiVersion": "sluice.dev/v1alpha1", "kind": "InferenceModel", `, 1)
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

func model(t *testing.T, name string) any {
	return object(t, fmt.Sprintf(`{"metadata": {"name": %q, "uid": "u-%s", "generation": 1, "resourceVersion": "7"},
		"spec": {"launcher": "upstream"}}`, name, name))
}

// calls replaces the API in tests of when it is called.
type calls struct {
	dynamic.ResourceInterface
	fail func(name string) error
	// slow is how long a call takes.
	slow time.Duration
	// drops is the field of the status that this API does not keep.
	drops string

	mu   sync.Mutex
	made []call
}

type call struct {
	name, data string
	at         time.Time
}

func (c *calls) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (
	*unstructured.Unstructured, error) {
	c.mu.Lock()
	c.made = append(c.made, call{name, string(data), time.Now()})
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(c.slow):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		if err := c.fail(name); err != nil {
			return nil, err
		}
	}
	written := new(unstructured.Unstructured)
	if err := utiljson.Unmarshal(data, &written.Object); err != nil {
		return nil, err
	}
	unstructured.RemoveNestedField(written.Object, "status", c.drops)
	return written, nil
}

func (c *calls) all() []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.made)
}

func (c *calls) names() []string {
	var names []string
	for _, made := range c.all() {
		names = append(names, made.name)
	}
	return names
}

// writing runs a writer for the objects until the test ends.
func writing(t *testing.T, w *Watcher, c *calls, objects ...any) {
	t.Helper()
	if err := w.models.Replace(objects, ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&writer{Watcher: w, api: func(Kind) dynamic.ResourceInterface { return c }, attempts: map[types.UID]writeAttempt{}}).run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func always() bool { return true }

// An object is written at once and then at most once per second. The last status is written in any
// case.
func TestWritesAreSpaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := New(Config{IsLeader: always}), &calls{}
		writing(t, w, c, model(t, "a"))
		for i := range 50 {
			w.Report([]Status{{Kind: Model, Name: "a", Generation: 1, Message: fmt.Sprint("message ", i)}})
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(3 * minWriteInterval)
		made := c.all()
		if n := len(made); n < 4 || n > 7 {
			// The stand-in does not show what was written, so the writer goes on writing.
			t.Errorf("%d writes in 5.5 s", n)
		}
		for i := 1; i < len(made); i++ {
			if pause := made[i].at.Sub(made[i-1].at); pause < minWriteInterval {
				t.Errorf("written again after %v", pause)
			}
		}
		if last := made[len(made)-1].data; !strings.Contains(last, "message 49") {
			t.Errorf("the last one written is %s", last)
		}
	})
}

// A rejected object does not keep others from being written, and is retried.
func TestRejectedObjectHidesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := New(Config{IsLeader: always})
		c := &calls{fail: func(name string) error {
			if name == "a" {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "InferenceModel"}, "a", nil)
			}
			return nil
		}}
		writing(t, w, c, model(t, "a"), model(t, "b"), model(t, "c"))
		w.Report([]Status{{Kind: Model, Name: "a"}, {Kind: Model, Name: "b"}, {Kind: Model, Name: "c"}, {Kind: Model, Name: "gone"}})
		time.Sleep(settleDelay)
		synctest.Wait() // the writer wakes up at the same moment
		if diff := cmp.Diff([]string{"a", "b", "c"}, c.names()); diff != "" {
			t.Error(diff)
		}
		// Other objects are written meanwhile.
		time.Sleep(2 * minWriteInterval)
		if !strings.Contains(w.Errors(), `"a" is invalid`) {
			t.Errorf("Problem says %q", w.Errors())
		}
		c.mu.Lock()
		c.fail = nil
		c.mu.Unlock()
		time.Sleep(maxRetryDelay)
		if n := strings.Count(strings.Join(c.names(), ""), "a"); w.Errors() != "" || n < 2 {
			t.Errorf("tried %d times; Problem says %q", n, w.Errors())
		}
	})
}

// While the API is unreachable one object is tried per second, not all of them.
func TestAPIAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := New(Config{IsLeader: always}), &calls{fail: func(string) error { return errors.New("connection refused") }}
		writing(t, w, c, model(t, "a"), model(t, "b"), model(t, "c"))
		w.Report([]Status{{Kind: Model, Name: "a"}, {Kind: Model, Name: "b"}, {Kind: Model, Name: "c"}})
		time.Sleep(10 * time.Second)
		if n := len(c.names()); n < 8 || n > 12 {
			t.Errorf("%d tries in 10 s", n)
		}
		if w.Errors() != "custom resources cannot be written: connection refused" {
			t.Errorf("Problem says %q", w.Errors())
		}
	})
}

// A new leader writes what was reported before. A gateway that is no longer the leader stops
// writing.
func TestLeadership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		leads := false
		lead := func(l bool) { mu.Lock(); leads = l; mu.Unlock() }
		w := New(Config{IsLeader: func() bool { mu.Lock(); defer mu.Unlock(); return leads }})
		c := &calls{}
		writing(t, w, c, model(t, "a"))
		w.Report([]Status{{Kind: Model, Name: "a"}})
		time.Sleep(10 * time.Second)
		if len(c.names()) != 0 {
			t.Fatalf("one that does not lead has written %v", c.names())
		}
		lead(true)
		time.Sleep(2 * minWriteInterval)
		if len(c.names()) == 0 {
			t.Fatal("the new leader has written nothing")
		}
		lead(false)
		time.Sleep(minWriteInterval)
		n := len(c.names())
		w.Report([]Status{{Kind: Model, Name: "a", Message: "new"}})
		time.Sleep(10 * time.Second)
		if len(c.names()) != n {
			t.Error("one that leads no more has written")
		}
	})
}

// TestOneThatLeadsNoMoreHasNoFault: what a leader could not write is not its fault any more when
// another gateway leads.
func TestOneThatLeadsNoMoreHasNoFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var follows atomic.Bool
		w := New(Config{IsLeader: func() bool { return !follows.Load() }})
		writing(t, w, &calls{fail: func(string) error { return errors.New("connection refused") }}, model(t, "a"))
		w.Report([]Status{{Kind: Model, Name: "a"}})
		time.Sleep(2 * minWriteInterval)
		if w.Errors() == "" {
			t.Error("the leader has no fault")
		}
		follows.Store(true)
		time.Sleep(2 * minWriteInterval)
		if says := w.Errors(); says != "" {
			t.Error(says)
		}
	})
}

// A gateway that stops being the leader in the middle of many writes stops at once.
func TestLeadershipEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{}
		w := New(Config{IsLeader: func() bool { return len(c.names()) < 2 }})
		writing(t, w, c, model(t, "a"), model(t, "b"), model(t, "c"))
		w.Report([]Status{{Kind: Model, Name: "a"}, {Kind: Model, Name: "b"}, {Kind: Model, Name: "c"}})
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"a", "b"}, c.names()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestARefusedFinalizerHidesNoStatus: a gateway that may write the status of a model, and not the
// model, writes the status. The error is not about the status.
func TestARefusedFinalizerHidesNoStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := New(Config{IsLeader: always}), &calls{}
		c.fail = func(string) error {
			if strings.Contains(c.made[len(c.made)-1].data, "finalizers") {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "inferencemodels"}, "a", nil)
			}
			return nil
		}
		writing(t, w, c, object(t, `{"metadata": {"name": "a", "uid": "u", "generation": 1, "resourceVersion": "7"}, "spec": {}}`))
		w.Report([]Status{{Kind: Model, Name: "a", Phase: "Ready"}})
		time.Sleep(settleDelay)
		synctest.Wait()
		if len(c.made) != 2 || !strings.Contains(c.made[1].data, "Ready") {
			t.Errorf("%v", c.made)
		}
		if says := w.Errors(); !strings.HasPrefix(says, `custom resources cannot be written: inferencemodels "a" is forbidden`) {
			t.Error(says)
		}
	})
}

// TestAWebhookThatDoesNotAnswerHidesNoStatus: an admission webhook keeps models from getting their
// finalizer for the longest time that the API lets it. Their status is written all the same, and
// the error names the webhook.
func TestAWebhookThatDoesNotAnswerHidesNoStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := New(Config{IsLeader: always}), &calls{slow: 30 * time.Second}
		c.fail = func(string) error {
			if strings.Contains(c.made[len(c.made)-1].data, "finalizers") {
				return apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
			}
			return nil
		}
		pods := func(name string) any {
			return object(t, fmt.Sprintf(`{"metadata": {"name": %q, "uid": "u-%[1]s", "generation": 1, "resourceVersion": "7"}, "spec": {}}`, name))
		}
		writing(t, w, c, pods("a"), pods("b"))
		w.Report([]Status{{Kind: Model, Name: "a", Phase: "Ready"}, {Kind: Model, Name: "b", Phase: "Ready"}})
		time.Sleep(5 * c.slow)
		if diff := cmp.Diff([]string{"a", "a", "b", "b"}, c.names()[:4]); diff != "" {
			t.Error(diff)
		}
		for _, i := range []int{1, 3} {
			if !strings.Contains(c.all()[i].data, "Ready") {
				t.Errorf("written: %s", c.all()[i].data)
			}
		}
		if says := w.Errors(); !strings.Contains(says, "policy.example.com") {
			t.Error(says)
		}
	})
}

// TestAFieldThatTheAPIDropsIsToldAndNotWrittenAllTheTime: the definitions in the cluster are older
// than the gateway, so the API does not keep a field of the status. The operator is told. A status
// that differs in nothing else is written again only now and then.
func TestAFieldThatTheAPIDropsIsToldAndNotWrittenAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := New(Config{IsLeader: always}), &calls{drops: fieldAcceptedSpec}
		s := Status{Kind: Model, Name: "a", Generation: 1, Phase: "Ready", InForce: []byte("{}")}
		kept := map[string]any{}
		for name, value := range s.patchFor(nil, nil, time.Now()) {
			if name != fieldAcceptedSpec && value != nil {
				kept[name] = value
			}
		}
		shown := object(t, `{"metadata": {"name": "a", "uid": "u", "generation": 1, "resourceVersion": "7"}, "spec": {"launcher": "upstream"}}`)
		shown.Object["status"] = kept
		writing(t, w, c, shown)
		report := func(d time.Duration) {
			for range d / minWriteInterval {
				w.Report([]Status{s})
				time.Sleep(minWriteInterval)
			}
		}
		report(droppedRetryDelay - 2*minWriteInterval)
		if n := len(c.names()); n != 1 {
			t.Errorf("%d writes of a field that the API drops", n)
		}
		if says := w.Errors(); !strings.Contains(says, "older than this gateway") || !strings.Contains(says, "InferenceModel status.acceptedSpec") {
			t.Errorf("%q", says)
		}
		s.Phase = "Starting" // differs, and is written at once
		report(2 * minWriteInterval)
		if n := len(c.names()); n < 2 {
			t.Error("what the API keeps is not written")
		}
		c.mu.Lock()
		c.drops = "" // somebody has applied the definitions
		c.mu.Unlock()
		s.Phase = "Ready"
		report(droppedRetryDelay + 2*minWriteInterval)
		if says := w.Errors(); says != "" {
			t.Error(says)
		}
	})
}

// Models that have pods get the finalizer, and released models lose it. Finalizers of others stay.
func TestFinalizers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind     Kind
		object   string
		released bool
		want     []string // nil means no change
	}{
		"new":                {Model, `{"metadata": {"name": "a"}, "spec": {"engine": "sim"}}`, false, []string{Finalizer}},
		"kubernetes":         {Model, `{"metadata": {"name": "a", "finalizers": ["x/y"]}, "spec": {"launcher": "kubernetes"}}`, false, []string{"x/y", Finalizer}},
		"no spec":            {Model, `{"metadata": {"name": "a"}}`, false, []string{Finalizer}},
		"upstream":           {Model, `{"metadata": {"name": "a"}, "spec": {"launcher": "upstream"}}`, false, nil},
		"engine":             {Engine, `{"metadata": {"name": "a"}, "spec": {}}`, false, nil},
		"has it":             {Model, `{"metadata": {"name": "a", "finalizers": ["sluice.dev/drain"]}}`, false, nil},
		"released, but kept": {Model, `{"metadata": {"name": "a", "finalizers": ["sluice.dev/drain"]}}`, true, nil},
		"deleted, without":   {Model, `{"metadata": {"name": "a", "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["x/y"]}}`, false, nil},
		"deleted":            {Model, `{"metadata": {"name": "a", "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["sluice.dev/drain"]}}`, false, nil},
		"released": {Model, `{"metadata": {"name": "a", "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["sluice.dev/drain", "x/y"]}}`,
			true, []string{"x/y"}},
	} {
		s := store{kind: c.kind}
		got, differ := wantedFinalizers(s.parse(object(t, c.object)), c.released)
		if differ != (c.want != nil) || differ && !cmp.Equal(c.want, got) {
			t.Errorf("%s: %v, %v", name, got, differ)
		}
	}
}

// A release applies to one object and not to a later one of the same name.
func TestReleaseIsOfOneObject(t *testing.T) {
	t.Parallel()
	w := New(Config{})
	deleted := object(t, `{"metadata": {"name": "a", "uid": "1", "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["sluice.dev/drain"]}}`)
	kept := object(t, `{"metadata": {"name": "b", "uid": "2", "finalizers": ["sluice.dev/drain"]}}`)
	if err := w.models.Replace([]any{deleted, kept}, ""); err != nil {
		t.Fatal(err)
	}
	w.ReleaseFinalizers([]string{"a", "b", "nobody"})
	if diff := cmp.Diff(map[types.UID]bool{"1": true}, w.released); diff != "" {
		t.Error(diff)
	}
	writer := &writer{Watcher: w, attempts: map[types.UID]writeAttempt{"1": {}, "2": {}}}
	writer.forget([]entry{{raw: kept}})
	if len(w.released) != 0 || len(writer.attempts) != 1 {
		t.Errorf("still known: %v, %v", w.released, writer.attempts)
	}
}

// A spec of any form is delivered as JSON.
func TestSpecs(t *testing.T) {
	t.Parallel()
	w := New(Config{})
	specs := map[string]string{"a": `{"n":9007199254740993,"x":0.1}`, "b": `[1]`, "c": `"text"`, "d": `{}`}
	list := []any{object(t, `{"metadata": {"name": "none"}}`), object(t, `{"metadata": {"name": "null"}, "spec": null}`)}
	for name, spec := range specs {
		list = append(list, object(t, `{"metadata": {"name": "`+name+`"}, "spec": `+spec+`}`))
	}
	specs["none"], specs["null"] = "{}", "{}"
	if err := w.models.Replace(list, ""); err != nil {
		t.Fatal(err)
	}
	objects, complete := w.models.all()
	if !complete || len(objects) != len(specs) {
		t.Fatalf("%v, %v", objects, complete)
	}
	for _, o := range objects {
		if string(o.Spec) != specs[o.Name] || !json.Valid(o.Spec) {
			t.Errorf("%s: %s", o.Name, o.Spec)
		}
	}
}
