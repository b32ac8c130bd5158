package main

import (
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/upstream"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// This file turns the file's data into each part's own.

func authConfig(c *config.Config) authz.Config {
	a := authz.Config{Open: c.Auth.Mode == config.AuthNone}
	for _, t := range c.Tenants {
		tenant := authz.Tenant{Name: t.Name, Models: modelNames(c, t.Models), Priority: string(t.Priority)}
		a.Tenants = append(a.Tenants, authz.TenantConfig{Tenant: tenant, Keys: keys(t, t.Priority)})
		for _, lower := range []config.Priority{config.DefaultPriority, config.Batch} {
			if own := keys(t, lower); lower != t.Priority && len(own) > 0 {
				tenant.Priority = string(lower)
				a.Tenants = append(a.Tenants, authz.TenantConfig{Tenant: tenant, Keys: own})
			}
		}
	}
	return a
}

// keys are the hashes of the tenant's keys that have this priority: the tenant's own, or a lower one.
func keys(t config.Tenant, priority config.Priority) []string {
	var hashes []string
	for _, k := range t.Keys {
		if k.Priority == priority {
			hashes = append(hashes, k.Hash)
		}
	}
	return hashes
}

// modelNames replaces aliases by the names of their models.
func modelNames(c *config.Config, names []string) []string {
	resolved := slices.Clone(names)
	for _, m := range c.Models {
		for i, name := range names {
			if slices.Contains(m.Aliases, name) {
				resolved[i] = m.Name
			}
		}
	}
	return resolved
}

func policy(m config.Model) dispatch.Policy {
	return dispatch.Policy{
		Strategy:             dispatch.Strategy(m.Routing.Strategy),
		VirtualNodes:         m.Routing.VirtualNodesPerReplica,
		LoadFactor:           m.Routing.LoadFactor,
		LoadFloor:            m.Routing.LoadFloor,
		UserMessages:         m.Routing.MaxUserMessagesForCache,
		MaxPerReplica:        int(m.Admission.MaxPerReplica),
		MaxPrefillPerReplica: m.Admission.MaxPrefillPerReplica,
		ColdStart:            m.ColdStartTimeout,
		MaxDuration:          m.Stream.MaxDuration,
		Limits: admission.Limits{
			Weight:          m.Admission.Weight,
			MaxConcurrent:   m.Admission.MaxConcurrentRequests,
			TokensPerMinute: m.Admission.MaxTokensPerMinute,
			MaxQueue:        m.Admission.MaxQueue,
			QueueTimeout:    m.Admission.QueueTimeout,
		},
	}
}

func localModels(c *config.Config, self string) []local.Model {
	var models []local.Model
	for _, m := range c.Models {
		if m.Launcher != engines.Local {
			continue
		}
		version, launch := c.Launch(m)
		launch.Sluice = self
		models = append(models, local.Model{
			Model:        describe(m),
			Version:      version,
			Launch:       launch,
			Env:          maps.Clone(m.Env),
			StartTimeout: m.ColdStartTimeout,
		})
	}
	return models
}

func upstreams(c *config.Config) upstream.Desired {
	d := upstream.Desired{Discover: c.Upstreams}
	for _, m := range c.Models {
		if m.Launcher == engines.Upstream {
			d.Models = append(d.Models, upstream.Model{Model: describe(m), URLs: m.Upstreams})
		}
	}
	return d
}

// admitted are the models that are only admitted here and called elsewhere.
func admitted(c *config.Config) engines.Part {
	var part engines.Part
	for _, m := range c.Models {
		if m.Launcher == engines.None {
			part.Models = append(part.Models, describe(m))
		}
	}
	return part
}

func describe(m config.Model) engines.Model {
	d := engines.Model{Name: m.Name, Aliases: m.Aliases, Task: m.Task, Launcher: m.Launcher}
	if m.Launcher == engines.Local {
		d.Desired = m.Replicas.Min
	}
	return d
}
