package openai

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A guarded field is found, in any case, and inside of the objects whose members engines obey. null
// asks for nothing.
func TestX14_GuardedFieldsAreFound(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		`{"model":"m","models":["a","b"],"messages":[]}`:                                       {"models"},
		`{"model":"m","messages":[],"Fallbacks":["a"]}`:                                        {"fallbacks"},
		`{"model":"m","messages":[],"\u0072oute":"fallback"}`:                                  {"route"},
		`{"model":"m","context_window_fallbacks":[{"m":["a"]}],"stream":true}`:                 {"context_window_fallbacks"},
		`{"model":"m","content_policy_fallbacks":{"a":1},"stream":true}`:                       {"content_policy_fallbacks"},
		`{"model":"m","models":[],"route":"","fallbacks":[ ],"router_settings_override":{}}`:   nil,
		`{"model":"m","models":0,"fallbacks":[""],"route":true,"bootstrap_host":"","lora":[]}`: {"models", "route", "fallbacks", "bootstrap_host", "lora"},
		`{"model":"m","models":null,"route": null ,"stream":true}`:                             nil,
		`{"model":"m","metadata":{"models":["a"]},"input":"x","routes":1}`:                     nil,
		`{"model":"m","rid":"a","kv_transfer_params":{"remote_host":"h"}}`:                     {"rid", "kv_transfer_params"},
		`{"model":"m","RI\u0044":"a","custom_logit_proce\u017f\u017for":"x"}`:                  {"rid", "custom_logit_processor"},
		`{"model":"m","repeat_last_n":2147483647,"dry_penalty_last_n":1e9}`:                    {"repeat_last_n", "dry_penalty_last_n"},
		`{"model":"m","repeat_last_n":131072,"dry_penalty_last_n":"2147483647"}`:               nil,
		`{"model":"m","id_slot":0}`:                                                            {"id_slot"},
		`{"model":"m","id_slot":-1}`:                                                           nil,
		`{"model":"m","chat_template_kwargs":{"enable_thinking":false,"chat_template":"{}"}}`:  {"chat_template"},
		`{"model":"m","chat_template_kwargs":{"chat_template":null,"rid":"a"}}`:                nil,
		`{"model":"m","chat_template_kwargs":"chat_template","vllm_xargs":null}`:               nil,
		`{"model":"m","vllm_xargs":{"kv_transfer_params":"a","chat_template":"a"}}`:            {"kv_transfer_params"},
		`{"model":"m","router_settings_override":{"fallbacks":[{"m":["a"]}]}}`:                 {"router_settings_override"},
		`{"model":"m","extra_body":{"top_k":1,"model":"secret"}}`:                              {"extra_body"},
		`{"model":"m","extra_body":{"mod\u0065l":"secret"},"seed":1}`:                          {"extra_body"},
		`{"model":"m","extra_body":{"fallbacks":["a"],"rid":"x"}}`:                             {"extra_body"},
		`{"model":"m","rid":"x","extra_body":{"chat_template_kwargs":{"chat_template":"a"}}}`:  {"rid", "extra_body"},
		`{"model":"m","extra_body":{"vllm_xargs":{"kv_transfer_params":1}},"seed":1}`:          {"extra_body"},
		`{"model":"m","extra_body":{"model":null,"id_slot":-1,"metadata":{"model":"a"}}}`:      nil,
		`{"model":"m","extra_body":{"top_k":1,"chat_template_kwargs":{"a":1}},"seed":1}`:       nil,
		`{"model":"m","extra_body":["model"],"seed":1}`:                                        nil,
		`{"model":"m","user":"u","seed":-1,"priority":3,"cache_salt":"s","session_id":"s"}`:    nil,
	} {
		if n := bits.OnesCount64(uint64(NewGuards(want))); n != len(want) {
			t.Errorf("%s: the table has %d of %q", body, n, want)
		}
		for _, e := range []Endpoint{Chat, Responses, Embeddings, Messages, Tokenize} {
			r, fault := Scan(e, "application/json", []byte(body))
			if fault != nil || r.Guarded != NewGuards(want) || r.Model != "m" {
				t.Errorf("%v %s: %b, %v", e, body, r.Guarded, fault)
			}
		}
	}
}

