package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/prefix"
)

// naiveChain says on encoding/json what Chain returns.
func naiveChain(e Endpoint, body []byte) prefix.Chain {
	var b prefix.Builder
	b.Reset()
	if !e.Generates() {
		return b.Chain()
	}
	list, _ := members(body)
	if salt := last(list, "cache_salt"); salt != nil && string(salt) != "null" {
		b.Root("cache_salt", salt)
	}
	if id := last(list, "previous_response_id"); e == Responses && id != nil && string(id) != "null" {
		b.Root("previous_response_id", id)
	}
	if e == Completions {
		b.Mark(prefix.MarkOther)
		b.Text(naivePrompt(last(list, "prompt")))
		return b.Chain()
	}
	for _, m := range list {
		if (m.name == "tools" || m.name == "functions" && e == Chat) && string(m.value) != "null" {
			b.Mark(prefix.MarkTools)
			b.Text(m.value)
			b.End()
		}
	}
	messages := last(list, "messages")
	if e == Responses {
		if raw := last(list, "instructions"); raw != nil && string(raw) != "null" {
			b.Mark(prefix.MarkSystem)
			naiveChainText(&b, raw)
			b.End()
		}
		if messages = last(list, "input"); len(messages) > 0 && messages[0] == '"' {
			b.Mark(prefix.MarkUser)
			naiveChainText(&b, messages)
		}
	}
	naiveChainMessages(&b, e, messages)
	return b.Chain()
}

func naivePrompt(raw json.RawMessage) []byte {
	if len(raw) > 0 && raw[0] == '"' {
		return raw[1 : len(raw)-1]
	}
	var prompts []json.RawMessage
	if json.Unmarshal(raw, &prompts) != nil || len(raw) == 0 || raw[0] != '[' {
		return nil
	}
	for _, p := range prompts {
		if p[0] == '"' {
			return p[1 : len(p)-1]
		}
		if p[0] == '[' {
			return p
		}
	}
	return raw
}

func naiveChainMessages(b *prefix.Builder, e Endpoint, raw json.RawMessage) {
	var messages []json.RawMessage
	_ = json.Unmarshal(raw, &messages)
	for _, raw := range messages {
		m, ok := members(raw)
		if !ok {
			continue
		}
		if last(m, "role") == nil {
			b.Mark(prefix.MarkOther)
			if output := last(m, "output"); e == Responses && len(output) > 0 && (output[0] == '[' || output[0] == '{') {
				naiveChainNested(b, raw)
			} else {
				b.Text(raw)
			}
			b.End()
			continue
		}
		role, _ := textOf(last(m, "role"))
		marks := map[string]prefix.Mark{"system": prefix.MarkSystem, "developer": prefix.MarkSystem, "user": prefix.MarkUser,
			"assistant": prefix.MarkAssistant, "tool": prefix.MarkTool, "function": prefix.MarkTool}
		mark, ok := marks[role]
		if !ok {
			mark = prefix.MarkOther
		}
		b.Mark(mark)
		naiveChainText(b, last(m, "content"))
		fields := 0
		for _, f := range m {
			known := slices.Contains([]string{"name", "tool_calls", "tool_call_id", "function_call", "reasoning", "reasoning_content"}, f.name)
			if known && string(f.value) != "null" && fields < 6 {
				b.Mark(prefix.MarkField)
				b.Text(f.value)
				fields++
			}
		}
		b.End()
	}
}

