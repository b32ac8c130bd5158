package gateway

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/news"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/keys"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// This file converts a configuration to the types of each part. All functions are pure.

func authConfig(c *config.Config) authz.Config {
	a := authz.Config{Open: c.Auth.Mode == config.AuthNone, DefaultTenant: c.Auth.DefaultTenant}
	if h := c.Auth.TrustedHeader; h != nil {
		a.Header = &authz.TrustedHeader{Name: strings.ToLower(h.Name), From: h.Proxies}
	}
	for _, t := range c.Tenants {
		tenant := authz.Tenant{Name: t.Name, Models: permittedNames(c, t.Models), Priority: string(t.Priority), EngineLog: t.EngineLog}
		a.Tenants = append(a.Tenants, authz.TenantConfig{Tenant: tenant, Keys: fileKeys(c, t.Keys)})
	}
	return a
}

// fileKeys returns the keys that a tenant has in the file.
func fileKeys(c *config.Config, keys []config.Key) []authz.KeyConfig {
	var all []authz.KeyConfig
	for _, k := range keys {
		all = append(all, authz.KeyConfig{Hash: k.Hash, Priority: string(k.Priority), Models: keyModels(c, k.Models), Limited: k.Limits != config.KeyLimits{},
			Expires: k.Expires})
	}
	return all
}

// runtimeKeys returns the keys that operators have made. They name models as the file does.
func runtimeKeys(c *config.Config, made []keys.Key) []authz.RuntimeKey {
	var all []authz.RuntimeKey
	for _, k := range made {
		own := authz.KeyConfig{ID: k.ID, Hash: k.Hash, Models: keyModels(c, k.Models), Limited: k.Limits != keys.Limits{}, Expires: k.Expires}
		all = append(all, authz.RuntimeKey{KeyConfig: own, Tenant: k.Tenant})
	}
	return all
}

// fileKeyLimits returns the limits of the keys of the file that have some, as admission names them.
func fileKeyLimits(c *config.Config) map[string]admission.TenantLimits {
	all := map[string]admission.TenantLimits{}
	for _, t := range c.Tenants {
		for _, k := range t.Keys {
			if k.Limits != (config.KeyLimits{}) {
				all[keyTenant(t.Name, authz.FileKeyID(k.Hash))] = keyLimits(keys.Limits(k.Limits))
			}
		}
	}
	return all
}

// runtimeKeyLimits returns the limits of the keys of run time that have some, as admission names
// them.
func runtimeKeyLimits(made []keys.Key) map[string]admission.TenantLimits {
	all := map[string]admission.TenantLimits{}
	for _, k := range made {
		if k.Limits != (keys.Limits{}) {
			all[keyTenant(k.Tenant, k.ID)] = keyLimits(k.Limits)
		}
	}
	return all
}

// keyTenant returns the name under which admission has the limits of a key.
func keyTenant(tenant, id string) string { return admission.KeyTenant(authz.KeyName(tenant, id)) }

// keyLimits returns the limits of a key as those of a tenant.
func keyLimits(l keys.Limits) admission.TenantLimits {
	return admission.TenantLimits{RequestsPerMinute: l.RequestsPerMinute, TokensPerMinute: l.TokensPerMinute, MaxConcurrent: l.MaxConcurrentStreams}
}

// keyModels returns the models that a key may use; nil: all that its tenant may use.
func keyModels(c *config.Config, names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return permittedNames(c, names)
}

// tokensConfig returns which tokens of an identity provider are accepted; nil: none.
func tokensConfig(c *config.Config) *jwks.Config {
	j := c.Auth.JWT
	if j == nil {
		return nil
	}
	return &jwks.Config{URL: j.JWKSURL, File: j.JWKSFile, Issuer: j.Issuer, Audiences: j.Audiences, TenantClaim: j.TenantClaim, Refresh: j.Refresh}
}

// headerLimits returns the limits of a request's headers.
func headerLimits(c *config.Config) headers.Limits {
	return headers.Limits{Count: c.MaxHeaders, Bytes: int(c.MaxHeaderBytes)}
}

// hangTimeout returns envoy.Config.HangTimeout.
func hangTimeout(c *config.Config) time.Duration {
	if c.Envoy.HangTimeout == 0 {
		return -1 // never
	}
	return c.Envoy.HangTimeout
}

// permittedNames returns the names that a list of models permits.
func permittedNames(c *config.Config, names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, c.Permits(name)...)
	}
	return all
}

