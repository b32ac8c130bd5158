// Package redact hides secrets in text that an engine, a node or Envoy has written. Every package
// that shows such a text uses it: internal/process for the logs of processes, engines/join for the
// reports of nodes, engines/kubernetes for pods, and internal/dispatch for heartbeats.
//
// A Redactor hides what looks like a secret: the value of a name such as api_key or HF_TOKEN, a
// word that begins like a key of a known kind, and a URL with a password or a query. It also hides
// the values that it was made with, wherever they stand.
package redact

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Hidden stands for a secret that was removed.
const Hidden = "…"

// minSecretBytes is the length below which a value is not hidden by itself. A shorter value, such
// as "true", would hide parts of ordinary words.
const minSecretBytes = 6

// Redactor hides secrets in lines of text. The zero value and nil hide only what looks like a
// secret. Its methods are safe for concurrent use.
type Redactor struct {
	// values are hidden wherever they stand, the longest first.
	values []string
}

// New returns a Redactor that also hides these values. A value of several lines is hidden line by
// line. Lines of less than 6 bytes are not hidden.
func New(values ...string) *Redactor {
	r := &Redactor{}
	for _, value := range values {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minSecretBytes {
				r.values = append(r.values, line)
			}
		}
	}
	slices.SortFunc(r.values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	r.values = slices.Compact(r.values)
	return r
}

// ForEnvironment returns a Redactor for the lines of a process with this environment, by name. It
// hides the values of the variables in secrets, and of those whose names say that they are secrets.
func ForEnvironment(env map[string]string, secrets []string) *Redactor {
	var values []string
	for name, value := range env {
		if NamesSecret(name) || slices.Contains(secrets, name) {
			values = append(values, value)
		}
	}
	return New(values...)
}

// Text returns the text without secrets. Everything else is unchanged.
func (r *Redactor) Text(text string) string {
	if r != nil {
		for _, value := range r.values {
			text = strings.ReplaceAll(text, value, Hidden)
		}
	}
	text = urlPattern.ReplaceAllString(text, Hidden)
	text = kindPattern.ReplaceAllString(text, "${1}"+Hidden)
	text = replaceNamed(assignmentPattern, text)
	text = replaceNamed(flagPattern, text)
	return bearerPattern.ReplaceAllString(text, "${1}"+Hidden)
}

// Text returns the text without what looks like a secret.
func Text(text string) string { return (*Redactor)(nil).Text(text) }

// secretNames are the words in the names of secrets.
var secretNames = []string{
	"key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "authorization", "credential", "credentials", "bearer",
}

// NamesSecret reports whether the name of a variable, a flag or a field says that its value is a
// secret. One word of the name must be such a word: max_tokens does not name a secret.
func NamesSecret(name string) bool {
	words := strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.ContainsFunc(words, func(word string) bool {
		word = strings.ToLower(word)
		return slices.ContainsFunc(secretNames, func(secret string) bool {
			return word == secret || len(secret) >= len("apikey") && strings.HasSuffix(word, secret)
		})
	})
}

// The patterns of secrets. In assignmentPattern and flagPattern the first group is the name, the
// second what stands between name and value.
var (
	// urlPattern matches a URL with a user or a query.
	urlPattern = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]*[@?][^\s"'<>]*`)
	// kindPattern matches a key of a known kind. It begins with a prefix of its kind.
	kindPattern = regexp.MustCompile(`(^|[^A-Za-z0-9_])(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|eyJ|nvapi-|gsk_)` +
		`[A-Za-z0-9_.+/=-]{3,}`)
	assignmentPattern = regexp.MustCompile(`(?i)([\w.-]*(?:` + strings.Join(secretNames, "|") + `)[\w.-]*)(["']?\s*[=:]\s*)` + valuePattern)
	flagPattern       = regexp.MustCompile(`(?i)(--?[\w-]*(?:` + strings.Join(secretNames, "|") + `)[\w-]*)(\s+)` + valuePattern)
	bearerPattern     = regexp.MustCompile(`(?i)(\bbearer\s+)[^\s"',;]+`)
)

// valuePattern matches a value: a quoted text, or what ends at white space or a separator. The
// scheme of an Authorization header belongs to the value.
const valuePattern = `(?:"[^"]*"|'[^']*'|(?:(?:bearer|basic|token)\s+)?[^\s,;&)\]}"']+)`

// replaceNamed hides the values of a pattern whose first group names a secret.
func replaceNamed(pattern *regexp.Regexp, text string) string {
	return pattern.ReplaceAllStringFunc(text, func(found string) string {
		groups := pattern.FindStringSubmatch(found)
		if !NamesSecret(groups[1]) {
			return found
		}
		return groups[1] + groups[2] + Hidden
	})
}
