package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// keysPath is the path of the list of keys.
const keysPath = "/api/v1/keys"

// The sources of keys.
const (
	// KeyOfFile is a key of the configuration file, which only the file ends.
	KeyOfFile = "file"
	// KeyOfRuntime is a key that was made by the API.
	KeyOfRuntime = "runtime"
)

// Key is a key in the list of keys.
type Key struct {
	// ID names the key in the API. It is a part of the key that is not confidential, or the first
	// digits of the hash of a key of the file.
	ID string `json:"id"`
	// UsageKey is the name of the key in usage and in records of requests: its tenant and its id.
	UsageKey string `json:"usage_key"`
	Tenant   string `json:"tenant"`
	Name     string `json:"name"`
	// Prefix is how the key begins; empty for a key of the file.
	Prefix string `json:"prefix"`
	// Created and Expires are null if they are not known, or if the key does not end.
	Created *time.Time `json:"created"`
	Expires *time.Time `json:"expires"`
	// LastUsed is when a request last had the key, to the minute. null: never, as far as is known.
	LastUsed *time.Time `json:"last_used"`
	// Models are those of the key, or of its tenant if the key has none of its own.
	Models []string `json:"models"`
	// Limits are those of the key, beside those of its tenant, by their names in the file. Quota is
	// how much of each is used.
	Limits map[string]int      `json:"limits"`
	Quota  map[string]LimitUse `json:"quota"`
	// Budgets are those of the key, beside those of its tenant.
	Budgets []BudgetUse `json:"budgets"`
	// Source is KeyOfFile or KeyOfRuntime.
	Source string `json:"source"`
}

// KeyLimits are the limits of a key over all models. 0 is no limit.
type KeyLimits struct {
	RequestsPerMinute    int `json:"requests_per_minute"`
	TokensPerMinute      int `json:"tokens_per_minute"`
	MaxConcurrentStreams int `json:"max_concurrent_streams"`
}

// KeyBudget is what a key may use in a day or month of the calendar in UTC.
type KeyBudget struct {
	// Per is day or month. Of is tokens or cost; empty: tokens.
	Per string `json:"per"`
	Of  string `json:"of"`
	// Soft is warned about, and Hard refused, in tokens or in the currency of the prices. 0: not
	// so.
	Soft float64 `json:"soft"`
	Hard float64 `json:"hard"`
}

// NewKey is what an operator asks for.
type NewKey struct {
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	// Models are the models and pools that the key may use, of those of its tenant. nil: all. New
	// refuses an empty list.
	Models []string `json:"models"`
	// Limits are the limits of the key, beside those of its tenant.
	Limits KeyLimits `json:"limits"`
	// Budgets are the budgets of the key, beside those of its tenant.
	Budgets []KeyBudget `json:"budgets"`
	// Expires is when the key ends; nil: it does not end.
	Expires *time.Time `json:"expires"`
}

// Keys makes, lists and revokes keys.
type Keys interface {
	// List returns all keys, those of the file first. fault says why those of run time cannot be
	// read now; it is empty if they can.
	List(ctx context.Context) (all []Key, fault string)
	// New makes a key and returns the key itself, which is stored nowhere.
	New(ctx context.Context, k NewKey) (key Key, secret string, fault *openai.Error)
	// Revoke ends a key that was made at run time.
	Revoke(ctx context.Context, id string) (Key, *openai.Error)
}

func (h *handler) listKeys(w http.ResponseWriter, r *http.Request) {
	var answer struct {
		Keys  []Key  `json:"keys"`
		Fault string `json:"fault,omitempty"`
	}
	answer.Keys, answer.Fault = h.Keys.List(r.Context())
	writeJSON(w, http.StatusOK, answer)
}

// maxNewKey is the size of the largest body that makes a key in bytes: it may name many models.
const maxNewKey = 64 << 10

func (h *handler) newKey(w http.ResponseWriter, r *http.Request) {
	const form = `{"tenant":"acme","name":"ci","models":["chat"],"limits":{"requests_per_minute":60},` +
		`"budgets":[{"per":"day","hard":1000000}],"expires":"2030-01-01T00:00:00Z"}; ` +
		"all but tenant may be left out"
	var asked NewKey
	if !readObject(w, r, &asked, maxNewKey, form) {
		return
	}
	key, secret, fault := h.Keys.New(r.Context(), asked)
	if fault != nil {
		writeError(w, fault)
		return
	}
	auditOf(r).new = key
	writeJSON(w, http.StatusCreated, struct {
		Key
		Secret string `json:"key"`
	}{key, secret})
}

func (h *handler) revokeKey(w http.ResponseWriter, r *http.Request, id string) {
	if !readAction(w, r, &struct{}{}, "{} or empty") {
		return
	}
	key, fault := h.Keys.Revoke(r.Context(), id)
	if fault != nil {
		writeError(w, fault)
		return
	}
	auditOf(r).old = key
	writeJSON(w, http.StatusOK, key)
}
