package sim

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// function is a function that the caller offers as a tool.
type function struct {
	Name       string `json:"name"`
	Parameters any    `json:"parameters"`
}

// tool is a function in the form of the chat API (Function) or of the Responses API (fields beside
// Type).
type tool struct {
	Type     string    `json:"type"`
	Function *function `json:"function"`
	function
}

// toolUse is what a request says about tools.
type toolUse struct {
	// offered are the functions that the request offers.
	offered []function
	// choice is auto, none, required, or the name of a function.
	choice string
	// parallel permits several calls in one answer.
	parallel bool
}

// newToolUse reads the tools, tool_choice and parallel_tool_calls of a request.
func newToolUse(tools []tool, choice json.RawMessage, parallel *bool) (toolUse, error) {
	u := toolUse{choice: "auto", parallel: parallel == nil || *parallel}
	for _, t := range tools {
		switch {
		case t.Function != nil:
			u.offered = append(u.offered, *t.Function)
		case t.Name != "":
			u.offered = append(u.offered, t.function)
		}
	}
	if !isJSON(choice) {
		return u, nil
	}
	var named tool
	if json.Unmarshal(choice, &u.choice) != nil {
		if err := json.Unmarshal(choice, &named); err != nil {
			return u, badRequest("tool_choice", "tool_choice must be a string or an object")
		}
		u.choice = named.Name
		if named.Function != nil {
			u.choice = named.Function.Name
		}
	}
	return u, u.check()
}

// check checks that tool_choice can be satisfied.
func (u toolUse) check() error {
	switch u.choice {
	case "auto", "none":
		return nil
	case "required":
		if len(u.offered) == 0 {
			return badRequest("tool_choice", "tool_choice is \"required\" but there are no tools")
		}
		return nil
	}
	for _, f := range u.offered {
		if f.Name == u.choice {
			return nil
		}
	}
	return badRequest("tool_choice", "tool_choice names a tool that is not among the tools")
}

// toolCalls returns the tool calls that answer the question; none if the answer is prose.
func (u toolUse) toolCalls(q question) []toolCall {
	chosen := u.chosenFunctions(q)
	if len(chosen) > 1 && !u.parallel {
		chosen = chosen[:1]
	}
	calls := make([]toolCall, 0, len(chosen))
	for i, f := range chosen {
		id := xxhash.Sum64String(q.lastMessage + "\x00" + f.Name + "\x00" + strconv.Itoa(q.turn+q.choice<<16+i<<32))
		calls = append(calls, toolCall{
			id:        "call_" + strconv.FormatUint(id, 36),
			name:      f.Name,
			arguments: string(sampleJSON(orEmptyObject(f.Parameters), topic(q.lastMessage))),
		})
	}
	return calls
}

// chosenFunctions returns the functions to call: the one that tool_choice names, else those that
// the caller mentions by name, else the first if the caller mentions tools.
func (u toolUse) chosenFunctions(q question) []function {
	if u.choice == "none" || len(u.offered) == 0 {
		return nil
	}
	var mentioned []function
	for _, f := range u.offered {
		if f.Name == u.choice {
			return []function{f}
		}
		if f.Name != "" && strings.Contains(q.lastMessage, f.Name) {
			mentioned = append(mentioned, f)
		}
	}
	switch {
	case q.isToolResult && u.choice != "required": // the answer comments on the result
		return nil
	case len(mentioned) > 0:
		return mentioned
	case u.choice == "required" || strings.Contains(strings.ToLower(q.lastMessage), "tool"):
		return u.offered[:1]
	}
	return nil
}

// orEmptyObject returns schema, or the schema of an object if there is none.
func orEmptyObject(schema any) any {
	if schema == nil {
		return map[string]any{"type": "object"}
	}
	return schema
}
