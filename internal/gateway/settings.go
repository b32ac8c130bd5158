package gateway

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/config"
)

// settings holds the configuration in force.
type settings struct {
	// committed is the file together with the custom resources.
	committed
	// applying is held while a configuration is put in force, so that two changes never mix.
	applying sync.Mutex
	// file is the file in force, without the custom resources. Guarded by applying.
	file *config.Config
}

// committed is the configuration that one part runs under. Only the commit of that part stores it.
// A part that reads it, and not the configuration in force, never runs under a configuration that a
// later part refuses: during a commit the parts may differ.
type committed struct {
	// first is the configuration until the first commit.
	first   *config.Config
	current atomic.Pointer[config.Config]
}

// config returns the configuration of the part.
func (m *committed) config() *config.Config {
	return cmp.Or(m.current.Load(), m.first)
}

// config returns the configuration in force. Before the first was applied, that is the one which
// the gateway was started with.
func (g *Gateway) config() *config.Config { return g.settings.config() }

// reload puts the file in force. It is the watcher's Apply.
func (g *Gateway) reload(file *config.Config) error {
	scaled := len(g.launchers.currentOverrides()) > 0
	if err := g.applyFile(file); err != nil {
		return err
	}
	if scaled {
		g.operator.save() // the launchers may have ended the scales of operators
	}
	g.metrics.ConfigReloaded(true)
	g.log.Info("configuration reloaded",
		zap.Strings("waiting_for_the_next_start", g.options.Config.NeedsRestart(file)))
	return nil
}

// reapply puts the file in force again, together with the custom resources as they are now.
func (g *Gateway) reapply() error { return g.applyFile(nil) }

// applyFile puts a file in force together with the custom resources as they are now. A nil file
// means the file in force.
func (g *Gateway) applyFile(file *config.Config) error {
	g.settings.applying.Lock()
	defer g.settings.applying.Unlock()
	file = cmp.Or(file, g.settings.file)
	merged, err := g.launchers.resources.merge(file)
	if err != nil {
		return err
	}
	if err := g.applyLocked(merged); err != nil {
		return err
	}
	g.settings.file = file
	return nil
}

// applyFirst puts the configuration in force that the gateway was started with. The custom
// resources are not known yet.
func (g *Gateway) applyFirst() error {
	g.settings.applying.Lock()
	defer g.settings.applying.Unlock()
	return g.applyLocked(g.options.Config)
}

// applyLocked has all parts check c and then run under it. If a part refuses, all parts go on with
// the configuration that was in force. settings.applying is held.
func (g *Gateway) applyLocked(c *config.Config) error {
	next, err := newPlan(g.parts, c)
	if err != nil {
		return err
	}
	var previous *plan
	if old := g.settings.current.Load(); old != nil {
		if previous, err = newPlan(g.parts, old); err != nil {
			return err
		}
	}
	if err := next.commit(previous); err != nil {
		return err
	}
	for _, warning := range c.Warnings() {
		g.log.Warn(warning)
	}
	return nil
}

// configParts lists the parts that run under a configuration, in the order in which they take a new
// one. Who may call and what is limited comes before what Envoy serves: Envoy must never serve a
// model for which the other parts have no rules. The launchers come last, because they cannot take
// back the end of a replica when a later part refuses.
func (g *Gateway) configParts() []part {
	return []part{
		{"authentication", g.prepareAuth},
		{"admin access", g.prepareAccess},
		{"configuration", func(c *config.Config) (func() error, error) {
			return done(func() { g.settings.current.Store(c); g.keys.apply() }), nil
		}},
		{"models without replicas", func(c *config.Config) (func() error, error) {
			models := admittedModels(c)
			return done(func() { g.fleet.Set("none", models) }), nil
		}},
		{"limits", func(c *config.Config) (func() error, error) {
			rules := g.limits.rules(c)
			return done(func() { g.limits.commit(c) }), rules.Check()
		}},
		{"prices", func(c *config.Config) (func() error, error) {
			prices := modelPrices(c)
			return done(func() { g.usage.prices.Store(&prices) }), nil
		}},
		{"streams", func(c *config.Config) (func() error, error) {
			rules := streamRules(c)
			return done(func() { g.streams.relay.SetRules(rules) }), nil
		}},
		{"engine news", func(c *config.Config) (func() error, error) {
			known := knownEngines(c)
			return done(func() { g.news.Set(known) }), nil
		}},
		{"Envoy", g.envoy.prepare},
		{"launchers", g.launchers.prepare},
	}
}

// prepareAuth checks the keys and tenants of c. The commit replaces those in force. A file may move
// listen to loopback and admit everybody there. It is refused until the restart that moves listen.
func (g *Gateway) prepareAuth(c *config.Config) (func() error, error) {
	listen := g.options.Config.Listen
	if c.Auth.Mode == config.AuthNone && !c.Auth.Public && listen != c.Listen && !onLoopback(listen) {
		return nil, fmt.Errorf("auth.mode none admits everybody, and the gateway listens at %s until it is restarted", listen)
	}
	next, tokens := authConfig(c), tokensConfig(c)
	if tokens != nil {
		next.Tokens = g.tokens
	}
	if err := new(authz.Authenticator).Set(next); err != nil {
		return nil, err
	}
	return func() error {
		g.tokens.Set(tokens)
		return g.auth.Set(next)
	}, nil
}

// done makes a commit of a function that cannot fail.
func done(f func()) func() error {
	return func() error { f(); return nil }
}
