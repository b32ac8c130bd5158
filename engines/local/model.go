package local

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/redact"
)

const (
	// defaultStartTimeout is Model.StartTimeout if the model does not set it.
	defaultStartTimeout = 30 * time.Minute
	// defaultStartStall is Model.StartStall if the model does not set it.
	defaultStartStall = 5 * time.Minute
	// defaultReadyInterval and defaultHealthInterval are the intervals between probes if the engine
	// does not set them.
	defaultReadyInterval  = 500 * time.Millisecond
	defaultHealthInterval = 10 * time.Second
)

// loopback is the default address of replicas: only the Envoy of the same machine reaches them.
func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// Numbers returns the numbers of the replicas on this node.
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

// launchAt returns what a replica is rendered with that listens at the address.
func (m Model) launchAt(at netip.AddrPort) engines.Launch {
	l := m.Launch
	l.Host, l.Port = at.Addr().String(), int(at.Port())
	return l
}

// render returns the command line of a replica that listens at the address.
func (m Model) render(at netip.AddrPort) ([]string, error) { return m.Version.Render(m.launchAt(at)) }

// programFault returns why the program of the engine cannot be started. It is empty if the program
// is there.
func (m Model) programFault() string {
	command, err := m.render(netip.AddrPortFrom(loopback(), 1))
	if err != nil || len(command) == 0 {
		return "" // the start says what is wrong
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return "program of the engine: " + err.Error()
	}
	return ""
}

// environment returns the environment of a replica that listens at the address. The model's
// variables override the engine's, and these override what the launcher passes on of its own
// (inherited).
func (m Model) environment(at netip.AddrPort) ([]string, error) {
	added, err := m.added(at)
	if err != nil {
		return nil, err
	}
	env := inherited()
	for _, name := range slices.Sorted(maps.Keys(added)) {
		env = append(env, name+"="+added[name])
	}
	return env, nil
}

// inherited returns the part of this process's environment that engines get: where their libraries,
// devices, caches and proxies are. Keys of the gateway are not in it. The table in docs/secrets.md
// says what each name is for.
func inherited() []string {
	return process.Environment(
		"HOME", "USER", "LOGNAME",
		"LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
		"CUDA_*", "NVIDIA_*", "NCCL_*", "ROCR_*", "ROCM_*", "HIP_*", "HSA_*", "GPU_DEVICE_ORDINAL", "ONEAPI_*", "ZE_*",
		"OMP_*", "MKL_*", "TORCH_HOME", "XDG_CACHE_HOME",
		"HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "OLLAMA_MODELS", "LLAMA_CACHE",
		"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
	)
}

// redactor returns what hides the model's secrets in the log lines of its replicas.
func (m Model) redactor() *redact.Redactor { return redact.ForEnvironment(m.Env, m.SecretEnv) }

// added returns what the environment of a replica has beyond the launcher's own.
func (m Model) added(at netip.AddrPort) (map[string]string, error) {
	env, err := m.Version.RenderEnv(m.launchAt(at))
	if err != nil {
		return nil, err
	}
	maps.Copy(env, m.Env)
	return env, nil
}

// SameProcess reports whether a replica of this model goes on when the model becomes next.
func (m Model) SameProcess(next Model) bool {
	return m.fingerprint(loopback()) == next.fingerprint(loopback())
}

// fingerprint identifies the command, environment, resources and address of a replica, but not its
// port. A command that cannot be rendered has a fingerprint too.
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
	if w := m.Weights; w != nil {
		identity = append(identity, []string{w.Repository, w.Revision, w.File, w.Endpoint, w.CacheDir})
	}
	if address != loopback() { // the command need not contain the address
		identity = append(identity, address.String())
	}
	data, _ := json.Marshal(identity) // strings and numbers: they always marshal
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (m Model) startTimeout() time.Duration { return cmp.Or(m.StartTimeout, defaultStartTimeout) }
func (m Model) startStall() time.Duration   { return cmp.Or(m.StartStall, defaultStartStall) }
func (m Model) readyInterval() time.Duration {
	return cmp.Or(m.Version.Ready.Every, defaultReadyInterval)
}
func (m Model) healthInterval() time.Duration {
	return cmp.Or(m.Version.Health.Every, defaultHealthInterval)
}

// pending returns the replica as it is before its first start.
func (m Model) pending(index int) engines.Replica {
	return engines.Replica{
		ID: engines.ReplicaID(m.Name, index), Model: m.Name, State: engines.Pending, Launcher: engines.Local, Slots: m.Version.SlotsOf(m.Launch),
	}
}
