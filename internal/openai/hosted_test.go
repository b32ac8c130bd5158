package openai

import "testing"

// What reaches another model, host or file through a provider or another gateway is found, and what
// clients of these send every day passes.
func TestX14_HostedTools(t *testing.T) {
	t.Parallel()
	const none = ""
	for field, want := range map[string]string{
		`"tools":[{"type":"function","function":{"name":"a","parameters":{"server_url":"x"}}},{"type":"mcp","server_label":"a","server_url":"http://a"}]`:              hostedTools,
		`"tools":[{"server_url":"http:\u002f/a","type":"m\u0063p"}]`:                                                                                                   hostedTools,
		`"tools":[{"type":"function","function":{"name":"a"},"server_url":"http://a","type":"mcp"}]`:                                                                   hostedTools,
		`"tools":[{"type":"mcp","connector_id":"connector_gmail"}]`:                                                                                                    hostedTools,
		`"tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]`:                                                                                                 hostedTools,
		`"tools":[{"type":"code_interpreter","container":"cntr_1"}]`:                                                                                                   hostedTools,
		`"tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":["file-1"]}}]`:                                                                      hostedTools,
		`"tools":[{"type":"shell","environment":{"type":"container_reference","container_id":"c"}}]`:                                                                   hostedTools,
		`"tools":[{"type":"image_generation","model":"gpt-image-2"}]`:                                                                                                  hostedTools,
		`"tools":[{"type":"openrouter:fusion"}]`:                                                                                                                       hostedTools,
		`"extra_body":{"tools":[{"type":"mcp","server_url":"http://a"}]}`:                                                                                              extraBody,
		`"tools":[{"type":"function","function":{"name":"a"}},{"type":"web_search"},{"type":"openrouter:web_search"},{"type":"local_shell"},7]`:                        none,
		`"tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":null}},{"type":"custom","name":"a","server_url":null}]`:                             none,
		`"tools":[{"name":"a","input_schema":{"type":"object","properties":{"model":{}}}},{"type":"web_search_20250305","name":"web_search"}]`:                         none,
		`"tools":[{"type":"computer_use_preview","display_width":1024,"display_height":768,"environment":"browser"}]`:                                                  none,
		`"tools":[{"type":"code_interpreter","container":{"type":"auto","file_ids":[]}},{"type":"file_search","vector_store_ids":[ ]},{"type":"mcp","server_url":""}]`: none,
		`"tools":[{"type":"document_library","library_ids":["l"]}]`:                                                                                                    hostedTools,
		`"tools":[{"type":"collections_search","collection_ids":["c"]}]`:                                                                                               hostedTools,
		`"tools":[{"type":"retrieval","retrieval":{"knowledge_id":"1"}}]`:                                                                                              hostedTools,
		`"tools":[{"type":"shell","environment":{"type":"container_auto","skills":[{"type":"skill_reference","skill_id":"s"}]}}]`:                                      hostedTools,
		`"tools":[{"type":"shell","environment":{"type":"local","skills":[{"name":"a","path":"/a"},7]}},{"type":"retrieval","retrieval":{}},{"retrieval":7}]`:          none,
		`"tools":[{"type":"mcp","server_url":"http://a","connector_id":null}]`:                                                                                         hostedTools,
		`"tools":[{"server_url":"http://a","container":{"type":"auto"}}]`:                                                                                              hostedTools,
		`"tools":[{"server_url":"http://a","environment":"browser"}]`:                                                                                                  hostedTools,
		`"tools":[{"server_url":"http://a","retrieval":{}}]`:                                                                                                           hostedTools,
		`"tools":[{"type":"openrouter:fusion","model":null}]`:                                                                                                          hostedTools,
		`"tools":[{"type":"mcp","server_url":"http://a"},{"type":"web_search"}]`:                                                                                       hostedTools,
		`"tools":[{"container":{"file_ids":["file-1"],"container_id":null}}]`:                                                                                          hostedTools,
		`"tools":[{"environment":{"skills":[{"skill_id":"s"}],"container_id":null}}]`:                                                                                  hostedTools,
		`"tools":[{"environment":{"file_ids":["file-1"],"skills":[]}}]`:                                                                                                hostedTools,
		`"tools":[{"environment":{"skills":[{"skill_id":"s"},{"name":"a"}]}}]`:                                                                                         hostedTools,
		`"tools":[{"environment":{"skills":7},"container":7}]`:                                                                                                         none,
		`"providerOptions":{"gateway":{"models":["a"]},"gateway":{}}`:                                                                                                  providerOptions,
		`"tools":{"server_url":"a"}`: none, `"tools":[]`: none,

		`"plugins":[{"id":"auto-router","allowed_models":["*"]}]`: pluginsField, `"plugins":[{"id":"web"},{"id":"fusion"}]`: pluginsField, `"plugins":["web"]`: pluginsField,
		`"plugins":[{"id":"fusion"},{"id":"web"}]`: pluginsField, `"nvext":[{"id":"web"}]`: nvext,
		`"plugins":{"id":"web"}`: pluginsField, `"plugins":[{"id":"web","engine":"exa"},{"id":"file-parser"},{"id":"response-healing"}]`: none, `"plugins":[]`: none,
		`"providerOptions":{"gateway":{"models":["a"]}}`: providerOptions, `"providerOptions":{"gateway":{"byok":{"a":[]}}}`: providerOptions, `"providerOptions":{"gateway":1}`: providerOptions,
		`"providerOptions":{"gateway":{"order":["a"],"models":null},"openai":{"models":["a"]}}`: none, `"providerOptions":{"gateway":{"models":[],"byok":{}}}`: none,
		`"nvext":{"backend_instance_id":7}`: nvext, `"nvext":{"agent_hints":{"priority":9}}`: nvext, `"nvext":{"x":1}`: nvext,
		`"nvext":{"annotations":["token_ids"],"dp_rank":null}`: none, `"nvext":null`: none,
		`"model_list":[{"model_name":"m","litellm_params":{"api_base":"http://a"}}]`: "model_list", `"deployment_id":"a"`: "deployment_id",
		`"litellm_credential_name":"a"`: "litellm_credential_name", `"tools":[{"type":"image_generation","input_image_mask":{"file_id":"file-1"}}]`: hostedTools,
		`"tools":[{"type":"image_generation","input_image_mask":{"image_url":"data:,"}}]`: none,
		`"preset":"a"`: "preset", `"api_base":"http://a"`: "api_base", `"base_url":"http://a"`: "base_url", `"mcp_servers":[{"url":"http://a"}]`: "mcp_servers",
		`"data_sources":[{"type":"azure_search"}]`: "data_sources", `"container":"c"`: "container", `"api_key":"k"`: "api_key", `"mcp_servers":[],"container":null,"api_key":""`: none,

		`"extra_body":{"n":9}`: extraBody, `"extra_body":{"max_tokens":9}`: extraBody, `"extra_body":{"best_of":9}`: extraBody, `"extra_body":{"api_base":"http://a"}`: extraBody,
		`"extra_body":{"n":null,"top_k":1,"tools":[{"type":"function"}],"google":{"thinking_config":{}}}`: none,
		`"extra_body":{"google":{"cached_content":"cachedContents/1"}}`:                                   extraBody, `"cached_content":"cachedContents/1"`: "cached_content",
		`"extra_body":{"google":{"cachedContent":"cachedContents/1"}}`: extraBody, `"cachedContent":"cachedContents/1"`: "cachedContent", `"cachedcontent":"c"`: "cachedContent",
		`"google":{"cached_content":"cachedContents/1"}`: "cached_content", `"google":{"cachedContent":"cachedContents/1"}`: "cachedContent",
		`"google":{"thinking_config":{},"cached_content":null}`: none, `"google":"cached_content"`: none,
		`"compound_custom":{"models":{"answering_model":"dear"}}`: compoundCustom, `"compound_custom":{"models":{"reasoning_model":"dear"},"tools":{}}`: compoundCustom,
		`"compound_custom":{"tools":{"enabled_tools":["web_search"]},"models":null}`: none, `"extra_body":{"compound_custom":{"models":{"answering_model":"dear"}}}`: extraBody,
		`"compound_custom":{"Models":{"answering_model":"dear"}}`: compoundCustom, `"providerOptions":{"Gateway":{"models":["a"]}}`: providerOptions,
		`"agent":{"type":"agent_reference","name":"a"}`: "agent", `"agent_reference":{"name":"a"}`: "agent_reference", `"prompt":{"id":"pmpt_1"}`: none,
	} {
		body := `{"model":"m",` + field + `,"messages":[]}`
		r, fault := Scan(Chat, jsonType, []byte(body))
		if fault != nil || r.Guarded != guardOf([]byte(want)) || want != none && r.Guarded == 0 {
			t.Errorf("%s: %b, %v", body, r.Guarded, fault)
		}
	}
	for e, body := range map[Endpoint]string{
		Responses:  `{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}]}`,
		Messages:   `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"file_1"}}]}]}`,
		Chat:       `{"model":"m","messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"file-1"}}]}]}`,
		ImageEdits: `{"model":"m","prompt":"x","images":[{"image_url":"data:,"},{"file_id":"file-1"}]}`,
		Images:     `{"model":"m","prompt":"x","mask":{"file_id":"file-1"}}`,
	} {
		if r, fault := Scan(e, jsonType, []byte(body)); fault != nil || r.Guarded != guardOf([]byte(storedFile)) {
			t.Errorf("%s: %b, %v", body, r.Guarded, fault)
		}
	}
}

