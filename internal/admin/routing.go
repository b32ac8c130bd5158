package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// PickQuestion is a request of which Config.Pick says where it would go now.
type PickQuestion struct {
	// Key is a cache key. It counts only if Request is nil.
	Key string
	// Request is a request of a client, scanned from Body. nil: none.
	Request *openai.Request
	Body    []byte
	// Tenant is the tenant whose session the request belongs to. Empty: none.
	Tenant string
	// PromptTokens is the length of the prompt if Request is nil. No replica has any of it.
	PromptTokens int
}

// Pick tells which replica a request would go to.
type Pick struct {
	// Position is the position of the request's cache key on the ring.
	Position uint64
	// Picked is the replica that would be picked now. It is empty if no replica can be picked.
	Picked string
	// Reason is a word for why Picked wins: fastest, cached, session or ring, or the name of a
	// strategy that does not predict. It is empty if Picked is.
	Reason string
	// PromptTokens is the estimated length of the prompt.
	PromptTokens int
	// Replicas lists all replicas in ring order. The first owns the position.
	Replicas []PickReplica
}

// PickReplica is one replica as a Pick sees it.
type PickReplica struct {
	ID   string
	Load int
	// Candidate is false for a replica that cannot be picked: it is full, or Envoy does not know it
	// yet.
	Candidate bool
	// MatchedTokens are the tokens of the prompt that the replica is expected to have in its cache.
	// UncachedTokens are all others.
	MatchedTokens, UncachedTokens int
	// WaitingTokens are the uncached tokens of the requests that have no first token yet.
	WaitingTokens int
	// Rate is how many tokens of prompts the replica computes in a second; 0: not known.
	Rate float64
	// Predicted is the expected time to the first token; 0: it is not predicted.
	Predicted time.Duration
}

type pickReplicaView struct {
	ID             string  `json:"id"`
	Load           int     `json:"load"`
	Candidate      bool    `json:"candidate"`
	MatchedTokens  int     `json:"matched_tokens"`
	UncachedTokens int     `json:"uncached_tokens"`
	WaitingTokens  int     `json:"waiting_tokens"`
	Rate           float64 `json:"rate"`
	PredictedMS    float64 `json:"predicted_ms"`
	InRingOrder    int     `json:"in_ring_order"`
}

// pickOrderView is a replica in the order of the ring.
type pickOrderView struct {
	ID        string `json:"id"`
	Load      int    `json:"load"`
	Candidate bool   `json:"candidate"`
}

type pickView struct {
	Model        string            `json:"model"`
	Position     string            `json:"position"` // hexadecimal, because a JSON number cannot hold every uint64
	First        string            `json:"first"`
	Picked       string            `json:"picked"`
	Reason       string            `json:"reason"`
	Why          string            `json:"why"`
	PromptTokens int               `json:"prompt_tokens"`
	Order        []pickOrderView   `json:"order"`
	Replicas     []pickReplicaView `json:"replicas"`
}

func viewPick(model string, p *Pick) pickView {
	v := pickView{Model: model, Position: fmt.Sprintf("%016x", p.Position), Picked: p.Picked, Reason: p.Reason, Why: p.why(),
		PromptTokens: p.PromptTokens, Order: []pickOrderView{}, Replicas: []pickReplicaView{}}
	for i, r := range p.Replicas {
		if i == 0 {
			v.First = r.ID
		}
		v.Order = append(v.Order, pickOrderView{r.ID, r.Load, r.Candidate})
		v.Replicas = append(v.Replicas, pickReplicaView{r.ID, r.Load, r.Candidate, r.MatchedTokens, r.UncachedTokens, r.WaitingTokens,
			r.Rate, milliseconds(r.Predicted), i})
	}
	return v
}

