package openai

import (
	"strings"
	"testing"
)

func TestB2_SessionOfARequest(t *testing.T) {
	t.Parallel()
	all := Request{SessionID: "x", PreviousResponseID: "x", PromptCacheKey: "x"}
	noHeader := Request{PreviousResponseID: "x", PromptCacheKey: "x"}
	onlyKey := Request{PromptCacheKey: "x"}
	var none Request
	if all.Session() != "header:x" || noHeader.Session() != ResponseSession("x") || onlyKey.Session() != "cache_key:x" || none.Session() != "" {
		t.Errorf("the sessions are %q, %q, %q and %q", all.Session(), noHeader.Session(), onlyKey.Session(), none.Session())
	}
}

func TestB2_SessionIDIsCheckedAsRequestIDs(t *testing.T) {
	t.Parallel()
	for value, good := range map[string]bool{
		"": true, "a": true, strings.Repeat("é", 128): true,
		strings.Repeat("x", 257): false, "a\xff": false, "a\nb": false,
	} {
		var r Request
		fault := r.SetSessionID("x-session-id", value)
		if good != (fault == nil) || good != (r.SessionID == value) {
			t.Errorf("%q: %v, and the session is %q", value, fault, r.SessionID)
		}
		if fault != nil && (fault.Param != "x-session-id" || fault.Code != CodeInvalidRequest) {
			t.Errorf("%q: %+v", value, fault)
		}
	}
}

// TestR7_CallsBesideResponses: a call of the Responses API finds the response that it continues, is
// refused with a conversation, and streams nothing. To count tokens leaves nothing in a cache.
func TestR7_CallsBesideResponses(t *testing.T) {
	t.Parallel()
	body := []byte(`{"model":"m","instructions":"Be brief.","input":"x","previous_response_id":"resp_1","stream":true,"max_output_tokens":7}`)
	for e, want := range map[Endpoint]struct {
		hasChain bool
		tokens   int
	}{InputTokens: {false, 0}, Compact: {true, 7}} {
		r, fault := Scan(e, "application/json", body)
		if fault != nil || r.Previous() != ResponseSession("resp_1") || r.Stream || r.MaxTokens != want.tokens {
			t.Errorf("%s: %v, %+v", e, fault, r)
		}
		if hasChain := r.Chain(body, 2).Bytes > 0; hasChain != want.hasChain {
			t.Errorf("%s has the beginning of a prompt: %v", e, hasChain)
		}
		if _, fault := Scan(e, "application/json", []byte(`{"model":"m","input":"x","conversation":"conv_1"}`)); fault == nil || fault.Param != "conversation" {
			t.Errorf("%s with a conversation: %v", e, fault)
		}
	}
	for value, want := range map[string]bool{"true": true, "false": false, "null": false} {
		r, fault := Scan(Responses, "application/json", []byte(`{"model":"m","input":"x","background":`+value+`}`))
		if fault != nil || r.Background != want {
			t.Errorf("background %s: %v, %v", value, fault, r.Background)
		}
	}
	for _, value := range []string{`"true"`, "1", `"on"`} { // pydantic, and so vLLM, takes these for true
		_, fault := Scan(Responses, "application/json", []byte(`{"model":"m","input":"x","background":`+value+`}`))
		if fault == nil || fault.Param != "background" {
			t.Errorf("background %s: %v", value, fault)
		}
	}
	if !InputTokens.Free() || Compact.Free() {
		t.Error("counting tokens costs tokens, or a compaction costs none")
	}
}
