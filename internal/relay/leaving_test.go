package relay

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/http1"
)

// A request for a model that has just been removed reaches its replica in the protocol of the
// replica. The rules no longer name the model, and the fleet still has its replica.
func TestAModelThatLeavesKeepsItsProtocol(t *testing.T) {
	h := newHarness(t, options{handler: http.NotFoundHandler()})
	h.relay.config.Workers = func(*tls.Config) http1.Client {
		return recordedEngine{[]byte(roleEvent + tokenEvent("word ") + finishEvent("", "stop") + doneEvent)}
	}
	h.dispatcher.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {Way: dispatch.WayPolicy{GRPC: true, RerankAPI: true}}}})
	h.dispatcher.SetRules(dispatch.Rules{})
	h.relay.SetRules(&Rules{})
	if status, text := h.sendAndRead(hello); status != http.StatusOK || !strings.Contains(text, "word") {
		t.Errorf("%d %s", status, text)
	}
	if p := new(Rules).policyOf(&dispatch.Ticket{Model: "m", RerankAPI: true}); p.Rerank != RerankTEI || p.GRPC {
		t.Errorf("the policy of a model of TEI that leaves: %+v", p)
	}
}

// Replicas that speak llm.v1 are called with the certificates of their transport, as those that
// speak HTTP are.
func TestT6_WorkersAreCalledWithTheirTLS(t *testing.T) {
	var made []*tls.Config
	r := New(Config{Workers: func(settings *tls.Config) http1.Client {
		made = append(made, settings)
		return recordedEngine{}
	}})
	defer r.Close(t.Context())
	secure := &engines.Transport{TLS: &engines.TLS{ServerName: "worker", CA: "none", Unchecked: true}}
	for _, transport := range []*engines.Transport{nil, secure, secure} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := r.send(request, dispatch.Upstream{Transport: transport}, Policy{GRPC: true})
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	if len(made) != 2 || made[0] != nil || made[1].ServerName != "worker" || made[1].RootCAs == nil || !made[1].InsecureSkipVerify {
		t.Errorf("%+v", made)
	}
}
