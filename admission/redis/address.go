package redis

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const defaultPort = "6379"

// errURL does not quote the URL, which may hold a password.
var errURL = errors.New("redis: the URL must be redis://[user:password@]host:port[,host:port…][/db] or rediss://…")

// parseURL reads a URL with one or more hosts. Package net/url knows only one host, so parseURL
// takes the others out first.
func parseURL(text string) (*client.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errURL
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, path := rest[:end], rest[end:]
	user := ""
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, authority = authority[:at+1], authority[at+1:]
	}
	hosts := strings.Split(authority, ",")
	o := &client.UniversalOptions{IsClusterMode: len(hosts) > 1}
	var u *url.URL
	for _, host := range hosts {
		var err error
		if u, err = url.Parse(scheme + "://" + user + host + path); err != nil || u.Hostname() == "" {
			return nil, errURL
		}
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(u.Hostname(), port))
	}
	return o, setOptions(u, o)
}

// setOptions sets all options but the addresses.
func setOptions(u *url.URL, o *client.UniversalOptions) error {
	switch u.Scheme {
	case "redis":
	case "rediss":
		// Without a ServerName, each connection verifies the name that was dialled.
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		return errURL
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return errURL
	}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	if db := strings.Trim(u.Path, "/"); db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return errURL
		}
		o.DB = n
	}
	if o.IsClusterMode && o.DB != 0 {
		return errors.New("redis: the URL names a database, but a cluster has only database 0")
	}
	return nil
}

// BackgroundTimeout returns the timeout of calls that no request waits for. timeout is
// Config.Timeout. It is 20 times that, because connecting may take several round trips, but at most
// 2 s or four times that, because a stop waits for such calls when Redis hangs.
func BackgroundTimeout(timeout time.Duration) time.Duration {
	return min(20*timeout, max(2*time.Second, 4*timeout))
}

// setTimeouts makes calls fail when their context ends, and disables retries: this package knows
// which calls may be repeated.
func setTimeouts(o *client.UniversalOptions, timeout time.Duration) {
	long := BackgroundTimeout(timeout)
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = long, long, long, long
	o.ContextTimeoutEnabled = true
	o.DisableIdentity = true
	o.FailingTimeoutSeconds = 1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}
