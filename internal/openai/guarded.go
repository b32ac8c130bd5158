package openai

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Guarded is a field of a JSON body by which a client would make an engine do what is not for
// clients to decide. Several tenants share the fleet.
type Guarded struct {
	// Name is the name of the field.
	Name string
	// Engines are the engines of the catalogue whose servers obey the field. Empty: only servers
	// that are no engines do, such as other gateways.
	Engines []string
	// Why says what the field does, in a phrase that begins with a verb.
	Why string
	// Above: only numbers above it count. 0: every value does.
	Above int
}

// Reasons that several fields have.
const (
	otherModels  = "asks for other models than the field model names"
	otherHost    = "makes the engine connect to a host that the client names"
	otherReplica = "chooses a worker inside the engine, past the pick of the gateway"
	otherAccount = "names another account or key than that of the upstream"
	storedFiles  = "reads files that the account of the upstream has stored, which may be those of others"
	storedAgent  = "asks an agent that the account of the upstream has stored, with its model, tools and files"
	otherAdapter = "chooses an adapter, past the models that the caller may use"
	memory       = "is how many tokens the server makes room for at once, while other requests wait"
	template     = "is a program, which the engine runs without a limit of time while other requests wait"
)

var (
	ofVLLM          = []string{"vllm"}
	ofSGLang        = []string{"sglang"}
	ofLlamaCpp      = []string{"llama-cpp"}
	ofVLLMAndSGLang = []string{"vllm", "sglang"}
)

// guarded is the table of guarded fields.
var guarded = []Guarded{
	{"models", nil, otherModels, 0},
	{"route", nil, otherModels, 0},
	{"fallbacks", nil, otherModels, 0},
	{"context_window_fallbacks", nil, otherModels, 0},
	{"content_policy_fallbacks", nil, otherModels, 0},
	{"router_settings_override", nil, otherModels, 0},
	{queryModel, nil, otherModels, 0},
	{"preset", nil, otherModels, 0},
	{"prompt_id", nil, otherModels, 0},
	{pluginsField, nil, otherModels, 0},
	{providerOptions, nil, "asks Vercel's gateway for other models than the field model names, or for another account", 0},
	{compoundCustom, nil, "asks Groq's systems for other models than the field model names", 0},
	{"deployment_id", nil, otherModels, 0},
	{"custom_llm_provider", nil, "chooses another provider than the operator", 0},
	{"api_base", nil, otherHost, 0},
	{"base_url", nil, otherHost, 0},
	{"user_config", nil, otherHost, 0},
	{"model_list", nil, otherHost, 0},
	{"data_sources", nil, otherHost, 0},
	{"mcp_servers", nil, otherHost, 0},
	{"api_key", nil, otherAccount, 0},
	{"litellm_credential_name", nil, otherAccount, 0},
	{"vector_store_ids", nil, storedFiles, 0},
	{"container", nil, storedFiles, 0},
	{"cached_content", nil, storedFiles, 0},
	{"cachedContent", nil, storedFiles, 0},
	{storedFile, nil, storedFiles, 0},
	{storedPrompt, nil, "uses a prompt that the account of the upstream has stored, with the model, the tools and the files of that prompt", 0},
	{"agent", nil, storedAgent, 0},
	{"agent_reference", nil, storedAgent, 0},
	{hostedTools, nil, "lets the upstream connect to a host that the client names, use another model, or read files of its account", 0},
	{nvext, nil, otherReplica, 0},
	{extraBody, nil, "has fields that the server puts in the place of those that the gateway has checked", 0},
	{"kv_transfer_params", ofVLLM, otherHost, 0},
	{"ec_transfer_params", ofVLLM, otherHost, 0},
	{"bootstrap_host", ofSGLang, otherHost, 0},
	{"bootstrap_port", ofSGLang, otherHost, 0},
	{"bootstrap_room", ofSGLang, otherHost, 0},
	{"disagg_prefill_dp_rank", ofSGLang, otherReplica, 0},
	{"routed_dp_rank", ofSGLang, otherReplica, 0},
	{"data_parallel_rank", ofSGLang, otherReplica, 0},
	{"id_slot", ofLlamaCpp, "chooses a slot inside the engine, whose cache another client uses", 0},
	{"lora_path", ofSGLang, otherAdapter, 0},
	{"lora", ofLlamaCpp, otherAdapter, 0},
	{"rid", ofSGLang, "names the request inside the engine: when it ends early, the engine also ends all others whose names begin so", 0},
	{"session_params", ofSGLang, "continues a session inside the engine, which may be that of another client", 0},
	{"custom_logit_processor", ofSGLang, "is code, which the engine runs", 0},
	{"chat_template", ofVLLMAndSGLang, template, 0},
	{localMedia, []string{"sglang", "llama-cpp"}, "names a file of the engine's machine as an image, a sound or a video, which the engine opens", 0},
	{"repeat_last_n", ofLlamaCpp, memory, maxWindow},
	{"dry_penalty_last_n", ofLlamaCpp, memory, maxWindow},
}

