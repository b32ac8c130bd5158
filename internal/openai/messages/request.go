package messages

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// object is a JSON object with its values as they stand.
type object = map[string]json.RawMessage

// Options are what the translation of the answer has to know of the request.
type Options struct {
	// Thinking says that the client has asked for the model's reasoning.
	Thinking bool
	// Counts says that the client has asked for the number of tokens alone.
	Counts bool
	// Stops are the texts at which the client wants the answer to end.
	Stops []string
}

// ToChat translates the body of a request to /v1/messages into one to /v1/chat/completions. The
// error names the field that cannot be translated. Fields that the Messages API does not have stay
// as they are, because engines have options of their own.
func ToChat(body []byte) (chat []byte, o Options, fault *openai.Error) {
	fields, fault := readFields(body)
	if fault != nil {
		return nil, o, fault
	}
	if len(fields["max_tokens"]) == 0 {
		return nil, o, openai.Invalid("max_tokens", "is missing")
	}
	if fault := o.translate(fields); fault != nil {
		return nil, o, fault
	}
	if string(fields["stream"]) == "true" {
		fields["stream_options"] = json.RawMessage(`{"include_usage":true}`)
	}
	return openai.Encode(fields), o, nil
}

// CountToChat translates the body of a request to /v1/messages/count_tokens into one to
// /v1/chat/completions that generates one token: its usage has the tokens of the prompt.
func CountToChat(body []byte) (chat []byte, o Options, fault *openai.Error) {
	fields, fault := readFields(body)
	if fault != nil {
		return nil, o, fault
	}
	o.Counts = true
	if fault := o.translate(fields); fault != nil {
		return nil, o, fault
	}
	delete(fields, "stream")
	fields["max_tokens"] = json.RawMessage("1")
	return openai.Encode(fields), o, nil
}

// readFields reads the fields of a body. Those that are null are left out.
func readFields(body []byte) (object, *openai.Error) {
	var fields object
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The request body must be a JSON object.")
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	return fields, nil
}

// dropped are fields that mean nothing to a chat: hints about cost and caching, and options that
// are Sluice's own. Of the latter, max_duration_ms stays for the process to which a call may move.
var dropped = [...]string{"metadata", "service_tier", "cache_control", "context_management", "thinking", "system", "stop_sequences",
	"output_format", "output_config", "request_id", "timeout_ms"}

// refused are fields whose meaning would be lost.
var refused = [...]string{"mcp_servers", "container"}

// translate replaces the fields of the Messages API by those of a chat.
func (o *Options) translate(fields object) *openai.Error {
	for _, name := range refused {
		if value, ok := fields[name]; ok && string(value) != "[]" {
			return openai.Invalid(name, "is not supported: this model is served by way of chat completions")
		}
	}
	chat := make(object, len(fields))
	for _, step := range []func(fields, chat object) *openai.Error{o.conversation, tools, toolChoice, sampling, outputFormat, o.thinking} {
		if fault := step(fields, chat); fault != nil {
			return fault
		}
	}
	for _, name := range dropped {
		delete(fields, name)
	}
	maps.Copy(fields, chat)
	o.Stops = stopsOf(fields["stop"])
	return nil
}

// StopsOf returns Options.Stops of a chat that ToChat has made.
func StopsOf(chat []byte) []string {
	var fields struct {
		Stop json.RawMessage `json:"stop"`
	}
	_ = json.Unmarshal(chat, &fields) // a chat that is no object has none
	return stopsOf(fields.Stop)
}

// stopsOf returns the texts of the field stop of a chat: a text or a list of texts.
func stopsOf(raw json.RawMessage) (stops []string) {
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	_ = openai.Each(raw, func(s string) { stops = append(stops, s) }) // the engine refuses any other value
	return stops
}

// sampling translates the fields that have another name or place in a chat.
func sampling(fields, chat object) *openai.Error {
	if stop, ok := fields["stop_sequences"]; ok && string(stop) != "[]" {
		chat["stop"] = stop
	}
	var metadata struct {
		UserID json.RawMessage `json:"user_id"`
	}
	if raw, ok := fields["metadata"]; ok {
		if json.Unmarshal(raw, &metadata) != nil {
			return openai.Invalid("metadata", "must be an object")
		}
		if len(metadata.UserID) > 0 && metadata.UserID[0] == '"' {
			chat["user"] = metadata.UserID
		}
	}
	return nil
}

