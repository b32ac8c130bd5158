// Package migrate turns the configuration of another gateway into a file of Sluice: the config.yaml
// of LiteLLM or of llama-swap, or the Model objects of KubeAI. The command sluice import prints it.
//
// Nothing is lost in silence. A field without a counterpart becomes a comment at the place where it
// belongs. The result is a beginning: sluice check tells what it lacks on this machine.
package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/engines"
)

// Kind is the gateway that a configuration is for.
type Kind string

// The kinds.
const (
	LiteLLM   Kind = "litellm"
	LlamaSwap Kind = "llama-swap"
	KubeAI    Kind = "kubeai"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{LiteLLM, LlamaSwap, KubeAI} }

// ErrUnknownKind means that a file looks like none of the known configurations.
var ErrUnknownKind = errors.New("the file is no configuration of LiteLLM, llama-swap or KubeAI, as far as its fields tell")

// File is a file of Sluice in the making.
type File struct {
	// Text is the file. It is YAML.
	Text string
	// Open is the number of comments about what has no counterpart or has to be done by hand.
	Open int
}

// Convert converts the text of a configuration. An empty kind is found out by the fields of the
// file. The error says where the text is not valid YAML, that its kind is not known, or that it has
// no model.
func Convert(kind Kind, text []byte) (File, error) {
	documents, err := read(text)
	if err != nil {
		return File{}, err
	}
	if kind == "" {
		if kind, err = detect(documents); err != nil {
			return File{}, err
		}
	}
	out := newOutput()
	for _, document := range documents {
		out.reserve(map[string]any(document))
	}
	switch kind {
	case LiteLLM:
		convertLiteLLM(out, documents[0])
	case LlamaSwap:
		convertLlamaSwap(out, documents[0])
	case KubeAI:
		convertKubeAI(out, documents)
	default:
		return File{}, fmt.Errorf("unknown kind %q: use one of %v", kind, Kinds())
	}
	if out.isEmpty() {
		return File{}, fmt.Errorf("the file has no model as %s names them", kind)
	}
	return out.file(kind)
}

// read returns the mappings of all documents of a YAML text.
func read(text []byte) ([]source, error) {
	var documents []source
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var values map[string]any
		err := decoder.Decode(&values)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && strings.Contains(err.Error(), "into map[string]interface {}") {
			return nil, errors.New("the file is not a YAML mapping: the files of LiteLLM, llama-swap and KubeAI are mappings")
		}
		if err != nil {
			return nil, fmt.Errorf("not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if len(values) > 0 {
			documents = append(documents, source(values))
		}
	}
	if len(documents) == 0 {
		return nil, errors.New("the file is empty")
	}
	return documents, nil
}

// detect finds the kind by fields that only one kind has.
func detect(documents []source) (Kind, error) {
	if slices.ContainsFunc(objectsOf(documents), isKubeAIModel) {
		return KubeAI, nil
	}
	first := documents[0]
	for _, config := range []source{first, liteLLMInChart(first)} {
		if _, ok := config["model_list"].([]any); ok {
			return LiteLLM, nil
		}
	}
	if isLlamaSwap(first) {
		return LlamaSwap, nil
	}
	return "", ErrUnknownKind
}

// isLlamaSwap reports whether a document has a model with a command, or peers.
func isLlamaSwap(s source) bool {
	models, _ := s["models"].(map[string]any)
	for _, model := range models {
		if fields, ok := model.(map[string]any); ok && fields["cmd"] != nil {
			return true
		}
	}
	_, ok := s["peers"].(map[string]any)
	return ok
}

// validName returns name in a form that Sluice accepts, and whether it had to be changed.
func validName(name string) (valid string, changed bool) {
	if engines.ValidName(name) {
		return name, false
	}
	valid = strings.Trim(strings.Map(func(r rune) rune {
		if engines.ValidName(string(r)) || strings.ContainsRune("._:/-", r) {
			return r
		}
		return '-'
	}, name), "._:/-")
	if !engines.ValidName(valid) {
		valid = "model"
	}
	return valid, true
}

// validName returns a name of the item in a form that Sluice accepts. What it is the name of is
// noted if it had to be changed.
func (i *item) validName(what, name string) string {
	valid, changed := validName(name)
	if changed {
		i.note("the %s was %q, which cannot be a name here", what, name)
	}
	return valid
}

// validAliases returns the aliases of a model in a form that Sluice accepts.
func validAliases(it *item, aliases []string) []string {
	var all []string
	for _, alias := range aliases {
		all = append(all, it.validName("alias", alias))
	}
	return all
}

// userOfAddress matches the scheme of an address and the user after it.
var userOfAddress = regexp.MustCompile(`^(\w+://)[^/]*@`)

// plainAddress returns the address of a server as upstreams[].url has it: without /v1 at its end,
// and without a user and a query, which may be secrets. warning says that it had one of these.
func plainAddress(address string) (plain, warning string) {
	plain, _, _ = strings.Cut(address, "?")
	plain = userOfAddress.ReplaceAllString(plain, "$1")
	isPlain := plain == address
	plain = strings.TrimSuffix(strings.TrimSuffix(plain, "/"), "/v1")
	if isPlain {
		return plain, ""
	}
	return plain, plain + " had a user or a query, which may be secrets: put what the server needs into api_key_env or headers here"
}
