package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/limits"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// This file is about limits that can be changed while Sluice runs: what the file says goes to a limits.Book, and what comes out of it is
// in force.

// makeAdmission makes what decides when requests go on, and what keeps limits: in Redis where the file names one, else in the state
// directory.
func (g *gateway) makeAdmission() error {
	c := g.settings.Config
	life := make([]byte, 8)
	rand.Read(life) // it never fails
	a := admission.Config{MaxQueueBytes: int64(c.MaxQueueBytes), Gateway: hex.EncodeToString(life),
		TaskJournal: filepath.Join(g.dir.Path(), "tasks.jsonl")}
	kept := limits.File(filepath.Join(g.dir.Path(), "limits.json"))
	if c.Redis != "" {
		store, err := redis.New(redis.Config{URL: c.Redis, Gateway: a.Gateway, Lease: c.OrphanGrace + leaseMargin,
			Refresh: g.refreshLimits, Log: g.log})
		if err != nil {
			return err
		}
		g.shared, a.Shared, kept = store, store, store
	}
	g.limits = limits.New(limits.Config{Backend: kept, Log: g.log})
	g.admission = admission.New(a)
	return nil
}

// leaseMargin is how long the leases of a gateway that died outlive the replicas that it started.
const leaseMargin = 15 * time.Second

// fileLimits is what the file says of models and tenants, by the Book's keys. Models that were discovered are there too, with nothing said.
func (g *gateway) fileLimits(c *config.Config) map[string]limits.Values {
	said := map[string]limits.Values{}
	for name, m := range g.fleet.Snapshot().Models {
		if m.Discovered {
			said[modelKey(name)] = nil
		}
	}
	for _, m := range c.Models {
		said[modelKey(m.Name)] = limits.Values{
			limits.Weight:                int64(m.Admission.Weight),
			limits.MaxConcurrentRequests: int64(m.Admission.MaxConcurrentRequests),
			limits.MaxTokensPerMinute:    int64(m.Admission.MaxTokensPerMinute),
		}
	}
	for _, t := range c.Tenants {
		said[tenantKey(t.Name)] = limits.Values{
			limits.Weight:               int64(t.Weight),
			limits.RequestsPerMinute:    int64(t.Limits.RequestsPerMinute),
			limits.TokensPerMinute:      int64(t.Limits.TokensPerMinute),
			limits.MaxConcurrentStreams: int64(t.Limits.MaxConcurrentStreams),
			limits.MaxPrefill:           int64(t.Limits.MaxPrefill),
		}
	}
	return said
}

func modelKey(name string) string  { return "model/" + name }
func tenantKey(name string) string { return "tenant/" + name }

// rules are the file's, with the limits that are in force.
func (g *gateway) rules(c *config.Config) dispatch.Rules {
	r := dispatch.Rules{
		Default:   policy(config.DiscoveredModel()),
		Models:    make(map[string]dispatch.Policy, len(c.Models)),
		Pools:     make(map[string][]string, len(c.Pools)),
		Tenants:   make(map[string]admission.TenantLimits, len(c.Tenants)),
		TaskLease: c.TaskLease,
	}
	for name, m := range g.fleet.Snapshot().Models {
		if m.Discovered {
			r.Models[name] = g.inForce(name, r.Default)
		}
	}
	for _, m := range c.Models {
		r.Models[m.Name] = g.inForce(m.Name, policy(m))
	}
	for _, p := range c.Pools {
		r.Pools[p.Name] = p.Models
	}
	if len(c.Pools) > 0 {
		r.FirstPool = c.Pools[0].Name
	}
	for _, t := range c.Tenants {
		r.Tenants[t.Name] = g.tenantLimits(t)
	}
	return r
}

// inForce is the policy with the limits that hold now.
func (g *gateway) inForce(model string, p dispatch.Policy) dispatch.Policy {
	if e, ok := g.limits.Get(modelKey(model)); ok {
		p.Limits.Weight = int(e.Values[limits.Weight])
		p.Limits.MaxConcurrent = int(e.Values[limits.MaxConcurrentRequests])
		p.Limits.TokensPerMinute = int(e.Values[limits.MaxTokensPerMinute])
	}
	return p
}

func (g *gateway) tenantLimits(t config.Tenant) admission.TenantLimits {
	l := admission.TenantLimits{
		Weight:            t.Weight,
		RequestsPerMinute: t.Limits.RequestsPerMinute,
		TokensPerMinute:   t.Limits.TokensPerMinute,
		MaxConcurrent:     t.Limits.MaxConcurrentStreams,
		MaxPrefill:        t.Limits.MaxPrefill,
		MaxQueueBytes:     int64(t.Limits.MaxQueueBytes),
	}
	if e, ok := g.limits.Get(tenantKey(t.Name)); ok {
		l.Weight = int(e.Values[limits.Weight])
		l.RequestsPerMinute = int(e.Values[limits.RequestsPerMinute])
		l.TokensPerMinute = int(e.Values[limits.TokensPerMinute])
		l.MaxConcurrent = int(e.Values[limits.MaxConcurrentStreams])
		l.MaxPrefill = int(e.Values[limits.MaxPrefill])
	}
	return l
}

// limitsFault is what an operator reads.
func limitsFault(key string, err error) *openai.Error {
	var invalid *limits.Invalid
	switch {
	case errors.As(err, &invalid):
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: invalid.Field, Message: invalid.Field + " " + invalid.Reason + "."}
	case errors.Is(err, limits.ErrUnknown):
		return &openai.Error{Code: openai.CodeInvalidRequest, Status: 404, Message: "There is no " + strings.Replace(key, "/", " ", 1) + "."}
	}
	return openai.Errorf(openai.CodeGatewayUnavailable, "The change could not be kept, and is not in force here: %v", err)
}

// limitsTimeout bounds how long a change of the file or of a limit waits for the place where limits are kept.
const limitsTimeout = 2 * time.Second

// setLimits tells the Book what the file in force says and puts in force what comes out. Where limits are kept may be out of reach: the file's
// hold then, and what is known of the others.
func (g *gateway) setLimits() {
	ctx, cancel := context.WithTimeout(context.Background(), limitsTimeout)
	defer cancel()
	g.reading.Lock()
	defer g.reading.Unlock()
	if err := g.limits.Sync(ctx, g.fileLimits(g.current())); err != nil {
		g.log.Error("limits that were changed at run time may not all be in force", zap.Error(err))
	}
	g.enforce()
}

// refreshLimits takes over what another gateway has changed, and says which version that is.
func (g *gateway) refreshLimits(ctx context.Context) (string, error) {
	if err := g.limits.Reload(ctx); err != nil {
		return "", err
	}
	g.enforce()
	return g.limits.Version(), nil
}

// enforce puts the file and the limits that hold now in force.
func (g *gateway) enforce() {
	g.ruling.Lock()
	defer g.ruling.Unlock()
	g.dispatcher.SetRules(g.rules(g.current()))
}

// patchLimits changes limits at run time, effective on the next request.
func (g *gateway) patchLimits(ctx context.Context, key string, changes map[string]*int64) *openai.Error {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	if _, err := g.limits.Patch(ctx, key, changes); err != nil {
		return limitsFault(key, err)
	}
	g.enforce()
	return nil
}

// current is the configuration in force.
func (g *gateway) current() *config.Config {
	g.pushing.Lock()
	defer g.pushing.Unlock()
	return g.config
}
