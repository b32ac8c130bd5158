package engines

import "strings"

// ShellQuoted quotes a word for a POSIX shell if it needs quotes.
func ShellQuoted(word string) string {
	if word != "" && strings.Trim(word, LettersAndDigits+"@%+=:,./_-…") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