// A part that names a local file is found, wherever engines look for media. URLs of the web, data
// and base64 pass.
func TestX14_LocalFilesAreFound(t *testing.T) {
	t.Parallel()
	local := NewGuards([]string{"local_media"})
	for url, want := range map[string]Guards{
		"file:///etc/a.png": local, "FILE:/a": local, "/data/tenant/a.png": local, "a.png": local, "../a.jpg": local, "/dev/zero": local,
		`\u0066ile:///a`: local, `\/a\/b`: local, `\u0020/a`: local, "": 0,
		"async:/data/a.mp4": local, "Cache:///data/a.mp4": local, "concat:a|b": local, "hls+file:///a": local, "subfile,,start,1,end,0,,:/a": local,
		"URL:file:///a.png": local, "<file:///a.png>": local, `\\u001cfile:///a.png`: local, "/a:b": local, ":": local, "s3+x://a/b.png": 0,
		"https://example.com/a.png": 0, "http://10.0.0.1/a.png": 0, "gs://bucket/a.png": 0, "data:image/png;base64,iVBORw0KGgo=": 0,
		"data:,a.png": 0, "iVBORw0KGgo/+=": 0, "/9j/4AAQSkZJRgABAQ==": 0, "/9j/a.png": local, strings.Repeat("a/", 20000): 0,
		strings.Repeat(`a\u002Bb/`, maxPath):        0, // base64 by .NET
		"file:///a?" + strings.Repeat("x", maxPath): local, `file\u003a///a?` + strings.Repeat("x", maxPath): local, "file://" + strings.Repeat("x", maxPath) + "/a": local,
		`data:image\/png;base64,` + strings.Repeat(`\/`, maxPath): 0, strings.Repeat(`A\/`, maxPath): 0, "https://a/?" + strings.Repeat("b=file:&", maxPath): 0,
	} {
		for e, bodies := range map[Endpoint][]string{
			Chat: {`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"/a.png"},{"type":"image_url","image_url":{"detail":"low","url":"%s"}}]}]}`,
				`{"model":"m","messages":[{"content":[{"video_url":{"url":"%s"},"type":"video_url"}],"role":"user"}]}`,
				`{"model":"m","messages":[{"role":"user","content":[{"type":"audio_url","audio_url":"%s"}]}]}`},
			Responses: {`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"%s"}]}]}`,
				`{"model":"m","input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"%s"}]}]}`},
			Messages: {`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}`,
				`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}]}`},
			CountTokens: {`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}`,
				`{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"%s"}}]}]}]}`},
			Embeddings: {`{"model":"m","input":[{"text":"a.png"},{"image":"%s"}]}`, `{"model":"m","input":{"video":"%s"}}`,
				`{"model":"m","input":[{"content":[{"type":"image_url","image_url":{"url":"%s"}}]}]}`},
			Rerank: {`{"model":"m","query":[{"type":"image_url","image_url":{"url":"%s"}}],"documents":["/a.png"]}`,
				`{"model":"m","query":"/a.png","documents":["a",[{"type":"text","text":"/a"},{"type":"video_url","video_url":{"url":"%s"}}]]}`},
		} {
			for _, body := range bodies {
				body = strings.ReplaceAll(body, "%s", url)
				if r, fault := Scan(e, "application/json", []byte(body)); fault != nil || r.Guarded != want {
					t.Errorf("%v %.200s: %b, %v", e, body, r.Guarded, fault)
				}
			}
		}
	}
}

// The data of a sound or a video may be a URL, too, and base64 that begins with a slash is none.
func TestX14_DataThatNameLocalFilesAreFound(t *testing.T) {
	t.Parallel()
	local := NewGuards([]string{"local_media"})
	for data, want := range map[string]Guards{
		`"format":"wav","data":"file:///a.wav"`: local, `"url":"file:///a.wav"`: local, `"data":"file\u003a///a.wav"`: local,
		`"data":"//uQxAAA","format":"mp3"`: 0, `"data":"\/\/uQxAAA"`: 0, `"data":"//uQ\u002BAAA"`: 0, `"data":"UklGRg=="`: 0, `"data":"data:audio/wav;base64,UklGRg=="`: 0,
		`"data":"https://a/b.wav"`: 0, `"data":{"url":"file:///a"}`: 0,
	} {
		for _, kind := range []string{"input_audio", "input_video"} {
			body := `{"model":"m","messages":[{"role":"user","content":[{"type":"` + kind + `","` + kind + `":{` + data + `}}]}]}`
			if r, fault := Scan(Chat, "application/json", []byte(body)); fault != nil || r.Guarded != want {
				t.Errorf("%s: %b, %v", body, r.Guarded, fault)
			}
		}
	}
}

