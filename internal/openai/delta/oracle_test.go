package delta_test

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// object is a JSON object with its members in their order, those with the same name too.
type object []member

type member struct {
	name  string
	value any
}

// tree reads JSON by encoding/json.
func tree(d *json.Decoder) any {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	switch token {
	case json.Delim('{'):
		o := object{}
		for d.More() {
			name := tree(d).(string)
			o = append(o, member{name, tree(d)})
		}
		d.Token()
		return o
	case json.Delim('['):
		l := []any{}
		for d.More() {
			l = append(l, tree(d))
		}
		d.Token()
		return l
	}
	return token
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func obj(v any) object {
	o, _ := v.(object)
	return o
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

func number(v any) int {
	n, _ := v.(json.Number)
	i, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil || i < 0 || i > 1<<31-1 || strings.HasPrefix(n.String(), "-") {
		return -1
	}
	return int(i)
}

// oracle reads an event as delta.Reader should.
func oracle(data []byte) (out []said) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var typ, text, itemType string
	var item said
	output := 0
	for _, m := range obj(tree(d)) {
		switch m.name {
		case "choices":
			for i, c := range list(m.value) {
				out = append(out, oracleChoice(i, obj(c))...)
			}
		case "type":
			typ = str(m.value)
		case "delta":
			text = str(m.value)
		case "output_index":
			output = number(m.value)
		case "item":
			if o, ok := m.value.(object); ok {
				itemType, item = last(o, "type"), said{Kind: delta.ToolCall, ID: last(o, "call_id"), Name: last(o, "name")}
			}
		}
	}
	kinds := map[string]delta.Kind{"response.output_text.delta": delta.Text, "response.reasoning_text.delta": delta.Reasoning,
		"response.reasoning_summary_text.delta": delta.Reasoning, "response.refusal.delta": delta.Refusal,
		"response.function_call_arguments.delta": delta.ToolCall, "response.custom_tool_call_input.delta": delta.ToolCall,
		"response.mcp_call_arguments.delta": delta.ToolCall}
	kind, known := kinds[typ]
	switch {
	case known && text != "" && kind == delta.ToolCall:
		out = append(out, said{Kind: kind, Tool: output, Text: text})
	case known && text != "":
		out = append(out, said{Kind: kind, Text: text})
	case typ == "response.output_item.added" && strings.HasSuffix(itemType, "_call") && item.ID+item.Name != "":
		item.Tool = output
		out = append(out, item)
	}
	return out
}

// last is the text of the last member with that name.
func last(o object, name string) (text string) {
	for _, m := range o {
		if m.name == name {
			text = str(m.value)
		}
	}
	return text
}

func oracleChoice(index int, c object) (out []said) {
	for _, m := range c {
		switch m.name {
		case "index":
			index = number(m.value)
		case "text":
			out = append(out, oracleContent(delta.Text, str(m.value))...)
		case "delta":
			out = append(out, oracleDelta(obj(m.value))...)
		}
	}
	for i := range out {
		out[i].Choice = index
	}
	return out
}

func oracleDelta(o object) (out []said) {
	var reasoning []said
	for _, m := range o {
		switch m.name {
		case "content":
			out = append(out, oracleContent(delta.Text, m.value)...)
		case "reasoning", "reasoning_content":
			if len(reasoning) == 0 {
				reasoning = oracleContent(delta.Reasoning, m.value)
				out = append(out, reasoning...)
			}
		case "refusal":
			out = append(out, oracleContent(delta.Refusal, str(m.value))...)
		case "function_call":
			out = append(out, oracleCall(said{Kind: delta.ToolCall}, object{{"function", m.value}})...)
		case "tool_calls":
			for i, c := range list(m.value) {
				out = append(out, oracleCall(said{Kind: delta.ToolCall, Tool: i}, obj(c))...)
			}
		}
	}
	return out
}

func oracleContent(kind delta.Kind, v any) (out []said) {
	if s := str(v); s != "" {
		return []said{{Kind: kind, Text: s}}
	}
	for _, part := range list(v) {
		for _, m := range obj(part) {
			switch m.name {
			case "text":
				out = append(out, oracleContent(kind, str(m.value))...)
			case "thinking":
				out = append(out, oracleContent(delta.Reasoning, m.value)...)
			case "refusal":
				out = append(out, oracleContent(delta.Refusal, str(m.value))...)
			}
		}
	}
	return out
}

func oracleCall(s said, c object) []said {
	for _, m := range c {
		switch m.name {
		case "index":
			s.Tool = number(m.value)
		case "id":
			s.ID = str(m.value)
		case "function", "custom":
			for _, f := range obj(m.value) {
				switch f.name {
				case "name":
					s.Name = str(f.value)
				case "arguments", "input":
					s.Text = str(f.value)
				}
			}
		}
	}
	if s.Text+s.ID+s.Name == "" {
		return nil
	}
	return []said{s}
}
