package engines

import (
	"maps"
	"slices"
)

// MultiHost says how one replica spreads over several hosts, each with a part of its GPUs. One of
// them, the leader, answers requests; the others are workers. A LeaderWorkerSet of Kubernetes tells
// each pod the address of its leader in LWS_LEADER_ADDRESS, the number of hosts in LWS_GROUP_SIZE
// and its own number in LWS_WORKER_INDEX. The zero value is an engine that cannot spread.
type MultiHost struct {
	// Leader is the command of the leader. The element {{.Command}} stands for the version's
	// Command. Empty means the Command alone.
	Leader []string
	// Worker is the command of each worker, as Leader is.
	Worker []string
	// Variables are added for a replica on several hosts. A model's own variables override them.
	Variables map[string]any
	// Hosts is a variable that gets the number of hosts, unless the model sets a variable of
	// GPUUse.Parallel. Empty: none does.
	Hosts string
}

// wholeCommand is the element that stands for the Command of a version.
const wholeCommand = "{{.Command}}"

// Supported reports whether a replica can spread.
func (h MultiHost) Supported() bool { return len(h.Worker) > 0 }

// IsZero reports whether nothing is said. Codecs ask it.
func (h MultiHost) IsZero() bool {
	return len(h.Leader) == 0 && len(h.Worker) == 0 && len(h.Variables) == 0 && h.Hosts == ""
}

// check returns the faults of the commands.
func (h MultiHost) check() []Fault {
	var faults []Fault
	if !h.IsZero() && !h.Supported() {
		faults = append(faults, Fault{Path: []string{"multi_host", "worker"}, Reason: "required: the program of the workers and its arguments"})
	}
	for name, words := range map[string][]string{"leader": h.Leader, "worker": h.Worker} {
		if _, err := parseCommand(withCommand(words, nil)); err != nil {
			faults = append(faults, Fault{Path: []string{"multi_host", name}, Reason: err.Error()})
		}
	}
	return faults
}

// withCommand returns the words with the command in place of {{.Command}}.
func withCommand(words, command []string) []string {
	if i := slices.Index(words, wholeCommand); i >= 0 {
		return slices.Concat(words[:i], command, words[i+1:])
	}
	return words
}

// OnHosts returns the version and the launch of the leader of a replica on this number of hosts.
func (v Version) OnHosts(l Launch, hosts int) (Version, Launch) {
	if len(v.MultiHost.Leader) > 0 {
		v.Command = withCommand(v.MultiHost.Leader, v.Command)
	}
	return v, v.spread(l, hosts)
}

// AsWorker returns the version and the launch of a worker. It has no probes: the leader answers for
// all.
func (v Version) AsWorker(l Launch, hosts int) (Version, Launch) {
	if slices.Contains(v.MultiHost.Worker, wholeCommand) {
		l = v.spread(l, hosts)
	} else {
		l.Args = nil // they are of the engine's command
	}
	v.Command = withCommand(v.MultiHost.Worker, v.Command)
	v.Ready, v.Health = Probe{}, Probe{}
	return v, l
}

// spread returns the launch with the variables for this number of hosts.
func (v Version) spread(l Launch, hosts int) Launch {
	variables := map[string]any{}
	maps.Copy(variables, v.MultiHost.Variables)
	sized := slices.ContainsFunc(v.GPU.Parallel, func(names []string) bool { return isSet(l.Variables, names) })
	if name := v.MultiHost.Hosts; name != "" && !sized && !isSet(l.Variables, v.GPU.Elsewhere) {
		variables[name] = hosts
	}
	maps.Copy(variables, l.Variables)
	l.Variables = variables
	return l
}
