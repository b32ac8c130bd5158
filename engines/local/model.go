package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	// standardStart is the time that a replica has to become ready when its model says nothing.
	standardStart = 10 * time.Minute
	// standardReady and standardHealth are the pauses between probes when the engine says nothing.
	standardReady  = 500 * time.Millisecond
	standardHealth = 10 * time.Second
)

// loopback is where replicas listen when nothing else is said: they are reached through the Envoy of this host only.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// ReplicaID is stable over restarts: it is the place on the hash ring.
func ReplicaID(model string, index int) string { return fmt.Sprintf("%s-%d", model, index) }

// Numbers are those of the replicas that there shall be here.
func (m Model) Numbers() []int {
	if m.Indices != nil {
		return m.Indices
	}
	all := make([]int, max(m.Desired, 0))
	for i := range all {
		all[i] = i
	}
	return all
}

// launchAt is what a replica that listens there is rendered with.
func (m Model) launchAt(at netip.AddrPort) engines.Launch {
	l := m.Launch
	l.Host, l.Port = at.Addr().String(), int(at.Port())
	return l
}

// render makes the command line of a replica that listens there.
func (m Model) render(at netip.AddrPort) ([]string, error) { return m.Version.Render(m.launchAt(at)) }

// environment is ours, over it the engine's, over that the model's own, for a replica that listens there.
func (m Model) environment(at netip.AddrPort) ([]string, error) {
	added, err := m.added(at)
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
func (m Model) added(at netip.AddrPort) (map[string]string, error) {
	env, err := m.Version.RenderEnv(m.launchAt(at))
	if err != nil {
		return nil, err
	}
	maps.Copy(env, m.Env)
	return env, nil
}

// fingerprint tells commands, environments, resources and addresses apart, whatever the port. A command that cannot be rendered has one too.
func (m Model) fingerprint(address netip.Addr) string {
	at := netip.AddrPortFrom(address, 1)
	command, err := m.render(at)
	if err != nil {
		command = []string{err.Error()}
	}
	env, err := m.added(at)
	if err != nil {
		env = m.Env
	}
	identity := []any{command, env}
	if m.Resources != nil {
		identity = append(identity, *m.Resources)
	}
	if address != loopback() { // an engine need not be told where it listens to listen there
		identity = append(identity, address.String())
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
		ID: ReplicaID(m.Name, index), Model: m.Name, State: engines.Pending, Launcher: engines.Local, Slots: m.slots(),
	}
}
