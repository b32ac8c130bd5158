package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/xds"
)

// watchConditions adds the sources of the conditions that can be read from the parts at any time.
// Conditions that a part learns of by an event are set by the part.
func (g *Gateway) watchConditions() {
	for _, source := range []func() []condition.Condition{
		g.modelConditions, g.replicaConditions, g.upstreamConditions, g.nodeConditions, g.sharedConditions,
		g.envoyConditions, g.fileConditions, g.kubernetesConditions, g.rayConditions, g.nameConditions, g.versionConditions,
		g.edgeConditions, g.envoy.certificateConditions, g.redisCertificateConditions, g.tokenConditions,
		g.memoryConditions, g.fileLimitConditions, g.recoveryConditions, g.upgradeConditions,
		g.usage.conditions,
	} {
		g.conditions.AddSource(source)
	}
}

// upgradeConditions tells whether the last restart for an upgrade has failed.
func (g *Gateway) upgradeConditions() []condition.Condition {
	failed, at := g.succession.failure.last()
	if failed == "" {
		return []condition.Condition{condition.OK(condition.UpgradeFailed, "", "AsExpected", "")}
	}
	return []condition.Condition{condition.Fault(condition.UpgradeFailed, "", "NewProcessFailed",
		fmt.Sprintf("The restart at %s has failed: %s.", at.Format(time.RFC3339), failed))}
}

// modelConditions tells for each model whether it has the replicas that it needs now.
func (g *Gateway) modelConditions() []condition.Condition {
	var all []condition.Condition
	_, drained := g.dispatcher.Drained()
	for _, s := range g.modelStandings() {
		all = append(all, withDrained(modelCondition(s.model, s.usable, s.needed), s, drained))
	}
	return all
}

// withDrained returns the condition of a model. It says so if the model would be ready but for the
// replicas that an operator has drained.
func withDrained(c condition.Condition, s modelStanding, drained map[string]bool) condition.Condition {
	var ids []string
	for i := range s.model.Replicas {
		if r := &s.model.Replicas[i]; r.State == engines.Ready && drained[r.ID] {
			ids = append(ids, r.ID)
		}
	}
	if c.Status != condition.True && len(ids) > 0 && s.usable+len(ids) >= s.needed {
		c.Reason, c.Severity = "ReplicaDrained", condition.Info
		c.Message += " An operator has drained " + strings.Join(ids, ", ") + "."
	}
	return c
}

// modelCondition is the condition of a model that has usable replicas and needs n. A model whose
// missing replicas start for the first time is no fault. One that has none and whose replicas fail
// is an error.
func modelCondition(m *engines.ModelSnapshot, usable, n int) condition.Condition {
	message := fmt.Sprintf("Model %s has %d of %d replicas.", m.Name, usable, n)
	if usable > n { // servers of others, or replicas that are about to stop
		message = fmt.Sprintf("Model %s has %d replicas and needs %d.", m.Name, usable, n)
	}
	switch {
	case usable >= n && n == 0:
		return condition.OK(condition.ModelReady, m.Name, "ScaledToZero", message)
	case usable >= n:
		return condition.OK(condition.ModelReady, m.Name, "Ready", message)
	}
	c := condition.Fault(condition.ModelReady, m.Name, "Starting", message)
	switch {
	case anyFailing(m) && usable == 0:
		c.Reason, c.Severity = "ReplicaFailed", condition.Error
	case anyFailing(m):
		c.Reason, c.Severity = "ReplicaFailed", condition.Warning
	case anyWithoutRoom(m):
		c.Reason, c.Severity = "ReplicaPending", condition.Warning
	default:
		c.Severity = condition.Info
	}
	return c
}

// anyWithoutRoom reports whether a replica fits nowhere. A pending replica without a reason is only
// about to be placed.
func anyWithoutRoom(m *engines.ModelSnapshot) bool {
	return slices.ContainsFunc(m.Replicas, func(r engines.Replica) bool { return r.State == engines.Pending && r.Reason != "" })
}