// A prompt that the account of an upstream has stored is found where OpenAI's API has one.
func TestX14_StoredPrompts(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{`"prompt":{"id":"pmpt_1","version":"2"}`: storedPrompt, `"prompt":{"variables":{},"ID":"pmpt_1"}`: storedPrompt,
		`"prompt":null`: "", `"prompt":{"id":null}`: "", `"prompt":"id"`: "", `"extra_body":{"prompt":{"id":"pmpt_1"}}`: extraBody} {
		r, fault := Scan(Responses, jsonType, []byte(`{"model":"m",`+body+`,"input":"x"}`))
		if fault != nil || r.Guarded != guardOf([]byte(want)) {
			t.Errorf("%s: %b, %v", body, r.Guarded, fault)
		}
	}
	if r, fault := Scan(Completions, jsonType, []byte(`{"model":"m","prompt":{"id":"pmpt_1"}}`)); fault != nil || r.Guarded != 0 {
		t.Errorf("a completion: %b, %v", r.Guarded, fault)
	}
}

// The refusal of a tool says in which field the tool is, and how it can be told from others.
func TestX14_TitleOfHostedTools(t *testing.T) {
	t.Parallel()
	const want = "a tool of the field tools that names a host, a model, files or a container (hosted_tools)"
	if title := guardOf([]byte(hostedTools)).First().Title(); title != want {
		t.Errorf("%s", title)
	}
}

// LiteLLM takes the parts of a form for fields, too, with or without brackets.
func TestX14_GuardedPartsOfForms(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]string{`"fallbacks[]"=a`: "fallbacks", `"API_BASE"=http://a`: "api_base", `"extra_body"={"n":1}`: extraBody,
		`"models"=`: "", `"metadata"=models`: "", `"repeat_last_n"=1`: "", `"timestamp_granularities[]"=word`: ""} {
		r, fault := Scan(Transcriptions, formType, []byte(formOf(`"model"=w`, part)))
		if fault != nil || r.Guarded != guardOf([]byte(want)) {
			t.Errorf("%s: %b, %v", part, r.Guarded, fault)
		}
	}
}
