// Package redact hides secrets in text that an engine, a node or Envoy has written. Every package
// that shows such a text uses it: internal/process for the logs of processes, engines/join for the
// reports of nodes, engines/kubernetes for pods, and internal/dispatch for heartbeats. Package
// internal/migrate asks it which headers are secrets.
//
// A Redactor hides what looks like a secret. It hides the value of a name such as api_key or
// HF_TOKEN. It hides a word that begins like a key of a known kind, and a URL with a password or a
// query. It also hides the values that it was made with, wherever they stand.
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
	for _, pattern := range []*regexp.Regexp{assignmentPattern, flagPattern, elementPattern, pairPattern} {
		text = hideNamed(pattern, text)
	}
	return bearerPattern.ReplaceAllString(text, "${1}"+Hidden)
}

// Text returns the text without what looks like a secret.
func Text(text string) string { return (*Redactor)(nil).Text(text) }

// secretNames are the words in the names of secrets. The word tokens is not one of them, because
// logs count tokens.
var secretNames = []string{
	"key", "apikey", "apikeys", "token", "secret", "secrets", "password", "passwords", "passwd", "pwd", "passphrase", "authorization",
	"credential", "credentials", "bearer",
}

// keyKinds are the words before the word keys in the names of secrets. Alone the word keys names
// none: loaders of weights log missing_keys.
var keyKinds = []string{"api", "access", "private"}

// NamesSecret reports whether the name of a variable, a flag or a field says that its value is a
// secret. One word of the name must be such a word: max_tokens does not name a secret.
func NamesSecret(name string) bool {
	before := ""
	for _, word := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) }) {
		if isSecretName(word) || word == "keys" && slices.Contains(keyKinds, before) {
			return true
		}
		before = word
	}
	return false
}

// isSecretName reports whether a word in lower case is one of secretNames, or ends in a long one.
func isSecretName(word string) bool {
	return slices.ContainsFunc(secretNames, func(secret string) bool {
		return word == secret || len(secret) >= len("apikey") && strings.HasSuffix(word, secret)
	})
}

// anySecret, anyName and anyFlag match what may name a secret.
var (
	anySecret = `(?:` + strings.Join(secretNames, "|") + `)`
	anyName   = `([\w.-]*` + anySecret + `[\w.-]*)`
	anyFlag   = `(--?[\w-]*` + anySecret + `[\w-]*)`
)

// The patterns of secrets. The last four of them match a name, which is their first group, and what
// stands between name and value.
var (
	// urlPattern matches a URL with a user or a query.
	urlPattern = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]*[@?][^\s"'<>]*`)
	// kindPattern matches a key of a known kind. It begins with a prefix of its kind.
	kindPattern = regexp.MustCompile(`(^|[^A-Za-z0-9_])(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|eyJ|nvapi-|gsk_)` +
		`[A-Za-z0-9_.+/=-]{3,}`)
	bearerPattern     = regexp.MustCompile(`(?i)(\bbearer\s+)[^\s"',;]+`)
	assignmentPattern = regexp.MustCompile(`(?i)` + anyName + `(?:\\*["'])?\s*(?:=>|:=|[=:])\s*`)
	flagPattern       = regexp.MustCompile(`(?i)` + anyFlag + `\s+`)
	// elementPattern is for a flag in a list of arguments, pairPattern for a pair in parentheses.
	elementPattern = regexp.MustCompile(`(?i)["']` + anyFlag + `\\*["']\s*,\s*`)
	pairPattern    = regexp.MustCompile(`(?i)\(\s*[bru]?\\*["']` + anyName + `\\*["']\s*,\s*`)
)

// The forms of a value that may have white space. In a quoted text, a backslash escapes the next
// character. Only if no quote follows that is not escaped, backslashes count as themselves.
const (
	// Programs write the kind of a text before it: b'…', SecretStr('…').
	kindOfText  = `(?:[a-z_][\w.]*\()*[bru]{0,2}`
	quotedText  = `"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|"[^"]*"|'[^']*'`
	listElement = `"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|[^\])"']`
	// Of JSON that is inside of a string of JSON, the quotes have a backslash, and so have the
	// backslashes and the quotes inside of its own strings.
	escapedRest = `(?:[^"\\\n]|\\\\(?:\\["\\]|[^"\\])|\\[^"\\])*`
	escapedText = `\\"` + escapedRest + `\\"`
	escapedList = `\[(?:\s*\\"` + escapedRest + `(?:\\")?\s*,?)+\]?`
	bracketed   = `[\[(](?:` + listElement + `)*[\])]?`
)

// valuePattern matches the value at the beginning of a text. That is a quoted text with its kind, a
// list in brackets, or one of both with a backslash before each quote. Else it is what ends at
// white space or a separator. The scheme of an Authorization header belongs to the value. A list
// without an end, and one with a quote that is not closed, match as far as they go. So the search
// takes no longer than what it hides.
var valuePattern = regexp.MustCompile(`(?is)^(?:` + kindOfText + `(?:` + quotedText + `)|` + escapedText + `|` + escapedList + `|` + bracketed +
	`|(?:(?:bearer|basic|token)\s+)?(?:\\*["'])?[^\s,;&)\]}"']+)`)

// hideNamed hides the values whose names match a pattern and name a secret.
func hideNamed(pattern *regexp.Regexp, text string) string {
	var hidden strings.Builder
	for {
		found := pattern.FindStringSubmatchIndex(text)
		if found == nil {
			break
		}
		name, begin := text[found[2]:found[3]], found[1]
		hidden.WriteString(text[:begin])
		text = text[begin:]
		if !NamesSecret(name) {
			continue
		}
		if value := valuePattern.FindString(text); value != "" {
			hidden.WriteString(Hidden)
			text = text[len(value):]
		}
	}
	hidden.WriteString(text)
	return hidden.String()
}
