package migrate

import (
	"maps"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// shortFlags are the variables of flags that have another name.
var shortFlags = map[string]map[string]string{
	"llama-cpp": {
		"-np": "parallel", "-c": "ctx_size", "-n": "predict", "--n-predict": "predict", "-b": "batch_size", "-ub": "ubatch_size",
		"-t": "threads", "-tb": "threads_batch", "-ngl": "n_gpu_layers", "--gpu-layers": "n_gpu_layers", "-fa": "flash_attn",
		"-ctk": "cache_type_k", "-ctv": "cache_type_v", "-sm": "split_mode", "-mg": "main_gpu", "-kvu": "kv_unified",
	},
	"vllm": {"-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization"},
}

// setArguments sets the variables and the arguments of a model, of the arguments that the other
// gateway passes to its engine. more are further variables.
func (i *item) setArguments(engine, task string, args []string, more map[string]any) {
	variables, left := variablesOf(engine, engines.Task(task), args)
	maps.Copy(variables, more)
	if len(variables) > 0 {
		i.set("variables", variables)
	}
	if left = i.withoutOwned(engine, left); len(left) > 0 {
		i.set("args", left)
	}
}

// withoutOwned returns the arguments of an engine without those that Sluice sets itself, and their
// values.
func (i *item) withoutOwned(engine string, args []string) (left []string) {
	version, _ := engines.Find(engines.Builtin(), engine, "")
	for k := 0; k < len(args); k++ {
		if len(version.CheckArgs(args[k:k+1])) == 0 {
			left = append(left, args[k])
			continue
		}
		name, _, joined := strings.Cut(args[k], "=")
		i.note("argument %s: Sluice sets it itself here", name)
		if !joined && k+1 < len(args) && !isFlagName(args[k+1]) {
			k++
		}
	}
	return left
}

// variablesOf divides the arguments of an engine: those that the engine has variables for, with
// their values, and the others. An argument whose value the variable does not take is one of the
// others.
func variablesOf(engine string, task engines.Task, args []string) (variables map[string]any, left []string) {
	version, _ := engines.Find(engines.Builtin(), engine, "")
	properties, _ := version.Schema["properties"].(map[string]any)
	variables = map[string]any{}
	for i := 0; i < len(args); i++ {
		name, text, joined := strings.Cut(args[i], "=")
		variable := variableOf(engine, name)
		schema, _ := properties[variable].(map[string]any)
		if schema == nil {
			left = append(left, args[i])
			continue
		}
		isFlag := schema["type"] == "boolean"
		separate := !isFlag && !joined && i+1 < len(args) && !isFlagName(args[i+1])
		if separate {
			text = args[i+1]
		}
		switch value, ok := valueOf(version, task, variable, text); {
		case isFlag && !joined:
			variables[variable] = true
		case !isFlag && (joined || separate) && ok:
			variables[variable] = value
			if separate {
				i++
			}
		default:
			left = append(left, args[i])
		}
	}
	return variables, left
}

// variableOf returns the variable that a flag would set.
func variableOf(engine, flag string) string {
	if variable, ok := shortFlags[engine][flag]; ok {
		return variable
	}
	long, ok := strings.CutPrefix(flag, "--")
	if !ok {
		return ""
	}
	return strings.ReplaceAll(long, "-", "_")
}

// isFlagName reports whether an argument is a flag, and not the value of the one before it.
func isFlagName(argument string) bool {
	_, err := strconv.ParseFloat(argument, 64)
	return strings.HasPrefix(argument, "-") && err != nil
}

// valueOf returns the text of an argument as a value that the variable takes. ok is false if it
// takes none that is written so.
func valueOf(version engines.Version, task engines.Task, variable, text string) (value any, ok bool) {
	values := []any{text}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		values = append([]any{n}, values...)
	}
	if n, err := strconv.Atoi(text); err == nil {
		values = append([]any{n}, values...)
	}
	for _, value := range values {
		if len(version.CheckVariables(task, map[string]any{variable: value})) == 0 {
			return value, true
		}
	}
	return nil, false
}
