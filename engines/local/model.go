package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// host is where local replicas listen: they are reached through Envoy only.
	host = "127.0.0.1"
	// standardStart is the time that a replica has to become ready when its model says nothing.
	standardStart = 10 * time.Minute
	// standardReady and standardHealth are the pauses between probes when the engine says nothing.
	standardReady  = 500 * time.Millisecond
	standardHealth = 10 * time.Second
)

// replicaID is stable over restarts: it is the place on the hash ring.
func replicaID(model string, index int) string { return fmt.Sprintf("%s-%d", model, index) }

// render makes the command line of a replica that listens on the port.
func (m Model) render(port int) ([]string, error) {
	l := m.Launch
	l.Host, l.Port = host, port
	return m.Version.Render(l)
}

// environment is ours, over it the engine's, over that the model's own, for a replica that listens on the port.
func (m Model) environment(port int) ([]string, error) {
	added, err := m.added(port)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	for _, name := range slices.Sorted(maps.Keys(added)) {
		env = append(env, name+"="+added[name])
	}
	return env, nil
}

// added is what a replica's environment has beyond ours.
func (m Model) added(port int) (map[string]string, error) {
	l := m.Launch
	l.Host, l.Port = host, port
	env, err := m.Version.RenderEnv(l)
	if err != nil {
		return nil, err
	}
	maps.Copy(env, m.Env)
	return env, nil
}

// fingerprint tells commands, environments and resources apart, whatever the port. A command that cannot be rendered has one too.
func (m Model) fingerprint() string {
	command, err := m.render(1)
	if err != nil {
		command = []string{err.Error()}
	}
	env, err := m.added(1)
	if err != nil {
		env = m.Env
	}
	identity := []any{command, env}
	if m.Resources != nil {
		identity = append(identity, *m.Resources)
	}
	data, _ := json.Marshal(identity) // strings and numbers: they always marshal
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// slots is how many requests a replica works on at once; 0 is unknown.
func (m Model) slots() int {
	return m.Version.Slots.Count(m.Version.Complete(m.Launch.Task, m.Launch.Variables))
}

func (m Model) startTimeout() time.Duration { return orStandard(m.StartTimeout, standardStart) }
func (m Model) readyEvery() time.Duration   { return orStandard(m.Version.Ready.Every, standardReady) }
func (m Model) healthEvery() time.Duration  { return orStandard(m.Version.Health.Every, standardHealth) }

func orStandard(d, standard time.Duration) time.Duration {
	if d <= 0 {
		return standard
	}
	return d
}

// pending is the replica before its first start.
func (m Model) pending(index int) engines.Replica {
	return engines.Replica{
		ID: replicaID(m.Name, index), Model: m.Name, State: engines.Pending, Launcher: engines.Local, Slots: m.slots(),
	}
}