// outputFormat translates the schema of the answer.
func outputFormat(fields, chat object) *openai.Error {
	raw := fields["output_format"]
	if config, ok := fields["output_config"]; ok {
		var read struct {
			Format json.RawMessage `json:"format"`
		}
		if json.Unmarshal(config, &read) != nil {
			return openai.Invalid("output_config", "must be an object")
		}
		if len(read.Format) > 0 && string(read.Format) != "null" {
			raw = read.Format
		}
	}
	if len(raw) == 0 {
		return nil
	}
	var format struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
	if json.Unmarshal(raw, &format) != nil || format.Type != "json_schema" || len(format.Schema) == 0 {
		return openai.Invalid("output_format", "must have the type json_schema and a schema")
	}
	chat["response_format"] = openai.Encode(map[string]any{"type": "json_schema",
		"json_schema": map[string]any{"name": "output", "strict": true, "schema": format.Schema}})
	return nil
}

// thinking notes whether the client wants the model's reasoning. How much the model reasons is the
// engine's own matter.
func (o *Options) thinking(fields, _ object) *openai.Error {
	raw, ok := fields["thinking"]
	if !ok {
		return nil
	}
	var thinking struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &thinking) != nil || thinking.Type == "" {
		return openai.Invalid("thinking", "must be an object with a type")
	}
	o.Thinking = thinking.Type != "disabled"
	return nil
}

// tools translates the tools that the model may call. Tools that Anthropic's servers run cannot be
// translated.
func tools(fields, chat object) *openai.Error {
	raw, ok := fields["tools"]
	if !ok {
		return nil
	}
	all := []any{}
	fault := elements("tools", raw, "must be a list of tools", func(at string, decode func(any) error) *openai.Error {
		function, fault := tool(at, decode)
		all = append(all, map[string]any{"type": "function", "function": function})
		return fault
	})
	if fault != nil {
		return fault
	}
	delete(fields, "tools")
	if len(all) > 0 {
		chat["tools"] = openai.Encode(all)
	}
	return nil
}

func tool(at string, decode func(any) error) (map[string]any, *openai.Error) {
	var t struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"input_schema"`
	}
	switch {
	case decode(&t) != nil:
		return nil, openai.Invalid(at, "must be a tool: an object with a name and an input_schema")
	case t.Type != "" && t.Type != "custom":
		return nil, openai.Invalid(at+".type", "must be custom: no server runs the tool "+t.Type)
	case t.Name == "":
		return nil, openai.Invalid(at+".name", "is missing")
	case len(t.Schema) == 0:
		return nil, openai.Invalid(at+".input_schema", "is missing")
	case t.Schema[0] != '{':
		return nil, openai.Invalid(at+".input_schema", "must be an object")
	}
	function := map[string]any{"name": t.Name, "parameters": t.Schema}
	if t.Description != "" {
		function["description"] = t.Description
	}
	return function, nil
}

// toolChoice translates which tools the model must call.
func toolChoice(fields, chat object) *openai.Error {
	raw, ok := fields["tool_choice"]
	if !ok {
		return nil
	}
	var choice struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		OneOnly bool   `json:"disable_parallel_tool_use"`
	}
	if json.Unmarshal(raw, &choice) != nil {
		return openai.Invalid("tool_choice", "must be an object")
	}
	switch choice.Type {
	case "auto", "none":
		chat["tool_choice"] = openai.Encode(choice.Type)
	case "any":
		chat["tool_choice"] = openai.Encode("required")
	case "tool":
		if choice.Name == "" {
			return openai.Invalid("tool_choice.name", "is missing")
		}
		chat["tool_choice"] = openai.Encode(map[string]any{"type": "function", "function": map[string]string{"name": choice.Name}})
	default:
		return openai.Invalid("tool_choice.type", "must be auto, any, tool or none")
	}
	if choice.OneOnly {
		chat["parallel_tool_calls"] = json.RawMessage("false")
	}
	return nil
}

// join joins texts with line feeds between them.
func join(texts []string) string { return strings.Join(texts, "\n") }
