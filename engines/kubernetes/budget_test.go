package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
)

// changingAPI answers each write of a budget with one that has another spec, as an admission
// webhook may change it.
type changingAPI struct{ calls int }

func (a *changingAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.calls++
	b := new(policyv1.PodDisruptionBudget)
	if err := json.NewDecoder(r.Body).Decode(b); err != nil {
		return nil, err
	}
	b.UID, b.Generation, b.ResourceVersion = "u", int64(a.calls), fmt.Sprint(a.calls)
	b.Spec.MaxUnavailable = new(intstr.FromInt32(2))
	data, err := json.Marshal(b)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(data)), Request: r}, err
}

// TestU16_ABudgetThatTheClusterChangesIsWrittenOnce: the cluster gives a budget another spec each
// time it is written. Sluice writes it again only when somebody has changed it.
func TestU16_ABudgetThatTheClusterChangesIsWrittenOnce(t *testing.T) {
	api := new(changingAPI)
	c, err := newCluster(Config{}.withDefaults(), location{namespace: "n"}, &rest.Config{Transport: api})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.budgets.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	m := wanted{Model: engine("m", 0)}
	if m.manifest, err = c.manifest(m.Model); err != nil {
		t.Fatal(err)
	}
	known := new(memory)
	apply := func(times int) {
		t.Helper()
		for range times {
			if err := (modelReconciler{cluster: c, model: m, memory: known, now: time.Now()}).applyBudget(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(3)
	if api.calls != 1 {
		t.Errorf("written %d times", api.calls)
	}
	edited := c.budgets.get(c.budget(m).Name, time.Now()).DeepCopy()
	edited.Generation, edited.ResourceVersion, edited.Spec.MaxUnavailable = 7, "7", new(intstr.FromInt32(5))
	if err := c.budgets.Update(edited); err != nil {
		t.Fatal(err)
	}
	apply(3)
	if api.calls != 2 {
		t.Errorf("written %d times, also after somebody's edit", api.calls)
	}
}

// TestU16_ABudgetOfManyIsFoundAtOnce: to find the budget of a model costs the same, however many
// other models have budgets.
func TestU16_ABudgetOfManyIsFoundAtOnce(t *testing.T) {
	c, err := newCluster(Config{}.withDefaults(), location{}, &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	made := func(name string) (wanted, *policyv1.PodDisruptionBudget) {
		d, err := c.manifest(engine(name, 0))
		if err != nil {
			t.Fatal(err)
		}
		w := wanted{Model: engine(name, 0), manifest: d}
		return w, c.budget(w)
	}
	m, own := made("m")
	budgets := []any{own}
	cost := func() float64 {
		if err := c.budgets.Replace(budgets, ""); err != nil {
			t.Fatal(err)
		}
		r := modelReconciler{cluster: c, model: m, memory: new(memory), now: time.Now()}
		return testing.AllocsPerRun(100, func() {
			if err := r.applyBudget(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
	alone := cost()
	for i := range 100 {
		_, other := made(fmt.Sprint("other-", i))
		budgets = append(budgets, other)
	}
	if among := cost(); among > 2*alone {
		t.Errorf("%v allocations among 100 others, %v alone", among, alone)
	}
}
