package redis

import (
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// NewClient returns a client of its own for others who keep something in the same Redis. It takes the URL, and means the timeout, as Config
// does, and repeats no call by itself. It connects when it is used; the caller closes it. The error names no secret.
func NewClient(url string, timeout time.Duration) (client.UniversalClient, error) {
	options, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	setTimeouts(options, timeout)
	client.SetLogger(&logging.VoidLogger{}) // what it would print to stderr comes back as an error too
	return client.NewUniversalClient(options), nil
}
