// Package fit finds how a model can run on this machine: with which engine, and which files of its
// repository. The command `sluice up hf:…` uses it.
//
// A Machine says what there is: programs, memory, GPUs. Choose compares it with what a repository
// holds, and says why it chose, or what is missing and how to get it. Nothing is fetched before.
package fit

import (
	"fmt"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// Reference names a model as the command line does.
type Reference struct {
	// Text is the reference as it was given.
	Text string
	// Ollama is the name of a model in Ollama's library. It is empty for a repository of the hub.
	Ollama string
	// Repository is the id of a repository of the hub.
	Repository string
	// File is a file of the repository or the name of a quantisation, such as Q8_0. It may be
	// empty.
	File string
}

// ParseReference reads hf:ORG/NAME, hf:ORG/NAME:FILE or ollama:NAME.
func ParseReference(text string) (Reference, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "hf":
		repository, file, _ := strings.Cut(rest, ":")
		if !weights.ValidRepository(repository) {
			return Reference{}, fmt.Errorf("%q names no repository: want hf:ORG/NAME or hf:ORG/NAME:FILE", text)
		}
		return Reference{Text: text, Repository: repository, File: file}, nil
	case "ollama":
		if rest == "" || strings.Trim(rest, nameCharacters) != "" {
			return Reference{}, fmt.Errorf("%q names no model: want ollama:NAME, such as ollama:qwen3:0.6b", text)
		}
		return Reference{Text: text, Ollama: rest}, nil
	}
	return Reference{}, fmt.Errorf("%q is no model: want hf:ORG/NAME, hf:ORG/NAME:FILE or ollama:NAME", text)
}

// nameCharacters are those of names in Ollama's library.
const nameCharacters = engines.LettersAndDigits + "_-./:"
