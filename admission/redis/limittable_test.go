package redis

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// The script refuses the second of two claims for the reason of each shared limit.
func TestLimitTable(t *testing.T) {
	t.Parallel()
	s := stores(t, 1, Config{}, redistest.Start(t))[0]
	for _, scope := range []admission.LimitScope{admission.ModelScope, admission.TenantScope, admission.ReplicaScope} {
		for _, l := range admission.SharedLimits(scope) {
			name := string(scope) + "/" + l.Name
			claim := admission.Claim{Model: name, Tenant: name, Tokens: 1, Prefill: true, Replica: name}
			switch scope {
			case admission.ModelScope:
				l.SetModel(&claim.Limits, 1)
			case admission.TenantScope:
				l.SetTenant(&claim.TenantLimits, 1)
			case admission.ReplicaScope:
				claim.ReplicaLimit = 1
			}
			first, second := claim, claim
			first.ID, second.ID = name+"/1", name+"/2"
			t.Log(name)
			wantReasons(t, acquire(s, first, second), admission.Granted, l.Reason)
		}
	}
}

// Every name of a reason or of a limit in the script is one of the table, and the other way round.
func TestScriptUsesTheLimitTable(t *testing.T) {
	t.Parallel()
	if len(modelLimits) > maxSharedLimits || len(tenantLimits) > maxSharedLimits {
		t.Fatalf("a scope has more than maxSharedLimits = %d shared limits: raise it", maxSharedLimits)
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`REASON\.(\w+)`).FindAllStringSubmatch(syncLua, -1) {
		used[m[1]] = true
	}
	for name := range admission.Reasons() {
		if !used[name] {
			t.Errorf("sync.lua never answers REASON.%s, which is a reason of the table", name)
		}
		delete(used, name)
	}
	for name := range used {
		t.Errorf("sync.lua uses REASON.%s, which is no reason of the table", name)
	}
	for variable, limits := range map[string][]admission.Limit{"m": modelLimits, "t": tenantLimits} {
		for _, l := range limits {
			if field := variable + "." + l.Name; !strings.Contains(syncLua, field) {
				t.Errorf("sync.lua does not use %s", field)
			}
		}
	}
}
