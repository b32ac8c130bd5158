package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/certificates"
)

// Server is a Redis, and how gateways connect to it.
type Server struct {
	// URL is redis://[user:password@]host:port[/db], or rediss:// for TLS. Several hosts
	// (host:port,host:port) are nodes of one Redis Cluster, or the sentinels. It is never logged.
	URL string
	// Sentinel says which master the hosts of URL guard; nil: they are no sentinels.
	Sentinel *Sentinel
	// Certificates are the own certificate and the authorities for TLS; nil: there is no
	// certificate, and the authorities are those of the system.
	Certificates *certificates.Follower
	// ServerName is the name for which the certificate of every server is checked. "": the host
	// that was dialled.
	ServerName string

	votes *votes // those of all clients; nil: each client has its own
}

// Follow reads the files of Certificates for the first time. There are none if f names no file. All
// clients of s and its copies ask the sentinels together from now on.
func (s *Server) Follow(f certificates.Files, log *zap.Logger) (err error) {
	s.votes = new(votes)
	if f != (certificates.Files{}) {
		s.Certificates, err = certificates.Follow(f, "redis", log)
	}
	return err
}

// Sentinel names a master that sentinels guard.
type Sentinel struct {
	// Master is the name by which the sentinels know the master.
	Master string
	// Username and Password are for the sentinels alone. "": none is needed.
	Username, Password string
}

// The ports of a URL without one.
const (
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
)

// errURL does not quote the URL, which may hold a password.
var errURL = errors.New("redis: the URL must be redis://[user:password@]host:port[,host:port…][/db] or rediss://…")

// options reads the URL, which has one or more hosts. Package net/url knows only one host, so
// options takes the others out first.
func (s Server) options() (*client.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(s.URL, "://")
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
	o := &client.UniversalOptions{IsClusterMode: len(hosts) > 1 && s.Sentinel == nil}
	port := defaultPort
	if s.Sentinel != nil {
		o.MasterName, o.SentinelUsername, o.SentinelPassword = s.Sentinel.Master, s.Sentinel.Username, s.Sentinel.Password
		port = defaultSentinelPort
	}
	var u *url.URL
	for _, host := range hosts {
		var err error
		if u, err = url.Parse(scheme + "://" + user + host + path); err != nil || u.Hostname() == "" {
			return nil, errURL
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
	}
	if err := s.setOptions(u, o); err != nil {
		return nil, err
	}
	if s.Sentinel != nil {
		cmp.Or(s.votes, new(votes)).count(o)
	}
	return o, nil
}

// setOptions sets the options that are the same for all hosts.
func (s Server) setOptions(u *url.URL, o *client.UniversalOptions) error {
	switch u.Scheme {
	case "redis":
	case "rediss":
		o.Dialer = s.dialTLS
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

// dialTLS connects to a server with the certificates of now. Connections that are open keep theirs.
func (s Server) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if s.Certificates != nil {
		now := s.Certificates.Current(time.Now())
		c.RootCAs = now.CAs
		if now.Pair.Leaf != nil {
			c.Certificates = []tls.Certificate{now.Pair}
		}
	}
	d := &net.Dialer{Timeout: longestDial, KeepAliveConfig: keepAlive}
	return (&tls.Dialer{NetDialer: d, Config: c}).DialContext(ctx, network, address)
}

// longestDial bounds a connection that no call waits for, such as that of a subscription.
const longestDial = 5 * time.Second

// keepAlive notices within 45 s that the host of a silent server is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}

// BackgroundTimeout returns the timeout of calls that no request waits for. timeout is
// Config.Timeout. It is 20 times that, because connecting may take several round trips. It is at
// most 2 s or four times that, because a stop waits for such calls when Redis hangs.
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
