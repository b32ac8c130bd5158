package engines

import (
	"slices"
	"strconv"
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

// ReplicaID returns the id of a model's replica with a number, for the launchers that number their
// replicas. The id is stable over restarts, and with it the replica's position on the hash ring.
func ReplicaID(model string, index int) string { return model + "-" + strconv.Itoa(index) }

// ReplicaIndex returns the number in a replica's id, or -1 if ReplicaID does not make such an id.
func ReplicaIndex(model, id string) int {
	digits, ok := strings.CutPrefix(id, model+"-")
	index, err := strconv.Atoi(digits)
	if !ok || err != nil || index < 0 || strconv.Itoa(index) != digits {
		return -1
	}
	return index
}