// why says in a sentence why the picked replica wins.
func (p *Pick) why() string {
	if p.Picked == "" {
		return "No replica can take a request now: each is full, or Envoy does not know it yet."
	}
	switch p.Reason {
	case "fastest":
		return p.whyFastest()
	case "cached":
		i := slices.IndexFunc(p.Replicas, func(r PickReplica) bool { return r.ID == p.Picked })
		if i < 0 {
			break
		}
		return fmt.Sprintf("%s is about as fast as any other replica, and has most of the prompt in its cache: %d of %d tokens.",
			p.Picked, p.Replicas[i].MatchedTokens, p.PromptTokens)
	case "session":
		return p.Picked + " serves the session of the request, and is not much slower than the fastest replica."
	case "ring":
		return "Several replicas are about as fast. Of them, the hash ring names " + p.Picked + "."
	}
	return p.Picked + " is picked by the model's routing strategy."
}

// whyFastest compares the picked replica with the next best.
func (p *Pick) whyFastest() string {
	var own, next *PickReplica
	for i := range p.Replicas {
		r := &p.Replicas[i]
		switch {
		case r.ID == p.Picked:
			own = r
		case r.Candidate && (next == nil || r.Predicted < next.Predicted):
			next = r
		}
	}
	switch {
	case own == nil:
		return p.Picked + " has the least predicted time to the first token."
	case next == nil:
		return p.Picked + " is the only replica that can take a request now."
	}
	return fmt.Sprintf("%s has the least predicted time to the first token: %s. The next is %s with %s.",
		p.Picked, readable(own.Predicted), next.ID, readable(next.Predicted))
}

// readable rounds a duration to what a reader compares.
func readable(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// maxPickBody is the size of the largest body of a pick in bytes.
const maxPickBody = 32 << 20

// pick says where a request with a cache key would go.
func (h *handler) pick(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
	query := r.URL.Query()
	if !query.Has("key") {
		writeError(w, badParam("key", "The query parameter key is missing: name a cache key with ?key=…"))
		return
	}
	h.answerPick(w, m.Name, PickQuestion{Key: query.Get("key")})
}

// pickBody says where the request in the body would go. The model of the URL counts, and not the
// one of the body.
func (h *handler) pickBody(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPickBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, openai.Errorf(openai.CodeRequestTooLarge, "The request body is larger than the limit of %d bytes.", maxPickBody))
		return
	case err != nil:
		writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The request body did not arrive."))
		return
	}
	endpoint, fault := endpointOf(r.URL.Query().Get("path"), body)
	if fault != nil {
		writeError(w, fault)
		return
	}
	scan, fault := openai.Scan(endpoint, "application/json", body)
	if fault == nil {
		fault = scan.SetSessionID(headers.SessionID, r.Header.Get(headers.SessionID))
	}
	if fault != nil {
		writeError(w, fault)
		return
	}
	h.answerPick(w, m.Name, PickQuestion{Request: &scan, Body: body, Tenant: r.URL.Query().Get("tenant")})
}

func (h *handler) answerPick(w http.ResponseWriter, model string, q PickQuestion) {
	pick, fault := h.Pick(model, q)
	if fault != nil {
		writeError(w, fault)
		return
	}
	writeJSON(w, http.StatusOK, viewPick(model, &pick))
}

// endpointOf returns the endpoint of a path. If there is none, the body tells it: messages make a
// chat, prompt makes a completion, input makes a response.
func endpointOf(path string, body []byte) (openai.Endpoint, *openai.Error) {
	if path != "" {
		if endpoint, ok := openai.EndpointOf(path); ok {
			return endpoint, nil
		}
		return 0, badParam("path", fmt.Sprintf("path is %q: it must be a path such as /v1/chat/completions.", path))
	}
	var has struct{ Messages, Prompt, Input json.RawMessage }
	_ = json.Unmarshal(body, &has) // Scan says what is wrong with the body
	switch {
	case has.Messages == nil && has.Input != nil:
		return openai.Responses, nil
	case has.Messages == nil && has.Prompt != nil:
		return openai.Completions, nil
	}
	return openai.Chat, nil
}

// isPick reports whether a path asks for a pick. A pick by POST changes nothing.
func isPick(path string) bool {
	return strings.HasPrefix(path, modelsPath) && strings.HasSuffix(path, pickSuffix)
}

