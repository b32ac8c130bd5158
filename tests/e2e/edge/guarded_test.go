package edge

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X14_HeadersForOtherGateways sends the headers by which a client would choose the
// provider, the host or the account at a gateway behind an upstream. The upstream gets those of the
// file alone.
func TestE2E_X14_HeadersForOtherGateways(t *testing.T) {
	t.Parallel()
	var served atomic.Pointer[http.Header]
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "managed") {
			return
		}
		served.Store(new(r.Header))
		w.Header().Set("content-type", "application/json")
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`)
	})
	g := harness.Start(t, fmt.Sprintf(`
auth: {mode: none}
models:
  - {name: native, launcher: upstream, upstreams: [{url: "%[1]s", headers: {x-portkey-config: own}}], stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: [{url: "%[1]s", headers: {x-portkey-config: own}}], stream: {mode: managed}}
`, upstream))
	for _, model := range []string{"native", "managed"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+"/v1/chat/completions",
			strings.NewReader(`{"model":"`+model+`","messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"x-portkey-config", "x-portkey-custom-host", "cf-aig-byok-alias", "x-bf-vk", "x-pass-x-api-key", "helicone-target-url", "x-litellm-api-key"}
		for _, name := range names {
			q.Header.Set(name, "of-the-client")
		}
		q.Header.Set("content-type", "application/json")
		a, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		got := served.Load()
		if a.StatusCode != 200 || got == nil || got.Get("x-portkey-config") != "own" {
			t.Fatalf("%s: %s, %v", model, a.Status, got)
		}
		for _, name := range names {
			if got.Get(name) == "of-the-client" {
				t.Errorf("%s: the upstream gets %s", model, name)
			}
		}
	}
}

// TestE2E_X14_FieldsThatAreNotForClients sends the fields by which a client would make an engine
// connect elsewhere, run code or harm the requests of others. No engine gets such a request, on
// native or managed ways, whatever its endpoint. What an operator permits passes, and so does what
// clients send in daily life.
func TestE2E_X14_FieldsThatAreNotForClients(t *testing.T) {
	t.Parallel()
	var served atomic.Pointer[string]
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "managed", "free") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		served.Store(new(string(body)))
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("content-type", "text/event-stream")
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
			return
		}
		w.Header().Set("content-type", "application/json")
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}`)
	})
	g := harness.Start(t, fmt.Sprintf(`
auth: {mode: none}
models:
  - {name: native, launcher: upstream, upstreams: ["%[1]s"], stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: ["%[1]s"], stream: {mode: managed}}
  - {name: free, launcher: upstream, upstreams: ["%[1]s"], stream: {mode: managed}, permit_fields: [rid, chat_template], media_hosts: [images.lan]}
`, upstream))
	post := func(model, path, fields string) *harness.Answer {
		served.Store(nil)
		return g.Post(path, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}],"max_tokens":1,%s}`, model, fields))
	}
	fields := []string{`"chat_template_kwargs":{"chat_template":"{{ x }}"}`, `"vllm_xargs":{"kv_transfer_params":"x"}`}
	names := []string{"chat_template", "kv_transfer_params"}
	for _, field := range openai.GuardedFields() {
		value := "[1]"
		if field.Above > 0 {
			value = fmt.Sprint(field.Above + 1)
		}
		if field.Name == "extra_body" {
			value = `{"model":"secret"}`
		}
		fields, names = append(fields, fmt.Sprintf("%q:%s", field.Name, value)), append(names, field.Name)
	}
	for i, field := range fields {
		for _, model := range []string{"native", "managed", "free"} {
			for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
				permitted := model == "free" && (names[i] == "rid" || names[i] == "chat_template")
				a := post(model, path, field+`,"stream":true`)
				switch got := served.Load(); {
				case permitted && (a.StatusCode != 200 || got == nil || path == "/v1/chat/completions" && !strings.Contains(*got, field)):
					t.Errorf("%s of %s at %s is permitted: %v", field, model, path, a)
				case !permitted && (a.StatusCode != 400 || got != nil || !strings.Contains(string(a.Content), names[i])):
					t.Errorf("%s of %s at %s: %v", field, model, path, a)
				}
			}
		}
	}
	for _, model := range []string{"native", "managed", "free"} {
		served.Store(nil)
		a := g.Post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///a.png"}}]}]}`)
		if a.StatusCode != 400 || served.Load() != nil || !strings.Contains(string(a.Content), "local file") {
			t.Errorf("a local file, %s: %v", model, a)
		}
	}
	for _, model := range []string{"native", "managed", "free"} {
		for url, permitted := range map[string]bool{"https://example.com/a.png": model != "free", "http://images.lan:81/a.png": model == "free",
			"http://169.254.169.254/latest/meta-data": false, "http://127.0.0.1:9901/quitquitquit": false, "https://example.com/a@redis/b": false} {
			served.Store(nil)
			a := g.Post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)
			switch got := served.Load(); {
			case permitted && (a.StatusCode != 200 || got == nil):
				t.Errorf("%s of %s: %v", url, model, a)
			case !permitted && (a.StatusCode != 400 || got != nil || !strings.Contains(string(a.Content), "image_url")):
				t.Errorf("%s of %s passes: %v", url, model, a)
			}
		}
	}
	for _, model := range []string{"native", "managed"} {
		if a := post(model, "/v1/chat/completions", `"n":2000000000`); a.StatusCode != 400 || served.Load() != nil {
			t.Errorf("two billion answers, %s: %v", model, a)
		}
	}
	const daily = `"user":"u","metadata":{"models":"a"},"priority":0,"seed":-1,"top_k":-1,"id_slot":-1,"repeat_last_n":64,"cache_salt":"s","lora":null,` +
		`"chat_template_kwargs":{"enable_thinking":false},"vllm_xargs":{"a":1},"extra_body":{"top_k":1}`
	for _, model := range []string{"native", "managed"} {
		if a := post(model, "/v1/chat/completions", daily); a.StatusCode != 200 {
			t.Errorf("%s: %v", model, a)
		}
	}
}
