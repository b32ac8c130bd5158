package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// This file says the rules of the package a second time, slowly, on encoding/json.

// member of an object, in order, duplicates included.
type member struct {
	name  string
	value json.RawMessage
}

// members of the JSON object raw; ok is false for any other value.
func members(raw []byte) (list []member, ok bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, false
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, false
		}
		list = append(list, member{name.(string), value})
	}
	return list, true
}

// last value under a name; nil when there is none.
func last(list []member, name string) json.RawMessage {
	var value json.RawMessage
	for _, m := range list {
		if m.name == name {
			value = m.value
		}
	}
	return value
}

func textOf(raw json.RawMessage) (string, bool) {
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

func depthOf(valid []byte) (deepest int) {
	depth := 0
	d := json.NewDecoder(bytes.NewReader(valid))
	for {
		t, err := d.Token()
		if err != nil {
			return deepest
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

func naiveInteger(raw json.RawMessage, least, limit int64) (int64, bool) {
	if string(raw) == "null" {
		return 0, true
	}
	var n float64
	if raw[0] == '"' || json.Unmarshal(raw, &n) != nil {
		return 0, false
	}
	return int64(n), n == math.Floor(n) && n >= float64(least) && n <= float64(limit)
}

func naiveBool(raw json.RawMessage) (value, ok bool) {
	return string(raw) == "true", string(raw) == "true" || string(raw) == "false" || string(raw) == "null"
}

func naiveName(raw json.RawMessage) (string, bool) {
	s, ok := textOf(raw)
	ok = ok && s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	return s, ok && !halfSurrogate(string(raw))
}

// halfSurrogate compares the escapes one by one: pairs are the only ones of the range that may
// stand.
func halfSurrogate(raw string) bool {
	pair := regexp.MustCompile(`(?i)\\ud[89ab]..\\ud[c-f]..`)
	raw = strings.ReplaceAll(raw, `\\`, "")
	return regexp.MustCompile(`(?i)\\ud[89a-f]`).MatchString(pair.ReplaceAllString(raw, ""))
}

// naiveScan is Scan of a JSON body.
func naiveScan(e Endpoint, body []byte) (r Request, ok bool) {
	if !utf8.Valid(body) || !json.Valid(body) || depthOf(body) > 256 {
		return r, false
	}
	list, ok := members(body)
	if !ok || len(list) > 256 {
		return r, false
	}
	r = Request{Endpoint: e, Size: len(body)}
	seen := map[string]bool{}
	for _, m := range list {
		if seen[m.name] || naiveDisguise(m.name) || !r.naiveField(m) {
			return r, false
		}
		seen[m.name] = true
	}
	if r.MaxTokens == math.MaxInt {
		r.MaxTokens = 0
	}
	return r, true
}

func (r *Request) naiveField(m member) (ok bool) {
	var n int64
	switch m.name {
	case "model":
		r.Model, ok = naiveName(m.value)
		return ok
	case "stream":
		r.Stream, ok = naiveBool(m.value)
		return ok
	case "request_id":
		if string(m.value) == "null" {
			return true
		}
		r.RequestID, ok = naiveName(m.value)
		return ok
	case "timeout_ms":
		n, ok = naiveInteger(m.value, 0, 86400000)
		r.Timeout = time.Duration(n) * time.Millisecond
		return ok
	case "max_duration_ms":
		n, ok = naiveInteger(m.value, 0, 86400000)
		r.MaxDuration = time.Duration(n) * time.Millisecond
		return ok
	}
	for i, g := range GuardedFields() {
		asks := func(m member) bool {
			n, _ := strconv.ParseFloat(string(m.value), 64)
			empty := len(g.Engines) == 0 && slices.Contains([]string{"[]", "{}", `""`}, strings.ReplaceAll(string(m.value), " ", ""))
			return strings.EqualFold(m.name, g.Name) && !empty && string(m.value) != "null" && string(m.value) != "-1" && (g.Above == 0 || n > float64(g.Above))
		}
		list, _ := members(m.value)
		within := slices.Contains([]string{"chat_template_kwargs: chat_template", "vllm_xargs: kv_transfer_params",
			"vllm_xargs: ec_transfer_params", "google: cached_content", "google: cachedContent"}, m.name+": "+g.Name)
		if asks(m) || within && slices.ContainsFunc(list, asks) {
			r.Guarded |= 1 << i
		}
	}
	if r.Endpoint != Chat && r.Endpoint != Completions && r.Endpoint != Responses {
		return true
	}
	switch m.name {
	case "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict":
		n, ok = naiveInteger(m.value, -1, 1<<31-1)
		if r.MaxTokens = max(r.MaxTokens, int(n)); n == -1 {
			r.MaxTokens = math.MaxInt
		}
		return ok
	case "n":
		n, ok = naiveInteger(m.value, 0, 1<<31-1)
		r.Choices = int(n)
		return ok && n <= maxAnswers
	case "stream_options":
		list, isObject := members(m.value)
		for _, o := range list {
			if o.name == "include_usage" {
				if r.IncludeUsage, ok = naiveBool(o.value); !ok {
					return false
				}
			}
		}
		return isObject || string(m.value) == "null"
	case "prompt_cache_key":
		if key, ok := naiveName(m.value); ok {
			r.PromptCacheKey = key
		}
	case "previous_response_id":
		if id, ok := naiveName(m.value); ok && r.Endpoint == Responses {
			r.PreviousResponseID = id
		}
	}
	return true
}

// naiveTexts are the texts that make the key.
func naiveTexts(e Endpoint, body []byte, userMessages int) (texts []string) {
	list, _ := members(body)
	var messages []json.RawMessage
	if e == Responses {
		if raw := last(list, "instructions"); raw != nil && string(raw) != "null" {
			texts = append(texts, naiveContent(raw))
		}
		input := last(list, "input")
		if _, isString := textOf(input); isString && userMessages > 0 {
			return append(texts, naiveContent(input))
		}
		_ = json.Unmarshal(input, &messages)
	}
	if e == Chat {
		_ = json.Unmarshal(last(list, "messages"), &messages)
	}
	var users []string
	for _, raw := range messages {
		m, _ := members(raw)
		role, _ := textOf(last(m, "role"))
		switch {
		case role == "user" && len(users) < userMessages:
			users = append(users, naiveContent(last(m, "content")))
		case e == Chat && (role == "system" || role == "developer"):
			texts = append(texts, naiveContent(last(m, "content")))
		}
	}
	return append(texts, users...)
}

func naiveContent(raw json.RawMessage) string {
	if s, ok := textOf(raw); ok {
		return s
	}
	var parts []json.RawMessage
	if raw == nil || string(raw) == "null" || json.Unmarshal(raw, &parts) != nil {
		return strings.TrimPrefix(string(raw), "null")
	}
	all := ""
	for _, part := range parts {
		m, _ := members(part)
		kind, _ := textOf(last(m, "type"))
		text, ok := textOf(last(m, "text"))
		if !ok || kind != "text" && kind != "input_text" && kind != "output_text" {
			text = string(part)
		}
		all += text
	}
	return all
}

func naiveKey(e Endpoint, body []byte, userMessages int) uint64 {
	texts := naiveTexts(e, body, userMessages)
	if len(texts) == 0 {
		return xxhash.Sum64(body)
	}
	var key []byte
	for _, text := range texts {
		key = binary.BigEndian.AppendUint64(key, uint64(len(text)))
		key = append(key, text...)
	}
	return xxhash.Sum64(key)
}

// naiveStrip says what the members are when Sluice's own are gone.
func naiveStrip(body []byte) (rest []member, changed bool) {
	list, _ := members(body)
	for _, m := range list {
		switch m.name {
		case "request_id", "timeout_ms", "max_duration_ms":
			changed = true
		default:
			rest = append(rest, m)
		}
	}
	return rest, changed
}

// naiveDisguise says whether a reader that ignores case would take the name for another one that
// means something.
func naiveDisguise(name string) bool {
	for _, known := range []string{"model", "stream", "stream_options", "stream_options.include_usage", "stream_include_usage", "max_tokens",
		"max_completion_tokens", "max_output_tokens", "n_predict", "n", "best_of", "n_cmpl", "messages", "input", "instructions", "prompt", "request_id",
		"timeout_ms", "max_duration_ms"} {
		if name != known && strings.EqualFold(name, known) {
			return true
		}
	}
	return false
}
