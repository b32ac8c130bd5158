package openai

import (
	"bytes"
	"slices"
)

// field is a field of a request that Scan interprets.
type field uint8

const (
	fieldOther field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldIncludeUsage // of stream_options
	fieldStreamUsage  // of forms
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldPredict // of llama.cpp, whose server obeys it before max_tokens
	fieldChoices
	fieldBestOf
	fieldCompletions // of llama.cpp, whose server obeys it before n
	fieldMessages
	fieldInput
	fieldInstructions
	fieldPrompt // of forms and of completions
	fieldRequestID
	fieldTimeout
	fieldMaxDuration
	// What follows is read for routing alone.
	fieldTools
	fieldFunctions
	fieldPromptCacheKey
	fieldPreviousResponse
	fieldCacheSalt
	fieldSize // of images
	// fieldConversation is refused.
	fieldConversation
	fieldSystem // of the Messages API
	fieldBackground
	fieldStoredPrompt   // of the Responses API
	fieldGuarded        // see Request.Guarded
	fieldTemplateKwargs // of the template of chats
	fieldEngineArgs     // of vLLM
	fieldGoogle         // where Google's API has fields of its own
	fieldItems          // what is embedded, ranked or scored, or whose tokens are counted
	fieldMedia          // URLs of media, see sourceField
	fieldEmbedded       // what is embedded
	fieldModality       // of Infinity: whether what is embedded are URLs
)

// own reports whether the field is an option of Sluice's own, which engines do not see.
func (f field) own() bool { return f >= fieldRequestID && f <= fieldMaxDuration }

// commonField returns the field of a name that all endpoints have, in JSON and in forms.
func commonField(name []byte) field {
	switch string(name) {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "request_id":
		return fieldRequestID
	case "timeout_ms":
		return fieldTimeout
	case "max_duration_ms":
		return fieldMaxDuration
	}
	return fieldOther
}

// jsonField returns the field of a name in a JSON body.
func jsonField(e Endpoint, name []byte) field {
	f := commonField(name)
	switch {
	case f != fieldOther:
		return f
	case guardOf(name) != 0:
		return fieldGuarded
	case string(name) == "chat_template_kwargs":
		return fieldTemplateKwargs
	case string(name) == "vllm_xargs":
		return fieldEngineArgs
	case string(name) == "google":
		return fieldGoogle
	case e.Draws():
		return imageField(name)
	case e.Generates():
		return textField(e, name)
	case e == InputTokens:
		return countField(name)
	case e == Speech:
		return only(fieldMedia, sourceField(name) != "")
	}
	return itemsField(e, string(name))
}

// imageField returns the field of a name in a request for images, as JSON or as a form.
func imageField(name []byte) field {
	switch string(name) {
	case "n":
		return fieldChoices
	case "size":
		return fieldSize
	}
	return only(fieldMedia, sourceField(name) != "")
}

// textField returns the field of a name in a request for text.
func textField(e Endpoint, name []byte) field {
	switch string(name) {
	case "stream_options":
		return fieldStreamOptions
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "n_predict":
		return only(fieldPredict, e != Messages)
	case "n":
		return fieldChoices
	case "best_of":
		return fieldBestOf
	case "n_cmpl":
		return only(fieldCompletions, e != Messages)
	case "prompt":
		if e.OfResponses() {
			return fieldStoredPrompt
		}
		return only(fieldPrompt, e == Completions)
	case "messages":
		return only(fieldMessages, e == Chat || e == Messages)
	case "system":
		return only(fieldSystem, e == Messages)
	case "input":
		return only(fieldInput, e.OfResponses())
	case "instructions":
		return only(fieldInstructions, e.OfResponses())
	case "tools":
		return only(fieldTools, e != Completions)
	case "functions":
		return only(fieldFunctions, e == Chat)
	case "prompt_cache_key":
		return fieldPromptCacheKey
	case "previous_response_id":
		return only(fieldPreviousResponse, e.OfResponses())
	case "cache_salt":
		return fieldCacheSalt
	case "conversation":
		return only(fieldConversation, e.OfResponses())
	case "background":
		return only(fieldBackground, e == Responses)
	}
	return fieldOther
}

