package realtime

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// OpenAI's protocol: the part of it that is about text. A socket speaks it from the first message
// on that has one of its types. It speaks it from the start if its client is known for one of
// OpenAI's, because those wait for session.created. Events of a client change the session as
// messages of Sluice's own protocol do; openAIEvents translates the messages to the client.

// greetAfter is how long a client that names its model in the query may be silent until it gets
// session.created. A client of Sluice's own protocol ignores that message.
const greetAfter = 300 * time.Millisecond

// betaProtocol is the subprotocol of clients of the first version of OpenAI's protocol.
const betaProtocol = "openai-beta.realtime-v1"

// isOpenAIClient reports whether a handshake is that of one of OpenAI's clients.
func isOpenAIClient(r *http.Request) bool {
	return isBetaClient(r) || r.Header.Get("X-Stainless-Lang") != ""
}

// isBetaClient reports whether a handshake is that of a client of the first version of OpenAI's
// protocol.
func isBetaClient(r *http.Request) bool {
	return r.Header.Get("Openai-Beta") != "" || httpguts.HeaderValuesContainsToken(r.Header["Sec-Websocket-Protocol"], betaProtocol)
}

// openAITypes are the beginnings of the types of OpenAI's protocol.
var openAITypes = []string{"session", "transcription_session", "conversation", "response", "input_audio_buffer", "output_audio_buffer"}

// isOpenAIType reports whether a message has a type of OpenAI's protocol.
func isOpenAIType(kind string) bool {
	prefix, _, dotted := strings.Cut(kind, ".")
	return dotted && slices.Contains(openAITypes, prefix)
}

type clientEvent struct {
	Type     string          `json:"type"`
	EventID  string          `json:"event_id"`
	Session  json.RawMessage `json:"session"`
	Item     json.RawMessage `json:"item"`
	Previous string          `json:"previous_item_id"`
	Response json.RawMessage `json:"response"`
	// ResponseID names the response of a response.cancel. Empty: the one that runs.
	ResponseID string `json:"response_id"`
}

// settings are those of a session, or of one response.
type settings struct {
	Model             string            `json:"model"`
	Instructions      *string           `json:"instructions"`
	Modalities        []string          `json:"modalities"`
	OutputModalities  []string          `json:"output_modalities"`
	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	Temperature       json.RawMessage   `json:"temperature"`
	MaxTokens         json.RawMessage   `json:"max_output_tokens"`
	MaxResponseTokens json.RawMessage   `json:"max_response_output_tokens"`
	Audio             json.RawMessage   `json:"audio"`
	Voice             json.RawMessage   `json:"voice"`
	Conversation      string            `json:"conversation"`
	Input             json.RawMessage   `json:"input"`
	Prompt            json.RawMessage   `json:"prompt"`
	ParallelToolCalls json.RawMessage   `json:"parallel_tool_calls"`
	Reasoning         struct {
		Effort json.RawMessage `json:"effort"`
	} `json:"reasoning"`
	// Metadata is what a client has a response carry. nil: nothing.
	Metadata map[string]json.RawMessage `json:"metadata"`
}

// params returns the settings that are parameters of a chat, by their names there.
func (s *settings) params() map[string]json.RawMessage {
	params := map[string]json.RawMessage{}
	for to, value := range map[string]json.RawMessage{"temperature": s.Temperature, "max_tokens": s.MaxTokens,
		"parallel_tool_calls": s.ParallelToolCalls, "reasoning_effort": s.Reasoning.Effort} {
		if value != nil {
			params[to] = value
		}
	}
	if s.MaxResponseTokens != nil {
		params["max_tokens"] = s.MaxResponseTokens
	}
	if string(params["max_tokens"]) == `"inf"` {
		params["max_tokens"] = json.RawMessage("null")
	}
	if s.ToolChoice != nil {
		params["tool_choice"] = chatToolChoice(s.ToolChoice)
	}
	return params
}

