package realtime

import "testing"

// TestX14_WholeNumbersOfMessages: clients whose numbers are all floats send 5.0.
func TestX14_WholeNumbersOfMessages(t *testing.T) {
	t.Parallel()
	m, fault := readMessage([]byte(`{"type":"start","model":"m","messages":[{}],"credit":5.0}`))
	if fault != nil || m.Credit == nil || *m.Credit != 5 {
		t.Errorf("credit: %v, %v", m.Credit, fault)
	}
	if m, fault = readMessage([]byte(`{"type":"credit","tokens":1e2}`)); fault != nil || m.Tokens != 100 {
		t.Errorf("tokens: %v, %v", m.Tokens, fault)
	}
	if m, fault = readMessage([]byte(`{"type":"start","model":"m","messages":[{}],"credit":null}`)); fault != nil || m.Credit != nil {
		t.Errorf("null: %v, %v", m.Credit, fault)
	}
	for _, value := range []string{"1.5", `"5"`, "1e300", "true"} {
		if _, fault := readMessage([]byte(`{"type":"credit","tokens":` + value + `}`)); fault == nil || fault.Param != "tokens" {
			t.Errorf("%s: %v", value, fault)
		}
	}
}