// Lists of texts and of tokens name no files.
func TestX14_ItemsWithoutFiles(t *testing.T) {
	t.Parallel()
	for _, input := range []string{`"/a.png"`, `["/a.png","b"]`, `[1,2,3]`, ` [ [ 1 , 2],[3]]`, `[]`, `[[]]`, `{}`, `null`, `[null,["/a",{"x":"/a","source":{"url":"/a"}}]]`, `-1`} {
		r, fault := Scan(Embeddings, "application/json", []byte(`{"input":`+input+`,"model":"m"}`))
		if fault != nil || r.Guarded != 0 || r.Model != "m" {
			t.Errorf("%s: %b, %v", input, r.Guarded, fault)
		}
	}
	if _, fault := Scan(Embeddings, "application/json", []byte(`{"model":"m","input":[{"image":"/a"}`)); fault == nil {
		t.Error("half a body passes")
	}
}

// Each field of the table is found, and each has an engine or is one that other gateways obey.
func TestX14_TableOfGuardedFields(t *testing.T) {
	t.Parallel()
	var each Guards
	for i, g := range GuardedFields() {
		set := NewGuards([]string{g.Name})
		if set != 1<<i || set.First().Name != g.Name || g.Why == "" {
			t.Errorf("%s: %b", g.Name, set)
		}
		each |= set
	}
	if each != AllGuards() || GuardsOf("")&NewGuards([]string{"models", "extra_body", nvext, hostedTools, storedFile, queryModel}) != 0 {
		t.Errorf("%b of %b", each, AllGuards())
	}
	if GuardsOf("ollama") != 0 || GuardsOf("llama-cpp") != NewGuards([]string{"lora", "id_slot", "local_media", "repeat_last_n", "dry_penalty_last_n"}) {
		t.Errorf("%b %b", GuardsOf("ollama"), GuardsOf("llama-cpp"))
	}
	// What clients send in daily life is in no row.
	for _, name := range []string{"model", "messages", "tools", "metadata", "user", "store", "service_tier", "priority", "cache_salt", "prompt_cache_key",
		"safety_identifier", "chat_template_kwargs", "top_k", "min_p", "seed", "provider", "keep_alive", "options", "thinking", "session_id"} {
		if slices.ContainsFunc(GuardedFields(), func(g Guarded) bool { return g.Name == name }) {
			t.Errorf("%s is refused", name)
		}
	}
}

// TestX14_GuardedDocument holds docs/bodies.md to the table.
func TestX14_GuardedDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# Fields of a body that clients may not use

This page is generated from ` + "`internal/openai/guarded.go`" + ` (` + "`go test ./internal/openai -run GuardedDocument -update`" + `). [headers.md](headers.md) has the headers.

Engines take more fields than OpenAI's API has. Some of them make the engine connect to another host, read a file, run code or end the requests of others. That
is not for clients to decide where several tenants share the engine. Other fields are for a router or another engine, and the engine trusts whoever sends them.
Sluice refuses a request with such a field with 400 ` + "`invalid_request`" + `. The error names the field, and the engine never gets the request.

| field | engine that obeys it | what the field does |
| --- | --- | --- |
`)
	var rows [][2]string
	for _, g := range GuardedFields() {
		engines := cmp.Or(strings.Join(g.Engines, ", "), "none; another gateway or a provider as an upstream")
		name := "`" + g.Name + "`"
		if g.Above > 0 {
			name += fmt.Sprintf(" above %d", g.Above)
		}
		rows = append(rows, [2]string{name, engines + " | It " + g.Why + "."})
	}
	b.WriteString(testutil.GroupRows(rows) + `
