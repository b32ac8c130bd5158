package redis

import (
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// NewClient returns a Redis client for packages that keep other things in the same Redis. url and
// timeout are as in Config. The client repeats no call by itself. It connects when it is used; the
// caller closes it. The error contains no secret.
func NewClient(url string, timeout time.Duration) (client.UniversalClient, error) {
	options, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	setTimeouts(options, timeout)
	// what it would print to stderr is also returned as an error
	client.SetLogger(&logging.VoidLogger{})
	return client.NewUniversalClient(options), nil
}
