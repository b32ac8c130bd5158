package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checker looks at what no single field can tell, and resolves what fields refer to. A field that has a fault already is left
// alone.
type checker struct {
	*decoder
	config *Config
	// servers are the upstreams of all lists so far, by what they are told by.
	servers map[string]knownServer
	// versionsChecked says of engine versions that models name whether they are sound.
	versionsChecked map[string]bool
}

func check(d *decoder, c *Config) {
	k := &checker{decoder: d, config: c, versionsChecked: map[string]bool{}}
	k.listeners()
	k.stateDir()
	k.engines()
	k.registries()
	k.nodes()
	k.kubernetes()
	k.unique(append(k.models(), k.pools()...))
	k.redis(path{"redis"}, c.Redis)
	k.tenants()
	k.moderation()
	k.upstreams(path{"upstreams"}, c.Upstreams)
}

// resolve makes a path of the file absolute. ~/ is the user's home; other paths count from the file's folder.
func (k *checker) resolve(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(k.file), name)
	}
	if absolute, err := filepath.Abs(name); err == nil {
		return absolute
	}
	return name
}

func (k *checker) stateDir() {
	if k.config.StateDir == "" {
		k.config.StateDir = defaultStateDir()
		return
	}
	k.config.StateDir = k.resolve(k.config.StateDir)
}

func defaultStateDir() string {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "sluice")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "sluice")
	}
	return "/var/lib/sluice"
}

// listeners checks the two addresses, and that nobody but this host gets in without a key.
func (k *checker) listeners() {
	listen, ok := k.address(path{"listen"}, &k.config.Listen)
	admin, ok2 := k.address(path{"admin"}, &k.config.Admin)
	k.control(listen, admin)
	k.peers(listen, admin)
	if !ok || !ok2 {
		return
	}
	if listen.Port() == admin.Port() && (listen.Addr() == admin.Addr() || listen.Addr().IsUnspecified() || admin.Addr().IsUnspecified()) {
		k.fault(path{"admin"}, "%s is taken by listen (%s): choose another port", admin, listen)
	}
	if k.config.Auth.Mode != AuthNone {
		return
	}
	for name, address := range map[string]netip.AddrPort{"listen": listen, "admin": admin} {
		if !address.Addr().IsLoopback() {
			k.fault(path{"auth", "mode"}, "none lets everybody in, so every listener must be on loopback, and %s is %s: set %s: 127.0.0.1:%d, or mode: keys",
				name, address, name, address.Port())
		}
	}
}

// address reads host:port and writes it back with an IP address for a host.
func (k *checker) address(at path, text *string) (netip.AddrPort, bool) {
	if !k.sound(at) {
		return netip.AddrPort{}, false
	}
	host, port, found := cutLast(*text, ":")
	switch {
	case host == "localhost":
		host = "127.0.0.1"
	case host == "" && found:
		host = "0.0.0.0"
	}
	address, err := netip.ParseAddrPort(host + ":" + port)
	if err != nil || address.Port() == 0 || address.Addr().Zone() != "" {
		k.fault(at, "must be host:port with an IP address for a host, such as 127.0.0.1:8080")
		return netip.AddrPort{}, false
	}
	*text = address.String()
	return address, true
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// unique reports every name that is there twice. names come with their paths, in the order of the file.
func (k *checker) unique(names []named) {
	first := map[string]path{}
	for _, n := range names {
		if n.name == "" || !k.sound(n.at) {
			continue
		}
		if other, taken := first[n.name]; taken {
			k.fault(n.at, "%s is taken by %s%s", shown(n.name), k.display(other), strings.TrimSuffix(k.onLine(other), ","))
			continue
		}
		first[n.name] = n.at
	}
}

// repeated reports items that are there twice, without showing them.
func (k *checker) repeated(items []named, what string) {
	first := map[string]path{}
	for _, n := range items {
		if other, taken := first[n.name]; taken {
			k.fault(n.at, "the same %s is%s at %s", what, k.onLine(other), k.display(other))
			continue
		}
		first[n.name] = n.at
	}
}

// named is a text from the file that must be there only once.
type named struct {
	name string
	at   path
}

// name checks the name of a model, pool, tenant, engine or registry: it appears in URLs, file names and metrics.
func (k *checker) name(at path, name string) {
	if !k.sound(at) || name == "" && !k.given(at) {
		return
	}
	const longest = 200
	first := strings.Trim(name[:min(1, len(name))], plainCharacters[:62])
	steps := strings.Split(name, "/")
	if name == "" || len(name) > longest || first != "" || strings.Trim(name, plainCharacters) != "" ||
		slices.Contains(steps, "") || slices.Contains(steps, ".") || slices.Contains(steps, "..") {
		k.fault(at, "must be a name: a letter or digit, then letters, digits and _ - . / : @ +, at most %d in all", longest)
	}
}
