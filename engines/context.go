package engines

import "slices"

// contextVariables are the variables that set how many tokens prompt and answer may have together,
// by the names of the engines.
var contextVariables = []string{"max_model_len", "context_length"}

// ContextLength returns how many tokens prompt and answer may have together at a replica with these
// variables. 0: the variables do not say.
func ContextLength(variables map[string]any) int {
	i := slices.IndexFunc(contextVariables, func(name string) bool {
		_, ok := positive(variables[name])
		return ok
	})
	if i < 0 {
		return 0
	}
	n, _ := positive(variables[contextVariables[i]])
	return n
}