// speaksOpenAI reports whether a message is to be read as one of OpenAI's protocol. The protocol of
// the last message that had a type of either counts, but it does not change while a turn runs.
func (s *session) speaksOpenAI(data []byte) bool {
	active := &s.socket.openAI.active
	if s.turn != nil {
		return active.Load()
	}
	var m struct{ Type string }
	_ = json.Unmarshal(data, &m) // what it says of a message that is no JSON is the same in both
	if _, own := fieldsOf(m.Type); own {
		active.Store(false)
	} else if isOpenAIType(m.Type) {
		active.Store(true)
	}
	return active.Load()
}

// greetSoon greets a client of OpenAI's protocol. The channel receives when a client that may be
// one has been silent for greetAfter.
func (s *session) greetSoon() <-chan time.Time {
	switch {
	case s.socket.openAI.active.Load():
		s.greet()
	case s.greetLater:
		return time.After(greetAfter)
	}
	return nil
}

// addWaitingItems adds the items that wait to the conversation, and tells the client if it cannot.
func (s *session) addWaitingItems() {
	if fault := s.addWaiting(); fault != nil {
		s.sendOpenAIError(fault, "")
	}
}

// handleOpenAI handles a message of a client of OpenAI's protocol.
func (s *session) handleOpenAI(data []byte) {
	var e clientEvent
	var fault *openai.Error
	if err := json.Unmarshal(data, &e); err != nil {
		fault = notJSON(err)
	} else {
		fault = s.executeOpenAI(&e)
	}
	if fault != nil {
		s.sendOpenAIError(fault, e.EventID)
	}
}

// sendOpenAIError tells a client of OpenAI's protocol of an error. eventID is that of its event.
func (s *session) sendOpenAIError(fault *openai.Error, eventID string) {
	s.tell(newEvent("error", fields{"error": openAIError(fault, eventID)}))
}

// executeOpenAI does what an event asks for.
func (s *session) executeOpenAI(e *clientEvent) *openai.Error {
	switch e.Type {
	case "session.update":
		return s.updateOpenAI(e.Session)
	case "conversation.item.create":
		return s.createItem(e.Item, e.Previous)
	case "response.create":
		return s.createResponse(e.Response)
	case "response.cancel":
		return s.cancelResponse(e.ResponseID)
	}
	if strings.Contains(e.Type, "audio") || strings.Contains(e.Type, "transcription") {
		return invalid("type", "Audio is not served here: this gateway has the text events of the protocol.")
	}
	if isInvalidName(e.Type) {
		e.Type = ""
	}
	return invalid("type", "Events of the type "+e.Type+" are not served here.")
}

// cancelResponse cancels the response that runs, if it is the one of this id. An empty id names any
// response.
func (s *session) cancelResponse(id string) *openai.Error {
	switch {
	case s.turn == nil:
		return invalid("", "No response runs.")
	case id != "" && id != s.turn.id:
		return invalid("response_id", "The response of this id does not run.")
	}
	s.turn.cancel(openai.Errorf(openai.CodeCancelled, "The client cancelled the response."))
	return nil
}

// greet sends session.created, once.
func (s *session) greet() {
	if s.greeted {
		return
	}
	s.greeted = true
	s.tell(newEvent("session.created", fields{"session": s.view()}))
}

// view returns the session as the client sees it.
func (s *session) view() fields {
	return fields{"id": "sess_" + s.id, "object": "realtime.session", "type": "realtime", "model": s.conversation.model,
		"output_modalities": []string{"text"}, "instructions": s.instructions, "tools": rawList(s.tools)}
}

// updateOpenAI changes the settings of the session.
func (s *session) updateOpenAI(data json.RawMessage) *openai.Error {
	next, set, fault := s.withSettings(s.conversation, "session", data)
	if fault != nil {
		return fault
	}
	instructions, tools := s.instructions, s.tools
	if set.Instructions != nil {
		instructions = *set.Instructions
	}
	if set.Tools != nil {
		tools = set.Tools
	}
	if fault := s.reserve(next, instructions, tools); fault != nil {
		return fault
	}
	s.conversation, s.instructions, s.tools = next, instructions, tools
	s.tell(newEvent("session.updated", fields{"session": s.view()}))
	return nil
}

