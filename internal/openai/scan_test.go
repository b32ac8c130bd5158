package openai

import (
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const jsonType = "application/json"

func mustScan(t testing.TB, e Endpoint, body string) Request {
	t.Helper()
	r, fault := Scan(e, jsonType, []byte(body))
	if fault != nil {
		t.Fatalf("%v %.200q: %v", e, body, fault)
	}
	return r
}

func TestScanFields(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("m", maxModel)
	for _, c := range []struct {
		name string
		body string
		want Request
	}{
		{"only a model", `{"model":"m"}`, Request{Model: "m"}},
		{"white space", " \t\r\n{ \"model\" :\t\"m\"\r\n,\n\"stream\" : true } \n", Request{Model: "m", Stream: true}},
		{"escaped names and values", `{"\u006d\u006Fdel":"\u00e9\ud83d\ude00\/\"","str\u0065am":true}`,
			Request{Model: "é😀/\"", Stream: true}},
		{"longest model", `{"model":"` + long + `"}`, Request{Model: long}},
		{"longest model in escapes", `{"model":"` + strings.Repeat(`\u006d`, maxModel) + `"}`, Request{Model: long}},
		{"not streamed", `{"model":"m","stream":false}`, Request{Model: "m"}},
		{"nulls", `{"model":"m","stream":null,"n":null,"max_tokens":null,"stream_options":null,"request_id":null,` +
			`"timeout_ms":null,"max_duration_ms":null}`, Request{Model: "m"}},
		{"usage", `{"model":"m","stream_options":{"x":[{}],"include_usage":true}}`, Request{Model: "m", IncludeUsage: true}},
		{"no usage", `{"model":"m","stream_options":{"include_usage":null}}`, Request{Model: "m"}},
		{"no stream options", `{"model":"m","stream_options":{}}`, Request{Model: "m"}},
		{"bounds of the output", `{"model":"m","max_tokens":7,"max_completion_tokens":9,"n":3}`,
			Request{Model: "m", MaxTokens: 9, Choices: 3}},
		{"bounds of the output, reversed", `{"model":"m","max_completion_tokens":9,"max_tokens":7}`,
			Request{Model: "m", MaxTokens: 9}},
		{"bound of a response", `{"model":"m","max_output_tokens":2147483647}`, Request{Model: "m", MaxTokens: 2147483647}},
		{"own options", `{"request_id":"a-1","timeout_ms":1500,"model":"m","max_duration_ms":86400000}`,
			Request{Model: "m", RequestID: "a-1", Timeout: 1500 * time.Millisecond, MaxDuration: 24 * time.Hour}},
		{"zero", `{"model":"m","timeout_ms":0,"max_tokens":0}`, Request{Model: "m"}},
		{"same names further in", `{"model":"m","x":{"model":1,"model":2,"stream":"no"},"tools":[{"function":{"model":"other"}}]}`,
			Request{Model: "m"}},
		{"names that are near", `{"models":"x","mode":1,"model":"m","streams":7,"User":"u"}`, Request{Model: "m", Guarded: NewGuards([]string{"models"})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, e := range []Endpoint{Chat, Completions, Responses} {
				want := c.want
				want.Endpoint, want.Size = e, len(c.body)
				if diff := cmp.Diff(want, mustScan(t, e, c.body), cmpopts.IgnoreUnexported(Request{})); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// Endpoints that generate nothing have no such options; whatever is there is the engine's affair.
func TestScanOtherEndpoints(t *testing.T) {
	t.Parallel()
	const body = `{"model":"m","max_tokens":"many","n":{},"stream_options":1,"messages":1,"input":[1,2],"stream":true,"timeout_ms":5}`
	for _, e := range []Endpoint{Embeddings, Rerank, Score} {
		want := Request{Endpoint: e, Model: "m", Stream: true, Timeout: 5 * time.Millisecond, Size: len(body)}
		if diff := cmp.Diff(want, mustScan(t, e, body), cmpopts.IgnoreUnexported(Request{})); diff != "" {
			t.Error(diff)
		}
	}
}

func TestScanFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, param, message string }{
		{``, "", "The request body is empty."},
		{" \n", "", "The request body is empty."},
		{`[]`, "", "The request body must be a JSON object."},
		{`"model"`, "", "The request body must be a JSON object."},
		{"\ufeff{}", "", "The request body begins with a byte order mark, which JSON does not allow."},
		{`{"model":""}`, "model", "model must not be empty."},
		{`{"model":null}`, "model", "model must be a string."},
		{`{"model":["m"]}`, "model", "model must be a string."},
		{`{"model":7}`, "model", "model must be a string."},
		{`{"model":"` + strings.Repeat("m", maxModel+1) + `"}`, "model", "model is too long."},
		{`{"model":"` + strings.Repeat(`\u006d`, maxModel+1) + `"}`, "model", "model is too long."},
		{`{"model":"a\nb"}`, "model", "model must not hold control characters."},
		{`{"model":"a\u007fb"}`, "model", "model must not hold control characters."},
		{`{"model":"a\ud800"}`, "model", "model must be valid Unicode."},
		{`{"model":"m","model":"m"}`, "model", "The request body has the same field twice, the second time at byte 13."},
		{`{"model":"m","mod\u0065l":"n"}`, "model", "The request body has the same field twice, the second time at byte 13."},
		{`{"x":1,"model":"m", "x":1}`, "", "The request body has the same field twice, the second time at byte 20."},
		{`{"\u0000":1,"model":"m","\u0000":1}`, "", "The request body has the same field twice, the second time at byte 24."},
		{`{"model":"m","stream":1}`, "stream", "stream must be a boolean."},
		{`{"model":"m","stream":"true"}`, "stream", "stream must be a boolean."},
		{`{"model":"m","stream_options":[]}`, "stream_options", "stream_options must be an object."},
		{`{"model":"m","stream_options":{"include_usage":1}}`, "stream_options.include_usage",
			"stream_options.include_usage must be a boolean."},
		{`{"model":"m","max_tokens":-2}`, "max_tokens", "max_tokens must be an integer of 0 or more, or -1 for no limit."},
		{`{"model":"m","max_tokens":1.5}`, "max_tokens", "max_tokens must be an integer of 0 or more, or -1 for no limit."},
		{`{"model":"m","max_tokens":-0.5}`, "max_tokens", "max_tokens must be an integer of 0 or more, or -1 for no limit."},
		{`{"model":"m","max_tokens":1e400}`, "max_tokens", "max_tokens is too large."},
		{`{"model":"m","max_tokens":1e-1}`, "max_tokens", "max_tokens must be an integer of 0 or more, or -1 for no limit."},
		{`{"model":"m","max_tokens":"1"}`, "max_tokens", "max_tokens must be an integer of 0 or more, or -1 for no limit."},
		{`{"model":"m","n":-1}`, "n", "n must be an integer of 0 or more."},
		{`{"model":"m","n":1.5}`, "n", "n must be an integer of 0 or more."},
		{`{"model":"m","max_completion_tokens":2147483648}`, "max_completion_tokens", "max_completion_tokens is too large."},
		{`{"model":"m","max_output_tokens":18446744073709551617}`, "max_output_tokens", "max_output_tokens is too large."},
		{`{"model":"m","n":true}`, "n", "n must be an integer of 0 or more."},
		{`{"model":"m","timeout_ms":86400001}`, "timeout_ms", "timeout_ms is too large."},
		{`{"model":"m","max_duration_ms":-5}`, "max_duration_ms", "max_duration_ms must be an integer of 0 or more."},
		{`{"model":"m","request_id":5}`, "request_id", "request_id must be a string."},
		{`{"model":"m","request_id":""}`, "request_id", "request_id must not be empty."},
		{`{"model":"m","request_id":"."}`, "request_id", "request_id must not be one dot or two dots."},
		{`{"model":"m","request_id":"\u002e."}`, "request_id", "request_id must not be one dot or two dots."},
		{`{"model":"m","request_id":"` + strings.Repeat("i", maxRequestID+1) + `"}`, "request_id", "request_id is too long."},
		{`{"model":"m","request_id":"a\r\nb"}`, "request_id", "request_id must not hold control characters."},
		{`{` + manyFields(maxFields) + `"model":"m"}`, "", "The request body has more than 256 fields."},
	} {
		r, fault := Scan(Chat, jsonType, []byte(c.body))
		if fault == nil {
			t.Errorf("%.80q was taken: %+v", c.body, r)
			continue
		}
		want := &Error{Code: CodeInvalidRequest, Message: c.message, Param: c.param}
		if diff := cmp.Diff(want, fault); diff != "" {
			t.Errorf("%.80q:\n%s", c.body, diff)
		}
	}
	mustScan(t, Chat, `{`+manyFields(maxFields-1)+`"model":"m"}`)
}

// manyFields is n members with a comma behind each.
func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"` + strings.Repeat("k", i) + `":0,`)
	}
	return b.String()
}

func TestScanTooLarge(t *testing.T) {
	t.Parallel()
	body, err := syscall.Mmap(-1, 0, maxSize+1, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON) // takes no memory
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(body)
	_, fault := Scan(Chat, jsonType, body)
	if fault == nil || fault.Code != CodeRequestTooLarge || fault.HTTPStatus() != 413 {
		t.Errorf("fault: %v", fault)
	}
}

// No error shows what the client wrote.
func TestFaultsKeepSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"` + secret,
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `\q"}]}`,
		`{"model":"m","messages":[` + secret + `]}`,
		`{"model":"m","` + secret + `":1,"` + secret + `":2}`,
		`{"model":["` + secret + `"]}`,
		`{"model":"` + secret + strings.Repeat("x", maxModel) + `"}`,
		`{"model":"m","stream":"` + secret + `"}`,
		`{"model":"m","request_id":"` + secret + `\n"}`,
		`{"model":"m"} ` + secret,
		secret,
	} {
		if _, fault := Scan(Chat, jsonType, []byte(body)); fault == nil || strings.Contains(string(fault.Body()), secret) {
			t.Errorf("%q: %v", body, fault)
		}
	}
}

func TestPromptBytes(t *testing.T) {
	t.Parallel()
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 9000) + `"}}`
	for _, c := range []struct {
		endpoint      Endpoint
		before, after string
		media         string
	}{
		{Chat, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, ``, ``},
		{Chat, `{"model":"m","messages":[{"content":[{"text":"hello","type":"text"},`, `],"role":"user"}]}`, image},
		{Chat, `{"model":"m","messages":[{"content":[`, `],"role":"tool"}]}`, image},
		{Responses, `{"input":[{"role":"user","content":[`, `,{"type":"input_text","text":"hello"}]}],"model":"m"}`,
			`{"type":"input_image","image_url":"data:AAAA"}`},
		{Embeddings, `{"model":"m","input":"hello"}`, ``, ``},
	} {
		body := c.before + c.media + c.after
		r := mustScan(t, c.endpoint, body)
		if got, want := r.PromptBytes(), len(c.before+c.after); got != want {
			t.Errorf("%v %.100s: %d bytes of prompt; want %d of %d", c.endpoint, body, got, want, len(body))
		}
	}
}

// The whole way of a request of the usual kind costs two allocations: the model's name and the list
// of messages.
func TestAllocations(t *testing.T) {
	body := chatOf(900, prose)
	const most = 2
	got := testing.AllocsPerRun(100, func() {
		r, fault := Scan(Chat, jsonType, body)
		if fault != nil {
			t.Fatal(fault)
		}
		r.CacheKey(body, 2)
		if _, changed := r.Strip(body); changed {
			t.Fatal("changed")
		}
	})
	if got > most {
		t.Errorf("%v allocations; want at most %d", got, most)
	}
}

// TestX14_WholeNumbers: numbers that clients send and engines accept are accepted.
func TestX14_WholeNumbers(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]Request{
		`"max_tokens":-1`: {}, `"max_tokens":-1.0`: {}, `"max_tokens":-1e0`: {}, `"max_tokens":0`: {}, `"max_tokens":-0.0`: {},
		`"max_tokens":1.0`: {MaxTokens: 1}, `"max_tokens":1e3`: {MaxTokens: 1000}, `"max_tokens":1.5E1`: {MaxTokens: 15},
		`"max_completion_tokens":20.000`: {MaxTokens: 20}, `"max_output_tokens":2147483647.0`: {MaxTokens: 2147483647},
		`"max_tokens":5,"max_completion_tokens":-1`: {}, `"max_tokens":-1,"max_completion_tokens":5`: {},
		`"max_tokens":1,"n_predict":50`: {MaxTokens: 50}, `"max_tokens":1,"n_predict":-1`: {}, // llama.cpp obeys n_predict
		`"n":2.0`: {Choices: 2}, `"timeout_ms":1500.0`: {Timeout: 1500 * time.Millisecond}, `"max_duration_ms":2e3`: {MaxDuration: 2 * time.Second},
	} {
		r, fault := Scan(Chat, jsonType, []byte(`{"model":"m",`+fields+`}`))
		if fault != nil {
			t.Errorf("%s: %s", fields, fault.Message)
		}
		got := Request{MaxTokens: r.MaxTokens, Choices: r.Choices, Timeout: r.Timeout, MaxDuration: r.MaxDuration}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", fields, got, want)
		}
	}
	for value, want := range map[string]time.Duration{"1500": 1500, "1500.0": 1500, "1.5e3": 1500, "007": 7} {
		r, fault := Scan(Transcriptions, formType, []byte(formOf(`"model"=w`, `"timeout_ms"=`+value)))
		if fault != nil || r.Timeout != want*time.Millisecond {
			t.Errorf("form %s: %v, %v", value, r.Timeout, fault)
		}
	}
	for _, value := range []string{"inf", "nan", "0x10", "1_000", "+1", ".5", "-1", "1e", "1 "} {
		if _, fault := Scan(Transcriptions, formType, []byte(formOf(`"model"=w`, `"timeout_ms"=`+value))); fault == nil {
			t.Errorf("form %s is accepted", value)
		}
	}
}
