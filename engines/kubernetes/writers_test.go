package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// hangingAPI answers each call with what was sent. The admission webhook of some Deployments
// answers none of its calls.
type hangingAPI struct {
	hangs func(model string) bool

	mu sync.Mutex
	// made holds the models that have a Deployment. Guarded by mu.
	made map[string]bool
}

func (a *hangingAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return answer(r, http.StatusNotFound, []byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)), nil
	}
	var object map[string]any
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, err)
	}
	meta, _ := object["metadata"].(map[string]any)
	if annotations, _ := meta["annotations"].(map[string]any); strings.HasSuffix(r.URL.Path, "/deployments") {
		model, _ := annotations[annotationModel].(string)
		if a.hangs(model) {
			return slowWebhook{}.RoundTrip(r)
		}
		a.mu.Lock()
		a.made[model] = true
		a.mu.Unlock()
	}
	meta["uid"], meta["resourceVersion"], meta["generation"] = "u", "1", 1
	data, err := json.Marshal(object)
	return answer(r, http.StatusOK, data), err
}

func answer(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}
}

func (a *hangingAPI) has(model string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.made[model]
}

// leaderOver returns a cluster whose leader reconciles the models over the API until the test ends.
func leaderOver(t *testing.T, api http.RoundTripper, models ...Model) *cluster {
	t.Helper()
	c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{Transport: api, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, replace := range []func([]any, string) error{c.deployments.Replace, c.groupSets.Replace, c.budgets.Replace, c.jobs.Replace, c.pods.Replace, c.leases.Replace} {
		if err := replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	var all []wanted
	for _, m := range models {
		d, err := c.manifest(m)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, wanted{Model: m, manifest: d})
	}
	c.setsBeforeFound = new(uint64(0))
	c.set(all, false, 1)
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	var loops sync.WaitGroup
	loops.Go(func() { c.elect(ctx) })
	loops.Go(func() { c.reconcileLoop(ctx) })
	t.Cleanup(func() {
		stop()
		loops.Wait()
	})
	return c
}

// hashedModels returns n models in the order of their hashes.
func hashedModels(n int) []Model {
	var all []Model
	for i := range n {
		all = append(all, engine(fmt.Sprint("m", i), 1))
	}
	slices.SortFunc(all, func(a, b Model) int { return strings.Compare(modelHash(a.Name), modelHash(b.Name)) })
	return all
}

// TestU16_AWebhookThatHangsDelaysOnlyItsModels: an admission webhook answers no call about some
// Deployments. The other models get theirs at once, and the operator reads what is wrong.
func TestU16_AWebhookThatHangsDelaysOnlyItsModels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		models := hashedModels(4)
		healthy := models[3].Name
		api := &hangingAPI{made: map[string]bool{}, hangs: func(model string) bool { return model != healthy }}
		c := leaderOver(t, api, models...)
		time.Sleep(5 * time.Second)
		if !api.has(healthy) {
			t.Error("the other model has no Deployment after 5 s")
		}
		time.Sleep(30 * time.Second)
		blocked := c.blockedModels()
		for _, m := range models[:3] {
			if !strings.Contains(blocked[m.Name], "policy.example.com") {
				t.Errorf("%s: %q", m.Name, blocked[m.Name])
			}
		}
		if why := blocked[healthy]; why != "" {
			t.Error(why)
		}
	})
}

// TestU16_ManyHangingWritesLeavePlaces: more writes hang than may run at the same time. A model
// that comes later has its turn when the first ones have ended.
func TestU16_ManyHangingWritesLeavePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		models := hashedModels(2*maxWriters + 1)
		late := models[len(models)-1].Name
		api := &hangingAPI{made: map[string]bool{}, hangs: func(model string) bool { return model != late }}
		leaderOver(t, api, models...)
		time.Sleep(time.Minute + 10*time.Second)
		if !api.has(late) {
			t.Error("the last model has no Deployment")
		}
	})
}

// silentAPI answers no call.
type silentAPI struct{}

func (silentAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestALeaseIsNotRemovedForEver: the API does not answer the removal of the lease of a gateway that
// is long dead. The call ends, and the operator is told.
func TestALeaseIsNotRemovedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{Transport: silentAPI{}})
		if err != nil {
			t.Fatal(err)
		}
		c.peers.known = map[string]peer{"dead": {lastChanged: time.Now()}}
		c.peers.ownSeen = time.Now().Add(time.Hour)
		writes := map[string]write{}
		c.removeLeases(writes)
		if len(writes) != 1 {
			t.Fatalf("%d writes", len(writes))
		}
		if _, err := writes["lease dead"](context.Background()); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
