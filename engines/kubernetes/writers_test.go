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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// echoAPI answers each call with what was sent.
type echoAPI struct {
	// hangs says for which models the admission webhook of Deployments answers no call. Nil means
	// none.
	hangs func(model string) bool
	// strips is a resource whose objects lose their labels to an admission webhook.
	strips string

	mu sync.Mutex
	// made holds the models that have a Deployment. Guarded by mu.
	made map[string]bool
	// calls counts the calls by method and resource. Guarded by mu.
	calls map[string]int
}

func (a *echoAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.calls[r.Method+" "+resourceOf(r)]++
	a.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
		return answer(r, http.StatusNotFound, []byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)), nil
	case http.MethodDelete:
		return answer(r, http.StatusOK, []byte(`{"kind": "Status", "apiVersion": "v1", "status": "Success"}`)), nil
	}
	var object map[string]any
	if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, err)
	}
	meta, _ := object["metadata"].(map[string]any)
	if annotations, _ := meta["annotations"].(map[string]any); resourceOf(r) == "deployments" {
		model, _ := annotations[annotationModel].(string)
		if a.hangs != nil && a.hangs(model) {
			return slowWebhook{}.RoundTrip(r)
		}
		a.mu.Lock()
		a.made[model] = true
		a.mu.Unlock()
	}
	if resourceOf(r) == a.strips {
		delete(meta, "labels")
	}
	meta["namespace"] = "n"
	meta["uid"], meta["resourceVersion"], meta["generation"] = "u", "1", 1
	data, err := json.Marshal(object)
	return answer(r, http.StatusOK, data), err
}

func answer(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}
}

// resourceOf returns the resource of a call: /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE.
func resourceOf(r *http.Request) string { return strings.Split(r.URL.Path, "/")[6] }

func (a *echoAPI) has(model string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.made[model]
}

func (a *echoAPI) count(call string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[call]
}

func newEchoAPI() *echoAPI { return &echoAPI{made: map[string]bool{}, calls: map[string]int{}} }

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
		api := newEchoAPI()
		api.hangs = func(model string) bool { return model != healthy }
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
		api := newEchoAPI()
		api.hangs = func(model string) bool { return model != late }
		leaderOver(t, api, models...)
		time.Sleep(time.Minute + 10*time.Second)
		if !api.has(late) {
			t.Error("the last model has no Deployment")
		}
	})
}

// TestU16_HangingWritesLeaveTurns: more writes hang than may run at the same time, again and again.
// A new model gets its Deployment at once, and a model whose webhook answers again has its turn.
func TestU16_HangingWritesLeaveTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		models := hashedModels(3 * maxWriters)
		last := models[len(models)-1].Name
		var answers atomic.Bool
		api := newEchoAPI()
		api.hangs = func(model string) bool { return model != "new" && (model != last || !answers.Load()) }
		c := leaderOver(t, api, models...)
		time.Sleep(100 * time.Second) // each has hung once
		more := wanted{Model: engine("new", 1)}
		var err error
		if more.manifest, err = c.manifest(more.Model); err != nil {
			t.Fatal(err)
		}
		c.set(append(slices.Clone(c.wanted), more), false, 2)
		time.Sleep(5 * time.Second)
		if !api.has("new") {
			t.Error("the new model has no Deployment after 5 s")
		}
		answers.Store(true)
		time.Sleep(5 * time.Minute)
		if !api.has(last) {
			t.Error("the model whose webhook answers again has no Deployment after 5 min")
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

// TestU16_AWebhookThatTakesLabelsIsTold: an admission webhook takes the labels from what Sluice
// makes. Without them no watch shows the object. Sluice does not remove what it has made, tries
// again as seldom as after any error, and the operator reads why.
func TestU16_AWebhookThatTakesLabelsIsTold(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"deployments", "poddisruptionbudgets", "jobs"} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := newEchoAPI()
				api.strips = resource
				m := engine("m", 1)
				if resource == "jobs" {
					m.Weights = &Weights{Claim: "c", Path: "/w", Link: "l", Image: "sluice:1", Repository: "r"}
				}
				c := leaderOver(t, api, m)
				time.Sleep(time.Minute)
				if n := api.count("DELETE " + resource); n > 0 {
					t.Errorf("%d removed", n)
				}
				if n := api.count("POST "+resource) + api.count("PATCH "+resource); n > 60 {
					t.Errorf("%d writes within a minute", n)
				}
				if why := c.blockedModels()["m"]; !strings.Contains(why, labelInstall) || !strings.Contains(why, "webhook") {
					t.Errorf("the operator reads %q", why)
				}
			})
		})
	}
}

// TestU16_AnObjectWithoutItsModelsLabelStays: an admission webhook takes the one label by which
// Sluice knows of which model an object is. The watch shows the object, and Sluice does not remove
// it.
func TestU16_AnObjectWithoutItsModelsLabelStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newEchoAPI()
		c := leaderOver(t, api, engine("m", 1))
		m := c.wanted[0]
		d, b := m.manifest.DeepCopy(), c.budget(m)
		for _, o := range []metav1.Object{d, b} {
			o.SetNamespace("n")
			o.SetResourceVersion("2")
			delete(o.GetLabels(), labelModel)
		}
		if err := errors.Join(c.deployments.Replace([]any{d}, ""), c.budgets.Replace([]any{b}, "")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := api.count("DELETE deployments") + api.count("DELETE poddisruptionbudgets"); n > 0 {
			t.Errorf("%d removed", n)
		}
		if !c.isGone("another") || c.isGone("m") {
			t.Error("the Deployment does not count as one of its model")
		}
	})
}
