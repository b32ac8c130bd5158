package sim

import (
	"encoding/json"
	"strconv"
	"time"
)

// completionRequest is the body of POST /v1/completions, as far as it matters here.
type completionRequest struct {
	sampling
	Prompt input `json:"prompt"`
}

// input is one or several texts, or the same as token ids.
type input struct {
	texts []string
	ids   [][]int64
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *input) UnmarshalJSON(raw []byte) error {
	var one string
	var ids []int64
	switch {
	case !isJSON(raw):
	case json.Unmarshal(raw, &one) == nil:
		in.texts = []string{one}
	case json.Unmarshal(raw, &in.texts) == nil:
	case json.Unmarshal(raw, &ids) == nil:
		in.texts, in.ids = nil, [][]int64{ids}
	case json.Unmarshal(raw, &in.ids) == nil:
		in.texts = nil
	default:
		return badRequest("", "Input must be a string, a list of strings, or token ids")
	}
	return nil
}

// prompts counts and hashes every input.
func (in *input) prompts() []prompt {
	list := make([]prompt, 0, len(in.texts)+len(in.ids))
	for _, text := range in.texts {
		list = append(list, textPrompt(text))
	}
	for _, ids := range in.ids {
		list = append(list, idPrompt(ids))
	}
	return list
}

// words are the inputs as texts; token ids mean nothing, so they are written out.
func (in *input) words() []string {
	if in.ids == nil {
		return in.texts
	}
	list := make([]string, len(in.ids))
	for i, ids := range in.ids {
		list[i] = string(marshal(ids))
	}
	return list
}

// completions answers POST /v1/completions: n choices for each prompt, those for the first prompt first.
func (c *call) completions() error {
	var req completionRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	answers, err := c.completionAnswers(&req)
	if err != nil {
		return err
	}
	id := c.id("cmpl-")
	g := c.generate(req.Prompt.prompts(), answers)
	defer g.close()
	if req.Stream {
		s := &completionStream{call: c, gen: g, opts: &req.sampling, head: chunkHead(id, "text_completion", c.model())}
		return s.run()
	}
	if err := g.wait(c.r.Context()); err != nil {
		return err
	}
	return c.answer(textCompletion(g, id, c.model()))
}

// completionAnswers checks the request and writes its answers.
func (c *call) completionAnswers(req *completionRequest) ([]answer, error) {
	if err := c.checkModel(req.Model); err != nil {
		return nil, err
	}
	words := req.Prompt.words()
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
		q := question{from: c.from(), last: text, seed: req.seed()}
		answers = append(answers, c.engine.answers(q, n, bounds)...)
	}
	return answers, nil
}

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
	call *call
	gen  *generation
	opts *sampling
	head []byte
	buf  []byte
}

func (s *completionStream) run() error {
	if err := s.call.stream(); err != nil {
		return err
	}
	if err := s.gen.stream(s.call.r.Context(), s); err != nil {
		return err
	}
	return s.call.endStream(s.opts, s.head, s.gen)
}

// token implements sink.
func (s *completionStream) token(n, i int) error {
	return s.send(n, s.gen.choices[n].answer.at(i).text, "")
}

// last implements sink.
func (s *completionStream) last(n int) error {
	return s.send(n, "", s.gen.choices[n].answer.finish)
}

func (s *completionStream) send(n int, text, finish string) error {
	b := s.buf[:0]
	b = append(b, s.head...)
	b = strconv.AppendInt(append(b, `{"index":`...), int64(n), 10)
	b = appendString(append(b, `,"text":`...), text)
	s.buf = appendChunkEnd(b, finish, s.opts, s.gen)
	return s.call.event(s.buf)
}
