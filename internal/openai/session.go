package openai

// The kinds of names that a request may give to its session. Names of different kinds differ, so a
// client cannot name another kind by chance.
const (
	sessionHeader   = "header:"
	sessionResponse = "response:"
	sessionCacheKey = "cache_key:"
)

// Session returns the name of the session that the request belongs to; empty: none. The header
// x-session-id goes before previous_response_id, and that before prompt_cache_key. Two tenants may
// use the same name for different sessions.
func (r *Request) Session() string {
	switch {
	case r.SessionID != "":
		return sessionHeader + r.SessionID
	case r.PreviousResponseID != "":
		return ResponseSession(r.PreviousResponseID)
	case r.PromptCacheKey != "":
		return sessionCacheKey + r.PromptCacheKey
	}
	return ""
}

// Previous returns the name of the session of the response that the request continues; empty: none.
func (r *Request) Previous() string {
	if r.PreviousResponseID == "" {
		return ""
	}
	return ResponseSession(r.PreviousResponseID)
}

// ResponseSession returns the name of the session of a request that continues the response with
// this id.
func ResponseSession(id string) string { return sessionResponse + id }

// SetSessionID sets SessionID to the value of a header. The error says that the value is too long,
// is no UTF-8 or has control characters. An empty value sets nothing.
func (r *Request) SetSessionID(header, value string) *Error {
	if value == "" {
		return nil
	}
	if what := checkName([]byte(value), maxRequestID); what != "" {
		return Invalid(header, what)
	}
	r.SessionID = value
	return nil
}
