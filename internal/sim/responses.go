package sim

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// responsesRequest is the body of POST /v1/responses, without the fields that the engine ignores.
type responsesRequest struct {
	Model              string          `json:"model"`
	Input              items           `json:"input"`
	Instructions       *string         `json:"instructions"`
	MaxOutputTokens    *whole          `json:"max_output_tokens"`
	Stream             bool            `json:"stream"`
	Tools              []tool          `json:"tools"`
	ToolChoice         json.RawMessage `json:"tool_choice"`
	ParallelToolCalls  *bool           `json:"parallel_tool_calls"`
	PreviousResponseID string          `json:"previous_response_id"`
	CacheSalt          string          `json:"cache_salt"`
	Metadata           json.RawMessage `json:"metadata"`
	Text               struct {
		Format *format `json:"format"`
	} `json:"text"`
}

// items is the input: a text, or a list of messages, tool calls and results of tools.
type items []message

func (in *items) UnmarshalJSON(raw []byte) error {
	var said content
	if raw[0] == '"' {
		err := json.Unmarshal(raw, &said)
		*in = items{{Role: "user", Content: said}}
		return err
	}
	var list []struct {
		message
		Type   string          `json:"type"`
		Output json.RawMessage `json:"output"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return badRequest("input", "Input must be a string or a list of items")
	}
	var whole []json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		return err
	}
	for i, item := range list {
		switch item.Type {
		case "", "message":
			*in = append(*in, item.message)
		case "function_call_output":
			var result content
			if json.Unmarshal(item.Output, &result) != nil {
				return badRequest("input", "The output of a tool must be a string or a list of parts")
			}
			*in = append(*in, message{Role: "tool", Content: result})
		default:
			*in = append(*in, message{Role: "assistant", ToolCalls: whole[i]})
		}
	}
	return nil
}

// response is one response of the Responses API while it is generated.
type response struct {
	handler    *handler
	req        *responsesRequest
	generation *generation
	id         string
	created    int64
}

// responses answers POST /v1/responses.
func (h *handler) responses() error {
	var req responsesRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	q, bounds, err := h.checkResponses(&req)
	if err != nil {
		return err
	}
	g := h.generate([]prompt{h.promptOfResponse(&req)}, h.engine.answers(q, 1, bounds))
	defer g.close()
	r := &response{handler: h, req: &req, generation: g, id: h.newID("resp_"), created: time.Now().Unix()}
	if req.Stream {
		return newResponseStream(r).run()
	}
	if err := g.wait(h.r.Context()); err != nil {
		return err
	}
	return h.sendJSON(r.object(r.status(), r.output()))
}

// inputTokens answers POST /v1/responses/input_tokens, as llama-server does.
func (h *handler) inputTokens() error {
	var req responsesRequest
	if err := h.decodeBody(&req); err != nil {
		return err
	}
	if _, _, err := h.checkResponses(&req); err != nil {
		return err
	}
	return h.sendJSON(map[string]any{"object": "response.input_tokens", "input_tokens": h.promptOfResponse(&req).tokens})
}

func (h *handler) promptOfResponse(req *responsesRequest) prompt {
	messages := []message(req.Input)
	if req.Instructions != nil {
		messages = append([]message{{Role: "system", Content: content(*req.Instructions)}}, messages...)
	}
	return h.promptOf(req.CacheSalt, req.Tools, messages)
}

func (h *handler) checkResponses(req *responsesRequest) (question, limits, error) {
	var bounds limits
	if err := h.checkModel(req.Model); err != nil {
		return question{}, bounds, err
	}
	if len(req.Input) == 0 {
		return question{}, bounds, badRequest("input", "Field required: input")
	}
	if req.PreviousResponseID != "" { // the engine stores no responses
		return question{}, bounds, &apiError{
			status: http.StatusNotFound, kind: "NotFoundError", param: "response_id",
			message: "Response with id '" + req.PreviousResponseID + "' not found.",
		}
	}
	if req.MaxOutputTokens != nil && *req.MaxOutputTokens != noLimit {
		if bounds.max = int(*req.MaxOutputTokens); bounds.max < 1 {
			return question{}, bounds, badRequest("max_output_tokens", "max_output_tokens must be at least 1, got %d.", bounds.max)
		}
	}
	q := questionOf(req.Input)
	q.engineName, q.format = h.engineName(), req.Text.Format
	var err error
	q.tools, err = newToolUse(req.Tools, req.ToolChoice, req.ParallelToolCalls)
	return q, bounds, err
}

// answer returns the only answer of the response.
func (r *response) answer() *answer { return r.generation.choices[0].answer }

func (r *response) status() string {
	if r.answer().finish == "length" {
		return "incomplete"
	}
	return "completed"
}

// output returns the output items of the finished response.
func (r *response) output() []any {
	calls := r.answer().generatedCalls()
	if len(calls) == 0 {
		return []any{r.message(r.status(), r.answer().text())}
	}
	list := make([]any, len(calls))
	for i, t := range calls {
		list[i] = r.functionCall("completed", t)
	}
	return list
}

func (r *response) message(status, text string) any {
	parts := []any{}
	if status != "in_progress" {
		parts = append(parts, textPart(text))
	}
	return map[string]any{"id": r.itemID(""), "type": "message", "role": "assistant", "status": status, "content": parts}
}

func textPart(text string) any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (r *response) functionCall(status string, t toolCall) any {
	return map[string]any{
		"id": r.itemID(t.id), "type": "function_call", "status": status,
		"call_id": t.id, "name": t.name, "arguments": t.arguments,
	}
}

// itemID derives the id of an output item from that of its tool call, or from that of the response
// if callID is empty.
func (r *response) itemID(callID string) string {
	if callID != "" {
		return "fc_" + strings.TrimPrefix(callID, "call_")
	}
	return "msg_" + strings.TrimPrefix(r.id, "resp_")
}

// object returns the whole response. Its usage is null while it is in progress.
func (r *response) object(status string, output []any) any {
	req := r.req
	o := map[string]any{
		"id": r.id, "object": "response", "created_at": r.created, "status": status, "model": r.handler.modelName(),
		"output": output, "error": nil, "incomplete_details": nil, "usage": nil,
		"instructions": req.Instructions, "max_output_tokens": req.MaxOutputTokens, "metadata": orDefault(req.Metadata, "{}"),
		"parallel_tool_calls": req.ParallelToolCalls == nil || *req.ParallelToolCalls, "previous_response_id": nil,
		"reasoning": map[string]any{"effort": nil, "summary": nil}, "store": false, "temperature": 1.0, "top_p": 1.0,
		"text":        map[string]any{"format": orText(req.Text.Format)},
		"tool_choice": orDefault(req.ToolChoice, `"auto"`), "tools": r.tools(), "truncation": "disabled",
		"background": false, "service_tier": "auto", "top_logprobs": nil, "user": nil,
	}
	if status == "in_progress" {
		return o
	}
	u := r.generation.usage()
	o["usage"] = map[string]any{
		"input_tokens": u.PromptTokens, "input_tokens_details": map[string]int{"cached_tokens": u.PromptDetails.CachedTokens},
		"output_tokens": u.CompletionTokens, "output_tokens_details": map[string]int{"reasoning_tokens": 0},
		"total_tokens": u.TotalTokens,
	}
	if status == "incomplete" {
		o["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	}
	return o
}

func (r *response) tools() []any {
	list := make([]any, 0, len(r.req.Tools))
	for _, t := range r.req.Tools {
		list = append(list, map[string]any{"type": t.Type, "name": t.Name, "parameters": t.Parameters, "strict": false, "description": nil})
	}
	return list
}

// orText returns the format of the response, plain text by default.
func orText(f *format) any {
	if f == nil || f.Type == "" {
		return map[string]any{"type": "text"}
	}
	if f.Type == "json_schema" {
		return map[string]any{"type": f.Type, "name": "answer", "schema": f.Schema, "strict": true}
	}
	return map[string]any{"type": f.Type}
}

// orDefault returns raw, or other if raw is absent or null.
func orDefault(raw json.RawMessage, other string) json.RawMessage {
	if isJSON(raw) {
		return raw
	}
	return json.RawMessage(other)
}
