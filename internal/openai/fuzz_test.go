package openai

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seeds are bodies from which fuzzing starts: one for every rule.
var seeds = []string{
	`{"model":"m"}`,
	`{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a\n\u00e9"}],"stream":true}`,
	`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
	`{"model":"m","messages":[{"content":null,"role":"developer"},{"role":"user"},[],7,"x"],"n":2,"max_tokens":5}`,
	`{"model":"m","instructions":"i","input":[{"role":"user","content":[{"type":"input_text","text":"t"}]}]}`,
	`{"model":"m","input":"one \ud83d\ude00 \ud83d","max_output_tokens":12}`,
	`{"request_id":"r","model":"m","timeout_ms":5 , "max_duration_ms":6}`,
	`{ "mod\u0065l" : "m\u0041" , "timeout_ms":null,"x":[1.5e-3,-0,true,false,null,{"y":{}}] }`,
	`{"model":"m","model":"n"}`,
	`{"model":"m","stream_options":{"include_usage":true,"include_usage":null}}`,
	`{"model":"é€😀 a longer text, so that eight bytes at once are tried","x":"` + "\x7f" + `"}`,
	`{"model":"m","x":01}`, `{"model":"m","x":"\q"}`, `{"model":"m"}}`, "{\"model\":\"\xff\"}", `[`, ``, `{"model":1}`,
	`{"model":"m","x":[[[[[[{"a":[{}]}]]]]]],"stream":null,"stream_options":null}`,
	`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1"}],"name":null},{"role":"tool","tool_call_id":"1","content":"c"}],"tools":[{}]}`,
	`{"model":"m","input":[{"type":"function_call","name":"f"}],"previous_response_id":"r","prompt_cache_key":"k","cache_salt":"s"}`,
	`{"model":"m","messages":[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": null},` +
		`{"role":"assistant","content":["p"],"role":"tool"},{"role":"user","content":}]}`,
	`{"model":"m","messages":[{"role": "user", "content": "u"},{"role":"assistant","content":"b","name":"n"},{"role":"system","content":"c"},` +
		`{"role": "assistant", "content":  [{"type":"text","text":"d"}]}, {"role": "system", "content": "e", "content": "f" }]}`,
	`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64"}},{}]},` +
		`{"type":"document","source":{"type":"text","data":"d"}},{"type":"tool_result","content":"c"}]}]}`,
	`{"model":"m","input":[{"output":[{"type":"input_image"},{"type":"input_text","text":"t"},{"stdout":"o"}]},{"output":{"type":"computer_screenshot"}}]}`,
	`{"model":"m","google":{"cachedContent":"c"},"cachedcontent":"c"}`, `{"model":"m","prompt":["a",[1,2],3],"functions":[]}`, `{"model":"m","prompt":[1,2,3]}`, `{"model":"m","prompt":"p
","cache_salt":null}`,
}

func addSeeds(f *testing.F) {
	for _, body := range seeds {
		for _, e := range []Endpoint{Chat, Completions, Responses, Embeddings} {
			f.Add(uint8(e), []byte(body))
		}
	}
}

// FuzzScan holds Scan against the rules as they read on encoding/json: the same bodies are taken,
// with the same result.
func FuzzScan(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, endpoint uint8, body []byte) {
		checkScan(t, Endpoint(endpoint%uint8(Transcriptions)), body)
	})
}

func checkScan(t *testing.T, e Endpoint, body []byte) (taken bool) {
	t.Helper()
	got, fault := Scan(e, jsonType, body)
	want, ok := naiveScan(e, body)
	if (fault == nil) != ok {
		t.Fatalf("%v %q: %v; want it taken: %v", e, body, fault, ok)
	}
	if fault != nil {
		if fault.Code != CodeInvalidRequest || fault.Message == "" || fault.HTTPStatus() != 400 {
			t.Fatalf("%v %q: %+v", e, body, fault)
		}
		return false
	}
	// The naive scan reads neither parts nor what is inside of these fields.
	inside := NewGuards([]string{localMedia, storedFile, hostedTools, extraBody, pluginsField, nvext, providerOptions, compoundCustom})
	got.Guarded &^= inside
	want.Guarded &^= inside
	got.MediaURLs = nil
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Request{})); diff != "" {
		t.Fatalf("%v %q:\n%s", e, body, diff)
	}
	if p := got.PromptBytes(); p < 0 || p > len(body) {
		t.Fatalf("%v %q: %d bytes of prompt", e, body, p)
	}
	return true
}

