package kubernetes

import (
	"fmt"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/rest"
)

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
		r := modelReconciler{cluster: c, model: m, now: time.Now()}
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
