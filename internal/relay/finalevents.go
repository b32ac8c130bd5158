package relay

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// publishOwn publishes the last events of a stream, which Sluice itself has made.
func (g *generation) publishOwn(raw []byte) {
	g.sentEnd.Store(true)
	for e := range eventsOf(raw) {
		if g.broadcast.Publish(e) != nil {
			return // there is no subscriber left
		}
	}
}

// publishFinal ends the stream as an engine would: every choice that goes on gets this finish
// reason, then come the usage so far and the end marker.
func (s *engineStream) publishFinal(reason string) {
	scan, result := &s.gen.call.Scan, &s.failover.result
	if scan.Endpoint == openai.Responses {
		result.Finish = reason
		s.publishIncomplete(reason)
		return
	}
	id := identityOf(s.firstTokenData, s.failover.ticket.Model)
	if rules := s.failover.rules; rules != nil && !(rules.Allows([]byte(id.id)) && rules.Allows([]byte(id.model))) {
		id = identityOf(nil, s.failover.ticket.Model)
	}
	switch scan.Endpoint {
	case openai.Completions:
		id.object = "text_completion"
	case openai.Chat:
		id.object = "chat.completion.chunk"
	}
	var out []byte
	open := s.unfinishedChoices()
	if len(open) > 0 {
		result.Finish = reason
	}
	for i, index := range open {
		var usage *tokenCount
		if i == len(open)-1 && !scan.IncludeUsage {
			usage = s.usageSoFar()
		}
		out = sse.AppendData(out, id.finalChunk(index, reason, usage))
	}
	if scan.IncludeUsage {
		out = sse.AppendData(out, id.chunk([]finalChoice{}, s.usageSoFar()))
	}
	s.gen.publishOwn(sse.AppendDone(out))
}

// unfinishedChoices returns the indexes of the choices whose end the client has not received: those
// that go on, and those whose end is withheld. A choice that a rule has ended may have its end.
func (s *engineStream) unfinishedChoices() []int {
	indexes := s.tracker.Unfinished()
	var c sse.Chunk
	for e := range eventsOf(s.withheld.raw()) {
		c.Read(e.Data)
		for _, choice := range c.Choices {
			if at := int(choice.Index); len(choice.Finish) > 0 && at >= 0 && !slices.Contains(indexes, at) {
				indexes = append(indexes, at)
			}
		}
	}
	if s.filter != nil {
		indexes = slices.DeleteFunc(indexes, s.filter.HasTold)
	}
	slices.Sort(indexes)
	return indexes
}

// bytesPerToken is an estimate of the bytes of one token of a prompt.
const bytesPerToken = 4

// usageSoFar returns what the stream has used so far. It is an estimate if the engine has not
// counted all of it: the prompt by its bytes, the answer by its events.
func (s *engineStream) usageSoFar() *tokenCount {
	usage := s.failover.result.Usage
	prompt, completion := usage.Prompt, usage.Completion
	if prompt == 0 {
		prompt = int64(s.gen.call.Scan.PromptBytes() / bytesPerToken)
	}
	return &tokenCount{Prompt: prompt, Completion: completion, Total: prompt + completion, Estimated: !usage.Known}
}

// responseIdentity is what all chunks of one response have in common.
type responseIdentity struct {
	id      string
	object  string
	model   string
	created int64 // Unix time in seconds
}

// identityOf reads the identity of a response from the data of one of its chunks, which may be cut
// off. It makes up what the chunk does not have.
func identityOf(data []byte, model string) responseIdentity {
	var k responseIdentity
	var r jsonscan.Reader
	r.Reset(data)
	for more := r.Open('{'); more; more = r.More('{') {
		switch string(r.Name()) {
		case "id":
			k.id = string(r.Text())
		case "object":
			k.object = string(r.Text())
		case "model":
			k.model = string(r.Text())
		case "created":
			k.created, _ = r.Int()
		default:
			r.Skip()
		}
	}
	if k.id == "" {
		k.id = "sluice-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	}
	k.model = cmp.Or(k.model, model)
	if k.created == 0 {
		k.created = time.Now().Unix()
	}
	return k
}

// finalChoice is a choice of a chunk that Sluice itself makes.
type finalChoice struct {
	Index  int       `json:"index"`
	Delta  *struct{} `json:"delta,omitempty"`
	Text   *string   `json:"text,omitempty"`
	Finish *string   `json:"finish_reason"`
}

// finalChunk is a chunk that Sluice itself makes.
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
	// Estimated says that the engine has not counted them.
	Estimated bool `json:"estimated,omitempty"`
}

// chunk returns the data of a chunk. u may be nil.
func (k responseIdentity) chunk(choices []finalChoice, u *tokenCount) []byte {
	b, err := json.Marshal(finalChunk{ID: k.id, Object: k.object, Created: k.created, Model: k.model, Choices: choices, Usage: u})
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	return b
}

// finalChunk returns the data of a chunk that ends one choice.
func (k responseIdentity) finalChunk(index int, reason string, u *tokenCount) []byte {
	c := finalChoice{Index: index, Finish: &reason, Delta: &struct{}{}}
	if k.object == "text_completion" {
		c.Delta, c.Text = nil, new(string)
	}
	return k.chunk([]finalChoice{c}, u)
}

// emptyChunk returns the data of a chunk without content: a heartbeat for clients that cannot read
// comments.
func (k responseIdentity) emptyChunk() []byte {
	if k.object == "text_completion" {
		return k.chunk([]finalChoice{{Text: new(string)}}, nil)
	}
	return k.chunk([]finalChoice{{Delta: &struct{}{}}}, nil)
}
