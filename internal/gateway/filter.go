package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

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
	log *zap.Logger
	dir *process.Dir
	// envoy is the path of the Envoy that the gateway runs; empty: someone else runs it.
	envoy string
	// push sends Envoy its configuration once more.
	push   func() error
	server *frames.Server
	// inEnvoy says which filter Envoy's listener loads. It is nil until that is known. A running
	// Envoy keeps its filter, also over a restart of the gateway. A new Envoy may have another one.
	inEnvoy atomic.Pointer[loadedFilter]
	// otherVersion means that the filter of the running Envoy speaks another version of the
	// protocol.
	otherVersion atomic.Bool
	// checked is the filter of a new Envoy of the version checkedWith. Only the goroutine that runs
	// the Envoy uses both.
	checked     *loadedFilter
	checkedWith string
	// starts are when Envoys with the filter were started lately. Only pathFor uses it.
	starts []time.Time
}

// An Envoy that has ended more than maxEnds times within endsWithin with the filter is started
// without it, because the filter may be the cause.
const (
	maxEnds    = 3
	endsWithin = 10 * time.Minute
)

// started notes the start of an Envoy with the filter. The error says that it has to do without.
func (f *ownFilter) started(now time.Time) error {
	f.starts = slices.DeleteFunc(f.starts, func(t time.Time) bool { return now.Sub(t) >= endsWithin })
	if len(f.starts) > maxEnds {
		return fmt.Errorf("Envoy has ended %d times within %v with the filter; its log says why", //nolint:staticcheck // a name begins it
			len(f.starts), endsWithin)
	}
	f.starts = append(f.starts, now)
	return nil
}

type loadedFilter struct {
	// path is the file that Envoy's listener loads. Empty: Envoy does not have the filter.
	path string
	// fault says why Envoy does not have the filter. It is nil if this program has none.
	fault error
}

// load returns the filter of Envoy, which is the zero value until that is known.
func (f *ownFilter) load() loadedFilter {
	if l := f.inEnvoy.Load(); l != nil {
		return *l
	}
	return loadedFilter{}
}

// filterSocket is where the filter asks the gateway.
func filterSocket(dir *process.Dir) string { return dir.Socket("filter.sock") }

// inletsSocket is where the gateway answers the filter.
func inletsSocket(dir *process.Dir) string { return dir.Socket("inlets.sock") }

// makeFilter makes the server that the filter asks, and finds out whether a running Envoy has the
// filter.
func (g *Gateway) makeFilter() {
	f := g.filter
	f.server = frames.New(g.decisions.Decider)
	f.server.Inlets = f.inletsOf
	f.server.Nameless = func() bool { return !g.config().ReplicaHeader }
	f.server.OnEntry = g.observe
	f.server.OnFirst = g.requests.FirstToken
	f.server.OnVersion = func(pid int, version uint32) {
		// What is sent to Envoy is not for its predecessors.
		if !instanceOf(f.dir, pid).Predecessor && f.foundOtherVersion(zap.Uint32("version", version)) {
			go f.pushAgain()
		}
	}
	if f.envoy == "" {
		return
	}
	path, running := envoy.RunningFilter(f.dir)
	if !running {
		return
	}
	f.inEnvoy.Store(&loadedFilter{path: path})
	if path != "" && !hasOwnVersion(path) {
		f.foundOtherVersion(zap.String("file", path))
	}
}

// inletsOf returns where the workers of an Envoy take answers. A predecessor has closed its
// listener for them, and keeps the connections that it has.
func (f *ownFilter) inletsOf(pid int) string {
	if i := instanceOf(f.dir, pid); !i.Predecessor {
		return i.Inlets
	}
	return ""
}

// instanceOf returns the Envoy of a process. If the state directory knows none, someone else runs
// it, with the bootstrap of the directory.
func instanceOf(dir *process.Dir, pid int) envoy.Instance {
	for _, i := range runningEnvoys(dir) {
		if i.PID == pid {
			return i
		}
	}
	return envoy.Instance{PID: pid, Inlets: inletsSocket(dir)}
}

// foundOtherVersion notes that the filter of the running Envoy speaks another version of the
// protocol, as the field shows. It reports whether that is new.
func (f *ownFilter) foundOtherVersion(how zap.Field) bool {
	if f.otherVersion.Swap(true) {
		return false
	}
	f.log.Warn("filter of the running Envoy is of another version, ext_proc is used", how, zap.Int("own", frames.Version))
	return true
}

// filterName is the name of the file of a filter. It says the version of the protocol, because the
// listener comes before the first word of the filter.
func filterName(content []byte) string {
	sum := sha256.Sum256(content)
	return fmt.Sprintf("filter-%d-%x.so", frames.Version, sum[:6])
}

// hasOwnVersion reports whether a filter speaks the protocol of this program, by the name of its
// file.
func hasOwnVersion(path string) bool {
	return strings.HasPrefix(filepath.Base(path), fmt.Sprintf("filter-%d-", frames.Version))
}

// pathFor returns the path of the filter for a new Envoy of a version, before its start. Envoy is
// told of the filter by xDS.
func (f *ownFilter) pathFor(ctx context.Context, version string) (path string) {
	if f.checked == nil || f.checkedWith != version || !isThere(f.checked.path) {
		f.checked, f.checkedWith = f.prepare(ctx, version), version
	}
	next := f.checked
	if next.path != "" {
		if err := f.started(time.Now()); err != nil {
			f.log.Error("Envoy is started without the filter, ext_proc is used", zap.Error(err))
			next = &loadedFilter{fault: err}
		}
	}
	f.otherVersion.Store(false)
	f.inEnvoy.Store(next)
	f.pushAgain()
	return next.path
}

