package relay

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// maxHead bounds what is kept of a stream's first event, in bytes, to make others like it.
const maxHead = 4 << 10

// own gives events of Sluice's own to who listens.
func (g *generation) own(raw []byte) {
	each(raw, func(e *sse.Event) bool { return g.broadcast.Publish(e) == nil }) // else nobody is there
}

// finish ends the stream as an engine would: each choice that goes on has this finish_reason, then the usage so far, and the end marker.
func (t *tokens) finish(reason string) {
	kind := identityOf(t.head, t.ticket.Model)
	switch t.call.Scan.Endpoint {
	case openai.Responses:
		t.result.Finish = reason
		t.own(appendIncomplete(nil, kind, reason, t.result.Usage))
		return
	case openai.Completions:
		kind.object = "text_completion"
	case openai.Chat:
		kind.object = "chat.completion.chunk"
	}
	var out []byte
	open := t.unended()
	if len(open) > 0 {
		t.result.Finish = reason
	}
	for i, index := range open {
		last := i == len(open)-1 && !t.call.Scan.IncludeUsage
		out = sse.AppendData(out, kind.final(index, reason, t.usage(last)))
	}
	if t.call.Scan.IncludeUsage {
		out = sse.AppendData(out, kind.usage(t.usage(true)))
	}
	t.own(sse.AppendDone(out))
}

// unended lists the choices whose end the client has not been told: those that go on, and those whose end a rule keeps back.
func (t *tokens) unended() []int {
	indexes := t.tracker.Unfinished()
	var c sse.Chunk
	each(t.withheld.all(), func(e *sse.Event) (more bool) {
		c.Read(e.Data)
		for _, choice := range c.Choices {
			if at := int(choice.Index); len(choice.Finish) > 0 && at >= 0 && !slices.Contains(indexes, at) {
				indexes = append(indexes, at)
			}
		}
		return true
	})
	slices.Sort(indexes)
	return indexes
}

// identity is what all chunks of one response have in common.
type identity struct {
	id, object, model string
	created           int64
}

// identityOf reads it from the data of one chunk. What is not there is made up.
func identityOf(data []byte, model string) identity {
	var read struct {
		ID, Object, Model string
		Created           int64
		Response          struct{ ID string }
	}
	_ = json.Unmarshal(data, &read) // what was cut off is made up too
	k := identity{id: read.ID, object: read.Object, model: read.Model, created: read.Created}
	if k.id == "" {
		k.id = read.Response.ID
	}
	if k.id == "" {
		k.id = "sluice-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	if k.model == "" {
		k.model = model
	}
	if k.created == 0 {
		k.created = time.Now().Unix()
	}
	return k
}

type finalChoice struct {
	Index  int       `json:"index"`
	Delta  *struct{} `json:"delta,omitempty"`
	Text   *string   `json:"text,omitempty"`
	Finish *string   `json:"finish_reason"`
}

type finalChunk struct {
	ID      string        `json:"id"`
	Object  string        `json:"object"`
	Created int64         `json:"created"`
	Model   string        `json:"model"`
	Choices []finalChoice `json:"choices"`
	Usage   *tokenCount   `json:"usage,omitempty"`
}

type tokenCount struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

// bytesPerToken is what a token of a prompt usually takes.
const bytesPerToken = 4

// usage is what the stream has used so far; prompt tokens are estimated where the engine has not told.
func (t *tokens) usage(wanted bool) *tokenCount {
	if !wanted {
		return nil
	}
	prompt, completion := t.result.Usage.Prompt, t.result.Usage.Completion
	if prompt == 0 {
		prompt = int64(t.call.Scan.PromptBytes() / bytesPerToken)
	}
	completion = max(completion, t.tracker.Tokens())
	return &tokenCount{prompt, completion, prompt + completion}
}

func (k identity) chunk(choices []finalChoice, u *tokenCount) []byte {
	b, err := json.Marshal(finalChunk{ID: k.id, Object: k.object, Created: k.created, Model: k.model, Choices: choices, Usage: u})
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	return b
}

func (k identity) final(index int, reason string, u *tokenCount) []byte {
	c := finalChoice{Index: index, Finish: &reason, Delta: &struct{}{}}
	if k.object == "text_completion" {
		c.Delta, c.Text = nil, new(string)
	}
	return k.chunk([]finalChoice{c}, u)
}

func (k identity) usage(u *tokenCount) []byte { return k.chunk([]finalChoice{}, u) }

// empty is a chunk that says nothing: a heartbeat for clients that cannot read comments.
func (k identity) empty() []byte {
	if k.object == "text_completion" {
		return k.chunk([]finalChoice{{Text: new(string)}}, nil)
	}
	return k.chunk([]finalChoice{{Delta: &struct{}{}}}, nil)
}

// appendIncomplete ends a stream of the Responses API. What was generated is in the events before it.
func appendIncomplete(dst []byte, k identity, reason string, u Usage) []byte {
	why := "max_output_tokens"
	if reason == finishFiltered {
		why = finishFiltered
	}
	b, err := json.Marshal(map[string]any{"type": "response.incomplete", "response": map[string]any{
		"id": k.id, "object": "response", "created_at": k.created, "model": k.model, "status": "incomplete",
		"incomplete_details": map[string]string{"reason": why}, "output": []any{},
		"usage": map[string]int64{"input_tokens": u.Prompt, "output_tokens": u.Completion, "total_tokens": u.Prompt + u.Completion},
	}})
	if err != nil { // as above
		panic(err)
	}
	return sse.AppendData(append(dst, "event: response.incomplete\n"...), b)
}
