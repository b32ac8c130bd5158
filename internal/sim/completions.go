package sim

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// completionRequest is the body of POST /v1/completions, without the fields that the engine
// ignores.
type completionRequest struct {
	sampling
	Prompt input `json:"prompt"`
}

// input is one or several texts, or the same as token ids.
type input struct {
	rawTexts []string
	ids      [][]int64
}

func (in *input) UnmarshalJSON(raw []byte) error {
	var one string
	var ids []int64
	switch {
	case !isJSON(raw):
	case json.Unmarshal(raw, &one) == nil:
		in.rawTexts = []string{one}
	case json.Unmarshal(raw, &in.rawTexts) == nil:
	case json.Unmarshal(raw, &ids) == nil:
		in.rawTexts, in.ids = nil, [][]int64{ids}
	case json.Unmarshal(raw, &in.ids) == nil:
		in.rawTexts = nil
	default:
		return badRequest("", "Input must be a string, a list of strings, or token ids")
	}
	return nil
}

// prompts returns the prompts of all inputs, which begin with a prompt without a token.
func (in *input) prompts(empty prompt) []prompt {
	list := make([]prompt, 0, len(in.rawTexts)+len(in.ids))
	for _, text := range in.rawTexts {
		list = append(list, empty.withText(text))
	}
	for _, ids := range in.ids {
		list = append(list, empty.withIDs(ids))
	}
	return list
}

// texts returns the inputs as texts. Token ids have no text here, so they are written as JSON.
func (in *input) texts() []string {
	if in.ids == nil {
		return in.rawTexts
	}
	list := make([]string, len(in.ids))
	for i, ids := range in.ids {
		list[i] = string(openai.Encode(ids))
	}
	return list
}

// completions answers POST /v1/completions with n choices for each prompt. The choices of the first
// prompt come first.
func (h *handler) completions() error {
	var req completionRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	answers, err := h.completionAnswers(&req)
	if err != nil {
		return err
	}
	id := h.newID("cmpl-")
	g := h.generate(req.Prompt.prompts(h.newPrompt(req.CacheSalt)), answers)
	defer g.close()
	if req.Stream {
		s := &completionStream{handler: h, generation: g, options: &req.sampling, head: chunkHead(id, "text_completion", h.modelName())}
		return s.run()
	}
	if err := g.wait(h.r.Context()); err != nil {
		return err
	}
	return h.sendJSON(textCompletion(g, id, h.modelName()))
}

// completionAnswers checks the request and returns its answers.
func (h *handler) completionAnswers(req *completionRequest) ([]answer, error) {
	if err := h.checkModel(req.Model); err != nil {
		return nil, err
	}
	words := req.Prompt.texts()
	if len(words) == 0 {
		return nil, badRequest("prompt", "Field required: prompt")
	}
	n, err := req.choices()
	if err != nil {
		return nil, err
	}
	bounds, err := req.limits(req.MaxTokens)
	if err != nil {
		return nil, err
	}
	var answers []answer
	for _, text := range words {
		q := question{engineName: h.engineName(), lastMessage: text, seed: req.seed()}
		answers = append(answers, h.engine.answers(q, n, bounds)...)
	}
	return answers, nil
}

// textCompletion returns the response that is not streamed.
func textCompletion(g *generation, id, model string) any {
	choices := make([]any, len(g.choices))
	for i, ch := range g.choices {
		choices[i] = map[string]any{
			"index": i, "text": ch.answer.text(), "logprobs": nil, "finish_reason": ch.answer.finish, "stop_reason": nil,
		}
	}
	return map[string]any{
		"id": id, "object": "text_completion", "created": time.Now().Unix(), "model": model,
		"choices": choices, "usage": g.usage(),
	}
}

// completionStream renders a text completion as chunks.
type completionStream struct {
	handler    *handler
	generation *generation
	options    *sampling
	// head is the beginning of every event.
	head []byte
	// buf is reused for every event.
	buf []byte
}

// run sends the headers and the whole stream.
func (s *completionStream) run() error { return s.handler.stream(s.generation, s, s.options, s.head) }

// token implements sink.
func (s *completionStream) token(n, i int) error {
	return s.send(n, s.generation.choices[n].answer.token(i).text, "")
}

// finish implements sink.
func (s *completionStream) finish(n int) error {
	return s.send(n, "", s.generation.choices[n].answer.finish)
}

// send sends one chunk of choice n.
func (s *completionStream) send(n int, text, finish string) error {
	b := s.buf[:0]
	b = append(b, s.head...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(n), 10)
	b = appendString(append(b, `,"text":`...), text)
	s.buf = appendChunkEnd(b, finish, s.options, s.generation)
	return s.handler.sendEvent(s.buf)
}