func naiveChainText(b *prefix.Builder, raw json.RawMessage) {
	var parts []json.RawMessage
	switch {
	case len(raw) == 0 || string(raw) == "null":
	case raw[0] == '"':
		b.Text(raw[1 : len(raw)-1])
	case raw[0] != '[':
		b.Text(raw)
	default:
		_ = json.Unmarshal(raw, &parts)
		for _, part := range parts {
			m, ok := members(part)
			kind, _ := textOf(last(m, "type"))
			text := last(m, "text")
			switch {
			case slices.Contains([]string{"text", "input_text", "output_text"}, kind) && len(text) > 0 && text[0] == '"':
				b.Text(text[1 : len(text)-1])
			case ok && (last(m, "type") == nil || isMediaType(kind)) && !naivePlain(m):
				b.Media(prefix.Digest(part))
			case bytes.HasPrefix(last(m, "content"), []byte("[")):
				naiveChainNested(b, part)
			default:
				b.Text(part)
			}
		}
	}
}

// naivePlain reports whether a part comes from a source of plain text.
func naivePlain(part []member) bool {
	source, _ := members(last(part, "source"))
	kind, _ := textOf(last(source, "type"))
	return kind == "text"
}

// naiveChainNested writes JSON as text, but for the media in its lists.
func naiveChainNested(b *prefix.Builder, raw json.RawMessage) {
	from := 0
	see := func(part json.RawMessage, at int) {
		m, _ := members(part)
		if kind, _ := textOf(last(m, "type")); isMediaType(kind) && !naivePlain(m) {
			b.Text(raw[from:at])
			b.Media(prefix.Digest(part))
			from = at + len(part)
		}
	}
	next := func(d *json.Decoder) (value json.RawMessage, at int) {
		_ = d.Decode(&value)
		return value, int(d.InputOffset()) - len(value)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	_, _ = d.Token()
	for d.More() {
		name, _ := d.Token()
		value, at := next(d)
		switch {
		case (name == "content" || name == "output") && value[0] == '[':
			list := json.NewDecoder(bytes.NewReader(value))
			_, _ = list.Token()
			for list.More() {
				part, within := next(list)
				see(part, at+within)
			}
		case name == "output" && value[0] == '{':
			see(value, at)
		}
	}
	b.Text(raw[from:])
}

// checkChain holds the chain against the naive one.
func checkChain(t *testing.T, e Endpoint, body []byte) {
	t.Helper()
	r := mustScan(t, e, string(body))
	got, want := r.Chain(body, 2), naiveChain(e, body)
	got.Home = 0 // see TestB1_HomeIsWhatTurnsShare
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		t.Fatalf("%v %q:\n%s", e, body, diff)
	}
}

// FuzzChain holds the chain against a naive one.
func FuzzChain(f *testing.F) {
	fuzzScanned(f, checkChain)
}

// shared returns how many bytes of their prompts two bodies share.
func shared(t *testing.T, e Endpoint, a, b string) int {
	t.Helper()
	ra, rb := mustScan(t, e, a), mustScan(t, e, b)
	x := prefix.NewIndex(nil)
	slot := x.Slot(1 << 20)
	first, second := ra.Chain([]byte(a), 2), rb.Chain([]byte(b), 2)
	x.Record(slot, &first)
	matched := make([]int32, x.Slots())
	x.Match(&second, matched)
	return int(matched[slot])
}

