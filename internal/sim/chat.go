package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// message is one message of a conversation.
type message struct {
	Role      string          `json:"role"`
	Content   content         `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// content is the text of a message. In JSON it is a string or a list of parts. The texts of the
// parts are joined; parts without text are kept as JSON.
type content string

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

// sampling has the fields that chat and text completions share.
type sampling struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	N         *whole `json:"n"`
	MaxTokens *whole `json:"max_tokens"`
	MinTokens whole  `json:"min_tokens"`
	IgnoreEOS bool   `json:"ignore_eos"`
	Seed      *int64 `json:"seed"`
	CacheSalt string `json:"cache_salt"`
}

// whole is an integer of a request. It accepts 1.0, as the engines' JSON readers do.
type whole int

func (w *whole) UnmarshalJSON(text []byte) error {
	var value float64
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	if value != math.Trunc(value) || math.Abs(value) > math.MaxInt32 {
		return fmt.Errorf("%s is not an integer", text)
	}
	*w = whole(value)
	return nil
}

// noLimit is the max_tokens of an answer without a limit. llama.cpp accepts it, and vLLM does not.
const noLimit = -1

// choices returns n; 1 if it is absent.
func (s *sampling) choices() (int, error) {
	if s.N == nil {
		return 1, nil
	}
	if *s.N < 1 || *s.N > maxChoices {
		return 0, badRequest("n", "n must be at least 1 and at most %d, got %d.", maxChoices, *s.N)
	}
	return int(*s.N), nil
}

// limits returns the limits on the answer. maxTokens is max_tokens, under whichever name the API
// gives it; nil if absent.
func (s *sampling) limits(maxTokens *whole) (limits, error) {
	l := limits{min: max(int(s.MinTokens), 0), ignoreEOS: s.IgnoreEOS}
	if maxTokens == nil || *maxTokens == noLimit {
		return l, nil
	}
	if *maxTokens < 1 {
		return l, badRequest("max_tokens", "max_tokens must be at least 1, got %d.", *maxTokens)
	}
	l.max = int(*maxTokens)
	if l.min > l.max {
		return l, badRequest("min_tokens", "min_tokens must be less than or equal to max_tokens=%d, got %d.", l.max, l.min)
	}
	return l, nil
}

// seed returns the seed of the request; 0 if it is absent.
func (s *sampling) seed() int64 {
	if s.Seed == nil {
		return 0
	}
	return *s.Seed
}

// chatRequest is the body of POST /v1/chat/completions, without the fields that the engine ignores.
type chatRequest struct {
	sampling
	Messages            []message       `json:"messages"`
	MaxCompletionTokens *whole          `json:"max_completion_tokens"`
	Tools               []tool          `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *format         `json:"response_format"`
}

// newPrompt returns a prompt without a token.
func (h *handler) newPrompt(salt string) prompt { return newPrompt(h.engine.config.BlockSize, salt) }

// promptOf returns the prompt of a conversation, as a chat template would write it. The prompt ends
// where the answer begins. So the next prompt of the conversation begins with this prompt and its
// answer.
func (h *handler) promptOf(salt string, tools []tool, messages []message) prompt {
	var b strings.Builder
	if len(tools) > 0 {
		b.WriteString("<|tools|>\n")
		b.Write(openai.Encode(tools))
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
	return h.newPrompt(salt).withText(b.String())
}

// questionOf returns the question that a conversation asks.
func questionOf(messages []message) question {
	q := question{}
	for _, m := range messages {
		switch m.Role {
		case "user":
			q.turn++
			q.lastMessage, q.isToolResult = string(m.Content), false
		case "tool", "function":
			q.lastMessage, q.isToolResult = string(m.Content), true
		}
	}
	return q
}

// chat answers POST /v1/chat/completions.
func (h *handler) chat() error {
	var req chatRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	answers, err := h.chatAnswers(&req)
	if err != nil {
		return err
	}
	id := h.newID("chatcmpl-")
	g := h.generate([]prompt{h.promptOf(req.CacheSalt, req.Tools, req.Messages)}, answers)
	defer g.close()
	if req.Stream {
		return newChatStream(h, g, &req.sampling, id).run()
	}
	if err := g.wait(h.r.Context()); err != nil {
		return err
	}
	return h.sendJSON(chatCompletion(g, id, h.modelName()))
}

// chatAnswers checks the request and returns its answers.
func (h *handler) chatAnswers(req *chatRequest) ([]answer, error) {
	if err := h.checkModel(req.Model); err != nil {
		return nil, err
	}
	if len(req.Messages) == 0 {
		return nil, badRequest("messages", "Field required: messages")
	}
	n, err := req.choices()
	if err != nil {
		return nil, err
	}
	maxTokens := req.MaxTokens
	if req.MaxCompletionTokens != nil {
		maxTokens = req.MaxCompletionTokens
	}
	bounds, err := req.limits(maxTokens)
	if err != nil {
		return nil, err
	}
	q := questionOf(req.Messages)
	q.engineName, q.seed, q.format = h.engineName(), req.seed(), req.ResponseFormat
	if q.tools, err = newToolUse(req.Tools, req.ToolChoice, req.ParallelToolCalls); err != nil {
		return nil, err
	}
	return h.engine.answers(q, n, bounds), nil
}

func (e *Engine) answers(q question, n int, bounds limits) []answer {
	list := make([]answer, n)
	for i := range list {
		q.choice = i
		list[i] = e.compose(q)
		bounds.apply(&list[i])
	}
	return list
}

// chatCompletion returns the response that is not streamed.
func chatCompletion(g *generation, id, model string) any {
	choices := make([]any, len(g.choices))
	for i, ch := range g.choices {
		msg := map[string]any{"role": "assistant", "content": ch.answer.text(), "refusal": nil}
		if calls := ch.answer.generatedCalls(); len(calls) > 0 {
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

// toolCalls returns tool calls in the form of the chat API.
func toolCalls(calls []toolCall) []any {
	list := make([]any, len(calls))
	for i, t := range calls {
		list[i] = map[string]any{
			"id": t.id, "type": "function", "function": map[string]any{"name": t.name, "arguments": t.arguments},
		}
	}
	return list
}