func anyFailing(m *engines.ModelSnapshot) bool {
	return slices.ContainsFunc(m.Replicas, func(r engines.Replica) bool { return isFailing(&r) })
}

// isFailing reports whether a replica has failed, or starts again and was not ready since. A
// replica whose weights arrive does not fail: the next try has less to fetch.
func isFailing(r *engines.Replica) bool {
	return r.State == engines.Failed || r.State == engines.Starting && r.FailedStarts > 0 && r.Fetch.Rate == 0
}

// failedCondition is the condition of a replica that is failing. Its action fits the class of the
// failure.
func failedCondition(model string, r *engines.Replica) condition.Condition {
	message := fmt.Sprintf("Replica %s of %s failed: %s.", r.ID, model, sentence(r.Reason))
	if r.State == engines.Starting {
		message = fmt.Sprintf("Replica %s of %s starts again after failed starts: %d. The fault was that %s.", r.ID, model, r.FailedStarts, r.Failure.Meaning())
	}
	c := condition.Fault(condition.ReplicaFailed, r.ID, "Failed", message)
	switch r.Failure {
	case engines.NoProgram:
		c.Action = "Install the engine where the replica runs, in the PATH of the process that starts it, or name an image that can be pulled."
	case engines.NoWeights:
		c.Action = "Correct the model's source, give the model the token and the files that it needs, or give the machine a way to the hub."
	case engines.GPUOutOfMemory, engines.OutOfMemory:
		c.Action = "Give the model more memory by its resources, or lower its need by its variables."
	}
	return c
}

// replicaConditions lists the replicas that are failing, get no requests or answer without a
// length, and the models whose replicas fit on no node.
func (g *Gateway) replicaConditions() []condition.Condition {
	var all []condition.Condition
	for name, m := range g.fleet.Snapshot().Models {
		for i := range m.Replicas {
			if r := &m.Replicas[i]; isFailing(r) && r.Launcher != engines.Upstream {
				all = append(all, failedCondition(name, r))
			}
		}
	}
	for model, why := range g.launchers.nodes.Pending() {
		all = append(all, condition.Fault(condition.ReplicaPending, model, "NoNode",
			fmt.Sprintf("Model %s has replicas that fit on no node: %s.", model, sentence(why))))
	}
	for id, why := range g.dispatcher.Suspended() {
		all = append(all, condition.Fault(condition.ReplicaSuspended, id, "RequestsFailed",
			fmt.Sprintf("Replica %s gets no requests for a while: it %s.", id, sentence(why))))
	}
	for id, models := range g.dispatcher.CloseDelimited() {
		all = append(all, condition.Fault(condition.CloseDelimited, id, "NoLength",
			fmt.Sprintf("Replica %s ends responses by closing their connections, so all requests of %s are managed.", id, strings.Join(models, ", "))))
	}
	return all
}

// versionConditions lists the launched models whose engine version is another than the file names.
func (g *Gateway) versionConditions() []condition.Condition {
	var all []condition.Condition
	c := g.config()
	for _, m := range c.Models {
		version, _ := c.Launch(m)
		if asked := strings.TrimPrefix(m.Version, "v"); m.Launched() && asked != m.Table && asked != version.Release {
			all = append(all, condition.Fault(condition.VersionNotListed, m.Name, "OlderVersionUsed",
				fmt.Sprintf("Model %s names %s %s. The newest version at or below it in the catalogue is %s.", m.Name, m.Engine, m.Version, m.Table)))
		}
	}
	return all
}

// sentence returns a reason without the full stop at its end, for the middle of a sentence.
func sentence(reason string) string {
	if reason == "" {
		return "the reason is unknown"
	}
	return strings.TrimSuffix(reason, ".")
}

