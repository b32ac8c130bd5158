package realtime

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// Each message that is not as it has to be is refused by the name of its field.
func TestRefusedMessages(t *testing.T) {
	const start, result = `{"type":"start","messages":[{}],`, `{"type":"tool_result","content":"x",`
	long := strings.Repeat("x", maxID)
	for _, test := range []struct{ message, param, says string }{
		{`{"type":"start"`, "", "at byte 15"},
		{`[]`, "", "must be a JSON object"},
		{`null`, "", "must be a JSON object"},
		{`{}`, "type", "must have a type"},
		{`{"type":1}`, "type", "must have a type"},
		{`{"type":"stop"}`, "type", "no message of this type"},
		{`{"type":"pause","` + long + `x":1}`, "", "takes only these fields"},
		{`{"type":"credit","tokens":1,"\u0000":1}`, "", "takes only these fields"},
		{`{"type":"credit","tokens":1,"credit":1}`, "credit", "takes only these fields"},
		{start + `"request_id":1}`, "request_id", "wrong type"},
		{start + `"request_id":"` + long + `x"}`, "request_id", "at most 256 bytes"},
		{start + `"request_id":"a\u001f"}`, "request_id", "control characters"},
		{start + `"request_id":"a\u007f"}`, "request_id", "control characters"},
		{start + `"message":{}}`, "message", "either"},
		{`{"type":"start","messages":[]}`, "messages", "not be empty"},
		{`{"type":"start","messages":[{},1]}`, "messages", "must be objects"},
		{`{"type":"start","message":[]}`, "message", "must be an object"},
		{start + `"tools":{}}`, "tools", "must be a list"},
		{start + `"credit":-1}`, "credit", "from 0 to"},
		{start + `"credit":2147483649}`, "credit", "from 0 to"},
		{`{"type":"update"}`, "params", "missing"},
		{`{"type":"tool_cancel"}`, "tool_call_id", "missing"},
		{`{"type":"tool_result","content":"x"}`, "tool_call_id", "missing"},
		{`{"type":"tool_result","tool_call_id":"c","content":1}`, "content", "a text or a list"},
		{`{"type":"credit","tokens":0}`, "tokens", "from 1 to"},
		{`{"type":"credit","tokens":2147483649}`, "tokens", "from 1 to"},
	} {
		_, fault := readMessage([]byte(test.message))
		if fault == nil || fault.Code != openai.CodeInvalidRequest || fault.Param != test.param || !strings.Contains(fault.Message, test.says) {
			t.Errorf("%s is refused with %+v; want %q of %q", test.message, fault, test.says, test.param)
		}
	}
	for _, message := range []string{
		start + `"request_id":"` + long + `","credit":0}`, start + `"message":null,"tools":null,"credit":2147483648}`,
		`{"type":"start","message": {},"tools":[]}`, result + `"tool_call_id":"c"}`, `{"type":"credit","tokens":2147483648}`,
	} {
		if m, fault := readMessage([]byte(message)); fault != nil || string(m.Message) == "null" || m.Tools != nil && string(m.Tools) == "null" {
			t.Errorf("%s is read as %+v, %v", message, m, fault)
		}
	}
}
