package openai

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// keyOf frames the texts as the documentation says.
func keyOf(texts ...string) uint64 {
	var key []byte
	for _, text := range texts {
		key = binary.BigEndian.AppendUint64(key, uint64(len(text)))
		key = append(key, text...)
	}
	return xxhash.Sum64(key)
}

// The framing to the byte, worked out by hand, so that any other implementation can be held against
// it.
func TestCacheKeyVector(t *testing.T) {
	t.Parallel()
	body := []byte(`{"model":"m","messages":[{"role":"system","content":"sys"},{"role":"user","content":"a\u00e9"}]}`)
	r := mustScan(t, Chat, string(body))
	want := xxhash.Sum64String("\x00\x00\x00\x00\x00\x00\x00\x03sys\x00\x00\x00\x00\x00\x00\x00\x03a\xc3\xa9")
	if got := r.CacheKey(body, 2); got != want || got != 0x6c1d31123e41a222 {
		t.Errorf("key %#x; want %#x", got, want)
	}
}

func TestCacheKey(t *testing.T) {
	t.Parallel()
	const whole = "the raw body"
	for _, c := range []struct {
		name     string
		endpoint Endpoint
		body     string
		n        int
		texts    []string // nil: the raw body
	}{
		{"first two of three", Chat, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"1"},
			{"role":"assistant","content":"x"},{"role":"user","content":"2"},{"role":"user","content":"3"}],"model":"m"}`, 2, []string{"s", "1", "2"}},
		{"more asked for than there are", Chat, `{"model":"m","messages":[{"role":"user","content":"1"}]}`, 9, []string{"1"}},
		{"system comes first wherever it stands", Chat, `{"model":"m","messages":[{"role":"user","content":"1"},
			{"role":"developer","content":"d"},{"role":"user","content":"2"},{"role":"system","content":"s"}]}`, 1, []string{"d", "s", "1"}},
		{"no user messages", Chat, `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"1"}]}`, 0, []string{"s"}},
		{"content before role", Chat, `{"model":"m","messages":[{"content":"1","x":{"role":"system"},"role":"user"}]}`, 2, []string{"1"}},
		{"escapes", Chat, `{"model":"m","messages":[{"r\u006fle":"us\u0065r","\u0063ontent":"\u0061\n\"\ud83d\ude00\ud800 é"}]}`, 2,
			[]string{"a\n\"😀\ufffd é"}},
		{"no content, null and empty", Chat, `{"model":"m","messages":[{"role":"system"},{"role":"user","content":null},
			{"role":"user","content":""},{"role":"user","content":"late"}]}`, 2, []string{"", "", ""}},
		{"other content", Chat, `{"model":"m","messages":[{"role":"user","content":{"a": 1}},{"role":"user","content":12.50}]}`, 2,
			[]string{`{"a": 1}`, `12.50`}},
		{"parts", Chat, `{"model":"m","messages":[{"role":"user","content":[ {"type":"text","text":"a\t"} , {"text":"b","type":"text"},
			{"type":"image_url", "image_url":{"url":"data:x"}},"bare",7, {"type":"te\u0078t","text":"c"} ]}]}`, 2,
			[]string{"a\tb" + `{"type":"image_url", "image_url":{"url":"data:x"}}"bare"7` + "c"}},
		{"parts that only look like text", Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":null},
			{"type":"x","text":"a"},{"text":"b"},{"type":["text"],"text":"c"},{"type":"text"}]}]}`, 2,
			[]string{`{"type":"text","text":null}{"type":"x","text":"a"}{"text":"b"}{"type":["text"],"text":"c"}{"type":"text"}`}},
		{"parts where the last of two counts", Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a","text":null},
			{"type":"text","type":7,"text":"b"},{"type":"x","type":"text","text":1,"text":"c"}]}]}`, 2,
			[]string{`{"type":"text","text":"a","text":null}{"type":"text","type":7,"text":"b"}c`}},
		{"no parts", Chat, `{"model":"m","messages":[{"role":"user","content":[]}]}`, 2, []string{""}},
		{"the last of two counts", Chat, `{"model":"m","messages":[{"role":"system","role":"user","content":["x"],"content":"1"}]}`, 1, []string{"1"}},
		{"same names further in", Chat, `{"model":"m","x":{"messages":[{"role":"user","content":"no"}]},"messages":[{"role":"user","content":"1",
			"tool_calls":[{"role":"user","content":"no"}]},[{"role":"user","content":"no"}],null,"user"]}`, 2, []string{"1"}},
		{"nothing to take", Chat, `{"model":"m","messages":[{"role":"assistant","content":"x"}]}`, 2, nil},
		{"no messages", Chat, `{"model":"m","messages":{"role":"user"}}`, 2, nil},
		{"input", Responses, `{"model":"m","input":"a\n"}`, 2, []string{"a\n"}},
		{"instructions and input", Responses, `{"model":"m","input":"a","instructions":"i"}`, 2, []string{"i", "a"}},
		{"instructions alone", Responses, `{"model":"m","input":"a","instructions":"i"}`, 0, []string{"i"}},
		{"no instructions", Responses, `{"model":"m","input":"a","instructions":null}`, 2, []string{"a"}},
		{"items", Responses, `{"model":"m","instructions":"i","input":[{"role":"developer","content":"d"},{"role":"user","content":"1"},
			{"type":"function_call_output","output":"x"},{"type":"message","role":"user","content":[{"type":"input_text","text":"2"},
			{"type":"input_image","image_url":"u"}]},{"role":"user","content":"3"}]}`, 2,
			[]string{"i", "1", `2{"type":"input_image","image_url":"u"}`}},
		{"a response has no messages", Responses, `{"model":"m","messages":[{"role":"user","content":"1"}]}`, 2, nil},
		{"a chat has no input", Chat, `{"model":"m","input":"a","instructions":"i"}`, 2, nil},
		{"prompt", Completions, `{"model":"m","prompt":"p","messages":[{"role":"user","content":"1"}]}`, 2, nil},
		{"embedding", Embeddings, `{"model":"m","input":"a"}`, 2, nil},
		{"rerank", Rerank, `{"model":"m","query":"a"}`, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := mustScan(t, c.endpoint, c.body)
			want, of := xxhash.Sum64String(c.body), whole
			if c.texts != nil {
				want, of = keyOf(c.texts...), fmt.Sprintf("%q", c.texts)
			}
			if got := r.CacheKey([]byte(c.body), c.n); got != want {
				t.Errorf("key %#x; want %#x, of %s; naive texts: %q", got, want, of, naiveTexts(c.endpoint, []byte(c.body), c.n))
			}
			if naive := naiveKey(c.endpoint, []byte(c.body), c.n); naive != want {
				t.Errorf("the naive key is %#x; want %#x", naive, want)
			}
		})
	}
}

// What the key must not see: how the JSON is written, and what comes behind the messages that
// count.
func TestCacheKeyStable(t *testing.T) {
	t.Parallel()
	key := func(body string) uint64 {
		r := mustScan(t, Chat, body)
		return r.CacheKey([]byte(body), 1)
	}
	want := key(`{"model":"m","messages":[{"role":"user","content":"grüße\n"}]}`)
	for _, body := range []string{
		`{ "messages" : [ { "content" : "gr\u00fc\u00dfe\u000a" , "role" : "user" } ] , "model" : "m" }`,
		`{"model":"other","stream":true,"messages":[{"role":"user","content":"grüße\n","name":"x"},{"role":"assistant","content":"y"}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"grüße"},{"type":"text","text":"\n"}]}]}`,
	} {
		if got := key(body); got != want {
			t.Errorf("%s: key %#x; want %#x", body, got, want)
		}
	}
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"system","content":"grüße\n"},{"role":"user","content":""}]}`,
		`{"model":"m","messages":[{"role":"user","content":"grüße"}]}`,
	} {
		if got := key(body); got == want {
			t.Errorf("%s has the same key", body)
		}
	}
}

