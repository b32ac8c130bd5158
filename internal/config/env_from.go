package config

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
)

// EnvFrom names the sources of environment variables with secrets.
type EnvFrom struct {
	// Variables are the names of variables of Sluice's own environment that replicas get, such as
	// HF_TOKEN.
	Variables []string `yaml:"variables" form:"variable"`
	// Files are paths of files with lines NAME=VALUE. Empty lines and lines that begin with # are
	// skipped. A relative path counts from the folder of the file. A variable of a later file
	// overrides that of an earlier one, and of variables.
	Files []string `yaml:"files"`
}

// maxEnvFile is the size of the largest file of variables that is read, in bytes.
const maxEnvFile = 1 << 20

// resolveEnvFrom returns the variables that e names, with their values, which are secrets. No
// message repeats a value.
func (k *checker) resolveEnvFrom(at path, e EnvFrom) map[string]string {
	env := map[string]string{}
	for i, name := range e.Variables {
		value, fault := environmentVariable(name)
		if where := at.field("variables").item(i); fault != "" && k.valid(where) {
			k.faultf(where, "%s", fault)
		}
		env[name] = value
	}
	for i, file := range e.Files {
		file = k.absolutePath(file)
		found, err := readEnvFile(file)
		if where := at.field("files").item(i); err != nil && k.valid(where) {
			k.faultf(where, "cannot be used: %s: %s", file, reasonOf(err))
		}
		maps.Copy(env, found)
	}
	return env
}

// readEnvFile reads a file of lines NAME=VALUE. An error names the line and shows no value.
func readEnvFile(name string) (map[string]string, error) {
	data, err := readRegular(name, maxEnvFile)
	if err != nil {
		return nil, err
	}
	env, number := map[string]string{}, 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		variable, value, found := strings.Cut(text, "=")
		if !found || !isVariableName(variable) || strings.Contains(value, "\x00") {
			return nil, fmt.Errorf("its line %d is not NAME=VALUE", number)
		}
		env[variable] = value
	}
	return env, nil
}

// setSecretEnv sets the model's SecretEnv: the variables of env_from of its engine version and of
// the model itself, which overrides. A variable that is in env is left out, because env overrides
// both.
func (k *checker) setSecretEnv(at path, m *Model) {
	env := map[string]string{}
	for i, engine := range k.config.Engines[:len(k.config.Engines)-k.config.objectEngines] {
		for j, version := range engine.Versions {
			if engine.Name == m.Engine && version.Version == m.Version {
				where := path{"engines"}.item(i).field("versions").item(j).field("env_from")
				maps.Copy(env, k.resolveEnvFrom(where, version.EnvFrom))
			}
		}
	}
	maps.Copy(env, k.resolveEnvFrom(at.field("env_from"), m.EnvFrom))
	for name := range m.Env {
		delete(env, name)
	}
	if len(env) > 0 {
		m.SecretEnv = env
	}
}