// withSettings returns the conversation with other settings. name is that of the member that has
// them.
func (s *session) withSettings(c conversation, name string, data json.RawMessage) (conversation, settings, *openai.Error) {
	var set settings
	if data != nil && json.Unmarshal(data, &set) != nil {
		return c, set, invalid(name, name+" has a member of the wrong type.")
	}
	modalities := slices.Concat(set.Modalities, set.OutputModalities)
	hasAudio := len(set.Audio) > 0 && !isNull(set.Audio) || len(set.Voice) > 0 && !isNull(set.Voice)
	switch {
	case slices.Contains(modalities, "audio"):
		return c, set, invalid(name+".output_modalities", "Audio is not served here: the only modality is text.")
	case hasAudio && len(modalities) == 0: // beside text alone it says nothing: frameworks always send it
		return c, set, invalid(name+".audio", `Audio is not served here: ask for text alone with output_modalities ["text"].`)
	case len(set.Prompt) > 0 && !isNull(set.Prompt):
		return c, set, invalid(name+".prompt", "Stored prompts are not served here.")
	case set.Conversation == "none", set.Input != nil && !isNull(set.Input):
		return c, set, invalid(name+".conversation", "A response outside of the conversation is not served here.")
	}
	if set.Model != "" {
		c.model = set.Model
	}
	if set.Tools != nil {
		tools, fault := chatTools(set.Tools)
		if fault != nil {
			return c, set, fault
		}
		c.tools = tools
	}
	c, fault := c.updated(set.params())
	return c, set, fault
}

// function is a function tool, as OpenAI's protocol writes it.
type function struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

// chatTools returns tools in the form of a chat. nil: there are none.
func chatTools(tools []json.RawMessage) (json.RawMessage, *openai.Error) {
	var list []any
	for _, raw := range tools {
		var f function
		if json.Unmarshal(raw, &f) != nil || f.Type != "function" || f.Name == "" {
			return nil, invalid("tools", "Only tools of the type function, with a name, are served here.")
		}
		list = append(list, fields{"type": "function", "function": fields{"name": f.Name, "description": f.Description, "parameters": orEmpty(f.Parameters)}})
	}
	if list == nil {
		return nil, nil
	}
	return openai.Encode(list), nil
}

func chatToolChoice(raw json.RawMessage) json.RawMessage {
	var f function
	if firstByte(raw) != '{' || json.Unmarshal(raw, &f) != nil || f.Name == "" {
		return raw
	}
	return openai.Encode(fields{"type": "function", "function": fields{"name": f.Name}})
}

func orEmpty(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("{}")
	}
	return raw
}

// rawList is a list that is never null.
func rawList(list []json.RawMessage) []json.RawMessage {
	if list == nil {
		return []json.RawMessage{}
	}
	return list
}