// policy returns the policy of a model. longest is the bound of Envoy's routes, see maxDuration.
func policy(m config.Model, longest time.Duration) dispatch.Policy {
	var l admission.Limits
	limits.FromFile(admission.ModelScope, m.Admission).SetModel(&l)
	return dispatch.Policy{
		Limits:               l,
		Strategy:             dispatch.Strategy(m.Routing.Strategy),
		VirtualNodes:         m.Routing.VirtualNodesPerReplica,
		LoadFactor:           m.Routing.LoadFactor,
		LoadFloor:            m.Routing.LoadFloor,
		UserMessages:         m.Routing.MaxUserMessagesForCache,
		MaxPerReplica:        int(m.Admission.MaxPerReplica),
		MaxPrefillPerReplica: m.Admission.MaxPrefillPerReplica,

		MaxPrefillTokensPerReplica: m.Admission.MaxPrefillTokensPerReplica,
		ColdStart:                  coldStartWait(m.ColdStart.Wait),
		MaxDuration:                m.Stream.MaxDuration,
		BoundByRoute:               m.Stream.MaxDuration == longest,
		SlowStart:                  m.Routing.SlowStart,
		UnhealthyOn:                unhealthyOn(m.UnhealthyOn),
		FailOver:                   failOver(m.FailOverOn),
		Way:                        wayPolicy(m),
		Lacks:                      lacks(m.Routes),
		Guards:                     guards(m.Engine),
		Permitted:                  openai.NewGuards(m.PermitFields),
		MediaHosts:                 mediaHosts(m.MediaHosts),
	}
}

// mediaHosts returns the hosts of media that a checked list of rules permits. nil stands for the
// default.
func mediaHosts(list []string) openai.MediaHosts {
	if list == nil {
		list = []string{openai.PublicHosts}
	}
	hosts, _ := openai.ParseMediaHosts(list)
	return hosts
}

// coldStartWait returns Policy.ColdStart of a wait in the file, where 0 means not to wait.
func coldStartWait(wait time.Duration) time.Duration {
	if wait == 0 {
		return dispatch.NoWait
	}
	return wait
}

// lacks returns the endpoints that replicas with these routes do not have and that the relay does
// not translate, of those that only some engines have. nil means that the routes of the replicas
// are not known.
func lacks(routes []config.Route) (set openai.EndpointSet) {
	for _, path := range config.OptionalRoutes() {
		if e, ok := openai.EndpointOf(string(path)); ok && !e.OfMessages() && routes != nil && !slices.Contains(routes, path) {
			set.Add(e)
		}
	}
	return set
}

// guards returns the guarded fields that an engine obeys. An engine of the file may be any.
func guards(engine string) openai.Guards {
	if !slices.ContainsFunc(engines.Builtin(), func(e engines.Engine) bool { return e.Name == engine }) {
		engine = ""
	}
	return openai.GuardsOf(engine)
}

// messagesRoutes returns the endpoints of the Messages API that replicas with these routes have.
func messagesRoutes(routes []config.Route) (set openai.EndpointSet) {
	for _, path := range routes {
		if e, ok := openai.EndpointOf(string(path)); ok && e.OfMessages() {
			set.Add(e)
		}
	}
	return set
}

func unhealthyOn(list []config.Failure) dispatch.Failure {
	bits := map[config.Failure]dispatch.Failure{config.FailConnect: dispatch.Connect, config.FailReset: dispatch.Reset,
		config.Fail5xx: dispatch.FiveHundreds, config.Fail503: dispatch.Unavailable}
	var all dispatch.Failure
	for _, f := range list {
		all |= bits[f]
	}
	return all
}

func failOver(list []config.StatusClass) failover.Statuses {
	bits := map[config.StatusClass]failover.Statuses{config.Status429: failover.OnTooMany, config.Status503: failover.OnUnavailable,
		config.Status5xx: failover.OnServerError}
	all := failover.NoStatus
	for _, s := range list {
		all |= bits[s]
	}
	return all
}

