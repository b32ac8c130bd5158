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