// upstreamConditions lists the servers of the file that do not answer their health check, fail for
// a model, or list no models.
func (g *Gateway) upstreamConditions() []condition.Condition {
	var all []condition.Condition
	for url, f := range g.launchers.upstream.Faults() {
		reason, requests := "HealthCheckFailed", "requests"
		if len(f.Models) > 0 {
			reason, requests = "RequestsFailed", "requests for "+strings.Join(f.Models, ", ")
		}
		all = append(all, condition.Fault(condition.UpstreamUnreachable, url, reason,
			fmt.Sprintf("Upstream %s gets no %s: %s.", url, requests, sentence(f.Reason))))
	}
	for _, url := range g.launchers.upstream.Idle() {
		all = append(all, condition.Fault(condition.UpstreamUnreachable, url, "NoModels",
			fmt.Sprintf("Upstream %s gets no requests: its list of models has none that can be served.", url)))
	}
	return all
}

// nodeConditions lists the nodes that have joined, have not left, and do not answer.
func (g *Gateway) nodeConditions() []condition.Condition {
	if g.launchers.joined == nil {
		return nil
	}
	var all []condition.Condition
	for _, n := range g.launchers.joined.Nodes() {
		if node, _ := n.Node(); node.Lost && !n.HasLeft() {
			all = append(all, condition.Fault(condition.NodeLost, n.Name(), "NoAnswer", fmt.Sprintf("Node %s does not answer.", n.Name())))
		}
	}
	return all
}

// redisSettles is how long after an outage of Redis all parts that use it notice that it is back.
const redisSettles = 10 * time.Second

// sharedConditions tells whether Redis answers, if the gateway uses it, and whether keys and usage
// are read and written where gateways share them.
func (g *Gateway) sharedConditions() []condition.Condition {
	s := g.limits.status()
	all := redisConditions(s)
	if len(all) > 0 || s.Configured && time.Since(s.Since) < redisSettles {
		return all // it tells of everything in Redis, also while the parts notice that Redis is back
	}
	if g.config().Auth.Mode == config.AuthKeys {
		all = append(all, g.keys.conditions()...)
	}
	if err := g.usage.Unshared(); err != nil {
		c := condition.Fault(condition.UsageNotShared, "", "NotPublished",
			fmt.Sprintf("This gateway and the others do not tell each other their usage: %s.", sentence(err.Error())))
		c.Action = redis.Remedy(err.Error())
		all = append(all, c)
	}
	return append(all, clockConditions(g.usage.ClockAhead())...)
}

// maxClockError is how much the clock may differ from that of Redis. Clocks that are synchronised
// differ by milliseconds.
const maxClockError = 5 * time.Second

// clockConditions tells whether the clock of this machine is that of Redis, which all gateways ask.
func clockConditions(ahead time.Duration) []condition.Condition {
	if ahead.Abs() <= maxClockError {
		return nil
	}
	reason, where := "Ahead", "ahead of"
	if ahead < 0 {
		reason, where = "Behind", "behind"
	}
	return []condition.Condition{condition.Fault(condition.ClockDiffers, "", reason,
		fmt.Sprintf("The clock of this machine is %v %s that of Redis.", ahead.Abs().Round(time.Second), where))}
}

// redisConditions tells whether Redis answers. A call that fails leaves its error, so without one
// the gateway has only begun to ask.
func redisConditions(s admin.SharedStatus) []condition.Condition {
	if !s.Configured || s.Up {
		return nil
	}
	c := condition.Fault(condition.RedisUnavailable, "", "NoAnswer",
		fmt.Sprintf("Redis does not answer as this gateway needs: %s. This gateway enforces its share of the limits. "+
			"If Redis is only slow, raise redis_timeout.", sentence(s.LastError)))
	switch {
	case s.LastError == "":
		c.Reason, c.Severity = "Starting", condition.Info
		c.Message = "Redis has been asked and has not answered yet. Until then this gateway enforces its share of the limits."
	case redis.IsAboutPassword(s.LastError):
		c.Reason = "WrongPassword"
		c.Message = fmt.Sprintf("Redis refuses this gateway: %s. This gateway enforces its share of the limits.", sentence(s.LastError))
		c.Action = "Correct the user and the password in `redis`, and run `sluice restart`."
	case redis.Remedy(s.LastError) != "":
		c.Reason, c.Action = "Refused", redis.Remedy(s.LastError)
		c.Message = fmt.Sprintf("Redis does not answer as this gateway needs: %s. This gateway enforces its share of the limits.", sentence(s.LastError))
	}
	return []condition.Condition{c}
}

