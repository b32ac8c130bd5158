package openai

import (
	"slices"
	"strings"
)

// Rows of the table of guarded fields whose values are looked into.
const (
	// storedFile is no field. It stands for the id of a file in a part of a message.
	storedFile = "file_id"
	// storedPrompt is no field. It stands for the id of the field prompt of the Responses API.
	storedPrompt = "stored_prompt"
	// hostedTools is no field. It stands for tools of the field tools that the upstream runs.
	hostedTools     = "hosted_tools"
	pluginsField    = "plugins"
	providerOptions = "providerOptions"
	nvext           = "nvext"
	compoundCustom  = "compound_custom"
)

var (
	// harmlessPlugins are those of OpenRouter that bring no other model into a request.
	harmlessPlugins = []string{"web", "file-parser", "response-healing", "context-compression", "moderation"}
	// harmlessExtensions are the members of Dynamo's nvext that do not say where a request goes,
	// how urgent it is, or what its prompt is.
	harmlessExtensions = []string{"greed_sampling", "use_raw_prompt", "annotations", "max_thinking_tokens", "extra_fields", "ignore_eos", "top_k",
		"repetition_penalty", "guided_json", "guided_regex", "guided_grammar", "guided_choice", "guided_decoding_backend"}
	// harmlessTools are OpenRouter's own tools that use no other model.
	harmlessTools = []string{"openrouter:web_search", "openrouter:web_fetch", "openrouter:datetime"}
)

// asksByMembers reads the value of a guarded field that counts only with some members.
func (s *scanner) asksByMembers(name string) (asks bool) {
	switch {
	case name == pluginsField && s.json.Kind() == '[':
		for more := s.json.Open('['); more; more = s.json.More('[') {
			asks = s.asksPlugin() || asks
		}
	case name != pluginsField && s.json.Kind() == '{':
		for more := s.json.Open('{'); more; more = s.json.More('{') {
			switch member := string(lower(s.json.Name())); {
			case name == nvext && slices.Contains(harmlessExtensions, member), name == providerOptions && member != "gateway",
				name == compoundCustom && member != "models":
				s.json.Skip()
			case name == providerOptions && s.json.Kind() == '{':
				asks = s.hasMember("models", "byok") || asks
			case !s.json.Null():
				asks = true
				s.json.Skip()
			}
		}
	default:
		s.json.Skip()
		return true
	}
	return asks
}

// asksPlugin reads a plugin of OpenRouter and reports whether it may bring another model.
func (s *scanner) asksPlugin() bool {
	harmless := false
	for more := s.json.OpenOrSkip('{'); more; more = s.json.More('{') {
		if string(s.json.Name()) == "id" {
			harmless = slices.Contains(harmlessPlugins, string(wordText(&s.json)))
		} else {
			s.json.Skip()
		}
	}
	return !harmless
}

// hasMember reads any value and reports whether it is an object with one of these members whose
// value asks for something.
func (s *scanner) hasMember(names ...string) (has bool) {
	for more := s.json.OpenOrSkip('{'); more; more = s.json.More('{') {
		switch name := string(lower(s.json.Name())); {
		case !slices.Contains(names, name):
			s.json.Skip()
		case name == "skills":
			has = s.hasStoredSkill() || has
		default:
			has = s.asks() || has
		}
	}
	return has
}

// hasStoredSkill reads the skills of a container and reports whether one is a skill that the
// account of the upstream has stored. Others are in the request, or on the machine of the client.
func (s *scanner) hasStoredSkill() (has bool) {
	for more := s.json.OpenOrSkip('['); more; more = s.json.More('[') {
		has = s.hasMember("skill_id") || has
	}
	return has
}

// storedPrompt reads the field prompt of the Responses API.
func (s *scanner) storedPrompt() {
	if s.hasMember("id") {
		s.req.Guarded |= guardOf([]byte(storedPrompt))
	}
}

// asks reads a value and reports whether it asks for something: null and what is empty do not.
func (s *scanner) asks() bool {
	if s.json.Null() {
		return false
	}
	at := s.json.Value()
	return !isEmpty(s.body[at.From:at.To])
}

// functionTool is how most tools begin. The rest of such a tool is skipped at once.
const functionTool = `{"type":"function","function":`

// readTools reads the tools that the model may call. Functions are for the client to run, and other
// tools for the upstream.
func (s *scanner) readTools() {
	for more := s.json.OpenOrSkip('['); more; more = s.json.More('[') {
		if s.isHostedTool() {
			s.req.Guarded |= guardOf([]byte(hostedTools))
		}
	}
}

// isHostedTool reads a tool, which may be any value, and reports whether it reaches what its client
// may not reach. That is a host by server_url or connector_id, another model, stored files, or a
// container of others.
func (s *scanner) isHostedTool() (hosted bool) {
	start := s.json.Pos()
	var more bool
	if strings.HasPrefix(string(s.body[start:min(len(s.body), start+len(functionTool))]), functionTool) {
		s.json.Enter(start + len(functionTool))
		s.json.Skip()
		more = s.json.More('{')
	} else {
		more = s.json.OpenOrSkip('{')
	}
	for ; more; more = s.json.More('{') {
		switch name := string(lower(s.json.Name())); name {
		case "type":
			word := string(wordText(&s.json))
			hosted = hosted || strings.HasPrefix(word, "openrouter:") && !slices.Contains(harmlessTools, word)
		case "server_url", "connector_id", "vector_store_ids", "library_ids", "collection_ids", "model":
			hosted = s.asks() || hosted
		case "container", "environment": // the environment of a screen is a word such as browser
			switch s.json.Kind() {
			case '{':
				hosted = s.hasMember("file_ids", "container_id", "id", "skills") || hosted
			case '"':
				hosted = s.asks() && name == "container" || hosted
			default:
				s.json.Skip()
			}
		case "input_image_mask", "retrieval": // the latter is that of GLM
			hosted = s.hasMember(storedFile, "knowledge_id") || hosted
		default:
			s.json.Skip()
		}
	}
	return hosted
}
