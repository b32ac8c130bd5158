package config

import (
	"net/url"
	"strconv"
	"strings"
)

// redis checks the URL of Redis. It may hold a password, so no message repeats any of it. As no URL has several hosts, each is looked at
// in a URL of its own.
func (k *checker) redis(at path, text string) {
	if text == "" || !k.sound(at) {
		return
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found || scheme != "redis" && scheme != "rediss" {
		k.fault(at, "must be a URL such as redis://127.0.0.1:6379/0, or rediss:// for TLS")
		return
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	user, hosts, given := cutLast(rest[:end], "@")
	if !given {
		user, hosts = "", user
	}
	if given && !validUser(user) {
		k.fault(at, "must give a password as user:password@ or :password@, with %%XX for each of / ? # @ and %% in it")
	}
	servers := strings.Split(hosts, ",")
	if !k.redisHosts(at, scheme, servers) {
		return
	}
	u, err := url.Parse(scheme + "://" + servers[0] + rest[end:])
	switch {
	case err != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.fault(at, "must end with the host and port, or with the number of a database such as /0")
	case len(servers) > 1 && u.Path != "" && u.Path != "/":
		k.fault(at, "must have no database with several hosts, as a cluster has none")
	case !validDatabase(u.Path):
		k.fault(at, "must end with the host and port, or with the number of a database such as /0")
	}
}

// redisHosts checks that each host is one, and there once.
func (k *checker) redisHosts(at path, scheme string, hosts []string) bool {
	seen := map[string]bool{}
	for _, host := range hosts {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || !validHost(u) {
			k.fault(at, "must name its hosts as host or host:port, several with commas between them")
			return false
		}
		port := u.Port()
		if port == "" {
			port = "6379"
		}
		server := strings.ToLower(u.Hostname()) + " " + port
		if seen[server] {
			k.fault(at, "must name each host once")
			return false
		}
		seen[server] = true
	}
	return true
}

// validUser tells whether text is user:password of a URL. A user without a password is most likely a password in the wrong place, and a
// second @ a password that is not written as it must be, or one for each host.
func validUser(text string) bool {
	u, err := url.Parse("redis://" + text + "@h")
	if err != nil || strings.Contains(text, "@") {
		return false
	}
	password, given := u.User.Password()
	return given && password != ""
}

// validDatabase tells whether the path of a URL is that of a database, or none.
func validDatabase(name string) bool {
	number := strings.TrimPrefix(name, "/")
	if number == "" {
		return true
	}
	n, err := strconv.ParseUint(number, 10, 31)
	return err == nil && strconv.FormatUint(n, 10) == number
}