// A long text goes past the buffer of the hash, and many parts past those that are remembered.
func TestCacheKeyLong(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		`"` + strings.Repeat("a", 255) + `"`, `"` + strings.Repeat("a", 256) + `"`, `"` + strings.Repeat("a", 257) + `"`,
		`"` + strings.Repeat(`ab\n`, 1000) + `"`, `"` + strings.Repeat("x", 250) + `\n` + strings.Repeat("y", 5000) + `\n"`,
		`[` + strings.Repeat(`{"type":"text","text":"ab\t"},`, 7) + `"x"]`,
		`[` + strings.Repeat(`{"type":"text","text":"ab\t"},`, 8) + `"x"]`,
		`[` + strings.Repeat(`{"type":"text","text":"ab\t"},1,`, 500) + `"x"]`,
	} {
		body := `{"model":"m","messages":[{"role":"user","content":` + content + `}]}`
		r := mustScan(t, Chat, body)
		if got, want := r.CacheKey([]byte(body), 2), naiveKey(Chat, []byte(body), 2); got != want {
			t.Errorf("%.80s…: key %#x; want %#x", body, got, want)
		}
	}
}

// 100,000 messages, and any number of them may be asked for.
func TestManyMessages(t *testing.T) {
	t.Parallel()
	const count = 100_000
	text := strings.Repeat("word ", 60)
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"system","content":"s"}`)
	for i := range count {
		fmt.Fprintf(&b, `,{"role":"user","content":"%d %s"}`, i, text)
	}
	b.WriteString(`]}`)
	body := b.String()
	r := mustScan(t, Chat, body)
	for _, n := range []int{0, 1, 1000, count, count + 1} {
		texts := []string{"s"}
		for i := range min(n, count) {
			texts = append(texts, fmt.Sprint(i, " ", text))
		}
		if got, want := r.CacheKey([]byte(body), n), keyOf(texts...); got != want {
			t.Errorf("%d messages of %d bytes: key %#x; want %#x", n, len(body), got, want)
		}
	}
}

// A long text is hashed piece by piece, and has the key that it would have otherwise.
func TestCacheKeyOfLongTexts(t *testing.T) {
	t.Parallel()
	const piece = `a \"word\"\n\ud83d\ude00 `
	for _, size := range []int{maxGathered / 2, 2 * maxGathered} {
		long := strings.Repeat(piece, size/len(piece))
		for _, content := range []string{
			`"` + long + `"`, `[{"type":"text","text":"` + long + `"},{"type":"image_url"},{"type":"text","text":"b\n"}]`,
			`[` + strings.Repeat(`{"type":"text","text":"a\n"},`, size/30) + `"end"]`,
		} {
			body := []byte(`{"model":"m","messages":[{"role":"user","content":` + content + `}]}`)
			r := mustScan(t, Chat, string(body))
			if got, want := r.CacheKey(body, 2), naiveKey(Chat, body, 2); got != want {
				t.Errorf("%d bytes: key %#x; want %#x", len(body), got, want)
			}
		}
	}
}
