package sim

import (
	"encoding/json"
	"strings"
	"time"
)

// message is one turn of a conversation.
type message struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is a message's text: a string, or a list of parts of which the texts are joined and the rest is kept as it is.
type content string

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(raw []byte) error {
	var parts []struct {
		Text *string `json:"text"`
	}
	switch raw[0] {
	case '"':
		return json.Unmarshal(raw, (*string)(c))
	case 'n':
		return nil
	case '[':
		if err := json.Unmarshal(raw, &parts); err != nil {
			return badRequest("messages", "A content part must be an object")
		}
	default:
		return badRequest("messages", "Content must be a string or a list of parts")
	}
	var whole []json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		return err
	}
	var b strings.Builder
	for i, p := range parts {
		if p.Text != nil {
			b.WriteString(*p.Text)
			continue
		}
		b.Write(whole[i])
	}
	*c = content(b.String())
	return nil
}

// sampling holds the fields that chat and text completions share.
type sampling struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	N         *int   `json:"n"`
	MaxTokens *int   `json:"max_tokens"`
	MinTokens int    `json:"min_tokens"`
	IgnoreEOS bool   `json:"ignore_eos"`
	Seed      *int64 `json:"seed"`
}

// choices is n, 1 when left out.
func (s *sampling) choices() (int, error) {
	if s.N == nil {
		return 1, nil
	}
	if *s.N < 1 || *s.N > maxChoices {
		return 0, badRequest("n", "n must be at least 1 and at most %d, got %d.", maxChoices, *s.N)
	}
	return *s.N, nil
}

// limits reads the bounds on the answer; most stands for max_tokens under whichever name.
func (s *sampling) limits(most *int) (limits, error) {
	l := limits{least: max(s.MinTokens, 0), ignoreEOS: s.IgnoreEOS}
	if most == nil {
		return l, nil
	}
	if *most < 1 {
		return l, badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *most)
	}
	l.most = *most
	if l.least > l.most {
		return l, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", l.most, l.least)
	}
	return l, nil
}

func (s *sampling) seed() int64 {
	if s.Seed == nil {
		return 0
	}
	return *s.Seed
}

// chatRequest is the body of POST /v1/chat/completions, as far as it matters here.
type chatRequest struct {
	sampling
	Messages            []message       `json:"messages"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Tools               []tool          `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *format         `json:"response_format"`
}

// template writes the conversation down as the one text that a model would get. It ends where the answer begins, so a
// conversation's next prompt begins with this one and its answer.
func template(tools []tool, messages []message) prompt {
	var b strings.Builder
	if len(tools) > 0 {
		b.WriteString("<|tools|>\n")
		b.Write(marshal(tools))
		b.WriteByte('\n')
	}
	for _, m := range messages {
		b.WriteString("<|" + m.Role + "|>\n")
		b.WriteString(string(m.Content))
		if isJSON(m.ToolCalls) {
			b.Write(m.ToolCalls)
		}
		b.WriteByte('\n')
	}
	b.WriteString("<|assistant|>\n")
	return textPrompt(b.String())
}

// about reads from the conversation what an answer is made from.
func about(messages []message) question {
	q := question{}
	for _, m := range messages {
		switch m.Role {
		case "user":
			q.turn++
			q.last, q.tool = string(m.Content), false
		case "tool", "function":
			q.last, q.tool = string(m.Content), true
		}
	}
	return q
}

// chat answers POST /v1/chat/completions.
func (c *call) chat() error {
	var req chatRequest
	if err := c.decode(&req); err != nil {
		return err
	}
	answers, err := c.chatAnswers(&req)
	if err != nil {
		return err
	}
	id := c.id("chatcmpl-")
	g := c.generate([]prompt{template(req.Tools, req.Messages)}, answers)
	defer g.close()
	if req.Stream {
		return newChatStream(c, g, &req.sampling, id).run()
	}
	if err := g.wait(c.r.Context()); err != nil {
		return err
	}
	return c.answer(chatCompletion(g, id, c.model()))
}

// chatAnswers checks the request and writes its answers.
func (c *call) chatAnswers(req *chatRequest) ([]answer, error) {
	if err := c.checkModel(req.Model); err != nil {
		return nil, err
	}
	if len(req.Messages) == 0 {
		return nil, badRequest("messages", "Field required: messages")
	}
	n, err := req.choices()
	if err != nil {
		return nil, err
	}
	most := req.MaxTokens
	if req.MaxCompletionTokens != nil {
		most = req.MaxCompletionTokens
	}
	bounds, err := req.limits(most)
	if err != nil {
		return nil, err
	}
	q := about(req.Messages)
	q.from, q.seed, q.format = c.from(), req.seed(), req.ResponseFormat
	if q.tools, err = newToolUse(req.Tools, req.ToolChoice, req.ParallelToolCalls); err != nil {
		return nil, err
	}
	return c.engine.answers(q, n, bounds), nil
}

// answers are n answers to one question.
func (e *Engine) answers(q question, n int, bounds limits) []answer {
	list := make([]answer, n)
	for i := range list {
		q.choice = i
		list[i] = e.answerTo(q)
		bounds.bound(&list[i])
	}
	return list
}

// chatCompletion is the answer that is not streamed.
func chatCompletion(g *generation, id, model string) any {
	choices := make([]any, len(g.choices))
	for i, ch := range g.choices {
		msg := map[string]any{"role": "assistant", "content": ch.answer.text(), "refusal": nil}
		if calls := ch.answer.made(); len(calls) > 0 {
			msg["content"], msg["tool_calls"] = nil, toolCalls(calls)
		}
		choices[i] = map[string]any{
			"index": i, "message": msg, "logprobs": nil, "finish_reason": ch.answer.finish, "stop_reason": nil,
		}
	}
	return map[string]any{
		"id": id, "object": "chat.completion", "created": time.Now().Unix(), "model": model,
		"choices": choices, "usage": g.usage(), "system_fingerprint": nil,
	}
}

func toolCalls(calls []toolCall) []any {
	list := make([]any, len(calls))
	for i, t := range calls {
		list[i] = map[string]any{
			"id": t.id, "type": "function", "function": map[string]any{"name": t.name, "arguments": t.arguments},
		}
	}
	return list
}
