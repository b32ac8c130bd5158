package gateway

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// replicaCommand returns the command line that the configuration gives a launched replica at its
// address, quoted for a shell and without secrets. self is the path of this program. The result is
// empty for a replica without an address, and for one of a model that is not launched.
func replicaCommand(c *config.Config, self string, r engines.Replica) string {
	m, ok := c.Model(r.Model)
	if !ok || !m.Launched() || !r.Address.IsValid() {
		return ""
	}
	version, launch := c.Launch(m)
	launch.Sluice, launch.Host, launch.Port = self, r.Address.Addr().String(), int(r.Address.Port())
	if m.Launcher == engines.Kubernetes || m.Launcher == engines.Ray {
		launch.Sluice, launch.Host = "sluice", cmp.Or(version.PodHost, launch.Host)
	}
	if m.Hosts > 1 {
		version, launch = version.OnHosts(launch, m.Hosts)
	}
	if m.Launcher == engines.Local && c.Weights(m) != nil { // the path is known where the replica runs
		launch.Registry, launch.Model = "directory", path.Join(m.Source.Name, m.Source.File)
	}
	words, err := version.Render(launch)
	if err != nil {
		return ""
	}
	return shownCommand(words, redact.ForEnvironment(localEnv(m), slices.Sorted(maps.Keys(m.SecretEnv))))
}

// shownCommand quotes a command line for a shell. It hides the value of a flag whose name says that
// it is a secret, and what hidden hides.
func shownCommand(words []string, hidden *redact.Redactor) string {
	shown := make([]string, len(words))
	secret := false // the word before is the name of a secret
	for i, word := range words {
		isFlag := strings.HasPrefix(word, "-")
		name, _, hasValue := strings.Cut(word, "=")
		switch {
		case secret && !isFlag:
			word = redact.Hidden
		case isFlag && hasValue && redact.NamesSecret(name):
			word = name + "=" + redact.Hidden
		default:
			word = hidden.Text(word)
		}
		secret = isFlag && !hasValue && redact.NamesSecret(name)
		shown[i] = engines.ShellQuoted(word)
	}
	return strings.Join(shown, " ")
}