// conversationItem is an item as a client writes it.
type conversationItem struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Role      string `json:"role"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Output    string `json:"output"`
	Content   []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		ImageURL string `json:"image_url"`
	} `json:"content"`
}

// createItem adds an item to the conversation, behind all others. previous is what the client wants
// before it; empty: it says nothing. While a response is generated, the item waits for its end.
func (s *session) createItem(data json.RawMessage, previous string) *openai.Error {
	if last := s.socket.lastItem(); previous != "" && previous != last && (previous != "root" || last != "") {
		return invalid("previous_item_id", "An item can only be added behind all others: previous_item_id must be that of the last item.")
	}
	var item conversationItem
	if data == nil || json.Unmarshal(data, &item) != nil {
		return invalid("item", "item must be an object with members of the right types.")
	}
	message, fault := item.message()
	if fault != nil {
		return fault
	}
	s.itemsCreated++
	if item.ID == "" {
		item.ID = fmt.Sprint("item_", s.id, "_", s.itemsCreated)
	}
	size := s.conversation.size + len(message)
	for _, m := range s.waiting {
		size += len(m)
	}
	if size > s.conversation.limit {
		return tooLarge()
	}
	if s.waiting = append(s.waiting, message); s.turn == nil {
		if fault := s.addWaiting(); fault != nil {
			return fault
		}
	}
	var whole fields
	_ = json.Unmarshal(data, &whole) // it was read before
	whole["id"], whole["object"], whole["status"] = item.ID, "realtime.item", "completed"
	s.tell(itemAdded{whole})
	return nil
}

// addWaiting adds the items that wait to the conversation.
func (s *session) addWaiting() *openai.Error {
	if len(s.waiting) == 0 {
		return nil
	}
	next, fault := s.conversation.added(s.waiting...)
	s.waiting = nil
	if fault != nil {
		return fault
	}
	if fault := s.reserve(next, s.instructions, s.tools); fault != nil {
		return fault
	}
	s.conversation = next
	return nil
}

// message returns an item as a message of a chat.
func (i *conversationItem) message() (json.RawMessage, *openai.Error) {
	switch i.Type {
	case "function_call_output":
		return openai.Encode(fields{"role": "tool", "tool_call_id": i.CallID, "content": i.Output}), nil
	case "function_call":
		return openai.Encode(fields{"role": "assistant", "content": nil, "tool_calls": []fields{{"id": i.CallID, "type": "function",
			"function": fields{"name": i.Name, "arguments": i.Arguments}}}}), nil
	case "message", "":
	default:
		return nil, invalid("item.type", "Items of this type are not served here.")
	}
	if !slices.Contains([]string{"user", "assistant", "system"}, i.Role) {
		return nil, invalid("item.role", "role must be user, assistant or system.")
	}
	var parts []fields
	var text strings.Builder
	images := false
	for _, p := range i.Content {
		switch p.Type {
		case "input_text", "output_text", "text":
			text.WriteString(p.Text)
			parts = append(parts, fields{"type": "text", "text": p.Text})
		case "input_image":
			images = true
			parts = append(parts, fields{"type": "image_url", "image_url": fields{"url": p.ImageURL}})
		default:
			return nil, invalid("item.content", "Audio is not served here: content can be text and images.")
		}
	}
	if images {
		return openai.Encode(fields{"role": i.Role, "content": parts}), nil
	}
	return openai.Encode(fields{"role": i.Role, "content": text.String()}), nil
}

// createResponse begins a response to the conversation. Its own settings hold for it alone.
func (s *session) createResponse(data json.RawMessage) *openai.Error {
	if s.turn != nil {
		return &openai.Error{Code: openai.CodeInvalidRequest, Message: "Another response is generated: cancel it, or wait for its end."}
	}
	next, set, fault := s.withSettings(s.conversation, "response", data)
	if fault != nil {
		return fault
	}
	instructions := s.instructions
	if set.Instructions != nil {
		instructions = *set.Instructions
	}
	next = next.withoutToolSettings()
	next.messages = arrange(next.messages)
	if len(next.messages) == 0 && instructions == "" {
		return invalid("", "The conversation is empty: create an item first.")
	}
	if instructions != "" {
		next.messages = append([]json.RawMessage{openai.Encode(fields{"role": "system", "content": instructions})}, next.messages...)
	}
	call, fault := s.newCall(next, "")
	if fault != nil {
		return fault
	}
	s.keptMessages, s.keptModel, s.awaitingTools, s.gate = len(s.conversation.messages), s.conversation.model, nil, newGate(nil)
	id := fmt.Sprint("resp_", s.nextID())
	s.tell(responseBegins{id, set.Metadata})
	s.startTurn(id, call)
	return nil
}
