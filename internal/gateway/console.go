package gateway

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/console"
)

// announceInterval is how often announce looks whether the gateway is ready.
const announceInterval = 50 * time.Millisecond

// usualEnvoyStart is how long a start of Envoy takes at most on a machine that is not overloaded.
const usualEnvoyStart = 10 * time.Second

// announce logs once that the gateway takes requests, and once that all models have the replicas
// that they need.
func (g *Gateway) announce(ctx context.Context) error {
	tick := time.NewTicker(announceInterval)
	defer tick.Stop()
	serving := false
	for {
		if !serving && len(g.notReady()) == 0 {
			serving = true
			c := g.options.Config
			g.log.Info("serving", zap.String("api", c.Listen), zap.String("admin", c.Admin), zap.Duration("after", time.Since(g.started)))
		}
		if serving && !slices.ContainsFunc(g.modelStandings(), func(s modelStanding) bool { return s.usable < s.needed }) {
			g.log.Info("all models ready", zap.Duration("after", time.Since(g.started)))
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// consoleState returns what the console shows.
func (g *Gateway) consoleState() console.State {
	c := g.options.Config
	missing := g.notReady()
	scheme := "http"
	if c.TLS != nil {
		scheme = "https"
	}
	s := console.State{
		Title: strings.TrimSpace("Sluice "+g.options.Version) + ", " + cmp.Or(c.File, "without a configuration file"),
		API:   scheme + "://" + adminclient.DialAddress(c.Listen) + "/v1", Page: "http://" + adminclient.DialAddress(c.Admin) + "/",
		Serving: len(missing) == 0, Waiting: g.awaited(missing),
	}
	if until := g.drainUntil.Load(); until != nil {
		s.Draining, s.Until = true, *until
		s.Requests, s.Streams = g.requests.Running()
		for _, p := range g.carried.Predecessors() {
			s.Requests += p.Requests
		}
		return s
	}
	pending := g.launchers.nodes.Pending()
	for _, m := range g.modelStandings() {
		s.Models = append(s.Models, consoleModel(m, pending[m.model.Name]))
	}
	return s
}

// awaited says what the gateway waits for before it takes requests.
func (g *Gateway) awaited(missing []string) string {
	if time.Since(g.started) < usualEnvoyStart && len(missing) > 0 && g.envoy.process != nil {
		return "Envoy starts"
	}
	return strings.Join(missing, ", ")
}

// consoleModel returns what the console shows of a model. pending says why a replica fits nowhere.
func consoleModel(m modelStanding, pending string) console.Model {
	shown := console.Model{Name: m.model.Name, Ready: m.usable, Needed: m.needed, Fault: pending}
	for i := range m.model.Replicas {
		switch r := &m.model.Replicas[i]; {
		case r.State == engines.Failed && m.usable < m.needed:
			shown.Fault = r.ID + ": " + r.Reason
		case r.State == engines.Starting && (shown.Progress == "" || r.Fetch.Total > 0):
			shown.Progress = r.Reason
		}
	}
	return shown
}

// modelStanding is how many usable replicas a model has, and how many it needs now.
type modelStanding struct {
	model          *engines.ModelSnapshot
	usable, needed int
}

// modelStandings returns the standing of all models, sorted by name.
func (g *Gateway) modelStandings() []modelStanding {
	models := g.fleet.Snapshot().Models
	bounds := scales(g.launchers.withOverrides(g.config()))
	all := make([]modelStanding, 0, len(models))
	for _, name := range slices.Sorted(maps.Keys(models)) {
		s := modelStanding{model: models[name], needed: needed(models[name], bounds[name].Min)}
		if v, ok := g.dispatcher.View(name); ok {
			s.usable = len(v.Loads)
		}
		if s.model.Launcher == engines.Upstream {
			s.needed = 1
		}
		all = append(all, s)
	}
	return all
}