// maxWindow is more tokens than any context has.
const maxWindow = 1 << 20

const (
	// localMedia is no field. It stands for the URLs of parts of messages that name local files.
	localMedia = "local_media"
	// queryModel is no field. It stands for the parameter model of the query.
	queryModel = "query_model"
	// extraBody is a field whose members LiteLLM puts over the body that it sends on.
	extraBody = "extra_body"
)

// Title names the field within a sentence.
func (g Guarded) Title() string {
	switch g.Name {
	case localMedia:
		return "the URL of a local file (" + localMedia + ")"
	case queryModel:
		return "the parameter model of the query (" + queryModel + ")"
	case storedFile:
		return "the id of a stored file (" + storedFile + ")"
	case storedPrompt:
		return "the id of a stored prompt in the field prompt (" + storedPrompt + ")"
	case hostedTools:
		return "a tool of the field tools that names a host, a model, files or a container (" + hostedTools + ")"
	}
	if g.Above > 0 {
		return fmt.Sprintf("the field %s above %d", g.Name, g.Above)
	}
	return "the field " + g.Name
}

// GuardedFields returns the table of guarded fields.
func GuardedFields() []Guarded { return slices.Clone(guarded) }

// Guards is a set of guarded fields: a bit for each row of the table.
type Guards uint64

// NewGuards returns the set of the guarded fields with these names. It ignores other names.
func NewGuards[S ~string](names []S) (set Guards) {
	for _, name := range names {
		set |= guardOf([]byte(name))
	}
	return set
}

// GuardsOf returns the guarded fields that the servers of an engine obey. engine is a name of the
// catalogue, or empty for one that is not in the catalogue, which may be any of its engines.
func GuardsOf(engine string) (set Guards) {
	for i, g := range guarded {
		if len(g.Engines) > 0 && engine == "" || slices.Contains(g.Engines, engine) {
			set |= 1 << i
		}
	}
	return set
}

// AllGuards returns the set of all guarded fields.
func AllGuards() Guards { return 1<<len(guarded) - 1 }

// First returns the first field of a set that is not empty.
func (g Guards) First() Guarded {
	i := 0
	for ; g>>i&1 == 0; i++ {
	}
	return guarded[i]
}

// guardsByLength has the names of the table in lower case, by their length, with their rows.
var guardsByLength = func() (rows [32][]lowerGuard) {
	for i, g := range guarded {
		rows[len(g.Name)] = append(rows[len(g.Name)], lowerGuard{strings.ToLower(g.Name), 1 << i})
	}
	return rows
}()

// lowerGuard is a guarded field by its name in lower case.
type lowerGuard struct {
	name string
	set  Guards
}

// guardOf returns the set of the guarded field that a name is, in any case, and otherwise the empty
// set.
func guardOf(name []byte) Guards {
	if isLower(name) {
		if len(name) < len(guardsByLength) {
			for _, g := range guardsByLength[len(name)] {
				if string(name) == g.name {
					return g.set
				}
			}
		}
		return 0
	}
	for i, g := range guarded {
		if bytes.EqualFold(name, []byte(g.Name)) {
			return 1 << i
		}
	}
	return 0
}

