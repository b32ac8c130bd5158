package process

import (
	"os"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/redact"
)

// baseVariables are what every child gets of the environment of Sluice: where programs and
// temporary files are, the language and the time zone. A name that ends with * stands for all names
// that begin so.
func baseVariables() []string {
	return []string{"PATH", "TMPDIR", "LANG", "LANGUAGE", "LC_*", "TZ"}
}

// Environment returns the part of the environment of Sluice that a child may have: the base
// variables (PATH, TMPDIR, LANG, LANGUAGE, LC_*, TZ) and those that more names. A name of more that
// ends with * stands for all names that begin so.
//
// A variable is left out, even if it is listed, when its name says that it is a secret (see
// redact.NamesSecret). It is also left out when its value holds a URL with a user or a password.
func Environment(more ...string) []string {
	allowed := append(baseVariables(), more...)
	env := []string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		matches := func(pattern string) bool {
			prefix, isPrefix := strings.CutSuffix(pattern, "*")
			return name == pattern || isPrefix && strings.HasPrefix(name, prefix)
		}
		if slices.ContainsFunc(allowed, matches) && !redact.NamesSecret(name) && !holdsUser(value) {
			env = append(env, entry)
		}
	}
	return env
}

// holdsUser reports whether a value is a URL with a user, such as the address of a proxy with its
// password.
func holdsUser(value string) bool {
	_, rest, found := strings.Cut(value, "://")
	return found && strings.Contains(rest, "@")
}
