package admission_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// While the shared state does not answer, a gateway enforces every shared limit by its own counts.
func TestLimitTableWithoutSharedState(t *testing.T) {
	t.Parallel()
	for _, scope := range []admission.LimitScope{admission.ModelScope, admission.TenantScope, admission.ReplicaScope} {
		for _, l := range admission.SharedLimits(scope) {
			t.Run(string(scope)+"/"+l.Name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { checkEnforcedAlone(t, l) })
			})
		}
	}
}

func checkEnforcedAlone(t *testing.T, l admission.Limit) {
	var model admission.Limits
	var tenant admission.TenantLimits
	replicaLimit := 0
	switch l.Scope {
	case admission.ModelScope:
		l.SetModel(&model, 1)
	case admission.TenantScope:
		l.SetTenant(&tenant, 1)
	case admission.ReplicaScope:
		replicaLimit = 1
	}
	g := newTestGateway(t, newFakeStore(), model)
	g.change(func() { g.down = true })
	g.SetTenants(map[string]admission.TenantLimits{"t": tenant})
	admitted := 0
	for range 3 {
		r := admission.Request{Model: "chat", Tenant: "t", Tokens: 1, Prefill: true, Timeout: time.Second}
		r.Locked.ReserveSlot = func(string) (admission.Slot, bool) {
			return admission.Slot{Replica: "r", Limit: replicaLimit}, true
		}
		if _, err := g.Admit(t.Context(), r); err == nil {
			admitted++
		}
	}
	if admitted != 1 {
		t.Errorf("%d of 3 requests were admitted with the limit 1, want 1", admitted)
	}
}