func localModels(c *config.Config, self string, desired func(model string) int) []local.Model {
	var models []local.Model
	for _, m := range c.Models {
		if m.Launcher != engines.Local {
			continue
		}
		version, launch := c.Launch(m)
		launch.Sluice = self
		models = append(models, local.Model{
			Model:        describeLaunched(m, desired(m.Name)),
			Version:      version.ForReplicas(launch.Variables),
			Launch:       launch,
			Weights:      c.Weights(m),
			Env:          localEnv(m),
			SecretEnv:    slices.Sorted(maps.Keys(m.SecretEnv)),
			Resources:    needs(m),
			Placement:    local.Placement(m.Placement),
			Cluster:      m.Cluster,
			EvictIdle:    m.Evict == config.EvictIdle,
			StartTimeout: m.ColdStart.LoadTimeout,
			StartStall:   m.ColdStart.Stall,
			DrainTimeout: m.Stream.MaxDuration,
		})
	}
	return models
}

// localEnv returns the environment that the file gives the replicas of a model with launcher local.
func localEnv(m config.Model) map[string]string {
	env := maps.Clone(m.SecretEnv)
	if env == nil {
		return maps.Clone(m.Env)
	}
	maps.Copy(env, m.Env)
	return env
}

// podSecrets returns the environment variables that come from Secrets. The check of the
// configuration guarantees the form NAME/KEY.
func podSecrets(m config.Model) map[string]kubernetes.SecretKey {
	all := map[string]kubernetes.SecretKey{}
	for name, text := range m.Secrets {
		secret, key, _ := strings.Cut(text, "/")
		all[name] = kubernetes.SecretKey{Name: secret, Key: key}
	}
	return all
}

// podWeights returns what a Job fetches for the pods of a model, or nil.
func podWeights(c *config.Config, m config.Model) *kubernetes.Weights {
	r, link, ok := c.CachedWeights(m)
	if !ok {
		return nil
	}
	secret, key, _ := strings.Cut(r.Cache.Token, "/")
	pod := ""
	if len(r.Cache.Pod) > 0 {
		data, _ := json.Marshal(r.Cache.Pod) // a checked patch is plain data
		pod = string(data)
	}
	return &kubernetes.Weights{Pod: pod,
		Claim: r.Cache.Claim, Size: int64(r.Cache.Size), StorageClass: r.Cache.StorageClass, Path: r.Cache.Path, Link: link,
		Image: r.Cache.Image, Token: kubernetes.SecretKey{Name: secret, Key: key}, Endpoint: r.Endpoint,
		Repository: m.Source.Name, Revision: m.Source.Revision, File: m.Source.File, GGUF: config.LoadsGGUF(m.Engine),
	}
}

// podVolumes returns the volumes that hold the model's files, if the model comes from a directory.
func podVolumes(c *config.Config, m config.Model) []kubernetes.Volume {
	if m.Source == nil {
		return nil
	}
	if r, _, ok := c.CachedWeights(m); ok {
		return []kubernetes.Volume{{Claim: r.Cache.Claim, Path: r.Cache.Path}}
	}
	for _, r := range c.Registries {
		if r.Name == m.Source.Registry && r.Claim != "" {
			return []kubernetes.Volume{{Claim: r.Claim, Path: r.Path}}
		}
	}
	return nil
}

// needs returns the resources that a replica needs of its node. It returns nil if the configuration
// does not say.
func needs(m config.Model) *engines.Resources {
	if m.Resources == nil {
		return nil
	}
	r := m.Resources.Needs()
	return &r
}

func upstreams(c *config.Config) upstream.Desired {
	d := upstream.Desired{Reserved: reservedNames(c), Access: map[string]upstream.Access{}, Settings: map[string]upstream.Settings{}}
	for _, s := range c.Upstreams {
		d.Discover = append(d.Discover, upstream.Discovered{URL: s.Server(), Join: s.Join, Models: s.Models})
	}
	describeServers(&d, c.Upstreams)
	for _, m := range c.Models {
		if m.Launcher == engines.Upstream {
			d.Models = append(d.Models, upstream.Model{Model: describe(m), URLs: urls(m.Upstreams), Names: servedNames(m)})
			describeServers(&d, m.Upstreams)
		}
	}
	return d
}

// reservedNames returns the names of the configuration, custom resources included. No discovered
// server can take them.
func reservedNames(c *config.Config) map[string]upstream.Reserved {
	all := map[string]upstream.Reserved{}
	for _, m := range c.Models {
		all[m.Name] = upstream.Reserved{Owner: "a model of the configuration", Joinable: m.Launcher != engines.None}
		if m.Launcher == engines.None {
			all[m.Name] = upstream.Reserved{Owner: "a model of the configuration with launcher: none"}
		}
		for _, name := range m.OtherNames() {
			all[name] = upstream.Reserved{Owner: "another name of the model " + m.Name + " of the configuration"}
		}
	}
	for _, p := range c.Pools {
		all[p.Name] = upstream.Reserved{Owner: "a pool of the configuration"}
	}
	return all
}