// keeps reports whether a running Envoy of a version may keep the filter that it was started
// with. It may if this program has no other one that Envoy can load.
func (f *ownFilter) keeps(ctx context.Context, version, path string) bool {
	content, ok := filter.File(runtime.GOARCH)
	if !ok || version != filter.EnvoyVersion || filepath.Base(path) == filterName(content) {
		return true
	}
	f.checked, f.checkedWith = f.prepare(ctx, version), version
	return f.checked.path == ""
}

// isThere reports whether there is a file. What cleans directories may have removed a filter since
// an earlier Envoy has loaded it.
func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// prepare installs the filter of this program, if it has one.
func (f *ownFilter) prepare(ctx context.Context, version string) *loadedFilter {
	content, ok := filter.File(runtime.GOARCH)
	if !ok {
		return &loadedFilter{}
	}
	path, err := f.install(ctx, version, content)
	if err != nil && ctx.Err() == nil {
		f.log.Warn("Envoy cannot use the filter, ext_proc is used", zap.Error(err))
	}
	return &loadedFilter{path, err}
}

// install writes the filter into the state directory and has an Envoy of the version load it
// once. It removes the filters of Envoys that have ended.
func (f *ownFilter) install(ctx context.Context, version string, content []byte) (path string, err error) {
	if version != filter.EnvoyVersion {
		return "", fmt.Errorf("the filter is made for Envoy %s, and this is Envoy %s", filter.EnvoyVersion, version)
	}
	name := filterName(content)
	path = filepath.Join(f.dir.Path(), name)
	if found, err := os.ReadFile(path); err != nil || !bytes.Equal(found, content) {
		if err := f.dir.WriteFile(name, content); err != nil {
			return "", err
		}
	}
	if err := envoy.CheckFilter(ctx, f.envoy, f.dir.Path(), path); err != nil {
		return "", err
	}
	f.removeOld(name)
	return path, nil
}

// removeOld removes the filters of the state directory but one and those of running Envoys.
func (f *ownFilter) removeOld(but string) {
	kept := map[string]bool{but: true}
	for _, i := range runningEnvoys(f.dir) {
		kept[filepath.Base(i.Filter)] = true
	}
	entries, err := os.ReadDir(f.dir.Path())
	for _, e := range entries {
		if old, _ := filepath.Match("filter-*.so", e.Name()); old && !kept[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(f.dir.Path(), e.Name())))
		}
	}
	if err != nil {
		f.log.Warn("filter of an earlier Envoy not removed", zap.Error(err))
	}
}

// pushAgain sends Envoy its configuration once more.
func (f *ownFilter) pushAgain() {
	if err := f.push(); err != nil {
		f.log.Error("configuration for Envoy not made", zap.Error(err))
	}
}

// filterVariable is the name of an environment variable that takes the place of auto.
const filterVariable = "SLUICE_FILTER"

// CheckFilterVariable returns an error if the environment variable SLUICE_FILTER has a value that
// envoy.filter cannot have.
func CheckFilterVariable() error {
	switch v := os.Getenv(filterVariable); config.EnvoyFilter(v) {
	case "", config.FilterAuto, config.FilterModule, config.FilterExtProc:
		return nil
	default:
		return fmt.Errorf("environment variable %s: %q is none of: %s, %s, %s", filterVariable, v,
			config.FilterAuto, config.FilterModule, config.FilterExtProc)
	}
}

// WantedFilter returns what is to ask the gateway: envoy.filter of the configuration, or what the
// environment variable SLUICE_FILTER says in the place of auto. CheckFilterVariable has accepted
// the variable.
func WantedFilter(c *config.Config) config.EnvoyFilter {
	if own := config.EnvoyFilter(os.Getenv(filterVariable)); own != "" && c.Envoy.Filter == config.FilterAuto {
		return own
	}
	return c.Envoy.Filter
}

// of returns what Envoy is told of the filter.
func (f *ownFilter) of(c *config.Config) xds.Filter {
	path := f.load().path
	if path == "" {
		return xds.Filter{}
	}
	return xds.Filter{Path: path, Socket: filterSocket(f.dir), Bare: !hasOwnVersion(path), Decides: f.asks(c) == config.FilterModule}
}

// asks returns what asks the gateway about each request: config.FilterModule or
// config.FilterExtProc.
func (f *ownFilter) asks(c *config.Config) config.EnvoyFilter {
	if f.load().path == "" || WantedFilter(c) == config.FilterExtProc || f.otherVersion.Load() {
		return config.FilterExtProc
	}
	return config.FilterModule
}

// conditions tells why the filter is not used, if it should be.
func (f *ownFilter) conditions(c *config.Config) []condition.Condition {
	wanted, loaded := WantedFilter(c), f.inEnvoy.Load()
	reason, message := "", ""
	switch {
	case f.envoy == "" && c.Envoy.Filter == config.FilterModule:
		reason, message = "NotOwnEnvoy", "Envoy uses ext_proc, because this gateway does not run it. Only an Envoy of sluice up has the filter."
	case wanted == config.FilterExtProc || loaded == nil:
	case f.otherVersion.Load():
		reason, message = "AnotherVersion", "The filter of the running Envoy is of another version of Sluice. It is replaced when Envoy is started again."
	case loaded.fault != nil:
		reason, message = "Refused", sentence(loaded.fault.Error())+"."
	case loaded.path == "" && wanted == config.FilterModule:
		reason, message = "Missing", "The running Envoy, or this program, does not have the filter."
	}
	if reason == "" {
		return nil
	}
	return []condition.Condition{condition.Fault(condition.FilterUnavailable, "", reason, message)}
}
