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

// maxChoices bounds n, as one request must not fill the engine's memory.
const maxChoices = 128

// choice is one answer in the making.
type choice struct {
	seq    *sequence
	answer *answer
	sent   int // tokens that the caller has
	closed bool
}

// generation is the work that one request has asked for.
type generation struct {
	batch   *scheduler
	bell    chan struct{}
	choices []*choice
	prompts []prompt
	release func() bool
}

// generate submits one sequence per answer; answers come in equal numbers for each prompt, those for the first prompt
// first. Whatever happens, close must be called.
func (c *call) generate(prompts []prompt, answers []answer) *generation {
	g := &generation{batch: c.engine.batch, bell: make(chan struct{}, 1), prompts: prompts}
	each := len(answers) / max(len(prompts), 1)
	sequences := make([]*sequence, len(answers))
	g.choices = make([]*choice, len(answers))
	for i := range answers {
		sequences[i] = &sequence{
			prompt:   prompts[i/each],
			limit:    answers[i].limit,
			bell:     g.bell,
			cutShort: answers[i].finish == "length",
		}
		g.choices[i] = &choice{seq: sequences[i], answer: &answers[i]}
	}
	g.batch.submit(sequences)
	// The slots are free the moment the client leaves, even while a write to it blocks.
	g.release = context.AfterFunc(c.r.Context(), func() { g.batch.leave(sequences) })
	return g
}

// close gives up what is not finished. It may be called at any time.
func (g *generation) close() {
	if !g.release() {
		return // the client has left, its slots are free
	}
	sequences := make([]*sequence, len(g.choices))
	for i, ch := range g.choices {
		sequences[i] = ch.seq
	}
	g.batch.leave(sequences)
}

// sink is what renders tokens for one of the APIs.
type sink interface {
	// token sends the i-th token of a choice.
	token(choice, i int) error
	// last tells that a choice has no more tokens.
	last(choice int) error
}

// stream hands every token to the sink as it comes, the choices in turn.
func (g *generation) stream(ctx context.Context, to sink) error {
	for open := len(g.choices); open > 0; {
		progress := false
		for n, ch := range g.choices {
			moved, err := g.forward(n, to)
			if err != nil {
				return err
			}
			progress = progress || moved
			if !ch.closed && ch.sent == ch.answer.limit && ch.seq.done() {
				ch.closed, progress = true, true
				open--
				g.keep(ch)
				if err := to.last(n); err != nil {
					return err
				}
			}
		}
		if progress {
			continue
		}
		if err := g.listen(ctx); err != nil {
			return err
		}
	}
	return nil
}

// forward sends at most one token of a choice, so that the choices stay abreast.
func (g *generation) forward(n int, to sink) (bool, error) {
	ch := g.choices[n]
	if ch.sent >= int(ch.seq.produced.Load()) {
		return false, nil
	}
	ch.sent++
	return true, to.token(n, ch.sent-1)
}

// wait waits until everything is generated.
func (g *generation) wait(ctx context.Context) error {
	for _, ch := range g.choices {
		for !ch.seq.done() {
			if err := g.listen(ctx); err != nil {
				return err
			}
		}
		ch.sent = ch.answer.limit
		g.keep(ch)
	}
	return nil
}

// listen waits until something has changed.
func (g *generation) listen(ctx context.Context) error {
	select {
	case <-g.bell:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep leaves the answer in the prefix cache, for the next turn of its conversation.
func (g *generation) keep(ch *choice) {
	if ch.answer.limit > 0 {
		g.batch.remember(ch.seq.prompt.with(ch.answer.ownText()))
	}
}

// usage is what a request has consumed, in the shape of the chat API.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usage counts each prompt once, whatever the number of its choices, and the tokens that the caller has.
func (g *generation) usage() usage {
	var u usage
	each := len(g.choices) / max(len(g.prompts), 1)
	for i, ch := range g.choices {
		u.CompletionTokens += ch.sent
		if i%each > 0 {
			continue
		}
		u.PromptTokens += ch.seq.prompt.tokens
		if ch.seq.prefilled.Load() {
			u.PromptDetails.CachedTokens += ch.seq.cached
		}
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// decode reads the request's JSON body.
func (c *call) decode(into any) error {
	err := json.Unmarshal(c.body, into)
	if err == nil {
		return nil
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		field := strings.TrimPrefix(wrongType.Field, "sampling.") // the embedded struct's own name
		return badRequest(field, "Input should be a valid %s", wrongType.Type)
	}
	var refused *apiError
	if errors.As(err, &refused) {
		return refused
	}
	return badRequest("", "There was an error parsing the body: %v", err)
}

// checkModel refuses names that the engine does not serve; as with vLLM no name at all is fine.
func (c *call) checkModel(name string) error {
	if name == "" || slices.Contains(c.engine.config.Models, name) {
		return nil
	}
	return &apiError{
		status:  http.StatusNotFound,
		kind:    "NotFoundError",
		message: fmt.Sprintf("The model `%s` does not exist.", name),
		param:   "model",
	}
}

// model is the name that responses bear.
func (c *call) model() string { return c.engine.config.Models[0] }

// from is how the engine calls itself towards this caller.
func (c *call) from() string {
	if name := c.engine.config.Name; name != "" {
		return name
	}
	name := "a simulated replica of " + c.model()
	if addr, ok := c.r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		name += " on port " + strconv.Itoa(addr.Port)
	}
	return name
}

// id makes the response's id; like vLLM from the caller's x-request-id where there is one.
func (c *call) id(prefix string) string {
	if given := c.r.Header.Get("X-Request-Id"); given != "" && len(given) <= 128 {
		return prefix + given
	}
	var raw [16]byte
	rand.Read(raw[:])
	return prefix + hex.EncodeToString(raw[:])
}