// fuzzScanned checks each body that Scan accepts.
func fuzzScanned(f *testing.F, check func(t *testing.T, e Endpoint, body []byte)) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, endpoint uint8, body []byte) {
		e := Endpoint(endpoint % uint8(Transcriptions))
		if _, fault := Scan(e, jsonType, body); fault == nil {
			check(t, e, body)
		}
	})
}

// FuzzStrip: what is left is the same members, but for Sluice's own, and no other byte is gone.
func FuzzStrip(f *testing.F) {
	fuzzScanned(f, checkStrip)
}

// FuzzCacheKey holds the key against a naive one.
func FuzzCacheKey(f *testing.F) {
	fuzzScanned(f, checkKey)
}

func checkKey(t *testing.T, e Endpoint, body []byte) {
	t.Helper()
	r := mustScan(t, e, string(body))
	for _, n := range []int{-1, 0, 1, 2, 5} {
		if got, want := r.CacheKey(body, n), naiveKey(e, body, n); got != want {
			t.Fatalf("%v %q, %d messages: key %#x; want %#x, of %q", e, body, n, got, want, naiveTexts(e, body, n))
		}
	}
}

// TestMutants is a small fuzzing in every run: the seeds, with pieces taken out, put in and
// overwritten.
func TestMutants(t *testing.T) {
	t.Parallel()
	pieces := []string{`{`, `}`, `[`, `]`, `,`, `:`, `"`, `\`, ` `, `"model":"m",`, `"role":"user",`, `"content":["a"],`, `"content":"b\n",`, `null`,
		`"request_id":"i",`, `,"timeout_ms":1`, `\u0061`, `\ud83d`, `é`, `€`, "\xe2", "\x01", `0`, `-1`, `1e5`, `"text":"x",`, `{"role":"system"},`, `true`, `"tools":[1],`, `"cache_salt":"s",`,
		`"prompt_cache_key":"k",`, `"previous_response_id":7,`, `"tool_calls":[],`, `"type":"image_url",`}
	rng := rand.New(rand.NewPCG(7, 8))
	taken := 0
	for range 20000 {
		body := []byte(seeds[rng.IntN(len(seeds))])
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(body) + 1)
			gone := min(rng.IntN(3)*rng.IntN(4), len(body)-at)
			body = slices.Replace(body, at, at+gone, []byte(pieces[rng.IntN(len(pieces))])...)
		}
		if e := Endpoint(rng.IntN(int(Transcriptions))); checkScan(t, e, body) {
			taken++
			checkStrip(t, e, body)
			checkKey(t, e, body)
			checkChain(t, e, body)
		}
	}
	if taken < 1000 { // else nothing was tested
		t.Errorf("only %d bodies were valid", taken)
	}
}

// FuzzForm: a form that is taken is read in the same way by mime/multipart.
func FuzzForm(f *testing.F) {
	for _, body := range []string{
		formOf(`"model"=w`), formOf(`"file"; filename="a.wav"=RIFF`, `"model"=w`, `"stream"=true`), "--x--", "",
		formOf(`"request_id"=a`, `"timeout_ms"=1`, `model=w`, `"max_duration_ms"=2`, `"prompt"=p`),
		formOf(`"file"; filename*=UTF-8''a; filename="b\"c\\d"`+"=\r\n-", `"model"=w`),
		"--x\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; name=model\r\n\r\nw\r\n--x--\r\n",
		"--x\r\nContent-Disposition: form-data; name=model\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=77\r\n--x--\r\n",
		"--x\nContent-Disposition: form-data; name=model\n\nw\n--x--\n",
		"--x\r\nContent-Disposition: form-data; name=model\r\n\r\n--x\r\n\r\n--x--\r\n",
	} {
		f.Add(formType, []byte(body))
	}
	f.Add("multipart/form-data; boundary=\"a b\"; charset=utf-8", []byte("--a b\r\n"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		if r, fault := Scan(Transcriptions, contentType, body); fault == nil {
			checkForm(t, contentType, body, r)
		}
	})
}