// Home is what all turns of a conversation share. Two requests that differ there have other homes,
// so that they spread.
func TestB1_HomeIsWhatTurnsShare(t *testing.T) {
	t.Parallel()
	message := func(role, text string) string { return `{"role":"` + role + `","content":"` + text + `"}` }
	chat := func(messages ...string) string {
		return `{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`
	}
	system, one, two, three := message("system", "be brief"), message("user", "one"), message("user", "two"), message("user", "three")
	yes, field := message("assistant", "yes"), `{"role":"assistant","content":"yes","tool_calls":[{"id":"1"}]}`
	tools := func(body string) string { return `{"tools":[{"type":"function"}],` + body[1:] }
	responses := func(instructions, input string) string {
		return `{"model":"m","instructions":"` + instructions + `","input":"` + input + `"}`
	}
	for name, c := range map[string]struct {
		e            Endpoint
		userMessages int
		a, b         string
		same         bool
	}{
		"a later turn":                    {Chat, 2, chat(system, one, yes, two), chat(system, one, yes, two, yes, three), true},
		"a later turn with calls":         {Chat, 2, chat(system, one, field, two), chat(system, one, field, two, field, three), true},
		"the second turn":                 {Chat, 1, chat(system, one), chat(system, one, yes, two), true},
		"the same request":                {Chat, 2, chat(one), chat(one), true},
		"another second question":         {Chat, 2, chat(system, one, yes, two), chat(system, one, yes, three), false},
		"another first question":          {Chat, 2, chat(system, one), chat(system, two), false},
		"other instructions":              {Chat, 1, chat(one), chat(system, one), false},
		"tools":                           {Chat, 1, chat(one), tools(chat(one)), false},
		"a later turn with tools":         {Chat, 1, tools(chat(one)), tools(chat(one, yes, two)), true},
		"instructions alone":              {Chat, 0, chat(system, one), chat(system, two), true},
		"tools and no instructions":       {Chat, 0, tools(chat(one)), tools(chat(two)), false},
		"no instructions":                 {Chat, 0, chat(one), chat(two), false},
		"instructions behind a question":  {Chat, 0, chat(one, system), chat(one, system, two), true},
		"no message":                      {Chat, 0, chat(system), chat(system), true},
		"instructions of a response":      {Responses, 0, responses("be brief", "one"), responses("be brief", "two"), true},
		"another question of a response":  {Responses, 2, responses("be brief", "one"), responses("be brief", "two"), false},
		"a prompt":                        {Completions, 2, `{"model":"m","prompt":"one"}`, `{"model":"m","prompt":"one","n":2}`, true},
		"another prompt":                  {Completions, 2, `{"model":"m","prompt":"one"}`, `{"model":"m","prompt":"one two"}`, false},
		"the first of two lists of parts": {Chat, 1, chat(`{"role":"user","content":[{"type":"text","text":"one"}]}`, yes, two), chat(one), true},
	} {
		a, b := mustScan(t, c.e, c.a), mustScan(t, c.e, c.b)
		x, y := a.Chain([]byte(c.a), c.userMessages).Home, b.Chain([]byte(c.b), c.userMessages).Home
		if x == 0 || (x == y) != c.same {
			t.Errorf("%s: homes %x and %x", name, x, y)
		}
	}
}