// isLower reports whether a name has neither capitals nor characters outside of ASCII, of which
// some are the same as letters but for their case.
func isLower(name []byte) bool {
	for _, c := range name {
		if c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

// maxItemDepth is how deep the parts of an item are inside of the field. The field is a list of
// items. An item is a list of parts, or an object with a list of parts as its content. A part may
// be the result of a tool, which has a list of parts, too.
const maxItemDepth = 6

// items reads what is embedded, ranked or scored, or whose tokens are counted: texts, lists of
// tokens, objects with URLs of media, messages, or parts as in messages. Engines accept no list
// that begins with a token and has anything else.
func (s *scanner) items(depth int) {
	c := s.json.Kind()
	switch {
	case depth == 0 || c != '[' && c != '{' || beginsWithNumber(s.body[s.json.Pos():]):
		s.json.Skip()
	case c == '[':
		for more := s.json.Open('['); more; more = s.json.More('[') {
			s.items(depth - 1)
		}
	default:
		for more := s.json.Open('{'); more; more = s.json.More('{') {
			name := lower(s.json.Name())
			switch field := urlField(name); {
			case field == "file" && s.req.Endpoint == Rerank: // says where a document is from
				s.json.Skip()
			case field != "":
				s.found.anyDocument = s.req.Endpoint == Rerank && !strings.HasSuffix(field, "_url")
				s.found.read(&s.json, field)
			case string(name) == "source" && s.req.Endpoint == CountTokens: // other items may have any
				isPlainSource(&s.json, &s.found)
			case string(name) == "content" || string(name) == "output":
				s.items(depth - 1)
			default:
				s.json.Skip()
			}
		}
	}
}

// beginsWithNumber reports whether the first element of a list is a number, or that of its first
// list.
func beginsWithNumber(list []byte) bool {
	list = bytes.TrimLeft(list, " \t\r\n[")
	return len(list) > 0 && '0' <= list[0] && list[0] <= '9'
}

// guard reads the value of a guarded field. null asks for nothing, and so does -1, by which clients
// of llama.cpp let the server choose the slot. An empty list, object or string asks other gateways
// for nothing. Engines may take it for a value: an empty lora of llama.cpp turns all adapters off.
func (s *scanner) guard(field Guards) {
	if s.json.Null() {
		return
	}
	switch name := field.First().Name; name {
	case extraBody:
		s.extraBody()
		return
	case pluginsField, nvext, providerOptions, compoundCustom:
		if s.asksByMembers(name) {
			s.req.Guarded |= field
		}
		return
	}
	at := s.json.Value()
	value, row := s.body[at.From:at.To], field.First()
	if row.Above > 0 {
		if n, _ := strconv.ParseFloat(string(value), 64); n <= float64(row.Above) {
			return
		}
	}
	if string(value) != "-1" && (len(row.Engines) > 0 || !isEmpty(value)) {
		s.req.Guarded |= field
	}
}

// isEmpty reports whether valid JSON is an empty list, object or string.
func isEmpty(value []byte) bool {
	return len(value) >= 2 && value[0] != '-' && (value[0] < '0' || value[0] > '9') && len(bytes.TrimSpace(value[1:len(value)-1])) == 0
}

// guardMembers reads the value of a field whose members engines obey as they do fields of the body.
// Only those in the set within count.
func (s *scanner) guardMembers(within Guards) {
	for more := s.json.OpenOrSkip('{'); more; more = s.json.More('{') {
		if field := guardOf(s.json.Name()) & within; field != 0 {
			s.guard(field)
		} else {
			s.json.Skip()
		}
	}
}

// extraBody reads the value of the field extra_body. The field counts if one of its members is a
// guarded field, or one that the gateway reads in the body. Those are the model, what the model is
// to read, bounds of the output, and the number of answers. Other members pass.
func (s *scanner) extraBody() {
	outside := s.req.Guarded
	s.req.Guarded = 0
	for more := s.json.OpenOrSkip('{'); more; more = s.json.More('{') {
		name := s.json.Name()
		switch jsonField(s.req.Endpoint, name) {
		case fieldGuarded:
			s.guard(guardOf(name))
		case fieldTemplateKwargs:
			s.guardMembers(guardsOfTemplate)
		case fieldEngineArgs:
			s.guardMembers(guardsOfArguments)
		case fieldGoogle:
			s.guardMembers(guardsOfGoogle)
		case fieldTools:
			s.readTools()
		case fieldOther, fieldFunctions, fieldPromptCacheKey, fieldCacheSalt, fieldSize:
			s.json.Skip()
		default: // the gateway has read the field of the body itself
			if !s.json.Null() {
				s.req.Guarded |= guardOfExtraBody
				s.json.Skip()
			}
		}
	}
	if s.req.Guarded != 0 {
		outside |= guardOfExtraBody
	}
	s.req.Guarded = outside
}

var guardOfExtraBody = guardOf([]byte(extraBody))

// The members that count of the fields chat_template_kwargs, vllm_xargs and google.
var (
	guardsOfTemplate  = NewGuards([]string{"chat_template"})
	guardsOfArguments = NewGuards([]string{"kv_transfer_params", "ec_transfer_params"})
	guardsOfGoogle    = NewGuards([]string{"cached_content", "cachedContent"}) // JSON of protobuf has both
)
