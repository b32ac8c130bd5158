package migrate

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

func macrosOf(s source) map[string]string {
	macros := map[string]string{}
	for _, name := range s.rest() {
		macros[name] = s.text(name)
	}
	return macros
}

// reference matches a macro or, in the form ${env.NAME}, an environment variable.
var reference = regexp.MustCompile(`\$\{[^}]+\}`)

const (
	// environmentMacro begins the name of an environment variable in a reference.
	environmentMacro = "env."
	// portTemplate is how a command of Sluice has its port.
	portTemplate = "{{.Port}}"
)

// expand replaces the macros in a text, those of the model before the global ones. Unknown macros
// and environment variables stay: the value of a variable may be a secret.
func (c *llamaSwap) expand(text, model string, own map[string]string) string {
	for range 8 { // a macro may use others
		next := reference.ReplaceAllStringFunc(text, func(r string) string {
			name := r[2 : len(r)-1]
			switch {
			case name == "PORT":
				return portTemplate
			case name == "MODEL_ID":
				return model
			case own[name] != "":
				return own[name]
			case c.macros[name] != "":
				return c.macros[name]
			}
			return r
		})
		if next == text || len(next) > maxCommand {
			break
		}
		text = next
	}
	return text
}

// withEnvironment replaces the environment variables in a text that are set. The result may have
// secrets, so it is not for the file.
func withEnvironment(text string) string {
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		if variable, ok := strings.CutPrefix(r[2:len(r)-1], environmentMacro); ok && os.Getenv(variable) != "" {
			return os.Getenv(variable)
		}
		return r
	})
}

// environment sets the environment of a list of NAME=VALUE. A variable that has its own value comes
// from the environment of Sluice by env_from. Other values of variables are not copied.
func (c *llamaSwap) environment(it *item, list []string, expand func(string) string) {
	env, variables := map[string]string{}, []string(nil)
	for _, entry := range list {
		name, value, ok := strings.Cut(entry, "=")
		if !ok {
			continue
		}
		switch value = expand(value); {
		case value == "${"+environmentMacro+name+"}":
			variables = append(variables, name)
		case reference.MatchString(value) || strings.Contains(value, portTemplate):
			it.note("env %s was %s: write its value, or name a file with it in env_from, here", name, value)
		default:
			env[name] = value
		}
	}
	if len(env) > 0 {
		it.set("env", env)
	}
	if len(variables) > 0 {
		it.set("env_from", flow("variables", variables))
	}
}

// withoutKey returns a command without the key that the engine would ask for. Sluice sends none to
// an engine that it starts.
func withoutKey(it *item, command []string) (left []string) {
	for i := 0; i < len(command); i++ {
		name, _, joined := strings.Cut(command[i], "=")
		if name != "--api-key" && name != "--api-key-file" {
			left = append(left, command[i])
			continue
		}
		it.note("argument %s: Sluice sends no key to an engine that it starts, so it is left out here", name)
		if !joined {
			i++
		}
	}
	return left
}

// noteReferences notes what is left of macros and environment variables in a command.
func noteReferences(it *item, command []string) {
	left := reference.FindAllString(strings.Join(command, " "), -1)
	slices.Sort(left)
	for _, r := range slices.Compact(left) {
		if strings.HasPrefix(r, "${"+environmentMacro) {
			it.note("%s: the value of an environment variable is not copied: write it here", r)
		} else {
			it.note("%s has no value: write it here", r)
		}
	}
}
