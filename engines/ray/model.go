package ray

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// Model is a model to run: Desired jobs of one version of an engine.
type Model struct {
	// Model is reported to the fleet as it is. Its Desired is the number of replicas.
	engines.Model
	// Version says how the engine is started and probed.
	Version engines.Version
	// Launch is what the command is rendered with. The launcher sets Host and Port.
	Launch engines.Launch
	// Env is added to the environment that Ray gives to jobs.
	Env map[string]string
	// Resources are what the job asks Ray for. nil means one CPU.
	Resources *engines.Resources
	// Cluster is a custom resource of Ray's that the node must have. Empty means any node.
	Cluster string
	// StartTimeout is how long a replica may take from its start until it is ready. 0 means 30 min.
	StartTimeout time.Duration
	// DrainTimeout is how long a replica that is stopped may take to finish its requests. 0 means
	// Config.DrainTimeout.
	DrainTimeout time.Duration
}

const (
	// defaultStartTimeout is Model.StartTimeout if the model does not set it.
	defaultStartTimeout = 30 * time.Minute
	// defaultReadyInterval and defaultHealthInterval are the intervals between probes if the engine
	// does not set them.
	defaultReadyInterval  = 500 * time.Millisecond
	defaultHealthInterval = 10 * time.Second
	// allAddresses is the host that replicas listen on. Their node is not known when the command is
	// rendered.
	allAddresses = "0.0.0.0"
	// presence is the amount of a custom resource that a job asks for only to be put on a node that
	// has it.
	presence = 0.001
)

// spread returns the model for a replica whose engine asks Ray itself for GPUs on several nodes.
func (m Model) spread() Model {
	variables := maps.Clone(m.Version.RayVariables)
	maps.Copy(variables, m.Launch.Variables)
	m.Launch.Variables = variables
	return m
}

// launchAt returns what a replica is rendered with that listens on the port.
func (m Model) launchAt(port int) engines.Launch {
	l := m.Launch
	l.Host, l.Port = allAddresses, port
	return l
}

// entrypoint returns the shell command of a replica that listens on the port. The engine replaces
// the shell.
func (m Model) entrypoint(port int) (string, error) {
	command, err := m.Version.Render(m.launchAt(port))
	if err != nil {
		return "", err
	}
	words := []string{"exec"}
	for _, word := range command {
		words = append(words, engines.ShellQuoted(word))
	}
	return strings.Join(words, " "), nil
}

// environment returns what the environment of a replica has beyond that of its node.
func (m Model) environment(port int) (map[string]string, error) {
	env, err := m.Version.RenderEnv(m.launchAt(port))
	if err != nil {
		return nil, err
	}
	maps.Copy(env, m.Env)
	return env, nil
}

// spec identifies the command, the environment and the resources of a replica, but not its port. A
// model that cannot be rendered has one too.
func (m Model) spec() string {
	command, err := m.entrypoint(1)
	if err != nil {
		command = err.Error()
	}
	env, err := m.environment(1)
	if err != nil {
		env = m.Env
	}
	data, _ := json.Marshal([]any{command, env, m.Resources, m.Cluster}) // strings and numbers: they always marshal
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// redactor returns what hides the model's secrets in the lines of its replicas.
func (m Model) redactor() *redact.Redactor { return redact.ForEnvironment(m.Env, nil) }

// newJob returns the job of one more start of a replica. driver is the address of the node for the
// job of a replica that spreads over several nodes. It is empty for one that fits on a node.
func (m Model) newJob(meta metadata, driver string) (submission, error) {
	if driver != "" {
		m = m.spread()
	}
	command, err := m.entrypoint(meta.port)
	if err != nil {
		return submission{}, err
	}
	env, err := m.environment(meta.port)
	if err != nil {
		return submission{}, err
	}
	s := submission{
		Entrypoint: command, SubmissionID: submissionID(m.Name, meta.index), RuntimeEnv: runtimeEnv{env}, Metadata: meta.encode(),
		CPUs: 1,
	}
	if r := m.Resources; r != nil {
		s.CPUs, s.GPUs, s.Memory = r.CPU, r.GPU, r.Memory
	}
	if driver != "" {
		s.GPUs, s.Resources = 0, map[string]float64{"node:" + driver: presence} // the engine reserves the GPUs
	} else if m.Cluster != "" {
		s.Resources = map[string]float64{m.Cluster: presence}
	}
	if s.CPUs == 0 && s.GPUs == 0 && s.Memory == 0 && s.Resources == nil {
		s.CPUs = presence // Ray puts a job that asks for nothing on its head
	}
	return s, nil
}

// submissionID returns a new id for a job: the id of the replica and a random part. It is a part of
// the paths of the API, so only letters, digits and a few others are in it.
func submissionID(model string, index int) string {
	safe := strings.Map(func(r rune) rune {
		if strings.ContainsRune(engines.LettersAndDigits+"_-.", r) {
			return r
		}
		return '-'
	}, model)
	return safe + "-" + strconv.Itoa(index) + "-" + strings.ToLower(rand.Text()[:10])
}

// The keys of a job's metadata, by which gateways find their replicas. They are a format that
// outlives a version of Sluice.
const (
	metaInstall  = "sluice"
	metaGateway  = "sluice_gateway"
	metaModel    = "sluice_model"
	metaReplica  = "sluice_replica"
	metaSpec     = "sluice_spec"
	metaPort     = "sluice_port"
	metaRestarts = "sluice_restarts"
	metaDrain    = "sluice_drain"
)

// metadata are what Sluice writes at a job.
type metadata struct {
	// install is Config.Name, gateway the identity of the gateway that submitted the job.
	install, gateway string
	model            string
	index            int
	spec             string
	port, restarts   int
	// drain is the model's DrainTimeout, for when nobody knows the model any more. 0 means
	// Config.DrainTimeout.
	drain time.Duration
}

func (m metadata) encode() map[string]string {
	return map[string]string{
		metaInstall: m.install, metaGateway: m.gateway, metaModel: m.model, metaReplica: strconv.Itoa(m.index), metaSpec: m.spec,
		metaPort: strconv.Itoa(m.port), metaRestarts: strconv.Itoa(m.restarts), metaDrain: m.drain.String(),
	}
}

// decodeMetadata returns what Sluice wrote at a job. It returns false if the job is not one of a
// replica.
func decodeMetadata(from map[string]string) (m metadata, ok bool) {
	m = metadata{install: from[metaInstall], gateway: from[metaGateway], model: from[metaModel], spec: from[metaSpec]}
	index, errIndex := strconv.Atoi(from[metaReplica])
	port, errPort := strconv.Atoi(from[metaPort])
	if m.model == "" || errIndex != nil || errPort != nil || index < 0 || port <= 0 || port > 65535 {
		return m, false
	}
	m.index, m.port = index, port
	m.restarts, _ = strconv.Atoi(from[metaRestarts])
	m.drain, _ = time.ParseDuration(from[metaDrain])
	return m, true
}
