package extproc

import (
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// metadataOf returns the dynamic metadata that the answer sets for the request.
func metadataOf(answer *pb.ProcessingResponse) map[string]string {
	all := map[string]string{}
	for name, v := range answer.GetDynamicMetadata().GetFields()[headers.Metadata].GetStructValue().GetFields() {
		all[name] = v.GetStringValue()
	}
	return all
}

const ask = `{"model":"m","messages":[{"role":"user","content":"Hello"}]}`

func TestALimitedTenantHearsWhatItHasLeft(t *testing.T) {
	s, d := newServer(t, nil)
	d.SetRules(dispatch.Rules{Tenants: map[string]admission.TenantLimits{"acme": {RequestsPerMinute: 1, TokensPerMinute: 1000}}})
	e := open(t, s)
	e.headers(key)
	metadata := metadataOf(e.body(ask))
	if metadata[headers.MetadataTenant] != "acme" || metadata[headers.LimitRequests] != "1" || metadata[headers.RemainingRequests] != "0" ||
		metadata[headers.LimitTokens] != "1000" || metadata[headers.ResetRequests] != "1m0s" {
		t.Errorf("noted %v", metadata)
	}
	e = open(t, s)
	e.headers(key, "x-request-id: e-2")
	refusal := e.body(ask).GetImmediateResponse()
	got := set(refusal.GetHeaders())
	if refusal.GetStatus().GetCode() != 429 || got["retry-after"] == "" || got[headers.RemainingRequests] != "0" || got[headers.LimitTokens] != "1000" {
		t.Errorf("refused with %v", refusal)
	}
}

// A caller over a soft bound hears of it with each response, and one over a hard bound is refused
// before Envoy reads the body.
func TestB3_BudgetsAreAskedBeforeTheBody(t *testing.T) {
	s, _ := newServer(t, nil)
	reached, fault := "tenant;per=day", (*openai.Error)(nil)
	s.Decider.Budget = func(who *authz.Tenant) (string, *openai.Error) {
		if who.Name != "acme" || who.Key == "" {
			t.Errorf("asked for %+v", who)
		}
		return reached, fault
	}
	e := open(t, s)
	e.headers(key)
	if got := metadataOf(e.body(ask))[headers.Budget]; got != reached {
		t.Errorf("the metadata has %q", got)
	}
	fault = &openai.Error{Code: openai.CodeInsufficientQuota, Header: map[string]string{headers.Budget: reached}, RetryAfter: time.Hour}
	e = open(t, s)
	refusal := e.headers(key, "x-request-id: e-2").GetImmediateResponse()
	got := set(refusal.GetHeaders())
	if refusal.GetStatus().GetCode() != 429 || got["retry-after"] != "3600" || got[headers.Budget] != reached || got[headers.ShouldRetry] != "false" ||
		!strings.Contains(string(refusal.GetBody()), `"type":"insufficient_quota"`) {
		t.Errorf("refused with %v", refusal)
	}
	reached, fault = "", nil
	e = open(t, s)
	e.headers(key, "x-request-id: e-3")
	if _, there := metadataOf(e.body(ask))[headers.Budget]; there {
		t.Error("the metadata has the budget of before")
	}
}

func TestOneWithoutLimitsIsNotedWithItsTenantAndKey(t *testing.T) {
	s, _ := newServer(t, nil)
	e := open(t, s)
	e.headers(key)
	want := map[string]string{headers.MetadataTenant: "acme", headers.MetadataKey: "acme/" + strings.TrimPrefix(authz.HashKey("key"), "sha256:")[:8]}
	if diff := cmp.Diff(want, metadataOf(e.body(ask))); diff != "" {
		t.Error(diff)
	}
}

func TestPriorityAndTaskAreOptionsOfClients(t *testing.T) {
	s, d := newServer(t, nil)
	e := open(t, s)
	if answer := e.headers(key, headers.Priority+": urgent").GetImmediateResponse(); answer.GetStatus().GetCode() != 400 {
		t.Errorf("a priority that is none: %v", answer)
	}
	e = open(t, s)
	e.headers(key, headers.Priority+": batch", headers.TaskID+": tsk_unknown")
	if answer := e.body(ask).GetImmediateResponse(); answer.GetStatus().GetCode() != 400 {
		t.Errorf("a task that is none: %v", answer)
	}
	task, _, fault := d.Schedule(t.Context(), dispatch.TaskRequest{Tenant: "acme", Model: "m"})
	if fault != nil {
		t.Fatal(fault)
	}
	e = open(t, s)
	e.headers(key, headers.TaskID+": "+task.ID)
	if answer := e.body(ask); answer.GetRequestBody() == nil {
		t.Errorf("a good task: %v", answer)
	}
}

// TestNewsOfAnEndedRequest checks that the cost of a request counts although its access log record
// arrives after the exchange has ended.
func TestNewsOfAnEndedRequest(t *testing.T) {
	s, d := newServer(t, nil)
	d.SetRules(dispatch.Rules{Default: dispatch.Policy{Limits: admission.Limits{TokensPerMinute: 1000}}})
	e := open(t, s)
	e.headers(key)
	if got := set(e.body(ask).GetRequestBody().GetResponse().GetHeaderMutation()); !strings.HasPrefix(got[headers.Usage], headers.UsageOfOpenAI) || got[headers.Observe] != "" {
		t.Errorf("tokens of a model with a token limit must be counted, and its first token is nobody's business: %v", got)
	}
	e.reset()
	<-e.processed
	e.processed <- nil
	tokens := func() float64 {
		v, _ := d.View("m")
		return v.Tokens
	}
	if before := tokens(); before > 800 {
		t.Fatalf("%v tokens are left although 256 are expected to be used", before)
	}
	told := request.Entry{Log: headers.LogRequests, RequestID: "e-1", Model: "m", Status: 200, Usage: request.Usage{Known: true, Prompt: 5, Completion: 5}}
	for range 2 {
		s.Requests.Observe(told)
	}
	if after := tokens(); after < 989 || after > 995 {
		t.Errorf("%v tokens are left of 1000 after a request of 10", after)
	}
}

func TestTheFirstTokenOfAWatchedRequest(t *testing.T) {
	s, d := newServer(t, nil)
	d.SetRules(dispatch.Rules{Default: dispatch.Policy{MaxPrefillPerReplica: 1}})
	e := open(t, s)
	e.headers(key)
	if got := set(e.body(ask).GetRequestBody().GetResponse().GetHeaderMutation()); got[headers.Observe] != "1" {
		t.Errorf("the first token must be told of: %v", got)
	}
}
