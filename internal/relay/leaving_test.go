package relay

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// A request for a model that has just been removed reaches its replica in the protocol of the
// replica. The rules no longer name the model, and the fleet still has its replica.
func TestAModelThatLeavesKeepsItsProtocol(t *testing.T) {
	h := newHarness(t, options{handler: http.NotFoundHandler()})
	h.relay.config.Workers = recordedEngine{[]byte(roleEvent + tokenEvent("word ") + finishEvent("", "stop") + doneEvent)}
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