// envoyConditions tells whether Envoy is live and has accepted its configuration.
func (g *Gateway) envoyConditions() []condition.Condition {
	var all []condition.Condition
	if g.envoy.process != nil {
		all = append(envoyProcessConditions(g.envoy.process.Status()), g.filter.conditions(g.config())...)
	}
	x := g.envoy.server.Status()
	// Envoys of other hosts may all be at another gateway.
	if g.envoy.process == nil && !x.Connected && g.options.Config.Control.Listen == "" {
		all = append(all, envoyAway())
	}
	return append(all, rejectedConditions(x.Refused)...)
}

// envoyAway tells that no Envoy of an operator is connected. Sluice cannot start such an Envoy.
func envoyAway() condition.Condition {
	c := condition.Fault(condition.EnvoyUnresponsive, "", "NotConnected", "No Envoy is connected to this gateway, and someone else runs it.")
	c.Status = condition.Unknown
	c.Action = "Start Envoy with the configuration that `sluice bootstrap` prints. If it runs, read its log."
	return c
}

// rejectedConditions tells which resources Envoys refuse, once for each resource.
func rejectedConditions(refused []xds.Nack) []condition.Condition {
	var all []condition.Condition
	for i, n := range refused {
		same := func(other xds.Nack) bool { return other.Type == n.Type && other.Resource == n.Resource }
		if slices.ContainsFunc(refused[:i], same) {
			continue
		}
		who := "Envoy"
		if n.Envoy != "" {
			who = "The Envoy " + n.Envoy
		}
		message := fmt.Sprintf("%s refused the %s %s: %s.", who, n.Type, n.Resource, sentence(strings.TrimSpace(n.Message)))
		for _, other := range refused[i+1:] {
			if same(other) {
				message += fmt.Sprintf(" The Envoy %s refused it, too.", other.Envoy)
			}
		}
		c := condition.Fault(condition.EnvoyRejectedConfig, n.Resource, "Nack", message)
		if strings.Contains(n.Message, "Address already in use") {
			c.Action = "End the program that listens there, which `ss -ltnp` shows, and start the gateway again; or set `listen` to another port."
		}
		all = append(all, c)
	}
	return all
}

// envoyProcessConditions tells whether the Envoy that this gateway runs is live and answers.
func envoyProcessConditions(s envoy.Status) []condition.Condition {
	var c condition.Condition
	silence := time.Since(s.SilentSince).Round(time.Second)
	switch {
	case s.Hung:
		c = condition.Fault(condition.EnvoyUnresponsive, "", "Hung", fmt.Sprintf(
			"Envoy (pid %d) has answered neither on its admin interface for %s nor on its listener. "+
				"It is ended and started again after envoy.hang_timeout.", s.PID, silence))
	case !s.SilentSince.IsZero():
		c = condition.Fault(condition.EnvoyUnresponsive, "", "AdminSilent", fmt.Sprintf(
			"Envoy (pid %d) has not answered on its admin interface for %s. Its listener answers, so Sluice leaves it alone.", s.PID, silence))
		c.Action = "Read Envoy's log in the state directory. If this lasts, end that process when few requests run: Sluice then starts Envoy again."
	case s.State == envoy.StateLive:
		return nil
	default:
		does, starts := describeEnvoy(s)
		c = condition.Fault(condition.EnvoyUnresponsive, "", "NotLive", does+".")
		if starts {
			c.Reason, c.Severity = "Starting", condition.Info
		}
	}
	return []condition.Condition{c}
}

