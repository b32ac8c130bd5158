package dispatch

import (
	"slices"
	"strings"
	"unicode"
)

// Clients that wait for an engine get the last line of its log. An engine may log its own
// configuration. So everything that looks like a secret is replaced: the value of a name such as
// api_key or HF_TOKEN, a word that begins like a key of a known kind, and a URL with a password or
// a query.
const hidden = "…"

// secretNames are the words in the names of secrets, secretKinds the prefixes of keys.
var (
	secretNames = []string{"key", "apikey", "token", "secret", "password", "passwd", "pwd", "authorization", "credential", "credentials", "bearer"}
	secretKinds = []string{"sk-", "hf_", "ghp_", "gho_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza", "eyJ"}
)

// redact returns the text in one line of at most 200 bytes, without what looks like a secret.
func redact(text string) string {
	words := strings.Fields(text)
	secret := false // whether the next word is a secret
	for i, word := range words {
		words[i], secret = redactWord(word, secret)
	}
	return clip(strings.Join(words, " "))
}

// redactWord returns the word with secrets replaced, and whether the next word is a secret.
func redactWord(word string, secret bool) (plain string, next bool) {
	bare := strings.Trim(word, `"'(),;[]{}`)
	if secret || slices.ContainsFunc(secretKinds, func(kind string) bool { return strings.HasPrefix(bare, kind) }) {
		return hidden, strings.EqualFold(bare, "bearer")
	}
	if strings.Contains(word, "://") {
		if strings.ContainsAny(word, "@?") {
			return hidden, false
		}
		return word, false
	}
	name, value := word, ""
	if i := strings.IndexAny(word, "=:"); i >= 0 {
		name, value = word[:i+1], strings.Trim(word[i+1:], `"'`)
	}
	switch {
	case !namesSecret(name):
		return word, false
	case value != "":
		return name + hidden, false
	default: // --api-key x, password: x, Bearer x, but not a word in a sentence
		return word, strings.HasPrefix(bare, "-") || strings.ContainsAny(word, "=:") || strings.EqualFold(bare, "bearer")
	}
}

// namesSecret reports whether a word within the name says that its value is a secret.
func namesSecret(name string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) }), func(part string) bool {
		return slices.Contains(secretNames, strings.ToLower(part))
	})
}
