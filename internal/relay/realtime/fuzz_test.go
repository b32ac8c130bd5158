package realtime

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// FuzzMessage: whatever a client sends, what comes of it is a request for a stream from the model
// it named, or a refusal without its words.
func FuzzMessage(f *testing.F) {
	for _, seed := range []string{
		hello, `{"type":"start","model":"m","messages":[{}],"params":{"n":1,"temperature":0.5,"x":null},"tools":[],"credit":3}`,
		`{"type":"update","params":{"stop":["a"]}}`, `{"type":"tool_result","tool_call_id":"c","content":"\ud800"}`,
		`{"type":"credit","tokens":1}`, `{"type":"cancel","request_id":"é"}`, `{"type":"start","type":"pause"}`, `{"type":"start","model":"a\"b","message":{ }}`,
		`{"type":"start","model":"m","messages":[{}],"params":{"str\u0065am":false}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, fault := readMessage(data)
		if fault != nil {
			if fault.Code == "" || fault.Message == "" || !json.Valid(fault.EventData()) {
				t.Errorf("fault %+v", fault)
			}
			return
		}
		if _, ok := fieldsOf(m.Type); !ok {
			t.Fatalf("type %q", m.Type)
		}
		if m.Type != typeStart {
			return
		}
		next, fault := conversation{limit: 1 << 20}.with(&m)
		if fault != nil {
			return
		}
		body := next.body(m.RequestID)
		scan, fault := openai.Scan(openai.Chat, "application/json", body)
		if fault != nil {
			return // told before the turn begins
		}
		if !scan.Stream || !scan.IncludeUsage || scan.Choices > 1 || scan.Model != strings.ToValidUTF8(m.Model, "\ufffd") || scan.RequestID != m.RequestID {
			t.Errorf("%s\nbecame %s\n%+v", data, body, scan)
		}
	})
}
