package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/envoy/filter"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/frames"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/xds"
)

// ownFilter is Sluice's own filter inside Envoy, and the server that it asks.
type ownFilter struct {
	server *frames.Server
	// path is the file that Envoy's listener loads. Empty: Envoy does not have the filter. It does
	// not change while the Envoy runs, also not over a restart of the gateway.
	path string
	// fault says why Envoy does not have the filter. It is nil if this program has none.
	fault error
	// otherVersion means that the filter of the running Envoy speaks another version of the
	// protocol.
	otherVersion atomic.Bool
}

// filterSocket is where the filter asks the gateway.
func filterSocket(dir *process.Dir) string { return dir.Socket("filter.sock") }

// makeFilter finds out whether Envoy has the filter, or can have it if it is still to be started.
func (g *Gateway) makeFilter(ctx context.Context) {
	f := &g.filter
	f.server = frames.New(g.decisions.Decider)
	f.server.OnEntry = g.observe
	f.server.OnVersion = func(version uint32) {
		if !f.otherVersion.Swap(true) {
			g.log.Warn("filter of the running Envoy is of another version, ext_proc is used",
				zap.Uint32("version", version), zap.Int("own", frames.Version))
			go g.pushEnvoy()
		}
	}
	if g.options.Envoy == "" {
		return
	}
	defer func() { g.envoy.process.SetFilter(f.path) }()
	if path, running := envoy.RunningFilter(g.dir); running {
		f.path = path
		return
	}
	content, ok := filter.File(runtime.GOARCH)
	if !ok {
		return
	}
	if f.path, f.fault = g.installFilter(ctx, content); f.fault != nil {
		g.log.Warn("Envoy cannot use the filter, ext_proc is used", zap.Error(f.fault))
	}
}

// installFilter writes the filter into the state directory and has Envoy load it once.
func (g *Gateway) installFilter(ctx context.Context, content []byte) (path string, err error) {
	version, err := envoy.Version(ctx, g.options.Envoy)
	if err != nil {
		return "", err
	}
	if version != filter.EnvoyVersion {
		return "", fmt.Errorf("the filter is made for Envoy %s, and this is Envoy %s", filter.EnvoyVersion, version)
	}
	sum := sha256.Sum256(content)
	name := "filter-" + hex.EncodeToString(sum[:6]) + ".so"
	path = filepath.Join(g.dir.Path(), name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := g.dir.WriteFile(name, content); err != nil {
			return "", err
		}
	}
	if err := envoy.CheckFilter(ctx, g.options.Envoy, g.dir.Path(), path); err != nil {
		return "", err
	}
	return path, nil
}

// pushEnvoy sends Envoy its configuration once more.
func (g *Gateway) pushEnvoy() {
	if err := g.envoy.push(); err != nil {
		g.log.Error("configuration for Envoy not made", zap.Error(err))
	}
}

// filterVariable is the name of an environment variable that takes the place of auto.
const filterVariable = "SLUICE_FILTER"

// wantedFilter returns what is to ask the gateway.
func wantedFilter(c *config.Config) config.EnvoyFilter {
	if own := config.EnvoyFilter(os.Getenv(filterVariable)); own != "" && c.Envoy.Filter == config.FilterAuto {
		return own
	}
	return c.Envoy.Filter
}

// of returns what Envoy is told of the filter.
func (f *ownFilter) of(c *config.Config, dir *process.Dir) xds.Filter {
	if f.path == "" {
		return xds.Filter{}
	}
	return xds.Filter{Path: f.path, Socket: filterSocket(dir), Decides: wantedFilter(c) != config.FilterExtProc && !f.otherVersion.Load()}
}

// conditions tells why the filter is not used, if it should be.
func (f *ownFilter) conditions(c *config.Config) []condition.Condition {
	wanted := wantedFilter(c)
	reason, message := "", ""
	switch {
	case wanted == config.FilterExtProc:
	case f.otherVersion.Load():
		reason, message = "AnotherVersion", "The filter of the running Envoy is of another version of Sluice. It is replaced when both Sluice and Envoy are started again."
	case f.fault != nil:
		reason, message = "Refused", sentence(f.fault.Error())+"."
	case f.path == "" && wanted == config.FilterModule:
		reason, message = "Missing", "The running Envoy, or this program, does not have the filter."
	}
	if reason == "" {
		return nil
	}
	return []condition.Condition{condition.Fault(condition.FilterUnavailable, "", reason, message)}
}
