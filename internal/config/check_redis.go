package config

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/certificates"
)

// passwordEncoding is the fault of a password that is not written as URLs have it.
const passwordEncoding = "must give the password as user:password@ or :password@, with %%XX for each of / ? # @ and %% in it"

// checkRedis checks the section redis. One without a URL is none.
func (k *checker) checkRedis() {
	r, at := k.config.Redis, path{"redis"}
	if r == nil {
		return
	}
	urlAt, mapping := at, k.isSet(at.field("url"))
	if mapping {
		urlAt = at.field("url")
	}
	switch {
	case r.URL != "":
		k.checkRedisURL(urlAt, r.URL, r.Sentinel != nil)
	case *r == Redis{} && !mapping && k.valid(at):
		k.config.Redis = nil
		return
	case k.valid(urlAt):
		k.faultf(urlAt, "needs url, such as redis://127.0.0.1:6379/0")
	}
	k.checkSentinel(at.field("sentinel"), r.Sentinel)
	k.checkRedisTLS(at, r)
}

// checkSentinel checks the name of the master, and who asks the sentinels.
func (k *checker) checkSentinel(at path, s *Sentinel) {
	switch {
	case s == nil:
	case s.Master == "" && k.isSet(at.field("master")) && k.valid(at.field("master")):
		k.faultf(at.field("master"), "must be the name of the master in the configuration of the sentinels, is empty")
	case s.Username != "" && s.Password == "" && k.valid(at.field("password")):
		k.faultf(at.field("username"), "has no effect without a password: set password, or remove username")
	}
}

// checkRedisTLS reads the files once, so that a wrong one is a fault of the file.
func (k *checker) checkRedisTLS(at path, r *Redis) {
	for _, name := range []string{"cert", "key", "ca", "server_name"} {
		field := at.field(name)
		if k.isSet(field) && k.valid(field) && strings.HasPrefix(r.URL, "redis://") {
			k.faultf(field, "has no effect without TLS: begin url with rediss://, or remove %s", name)
			return
		}
	}
	for field, other := range map[string]string{"cert": "key", "key": "cert"} {
		if k.isSet(at.field(field)) && !k.isSet(at.field(other)) {
			k.faultf(at.field(field), "needs %s as well: a certificate and its key belong together", other)
			return
		}
	}
	if r.CA != "" {
		r.CA = k.absolutePath(r.CA)
		if _, err := readCertificates(r.CA); err != nil {
			k.faultf(at.field("ca"), "cannot be used: %v", err)
		}
	}
	if !k.isSet(at.field("cert")) || !k.valid(at.field("cert")) || !k.valid(at.field("key")) || !k.checkPair(at, &r.Cert, &r.Key) {
		return
	}
	if _, err := certificates.Read(certificates.Files{Cert: r.Cert, Key: r.Key}); err != nil {
		k.faultf(at.field("cert"), "cannot be used: %v", err)
	}
}

// checkRedisURL checks the URL of Redis. It may contain a password, so no message repeats any part
// of it. A URL cannot have several hosts, so each host is checked in a URL of its own. guarded says
// that the hosts are sentinels.
func (k *checker) checkRedisURL(at path, text string, guarded bool) {
	if !k.valid(at) {
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
	if !k.checkRedisHosts(at, scheme, servers, guarded) {
		return
	}
	u, err := url.Parse(scheme + "://" + servers[0] + rest[end:])
	switch {
	case err != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		k.faultf(at, "must end with the host and port, or with the number of a database such as /0")
	case len(servers) > 1 && !guarded && u.Path != "" && u.Path != "/":
		k.faultf(at, "must have no database number with several hosts, because a Redis Cluster has none; hosts of sentinels need sentinel")
	case !validDatabase(u.Path):
		k.faultf(at, "must end with the host and port, or with the number of a database such as /0")
	}
}

// checkRedisHosts checks that each host is valid, and that each sentinel occurs once. The nodes of
// a cluster may have one name, which then stands there twice.
func (k *checker) checkRedisHosts(at path, scheme string, hosts []string, guarded bool) bool {
	seen := map[string]bool{}
	for _, host := range hosts {
		u, err := url.Parse(scheme + "://" + host)
		if err != nil || !validHost(u) {
			k.faultf(at, "must name its hosts as host or host:port, with commas between several")
			return false
		}
		server := strings.ToLower(u.Hostname()) + " " + cmp.Or(u.Port(), "26379")
		if guarded && seen[server] {
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
