package engines

import (
	"slices"
	"strings"
)

// The one rule for names: of models, pools, tenants, engines, nodes, labels and registries of the
// configuration, and of the models that a server lists. Names appear in URLs, file names and
// metrics.
const (
	// NameRule says what a name is, for messages.
	NameRule = "a letter or digit, then letters, digits and _ - . / : @ +, at most 200 characters"
	// LettersAndDigits are the characters that a name may begin with. NameCharacters are those that
	// may follow.
	LettersAndDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	NameCharacters   = LettersAndDigits + "_-./:@+"

	maxNameLength = 200
)

// ValidName reports whether name obeys NameRule. A name with slashes has no empty step, no "." and
// no ".." between them.
func ValidName(name string) bool {
	if name == "" || len(name) > maxNameLength || !strings.Contains(LettersAndDigits, name[:1]) || strings.Trim(name, NameCharacters) != "" {
		return false
	}
	special := func(step string) bool { return step == "" || step == "." || step == ".." }
	return !slices.ContainsFunc(strings.Split(name, "/"), special)
}