// What two requests share is what a model reads at the beginning of both.
func TestB1_PromptsShareBeginnings(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a long beginning ", 60) // 1,020 bytes
	system := `{"role":"system","content":"` + long + `"}`
	chat := func(rest string) string { return `{"model":"m","messages":[` + rest + `]}` }
	tools := `"tools":[{"type":"function","function":{"name":"f"}}]` // 45 bytes of tools
	attributed := func(hash, rest string) string {
		return `{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: cch=` + hash + `;"},{"type":"text","text":"` + long + `"}],"messages":[` + rest + `]}`
	}
	image := func(url string) string {
		return `{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + url + `"}},{"type":"text","text":"what?"}]}`
	}
	for name, c := range map[string]struct {
		e    Endpoint
		a, b string
		want int
	}{
		"the same system prompt": {Chat, chat(system + `,{"role":"user","content":"one"}`), chat(system + `,{"role":"user","content":"two"}`), 1020},
		"inside of a user's message": {Chat, chat(`{"role":"user","content":"` + long + `one"}`),
			chat(`{"role":"user","content":"` + long + `another question"}`), 960},
		"the next turn": {Chat, chat(system + `,{"content":"one","role":"user"}`),
			chat(system + `,{"role":"user","content":"one"},{"role":"assistant","content":"yes"},{"role":"user","content":"two"}`), 1023},
		"a part is a text": {Chat, chat(system), chat(`{"role":"system","content":[{"type":"text","text":"` + long + `"}]}`), 1020},
		"tools before and after": {Chat, `{` + tools + `,"model":"m","messages":[` + system + `]}`,
			`{"model":"m","messages":[` + system + `],` + tools + `}`, 1065},
		"other tools":      {Chat, chat(system), `{"model":"m","messages":[` + system + `],` + tools + `}`, 0},
		"another role":     {Chat, chat(system), chat(`{"role":"user","content":"` + long + `"}`), 0},
		"the same image":   {Chat, chat(image("data:,x")), chat(image("data:,x")), 2053},
		"another image":    {Chat, chat(image("data:,x")), chat(image("data:,y")), 0},
		"the same salt":    {Chat, `{"cache_salt":"s","model":"m","messages":[` + system + `]}`, `{"model":"m","messages":[` + system + `],"cache_salt":"s"}`, 1020},
		"another salt":     {Chat, chat(system), `{"cache_salt":"s","model":"m","messages":[` + system + `]}`, 0},
		"no salt":          {Chat, chat(system), `{"cache_salt":null,"model":"m","messages":[` + system + `]}`, 1020},
		"other tool calls": {Chat, chat(system + `,{"role":"assistant","tool_calls":[{"id":"a"}]}`), chat(system + `,{"role":"assistant","tool_calls":[{"id":"b"}]}`), 1024},
		"no tool calls": {Chat, chat(system + `,{"role":"assistant","content":"x","tool_calls":null,"refusal":null}`),
			chat(system + `,{"role":"assistant","content":"x"}`), 1021},
		"fields that no template prints": {Chat, chat(`{"id":"1",` + system[1:]), chat(system), 1020},
		"a completion":                   {Completions, `{"model":"m","prompt":"` + long + `"}`, `{"model":"m","prompt":["` + long + `x","other"]}`, 960},
		"tokens": {Completions, `{"model":"m","prompt":[` + strings.Repeat("1,", 500) + `1]}`,
			`{"model":"m","prompt":[[` + strings.Repeat("1,", 500) + `2,3]]}`, 960},
		"a response": {Responses, `{"model":"m","input":"one","instructions":"` + long + `"}`, `{"model":"m","instructions":"` + long + `","input":"two"}`, 1020},
		"a string is a message": {Responses, `{"model":"m","input":"one","instructions":"` + long + `"}`,
			`{"model":"m","instructions":"` + long + `","input":[{"role":"user","content":"one"},{"type":"function_call","name":"f"}]}`, 1023},
		"another response before":              {Responses, `{"model":"m","input":"` + long + `"}`, `{"model":"m","input":"` + long + `","previous_response_id":"r"}`, 0},
		"another attribution":                  {Messages, attributed("1", `{"role":"user","content":"one"}`), attributed("22", `{"role":"user","content":"one"}`), 1023},
		"another prompt behind an attribution": {Messages, attributed(`1;\n`+long, ""), attributed(`1;\n`+strings.ToUpper(long), ""), 0},
		"embeddings have no cache": {Embeddings, `{"model":"m","input":"` + long + `","messages":[` + system + `]}`,
			`{"model":"m","input":"` + long + `","messages":[` + system + `]}`, 0},
	} {
		if got := shared(t, c.e, c.a, c.b); got != c.want {
			t.Errorf("%s: %d bytes shared, want %d", name, got, c.want)
		}
		if got := shared(t, c.e, c.b, c.a); got != c.want {
			t.Errorf("%s, the other way: %d bytes shared, want %d", name, got, c.want)
		}
	}
}

// The chain has the ends that it would have if the end of every message were computed.
func TestB1_EndsOfManyMessages(t *testing.T) {
	t.Parallel()
	messages := []string{`{"role":"user","content":"one text"}`, `{"role":"assistant","content":""}`, `{"role":"assistant"}`,
		`{"role":"user","content":[{"type":"text","text":"a part"}]}`, `{"role":"user","content":[]}`, `{"role":"system","content":"x"}`,
		`{"type":"item"}`, `{"role":"assistant","content":null,"tool_calls":[{"id":"a"}]}`, `{"role":"tool","content":"result","name":"f"}`}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var list []string
		for range rng.IntN(60) {
			list = append(list, messages[rng.IntN(len(messages))])
		}
		checkChain(t, Chat, []byte(`{"model":"m","messages":[`+strings.Join(list, ",")+`]}`))
	}
}

