package sim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// maxChoices is the largest n of a request. It keeps one request from exhausting the memory.
const maxChoices = 128

// choice is one answer while it is generated.
type choice struct {
	sequence *sequence
	answer   *answer
	// sent is the number of tokens sent to the client.
	sent int
	// closed tells that sink.finish was called for the choice.
	closed bool
}

// generation is the work on one request: one sequence for each of its choices.
type generation struct {
	scheduler *scheduler
	// changed receives a value when one of the sequences has changed.
	changed chan struct{}
	choices []*choice
	prompts []prompt
	// stopCancel stops the cancellation that a disconnect of the client causes. It returns false if
	// the cancellation has run.
	stopCancel func() bool
}

// generate submits one sequence per answer. Each prompt has the same number of answers, and the
// answers of the first prompt come first. The caller must call close.
func (h *handler) generate(prompts []prompt, answers []answer) *generation {
	g := &generation{scheduler: h.engine.scheduler, changed: make(chan struct{}, 1), prompts: prompts}
	h.generation = g
	each := len(answers) / max(len(prompts), 1)
	sequences := make([]*sequence, len(answers))
	g.choices = make([]*choice, len(answers))
	for i := range answers {
		sequences[i] = &sequence{
			prompt:    prompts[i/each],
			limit:     answers[i].limit,
			changed:   g.changed,
			truncated: answers[i].finish == "length",
			text:      answers[i].nextTurnText,
		}
		g.choices[i] = &choice{sequence: sequences[i], answer: &answers[i]}
	}
	g.scheduler.submit(sequences)
	// The slots are freed as soon as the client disconnects, even while a write to the client
	// blocks.
	g.stopCancel = context.AfterFunc(h.r.Context(), func() { g.scheduler.cancel(sequences) })
	return g
}

// close cancels the sequences that are not complete. It may be called at any time.
func (g *generation) close() {
	if !g.stopCancel() {
		return // the client has disconnected, which has freed its slots
	}
	sequences := make([]*sequence, len(g.choices))
	for i, ch := range g.choices {
		sequences[i] = ch.sequence
	}
	g.scheduler.cancel(sequences)
}

// sink renders tokens for one of the APIs.
type sink interface {
	// token sends token i of a choice.
	token(choice, i int) error
	// finish ends a choice, which has no more tokens.
	finish(choice int) error
}

// stream sends every token to the sink as soon as it is generated, one token of each choice at a
// time.
func (g *generation) stream(ctx context.Context, to sink) error {
	for open := len(g.choices); open > 0; {
		progress := false
		for n := range g.choices {
			moved, err := g.sendNextToken(n, to)
			if err != nil {
				return err
			}
			ended, err := g.finishIfComplete(n, to)
			if err != nil {
				return err
			}
			if ended {
				open--
			}
			progress = progress || moved || ended
		}
		if progress {
			continue
		}
		if err := g.waitForChange(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finishIfComplete ends a choice if all its tokens are generated and sent. It returns whether it
// ended the choice.
func (g *generation) finishIfComplete(n int, to sink) (bool, error) {
	ch := g.choices[n]
	if ch.closed || ch.sent != ch.answer.limit || !ch.sequence.complete() {
		return false, nil
	}
	ch.closed = true
	return true, to.finish(n)
}

// sendNextToken sends at most one token of a choice, so that all choices advance together. It
// returns whether it sent one.
func (g *generation) sendNextToken(n int, to sink) (bool, error) {
	ch := g.choices[n]
	if ch.sent >= int(ch.sequence.produced.Load()) {
		return false, nil
	}
	ch.sent++
	return true, to.token(n, ch.sent-1)
}

// wait waits until all choices are complete.
func (g *generation) wait(ctx context.Context) error {
	for _, ch := range g.choices {
		for !ch.sequence.complete() {
			if err := g.waitForChange(ctx); err != nil {
				return err
			}
		}
		ch.sent = ch.answer.limit
	}
	return nil
}

// waitForChange waits until a sequence has changed, or ctx is done.
func (g *generation) waitForChange(ctx context.Context) error {
	select {
	case <-g.changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usage is the token usage of a request, in the form of the chat API.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usage returns the usage so far. It counts each prompt once, whatever the number of its choices,
// and the tokens that were sent.
func (g *generation) usage() usage {
	var u usage
	each := len(g.choices) / max(len(g.prompts), 1)
	for i, ch := range g.choices {
		u.CompletionTokens += ch.sent
		if i%each > 0 {
			continue
		}
		u.PromptTokens += ch.sequence.prompt.tokens
		if ch.sequence.prefilled.Load() {
			u.PromptDetails.CachedTokens += ch.sequence.cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// decodeBody parses the JSON body of the request.
func (h *handler) decodeBody(into any) error {
	err := json.Unmarshal(h.requestBody, into)
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		field := strings.TrimPrefix(wrongType.Field, "sampling.") // the name of the embedded struct
		return badRequest(field, "Input should be a valid %s", wrongType.Type)
	}
	var refused *apiError
	if errors.As(err, &refused) {
		return refused
	}
	return badRequest("", "There was an error parsing the body: %v", err)
}

// checkModel rejects a model that the engine does not serve. Like vLLM, it accepts a request
// without a model.
func (h *handler) checkModel(name string) error {
	if name == "" || slices.Contains(h.engine.config.Models, name) {
		return nil
	}
	return &apiError{
		status:  http.StatusNotFound,
		kind:    "NotFoundError",
		message: fmt.Sprintf("The model `%s` does not exist.", name),
		param:   "model",
	}
}

func (h *handler) modelName() string { return h.engine.config.Models[0] }

// engineName returns the name of the engine in answers to this client.
func (h *handler) engineName() string {
	if name := h.engine.config.Name; name != "" {
		return name
	}
	name := "a simulated replica of " + h.modelName()
	if addr, ok := h.r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		name += " on port " + strconv.Itoa(addr.Port)
	}
	return name
}

// newID returns the id of a response. Like vLLM, it uses the x-request-id of the client if there is
// one.
func (h *handler) newID(prefix string) string {
	if given := h.r.Header.Get("X-Request-Id"); given != "" && len(given) <= 128 {
		return prefix + given
	}
	var raw [16]byte
	rand.Read(raw[:])
	return prefix + hex.EncodeToString(raw[:])
}
