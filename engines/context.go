package engines

// contextVariables are the variables that set how many tokens prompt and answer may have together,
// by the names of the engines.
var contextVariables = []string{"max_model_len", "context_length"}

// ContextLength returns how many tokens prompt and answer may have together at a replica with these
// variables. 0: the variables do not say.
func ContextLength(variables map[string]any) int {
	for _, name := range contextVariables {
		if n, ok := positive(variables[name]); ok {
			return n
		}
	}
	return 0
}