// A prompt of four bytes shares them with itself.
func TestB1_ShortPrompts(t *testing.T) {
	t.Parallel()
	body := `{"model":"m","messages":[{"role":"user","content":"four"}]}`
	if got := shared(t, Chat, body, body); got != 4 {
		t.Errorf("%d bytes shared", got)
	}
}

// Messages beyond those that are kept one by one are one text, and the beginning stays.
func TestB1_ManyMessages(t *testing.T) {
	t.Parallel()
	of := func(n int, end string) string {
		var b strings.Builder
		b.WriteString(`{"messages":[`)
		for i := range n {
			fmt.Fprintf(&b, `{"role":"assistant","content":"%010d"},`, i)
		}
		return b.String() + `{"role":"user","content":"` + end + `"}],"model":"m"}`
	}
	if got := shared(t, Chat, of(maxMessages-1, "one"), of(maxMessages-1, "two")); got != 10*(maxMessages-1) {
		t.Errorf("%d bytes shared", got)
	}
	if got := shared(t, Chat, of(2*maxMessages, "one"), of(2*maxMessages, "two")); got < 10*maxMessages+40*maxMessages*9/10 {
		t.Errorf("%d bytes shared of what is one text", got)
	}
}

// A small body of very many messages or parts uses little memory.
func TestB1_ManySmallPiecesUseLittleMemory(t *testing.T) {
	for name, body := range map[string]string{
		"messages": `{"model":"m","messages":[` + strings.Repeat(`{},`, 1<<20) + `{}]}`,
		"fields":   `{"model":"m","messages":[` + strings.Repeat(`{"role":"x","name":1,"name":1,"name":1,"name":1,"name":1,"name":1},`, 1<<17) + `{}]}`,
		"parts":    `{"model":"m","messages":[{"role":"user","content":[` + strings.Repeat(`{},`, 1<<20) + `{}]}]}`,
	} {
		data := []byte(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, fault := Scan(Chat, jsonType, data)
		if fault != nil {
			t.Fatal(fault)
		}
		chain := r.Chain(data, 2)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 || used > uint64(len(body)) {
			t.Errorf("%s: %d bytes of memory for a body of %d bytes", name, used, len(body))
		}
		if len(chain.Blocks) == 0 {
			t.Errorf("%s: the chain is empty", name)
		}
	}
}

// Names for routing that no engine would accept are no faults here.
func TestB2_NamesOfSessions(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for value, want := range map[string]string{
		`"k"`: "k", `"\u006b"`: "k", `"` + long + `"`: long, `"` + long + `x"`: "", `""`: "", `null`: "", `7`: "", `{"a":[]}`: "",
		`"\ud83d"`: "", `"a\nb"`: "",
	} {
		r := mustScan(t, Responses, `{"model":"m","prompt_cache_key":`+value+`,"previous_response_id":`+value+`}`)
		if r.PromptCacheKey != want || r.PreviousResponseID != want {
			t.Errorf("%s is read as %q and %q, want %q", value, r.PromptCacheKey, r.PreviousResponseID, want)
		}
	}
	if r := mustScan(t, Chat, `{"model":"m","prompt_cache_key":"k","previous_response_id":"r"}`); r.PromptCacheKey != "k" || r.PreviousResponseID != "" {
		t.Errorf("a chat has the key %q and follows %q", r.PromptCacheKey, r.PreviousResponseID)
	}
	if r := mustScan(t, Embeddings, `{"model":"m","prompt_cache_key":"k"}`); r.PromptCacheKey != "" {
		t.Errorf("embeddings have the key %q", r.PromptCacheKey)
	}
}