// itemsField returns the field of a name in a request that generates nothing.
func itemsField(e Endpoint, name string) field {
	switch {
	case e == Embeddings && name == "input":
		return fieldEmbedded
	case e == Embeddings && name == "modality":
		return fieldModality
	case e == Embeddings || e == Tokenize || e == CountTokens:
		return only(fieldItems, name == "messages")
	case e == Rerank:
		return only(fieldItems, name == "documents" || name == "query")
	}
	return only(fieldItems, e == Score && slices.Contains(scoreFields, name))
}

// scoreFields are the fields that have what is scored, by the names that they have at vLLM and
// SGLang.
var scoreFields = []string{"text_1", "text_2", "data_1", "data_2", "queries", "documents", "query", "items"}

// countField returns the field of a name in a request that counts the tokens of a response's input.
// The prompt is not kept, because the replica does not get it into its cache.
func countField(name []byte) field {
	switch string(name) {
	case "input":
		return fieldItems
	case "previous_response_id":
		return fieldPreviousResponse
	case "conversation":
		return fieldConversation
	}
	return fieldOther
}

func partField(e Endpoint, name []byte) field {
	switch string(name) {
	case "stream_include_usage":
		return fieldStreamUsage
	case "prompt":
		return fieldPrompt
	}
	f := commonField(name)
	if f == fieldOther && e.Draws() {
		f = imageField(name)
	}
	return only(f, f != fieldMedia)
}

// disguised reports whether a name is spelled like a field that Scan interprets but for its case,
// and returns that field's name. Many engines' JSON decoders ignore case, so that the engine would
// obey a value that Scan has never checked. Fields that are read for routing alone do not count.
// Tools and what may have URLs of media do, and in the Responses API previous_response_id,
// conversation and background.
func disguised(e Endpoint, name []byte) (known string, found bool) {
	if isLower(name) {
		return "", false // spelled as it is read
	}
	for f := fieldOther + 1; f <= fieldMaxDuration; f++ {
		if known := f.String(); bytes.EqualFold(name, []byte(known)) {
			return known, true
		}
	}
	for _, f := range [...]field{fieldPreviousResponse, fieldConversation, fieldBackground} {
		if known := f.String(); bytes.EqualFold(name, []byte(known)) && jsonField(e, []byte(known)) == f {
			return known, true
		}
	}
	folded := lower(name)
	switch jsonField(e, folded) {
	case fieldTools, fieldItems, fieldMedia, fieldEmbedded:
		return string(folded), true
	}
	return "", false
}

// lower returns a name in lower case, by which decoders that ignore case would find it.
func lower(name []byte) []byte {
	if isLower(name) {
		return name
	}
	return bytes.ToLower(bytes.ToUpper(name)) // the long s becomes an S, and the sign for Kelvin a k
}

func only(f field, applies bool) field {
	if applies {
		return f
	}
	return fieldOther
}

// fieldNames are the names that errors give the fields.
var fieldNames = [fieldModality + 1]string{
	fieldModel: "model", fieldStream: "stream", fieldStreamOptions: "stream_options", fieldIncludeUsage: "stream_options.include_usage",
	fieldStreamUsage: "stream_include_usage", fieldMaxTokens: "max_tokens", fieldMaxCompletionTokens: "max_completion_tokens",
	fieldMaxOutputTokens: "max_output_tokens", fieldChoices: "n", fieldBestOf: "best_of", fieldCompletions: "n_cmpl", fieldPredict: "n_predict",
	fieldMessages: "messages", fieldInput: "input", fieldInstructions: "instructions", fieldPrompt: "prompt", fieldRequestID: "request_id",
	fieldTimeout: "timeout_ms", fieldMaxDuration: "max_duration_ms", fieldConversation: "conversation", fieldTools: "tools",
	fieldFunctions: "functions", fieldPromptCacheKey: "prompt_cache_key", fieldPreviousResponse: "previous_response_id",
	fieldCacheSalt: "cache_salt", fieldSize: "size", fieldSystem: "system", fieldBackground: "background",
}

// String returns the name that errors give the field; empty if they name it in another way.
func (f field) String() string { return fieldNames[f] }

// invalid returns the error for a field's value.
func (f field) invalid(what string) *Error {
	return Invalid(f.String(), what)
}