// describeEnvoy says what an Envoy does that is not live, and whether it starts.
func describeEnvoy(s envoy.Status) (does string, starts bool) {
	if s.State == envoy.StateStarting || s.State == envoy.StateDown && s.Reason == "" {
		return "Envoy is starting", true
	}
	return fmt.Sprintf("Envoy is %s: %s", s.State, sentence(s.Reason)), false
}

// fileConditions tells whether the newest file is in force.
func (g *Gateway) fileConditions() []condition.Condition {
	var all []condition.Condition
	s := g.watcher.Status()
	if len(s.Faults) > 0 {
		c := condition.Fault(condition.ConfigRejected, "", "Faults", s.Faults.Error()+".")
		switch {
		case s.Held: // the fault says what to do
			c.Reason, c.Action = "Held", "`sluice check FILE` finds no fault in it."
		case s.Refused:
			c.Reason = "Refused"
			c.Action = "Correct what the message names. `sluice check FILE` finds no fault in the file. " +
				"The gateway tries the file again every 10 seconds."
		}
		all = append(all, c)
	}
	if len(s.NeedsRestart) > 0 {
		all = append(all, restartCondition(s))
	}
	return all
}

// restartCondition names the fields of the file that wait for a restart.
func restartCondition(s config.Status) condition.Condition {
	c := condition.Fault(condition.RestartRequired, "", "FieldsChanged",
		fmt.Sprintf("%s has new values of %s, and the gateway still runs with the old ones.", s.Path, strings.Join(s.NeedsRestart, ", ")))
	c.Action = "Run `sluice restart`: running requests go on."
	if slices.Contains(s.NeedsRestart, "state_dir") {
		c.Action = "Stop the gateway and start it again: `sluice restart` cannot change `state_dir`."
	}
	return c
}

// kubernetesConditions lists the faults of clusters, of models there and of custom resources.
func (g *Gateway) kubernetesConditions() []condition.Condition {
	var all []condition.Condition
	if g.launchers.kubernetes != nil {
		s := g.launchers.kubernetes.Status()
		for _, c := range s.Clusters {
			if c.Errors != "" {
				all = append(all, condition.Fault(condition.KubernetesFault, c.Context, "ClusterFault",
					fmt.Sprintf("%s: %s.", strings.TrimSpace("Kubernetes "+c.Context), sentence(c.Errors))))
			}
		}
		for model, why := range s.Faults {
			all = append(all, condition.Fault(condition.KubernetesFault, model, "CannotLaunch",
				fmt.Sprintf("Model %s cannot be launched on Kubernetes: %s.", model, sentence(why))))
		}
		for model, why := range s.Blocked {
			all = append(all, blockedCondition(model, why))
		}
	}
	if g.launchers.resources != nil {
		all = append(all, g.launchers.resources.conditions()...)
	}
	return all
}

// blockedCondition is for a model of which something in Kubernetes is not as it should be. It may
// have all of its pods, or more, if only its budget or the end of older pods is refused.
func blockedCondition(model, why string) condition.Condition {
	return condition.Fault(condition.KubernetesFault, model, "Blocked",
		fmt.Sprintf("Kubernetes does not do all that model %s needs: %s.", model, sentence(why)))
}

// fileLimitConditions tells whether the gateway itself has nearly no descriptors left.
func (g *Gateway) fileLimitConditions() []condition.Condition {
	open, limit := process.OpenFiles(), process.FileLimit()
	if !isNearLimit(int64(open), int64(limit)) {
		return nil
	}
	return []condition.Condition{condition.Fault(condition.FilesNearLimit, "", "NearLimit",
		fmt.Sprintf("The gateway has %d of %d files open.", open, limit))}
}
