package config

import (
	"net/url"
	"strconv"
	"strings"
)

// passwordEncoding is the fault of a password that is not written as URLs have it.
const passwordEncoding = "must give the password as user:password@ or :password@, with %%XX for each of / ? # @ and %% in it"

// checkRedis checks the URL of Redis. It may contain a password, so no message repeats any part of
// it. A URL cannot have several hosts, so each host is checked in a URL of its own.
func (k *checker) checkRedis(at path, text string) {
	if text == "" || !k.valid(at) {
		return
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found || scheme != "redis" && scheme != "rediss" {
		k.faultf(at, "must be a URL such as redis://127.0.0.1:6379/0, or rediss:// for TLS")
		return
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if strings.Contains(rest[end:], "@") {
		k.faultf(at, passwordEncoding)
		return
	}
	user, hosts, given := cutLast(rest[:end], "@")
	if !given {
		user, hosts = "", user
	}
	if given && !validUserInfo(user) {
		k.faultf(at, passwordEncoding)
	}
	servers := strings.Split(hosts, ",")
	if !k.checkRedisHosts(at, scheme, servers) {
		return
	}
	u, err := url.Parse(scheme + "://" + servers[0] + rest[end:])
	switch {
	case err != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.faultf(at, "must end with the host and port, or with the number of a database such as /0")
	case len(servers) > 1 && u.Path != "" && u.Path != "/":
		k.faultf(at, "must have no database number with several hosts, because a Redis Cluster has none")
	case !validDatabase(u.Path):
		k.faultf(at, "must end with the host and port, or with the number of a database such as /0")
	}
}

// checkRedisHosts checks that each host is valid and occurs once.
func (k *checker) checkRedisHosts(at path, scheme string, hosts []string) bool {
	seen := map[string]bool{}
	for _, host := range hosts {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || !validHost(u) {
			k.faultf(at, "must name its hosts as host or host:port, with commas between several")
			return false
		}
		port := u.Port()
		if port == "" {
			port = "6379"
		}
		server := strings.ToLower(u.Hostname()) + " " + port
		if seen[server] {
			k.faultf(at, "must name each host once")
			return false
		}
		seen[server] = true
	}
	return true
}

// validUserInfo tells whether text is user:password of a URL. A user without a password is most
// likely a password in the wrong place. A second @ is most likely a password that is not
// percent-encoded, or a password for each host.
func validUserInfo(text string) bool {
	u, err := url.Parse("redis://" + text + "@h")
	if err != nil || strings.Contains(text, "@") {
		return false
	}
	password, given := u.User.Password()
	return given && password != ""
}

// validDatabase tells whether the path of a URL is empty or the number of a database.
func validDatabase(name string) bool {
	number := strings.TrimPrefix(name, "/")
	if number == "" {
		return true
	}
	n, err := strconv.ParseUint(number, 10, 31)
	return err == nil && strconv.FormatUint(n, 10) == number
}