// servedNames returns the names of a model on servers that know it by another one, by server.
func servedNames(m config.Model) map[string]string {
	var names map[string]string
	for _, s := range m.Upstreams {
		if s.Model == "" {
			continue
		}
		if names == nil {
			names = map[string]string{}
		}
		names[s.Server()] = s.Model
	}
	return names
}

func urls(servers []config.Upstream) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Server())
	}
	return all
}

// describeServers sets how the servers are called and what is known of them, by name. The check of
// the configuration guarantees that a server has the same settings everywhere.
func describeServers(d *upstream.Desired, servers []config.Upstream) {
	for _, s := range servers {
		d.Access[s.Server()] = upstream.Access{API: s.APIPath, Headers: s.RequestHeaders, CA: s.CA, InsecureSkipVerify: s.InsecureSkipVerify}
		d.Settings[s.Server()] = upstream.Settings{Slots: s.Slots, HealthPath: s.Health.Path, ResolveAll: s.Resolve == config.ResolveAll}
	}
}

// admittedModels returns the models for which Sluice only admits requests. Other programs call
// their servers.
func admittedModels(c *config.Config) engines.Part {
	var part engines.Part
	for _, m := range c.Models {
		if m.Launcher == engines.None {
			part.Models = append(part.Models, describe(m))
		}
	}
	return part
}

func describe(m config.Model) engines.Model {
	return engines.Model{Name: m.Name, Aliases: m.OtherNames(), Adapters: m.Adapters, Task: m.Task, Launcher: m.Launcher,
		ServedModel: m.ServedModel, ContextLength: engines.ContextLength(m.Variables)}
}

func describeLaunched(m config.Model, desired int) engines.Model {
	d := describe(m)
	d.Desired, d.MaxReplicas = desired, m.Replicas.Max
	return d
}

// scales returns the bounds on the number of replicas, by model, of all models that Sluice
// launches.
func scales(c *config.Config) map[string]scale.Model {
	all := map[string]scale.Model{}
	for _, m := range c.Models {
		if m.Launched() {
			version, launch := c.Launch(m)
			all[m.Name] = scale.Model{
				Min: m.Replicas.Min, Max: m.Replicas.Max, Cooldown: m.Cooldown,
				PerReplica: version.SlotsOf(launch),
				Target:     scale.Target(m.Scale.Target),
			}
		}
	}
	return all
}

// podModel returns a model that is launched on Kubernetes. owner is its custom resource. It is nil
// for a model of the file.
func podModel(c *config.Config, m config.Model, desired int, owner *kubernetes.Owner) kubernetes.Model {
	version, launch := c.Launch(m)
	launch.Sluice = "sluice" // the name of the program in its image
	return kubernetes.Model{
		Model:        describeLaunched(m, desired),
		Version:      version,
		Launch:       launch,
		Env:          maps.Clone(m.Env),
		Secrets:      podSecrets(m),
		Resources:    needs(m),
		GPUResource:  m.GPUResource,
		Hosts:        m.Hosts,
		Placement:    string(m.Placement),
		Cluster:      m.Cluster,
		Volumes:      podVolumes(c, m),
		Weights:      podWeights(c, m),
		Patches:      m.PodPatches,
		StartTimeout: m.ColdStart.LoadTimeout,
		DrainTimeout: m.Stream.MaxDuration,
		Owner:        owner,
	}
}

// knownEngines returns the engines of the models that Sluice launches, and all engines that a
// server of upstreams may turn out to be.
func knownEngines(c *config.Config) news.Known {
	known := news.Known{Models: map[string]news.Engine{}}
	for _, m := range c.Models {
		if m.Launched() {
			version, _ := c.Launch(m)
			known.Models[m.Name] = news.Engine{Name: m.Engine, Metrics: version.Metrics}
		}
	}
	for _, e := range c.Catalogue() {
		for _, v := range e.Versions {
			known.Engines = append(known.Engines,
				news.Engine{Name: e.Name, Metrics: v.Metrics, UsualSlots: cmp.Or(v.Slots.Usual, v.Slots.Default)})
		}
	}
	return known
}
