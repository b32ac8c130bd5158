package sim

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// function is a tool that the caller offers.
type function struct {
	Name       string `json:"name"`
	Parameters any    `json:"parameters"`
}

// tool is a function as the chat API wraps it (Function) and as the Responses API writes it (beside the type).
type tool struct {
	Type     string    `json:"type"`
	Function *function `json:"function"`
	function
}

// toolUse is what a request says about tools.
type toolUse struct {
	offered  []function
	choice   string // auto, none, required, or the name of one
	parallel bool
}

// newToolUse reads the request's tools and tool_choice.
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

// calls are the tool calls that answer the question; none when prose does.
func (u toolUse) calls(q question) []toolCall {
	chosen := u.chosen(q)
	if len(chosen) > 1 && !u.parallel {
		chosen = chosen[:1]
	}
	calls := make([]toolCall, 0, len(chosen))
	for i, f := range chosen {
		id := xxhash.Sum64String(q.last + "\x00" + f.Name + "\x00" + strconv.Itoa(q.turn+q.choice<<16+i<<32))
		calls = append(calls, toolCall{
			id:        "call_" + strconv.FormatUint(id, 36),
			name:      f.Name,
			arguments: string(sampleJSON(orEmptyObject(f.Parameters), topic(q.last))),
		})
	}
	return calls
}

// chosen are the functions to call: the forced one, those that the caller mentions by name, or the first when the caller
// speaks of tools.
func (u toolUse) chosen(q question) []function {
	if u.choice == "none" || len(u.offered) == 0 {
		return nil
	}
	var mentioned []function
	for _, f := range u.offered {
		if f.Name == u.choice {
			return []function{f}
		}
		if f.Name != "" && strings.Contains(q.last, f.Name) {
			mentioned = append(mentioned, f)
		}
	}
	switch {
	case q.tool && u.choice != "required": // the result has come: say something about it
		return nil
	case len(mentioned) > 0:
		return mentioned
	case u.choice == "required" || strings.Contains(strings.ToLower(q.last), "tool"):
		return u.offered[:1]
	}
	return nil
}

func orEmptyObject(schema any) any {
	if schema == nil {
		return map[string]any{"type": "object"}
	}
	return schema
}