- An engine of the catalogue that ignores a field gets it: the request passes as it is.
- Nobody knows what serves at an upstream, so models with ` + "`launcher: upstream`" + `, discovered models, and models that an upstream has joined refuse all rows.
- An engine that the file adds under ` + "`engines`" + ` may obey anything, so its models refuse all rows but those with "none".
- A [pool](limits.md#a-file-with-tenants) serves the request by those of its models that do not refuse it.
- ` + "`null` asks for nothing and passes, and so does `-1`, by which clients of llama.cpp leave the slot to the server. An empty list, object or string passes, too, where no engine obeys the field." + `
- ` + "`chat_template` also counts inside of `chat_template_kwargs`, and the two fields of transfers inside of `vllm_xargs`. Other members of these two pass." + `
- ` + "`extra_body` counts only with a member that is in the table, or with one that the gateway reads, such as `model`, `messages`, `n` or `max_tokens`. LiteLLM puts its members in the place of the fields of the body." + `
- A request may ask for at most 16,384 answers over all its prompts, by ` + "`n`, `best_of` or `n_cmpl`" + `, at every engine.
- ` + "`local_media`" + ` is no field. It stands for an image, a sound or a video, in a message or in what is embedded or ranked, by its URL. The URL has the scheme ` + "`file`" + `, a scheme of FFmpeg for files such as ` + "`async` or `concat`" + `, or is a path. An ` + "`image`" + ` of a document to be ranked may be the name of a file without a path, and its ` + "`file`" + ` anything. URLs with other schemes, data URLs and base64 pass.
- ` + "`file_id`" + ` counts in parts of messages, such as ` + "`input_file`" + `, and among images to be edited. ` + "`hosted_tools`" + ` stands for a tool with ` + "`server_url`, `connector_id`, `vector_store_ids`, `library_ids`, `collection_ids`, `knowledge_id`, `model`" + `, a container by its id or with files or stored skills, a mask that is a stored file, and for tools of OpenRouter that use other models. Functions and tools such as ` + "`web_search`" + ` pass.
- ` + "`plugins`" + ` passes with ` + "`web`, `file-parser`, `response-healing`, `context-compression` and `moderation`" + ` alone. ` + "`providerOptions`" + ` passes without ` + "`models` and `byok` of `gateway`, and `compound_custom` without `models`" + `. ` + "`nvext`" + ` passes with members that leave the routing to Dynamo. Parts of a form count as fields do.
- ` + "`stored_prompt`" + ` stands for the ` + "`id` of the field `prompt` of `/v1/responses`. `cached_content` and `cachedContent` also count as members of `google`, in the body and in `extra_body`" + `.
- ` + "`query_model`" + ` is no field either. It stands for the parameter ` + "`model`" + ` of the query, which LiteLLM obeys in the place of the field.

## Permit a field

` + "`permit_fields`" + ` of a model lists fields that its clients may use all the same, and ` + "`discovered.permit_fields`" + ` those of discovered models. Only do that if you trust every
client of the model with what the row says.

` + "```yaml" + `
models:
  - {name: chat, engine: vllm, source: {name: Qwen/Qwen3-8B}, permit_fields: [chat_template], variables: {trust_request_chat_template: true}}
` + "```" + `

## Media that engines fetch

vLLM, SGLang, llama.cpp and text-generation-inference fetch the images, sounds and videos that a request names by a URL, from wherever the URL points. So a client
could have an engine ask what only your network reaches: the metadata of a cloud with its credentials, or the admin listeners of a cluster. ` + "`media_hosts`" + ` of a model,
and ` + "`discovered.media_hosts`" + `, say from which hosts media may come. The gateway answers another request with 400 ` + "`invalid_request`" + `, which names the field and the host.

` + "```yaml" + `
models:
  - {name: chat, engine: vllm, source: {name: Qwen/Qwen2.5-VL-7B-Instruct}, media_hosts: [public, "minio.storage:9000"]}
` + "```" + `

| rule | permits |
| --- | --- |
| ` + "`public`" + ` | the hosts of the internet: names below a domain of the public suffix list, and addresses that are global. Not names of one word, names such as ` + "`redis.default.svc`, `metadata.google.internal` or `printer.local`" + `, or addresses that are private, local to a link, of this machine, or reserved |
| ` + "`images.example.com`, `10.0.0.5`, `[fd00::5]`" + ` | this host; with ` + "`:9000`" + ` only this port of it |
| ` + "`*.example.com`" + ` | the hosts below the domain, and not the domain itself; also with a port |
| ` + "`10.0.0.0/8`" + ` | URLs that have an address of the range in the place of a name |
| ` + "`*`" + ` | every URL, also one that the gateway cannot read |

- The default is ` + "`[public]`" + `: images of the internet pass, and what is inside your network does not. ` + "`[]`" + ` permits data URLs alone.
- The rule holds at all endpoints, for realtime turns, gRPC and batches. It holds for parts of messages, ` + "`source`" + ` of the Messages API, ` + "`file_url`" + `, and items to be embedded, ranked, scored or counted. It also holds for the texts of ` + "`input`" + ` with the field ` + "`modality`" + ` of Infinity, images to be edited, ` + "`ref_audio`" + `, and the parts ` + "`url` and `file_url`" + ` of a form.
- A URL counts only if all readers of URLs find the same host in it. So ` + "`http://user@host/`, `http://127.1/`, `http:host`" + ` and hosts with escapes or other characters than ASCII are refused. llama.cpp takes what follows an ` + "`@`" + ` in the path for the host, so this one must be permitted, too, where a server may be llama.cpp: write ` + "`%40`" + `.
- A URL of a bucket, such as ` + "`gs://photos/a.png`" + `, has the name of the bucket as its host. The rule ` + "`photos`" + ` permits it.

**What the gateway cannot see.** It reads the URL and never connects to it. The engine looks up the name afterwards, so a name of the internet whose address is one of yours passes
` + "`public`" + `. An engine also follows redirects of a host that is permitted. And a cluster may give a name of the internet a meaning of its own: ` + "`redis.dev`" + ` is the service redis of the namespace dev.
text-generation-inference also fetches an image that a text names as ` + "`![](http://host/a.png)`" + `, which the gateway does not look for.
Against the first three, list the hosts in the place of ` + "`public`" + `, and switch off redirects (` + "`VLLM_MEDIA_URL_ALLOW_REDIRECTS=0`" + ` of vLLM). Let a network policy keep engines from the addresses of the
cloud's metadata and from other services. ` + "`allowed_media_domains`" + ` of vLLM and SGLang adds a check at the engine. A provider behind an upstream fetches from its own network, where your hosts are out of reach.

## What engines still do for clients

These fields pass, because clients use them every day, or because engines ignore them unless you change a setting. Look at the right column before strangers may call.

| what a client may do | by | what you can do |
| --- | --- | --- |
| make the engine fetch a URL of the internet | the fields for [media](#media-that-engines-fetch) | Set ` + "`media_hosts`" + ` of the model |
| read files below a directory | ` + "`file:`" + ` URLs, if ` + "`allowed_local_media_path`" + ` of vLLM is set, or ` + "`media_path`" + ` of llama.cpp, which also needs ` + "`permit_fields: [local_media]`" + ` | Do not set it, or give the directory nothing but what all tenants may see |
| go before others in the engine | ` + "`priority`" + `, if ` + "`scheduling_policy: priority`" + ` of vLLM or ` + "`enable_priority_scheduling`" + ` of SGLang is set | Do not set it. The gateway has [priorities](limits.md) of its own |
| choose among the providers of the model that it names | ` + "`provider`" + ` of OpenRouter, ` + "`providerOptions.gateway.order`" + ` of Vercel | Choose in the settings of the account which providers it may use, and at what price |
| let the engine call tools | ` + "`tools`" + ` of ` + "`/v1/responses`" + ` of the types ` + "`mcp`, `web_search_preview` and `code_interpreter`" + `, if a tool server of vLLM or SGLang is set | Give it tools that every tenant may use. The engines call the servers of their own settings, and not the URL of a request |
| have a provider put something into the prompt that the account has stored, if the client knows its id | items of ` + "`input` of `/v1/responses` such as `item_reference`, `audio` of a message of the assistant" + `. Clients such as the AI SDK send them for their own answers | Give each tenant an upstream with an account or a project of its own, or let the provider store nothing |
| use much memory or time | ` + "`mm_processor_kwargs`, `media_io_kwargs`, `structured_outputs`, `grammar`, `regex`, `prompt_logprobs`, `n_probs`" + ` | Keep engines up to date, and bound them: ` + "`limit_mm_per_prompt`, `max_logprobs`" + ` of vLLM. Replicas are started again after a crash |
`)
	testutil.Golden(t, "../../docs/bodies.md", b.String(), *update)
}

// A parameter of the query that asks for another model is found, however it is written.
func TestX14_QueriesThatAskForAnotherModel(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{"?model=secret": true, "?beta=true&%6dodel=secret": true, "?MODEL": true,
		"?models=a&xmodel=b&a=model": false, "?%zz=1": false, "?": false, "": false} {
		r := Request{Model: "m"}
		if r.ReadQuery("/v1/chat/completions" + query); (r.Guarded == guardOf([]byte(queryModel))) != want || r.Model != "m" {
			t.Errorf("%q: %v", query, r.Guarded)
		}
	}
}