// recentView sums up the last requests, of a model or of one of its replicas.
type recentView struct {
	// Requests counts the finished requests that an engine has answered.
	Requests int `json:"requests"`
	// PredictedMS and RealMS are medians of the time from the pick to the first token, of Compared
	// streams.
	Compared    int     `json:"compared"`
	PredictedMS float64 `json:"predicted_ms"`
	RealMS      float64 `json:"real_ms"`
	// PromptTokens are those of the requests whose engine reported CachedTokens. MatchedTokens were
	// predicted to be cached.
	PromptTokens  int64 `json:"prompt_tokens"`
	MatchedTokens int64 `json:"matched_tokens"`
	CachedTokens  int64 `json:"cached_tokens"`
	// Picks and Moves count the requests by reason.
	Picks map[string]int `json:"picks"`
	Moves map[string]int `json:"moves"`

	predicted, real []time.Duration
}

func recent(all []request.Summary, of func(*request.Summary) bool) recentView {
	v := recentView{Picks: map[string]int{}, Moves: map[string]int{}}
	for i := range all {
		if q := &all[i]; q.State == request.Done && q.Source == headers.SourceEngine && of(q) {
			v.add(q)
		}
	}
	v.Compared = len(v.real)
	v.PredictedMS, v.RealMS = milliseconds(median(v.predicted)), milliseconds(median(v.real))
	return v
}

func (v *recentView) add(q *request.Summary) {
	v.Requests++
	if p, took, ok := q.FirstTokenAfterPick(); ok {
		v.predicted, v.real = append(v.predicted, p), append(v.real, took)
	}
	if q.CachedKnown {
		v.PromptTokens += q.PromptTokens
		v.MatchedTokens += min(int64(q.Prediction.MatchedTokens), q.PromptTokens)
		v.CachedTokens += q.CachedTokens
	}
	if q.Prediction.Reason != "" {
		v.Picks[q.Prediction.Reason]++
	}
	if q.Prediction.Moved != "" {
		v.Moves[q.Prediction.Moved]++
	}
}

// median returns the median of the numbers, which it sorts; 0 if there are none.
func median[T cmp.Ordered](all []T) (m T) {
	if len(all) == 0 {
		return m
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// defaultPrompt is the length of a typical prompt while nothing is known, in tokens.
const defaultPrompt = 1000

// routing shows how the model's requests are routed now. It shows the replicas as a request would
// find them whose prompt has the usual length and is in no cache. It also shows the last requests.
func (h *handler) routing(w http.ResponseWriter, _ *http.Request, m *engines.ModelSnapshot) {
	type replicaView struct {
		pickReplicaView
		Recent recentView `json:"recent"`
	}
	all, _ := h.Requests(0)
	all = slices.DeleteFunc(all, func(q request.Summary) bool { return q.Model != m.Name })
	typical := cmp.Or(typicalPrompt(all), defaultPrompt)
	pick, fault := h.Pick(m.Name, PickQuestion{PromptTokens: typical})
	if fault != nil {
		writeError(w, fault)
		return
	}
	replicas := []replicaView{}
	for _, r := range viewPick(m.Name, &pick).Replicas {
		replicas = append(replicas, replicaView{r, recent(all, func(q *request.Summary) bool { return q.Replica == r.ID })})
	}
	slices.SortFunc(replicas, func(a, b replicaView) int { return strings.Compare(a.ID, b.ID) })
	writeJSON(w, http.StatusOK, struct {
		Model        string        `json:"model"`
		PromptTokens int           `json:"prompt_tokens"`
		Picked       string        `json:"picked"`
		Reason       string        `json:"reason"`
		Recent       recentView    `json:"recent"`
		Replicas     []replicaView `json:"replicas"`
	}{m.Name, typical, pick.Picked, pick.Reason, recent(all, func(*request.Summary) bool { return true }), replicas})
}

// typicalPrompt returns the median length of the prompts whose engine counted them; 0: none did.
func typicalPrompt(all []request.Summary) int {
	var lengths []int64
	for i := range all {
		if n := all[i].PromptTokens; n > 0 && all[i].UsageKnown {
			lengths = append(lengths, n)
		}
	}
	return int(median(lengths))
}
